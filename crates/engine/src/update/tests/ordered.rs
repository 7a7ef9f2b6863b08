//! Threads that change the same ids, one call after the other, without errors.

use std::sync::Barrier;

use super::*;

const THREADS: u64 = 4;
const ROUNDS: u64 = 12;

fn found(live: &LiveIndex, ids: &[u64]) -> Vec<Vec<u8>> {
    let rows = live.vectors(ids, &Silent).unwrap();
    assert_eq!(rows.ids, ids);
    let row = rows.vectors.len() / ids.len();
    let rows = rows.vectors.chunks_exact(row);
    rows.map(<[u8]>::to_vec).collect()
}

#[test]
fn threads_that_upsert_the_same_ids_are_put_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for case in [
        PACKED,
        INLINE,
        Case(Layout::Packed, Update::Merge),
        Case(Layout::Replicated, Update::Rebalance),
    ] {
        let volume = base(case, folder.path());
        let live = open(case, &volume, folder.path(), Durability::Always).unwrap();
        let (ids, barrier) = ([1, 2, 3, BASE + 1], Barrier::new(THREADS as usize));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (live, barrier) = (&live, &barrier);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        // In even rounds, each thread changes all ids in its own order, and in odd
                        // rounds only the first of these ids.
                        let mut own = ids;
                        own.rotate_left(thread as usize);
                        let own = &own[..if round % 2 == 0 { own.len() } else { 1 }];
                        barrier.wait();
                        let version = 100 + thread * ROUNDS + round;
                        let rows = wide_rows(case.dim(), own, version);
                        live.upsert(&rows, own, &Silent).unwrap();
                        if round == 6 {
                            let deleted = live.delete(&[0]);
                            assert!(deleted.is_ok() || !live.contains(0).unwrap());
                        }
                    }
                });
            }
        });
        assert_eq!(live.len() as u64, BASE, "{case:?}");
        let now = found(&live, &ids);
        for (id, vector_now) in ids.iter().zip(&now) {
            let versions = 100..100 + THREADS * ROUNDS;
            let mut given = versions.map(|version| vector(*id, version));
            assert!(
                given.any(|given| given.repeat(case.dim() / DIM) == *vector_now),
                "{case:?}: {id}"
            );
        }
        drop(live);
        let again = open(case, &volume, folder.path(), Durability::Always).unwrap();
        assert_eq!(found(&again, &ids), now, "{case:?}");
        assert_eq!(again.len() as u64, BASE, "{case:?}");
    }
}
