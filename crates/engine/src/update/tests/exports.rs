//! Exports of all vectors of an index to files, while the index changes.

use super::snapshots::Meddling;
use super::*;
use crate::data::{JsonColumns, JsonRows, VectorFile, VectorSource};
use crate::{ExportOptions, ExportReport, Index, RowSource};

/// Reads an export as a model, and compares its attributes with the index `beside`.
fn read(report: &ExportReport, beside: Option<&LiveIndex>) -> Model {
    let rows = Matrix::read(&VectorFile::open(&report.out).unwrap()).unwrap();
    let ids: Vec<u64> = match report.ids.extension().unwrap().to_str().unwrap() {
        "npy" => {
            let bytes = std::fs::read(&report.ids).unwrap();
            let header = String::from_utf8_lossy(&bytes[10..128]).into_owned();
            assert!(header.contains("'<u8'") && header.contains(&format!("({},)", rows.rows())));
            bytes[128..]
                .chunks_exact(8)
                .map(|id| u64::from_le_bytes(id.try_into().unwrap()))
                .collect()
        }
        _ => {
            let text = std::fs::read_to_string(&report.ids).unwrap();
            text.lines().map(|id| id.parse().unwrap()).collect()
        }
    };
    assert_eq!((ids.len(), ids.len() as u64), (rows.rows(), report.vectors));
    let mut model = Model::new();
    for (at, &id) in ids.iter().enumerate() {
        let (vector, part) = (rows.row(at), &rows.row(at)[..DIM]);
        assert_eq!(vector, part.repeat(vector.len() / DIM), "{id}");
        assert!(model.insert(id, part.to_vec()).is_none(), "{id} twice");
    }
    if let (Some(live), Some(path)) = (beside, &report.attributes) {
        let columns = JsonColumns {
            payload: report.payload.clone(),
            ..JsonColumns::default()
        };
        let found = JsonRows::open(path, &columns).unwrap();
        let expected = live.attributes(&ids).unwrap();
        for (at, expected) in expected.into_iter().enumerate() {
            assert_eq!(found.row(at).unwrap(), expected.unwrap(), "{}", ids[at]);
        }
    }
    model
}

fn vectors(model: &Model) -> Model {
    let part = |(&id, vector): (&u64, &Vec<u8>)| (id, vector[..DIM].to_vec());
    model.iter().map(part).collect()
}

fn replacing() -> ExportOptions {
    ExportOptions {
        overwrite: true,
        ..ExportOptions::default()
    }
}

#[test]
fn an_export_has_every_vector_that_lives_once_and_to_the_bit() {
    for (number, case) in CASES.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join(["rows.u8bin", "rows.npy"][number % 2]);
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        let mut model = first();
        for (at, call) in script().into_iter().enumerate() {
            call.make(&live).unwrap();
            call.apply(&mut model);
            if (at + number) % step(6) != 0 {
                continue;
            }
            let what = format!("{case:?} after {at} {call:?}");
            let report = live.export(&out, &replacing(), &Silent).unwrap();
            assert!(report.attributes.is_some() && report.times.is_empty());
            assert!(read(&report, Some(&live)) == vectors(&model), "{what}");
            let index: Arc<dyn Volume> = Arc::new(volume.fork());
            let index = Index::open_in(index, folder.path(), &OpenOptions::default());
            let index = index.and_then(Index::with_log).unwrap();
            let report = index.export(&out, &replacing(), &Silent).unwrap();
            assert!(read(&report, Some(&live)) == vectors(&model), "{what}");
        }
    }
}

#[test]
fn an_export_is_of_one_moment_whatever_comes_meanwhile() {
    for (number, case) in CASES.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("rows.u8bin");
        for compacts in [number % 2 == 0, number % 2 == 1]
            .into_iter()
            .step_by(step(2))
        {
            let volume = base(case, folder.path());
            let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
            for call in &script()[..6] {
                call.make(&live).unwrap();
            }
            let before = vectors(&contents(&live));
            let deed = || {
                for version in [6, 7, 8] {
                    let calls = [
                        Call::Upsert((0..20).collect(), version),
                        Call::Insert(vec![400 + version, 500 + version], 1),
                        Call::Delete(vec![20 + version, 400 + version]),
                    ];
                    calls.iter().for_each(|call| call.make(&live).unwrap());
                    if compacts {
                        live.compact(&Silent).unwrap();
                    }
                }
            };
            let mut meddling = Meddling::at(u64::MAX, &deed);
            meddling.at_begin = true;
            let report = live.export(&out, &replacing(), &meddling).unwrap();
            let what = format!("{case:?}, merges: {compacts}");
            assert!(read(&report, None) == before, "{what}");
            assert!(vectors(&contents(&live)) != before, "{what}");
        }
    }
}

#[test]
fn an_export_that_is_overtaken_too_often_says_so() {
    for case in [
        PACKED,
        INLINE,
        DECOUPLED,
        Case(Layout::Packed, Update::Merge),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("rows.u8bin");
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::OnFlush).unwrap();
        Call::Upsert(vec![1, 2], 3).make(&live).unwrap();
        let before = contents(&live);
        let deed = || (0..40).for_each(|_| Call::Upsert(vec![1], 4).make(&live).unwrap());
        let mut meddling = Meddling::at(u64::MAX, &deed);
        meddling.at_begin = true;
        match live.export(&out, &replacing(), &meddling) {
            Ok(report) => {
                let found = read(&report, None);
                assert_eq!(
                    found.keys().collect::<Vec<_>>(),
                    before.keys().collect::<Vec<_>>()
                );
            }
            Err(error) => {
                assert!(matches!(error, Error::Restless { .. }), "{error}");
                assert!(error.to_string().contains("stratann snapshot"), "{error}");
                assert!(!out.exists());
            }
        }
    }
}

#[test]
fn an_export_replaces_nothing_unasked_and_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let live = open(PACKED, &volume, folder.path(), Durability::OnFlush).unwrap();
    let there = || {
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let out = folder.path().join("rows.u8bin");
    let before = there();
    let mut stopped = Meddling::at(2, &|| {});
    stopped.stop = true;
    let error = live
        .export(&out, &ExportOptions::default(), &stopped)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    let wrong = folder.path().join("rows.fbin");
    let error = live
        .export(&wrong, &ExportOptions::default(), &Silent)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("names no format that is possible here. Use one of: .npy .u8bin"),
        "{error}"
    );
    let same = ExportOptions {
        ids: Some(out.clone()),
        ..ExportOptions::default()
    };
    let error = live.export(&out, &same, &Silent).unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    assert_eq!(there(), before);
    let report = live
        .export(&out, &ExportOptions::default(), &Silent)
        .unwrap();
    assert_eq!((report.vectors, &report.attributes), (BASE, &None));
    let error = live
        .export(&out, &ExportOptions::default(), &Silent)
        .unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    let elsewhere = ExportOptions {
        ids: Some(folder.path().join("numbers.npy")),
        attributes: Some(folder.path().join("beside.jsonl")),
        overwrite: true,
    };
    let report = live.export(&out, &elsewhere, &Silent).unwrap();
    assert!(read(&report, Some(&live)) == first());
    for name in ["beside.jsonl", "numbers.npy", "rows.ids", "rows.u8bin"] {
        assert!(there().contains(&name.to_owned()), "{name}: {:?}", there());
    }
}

#[test]
fn an_export_that_fails_leaves_no_ids_of_one_beside_vectors_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let live = open(PACKED, &volume, folder.path(), Durability::OnFlush).unwrap();
    let (ids, rows) = (
        folder.path().join("rows.ids"),
        folder.path().join("rows.jsonl"),
    );
    let options = ExportOptions {
        attributes: Some(rows.clone()),
        ..replacing()
    };
    for path in [&ids, &rows] {
        std::fs::write(path, "of another export").unwrap();
    }
    let full = folder.path().join("rows.u8bin");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let error = live.export(&full, &options, &Silent).unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    for path in [&ids, &rows] {
        assert_eq!(std::fs::read(path).unwrap(), b"of another export");
    }
    // The vectors of the earlier export are removed, so that no old vectors stay beside new
    // attributes.
    std::fs::remove_file(&full).unwrap();
    std::fs::write(&full, "vectors of another export").unwrap();
    let deed = || {
        std::fs::remove_file(&ids).unwrap();
        std::fs::create_dir(&ids).unwrap();
    };
    live.export(&full, &options, &Meddling::at(2, &deed))
        .unwrap_err();
    assert!(!full.exists());
    std::fs::remove_dir(&ids).unwrap();
    let report = live.export(&full, &options, &Silent).unwrap();
    assert!(read(&report, Some(&live)) == first());
}
