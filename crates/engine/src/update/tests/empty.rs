//! Indexes that are built of no rows or become empty, with crashes at every write and sync.

use super::*;

fn calls() -> Vec<Call> {
    vec![
        Call::Insert(vec![100, 101, 102], 1),
        Call::Delete(vec![101]),
        Call::Upsert(vec![102, 200], 2),
        Call::Delete(vec![100, 102, 200]),
        Call::Compact,
        Call::Insert(vec![7, 8], 3),
        Call::Set(vec![(7, 3)]),
        Call::Delete(vec![7, 8]),
        Call::Insert(vec![8, 9], 4),
        Call::Compact,
        Call::Delete(vec![8, 9]),
        Call::Flush,
        Call::Upsert(vec![8, 0], 5),
        Call::Delete(vec![0, 8]),
        Call::Compact,
        Call::Compact,
        Call::Insert(vec![0], 6),
    ]
}

fn emptied() -> Vec<Call> {
    let all: Vec<u64> = (0..BASE).collect();
    let again = [
        Call::Delete(all.clone()),
        Call::Insert(all.clone(), 1),
        Call::Delete(all),
    ];
    again.into_iter().chain(calls()).collect()
}

fn of_nothing(case: Case, folder: &Path) -> SimVolume {
    base_of(case, 0, folder)
}

#[test]
fn an_index_of_nothing_is_what_the_model_is() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let volume: Arc<dyn Volume> = Arc::new(of_nothing(case, folder.path()));
        repaired(case, &volume.clone(), folder.path(), &Model::new());
        let model = under_calls((&calls(), Model::new()), case, &volume, folder.path());
        repaired(case, &volume, folder.path(), &model);
    }
}

#[test]
fn an_index_that_is_emptied_is_what_the_model_is() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let volume: Arc<dyn Volume> = Arc::new(base(case, folder.path()));
        let model = under_calls((&emptied(), first()), case, &volume, folder.path());
        repaired(case, &volume, folder.path(), &model);
    }
}

/// By default: a case with direct inserts, one that writes pages in place, and one with clusters.
#[test]
fn a_crash_in_an_index_of_nothing_loses_nothing_that_was_acknowledged() {
    let few = [PACKED, INLINE, Case(Layout::Replicated, Update::Rebalance)];
    let (cases, seeds) = match slow() {
        true => (&CASES[..], 0..4),
        false => (&few[..], 0..1),
    };
    let all = calls();
    let calls = if slow() { &all } else { &all[..10] };
    for &case in cases {
        let folder = tempfile::tempdir().unwrap();
        let before = of_nothing(case, folder.path());
        let story = (calls, &Model::new());
        let crashed = crash_in_calls(story, case, &before, folder.path(), seeds.clone());
        assert!(crashed >= 60, "{crashed} crashes");
    }
}

#[test]
fn a_merge_of_nothing_frees_the_disk_and_ends_the_trouble() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let volume = base_of(case, 600, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        let all: Vec<u64> = (0..600).collect();
        live.delete(&all).unwrap();
        assert_eq!(live.len(), 0, "{case:?}");
        let before = merge::bytes_in(&volume).unwrap();
        let report = live.compact(&Silent).unwrap();
        assert_eq!((report.vectors, report.removed), (0, 600), "{case:?}");
        assert!(report.bytes_after < before, "{case:?}: {report:?}");
        assert_eq!(report.bytes_after, merge::bytes_in(&volume).unwrap());
        let stats = live.stats();
        assert_eq!(
            (stats.vectors, stats.deleted, stats.trouble),
            (0, 0, None),
            "{case:?}"
        );
        let when = MergeWhen {
            least: 1,
            ..MergeWhen::default()
        };
        assert_eq!(live.due(&when), None, "{case:?}");
        assert_eq!(
            live.insert(&wide_rows(case.dim(), &[1], 1), None, &Silent)
                .unwrap(),
            [600],
            "{case:?}"
        );
        drop(live);
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        assert_eq!(live.len(), 1, "{case:?}");
    }
}

/// Searches reach new vectors through deleted ones.
#[test]
fn an_index_of_nothing_takes_vectors_directly() {
    let direct = CASES
        .into_iter()
        .filter(|case| !matches!(case.1, Update::Merge | Update::Rebalance));
    for case in direct {
        for (base, emptied) in [(0, false), (BASE, true)] {
            let folder = tempfile::tempdir().unwrap();
            let volume = base_of(case, base, folder.path());
            let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
            if emptied {
                live.delete(&(0..BASE).collect::<Vec<_>>()).unwrap();
            }
            let ids: Vec<u64> = (500..540).collect();
            live.insert(&wide_rows(case.dim(), &ids, 1), Some(&ids), &Silent)
                .unwrap();
            let stats = live.stats();
            assert_eq!((stats.logged, live.len()), (0, 40), "{case:?} {base}");
            let model = ids.iter().map(|&id| (id, vector(id, 1))).collect();
            find_all_with(200, &live, &model);
        }
    }
}
