//! Re-ranking by batches (DecoupleVS §3.4).

use crate::{Durability, LiveIndex, WriteOptions};

use super::*;

/// 2,000 vectors of 384 floats. Candidates' vectors are nearly always on different pages.
pub(super) fn wide() -> &'static (tempfile::TempDir, Matrix) {
    static WIDE: OnceLock<(tempfile::TempDir, Matrix)> = OnceLock::new();
    WIDE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let base = head(&fixture("package-text-2k.base.fbin"), 2_000);
        let options = BuildOptions {
            preset: Preset::DECOUPLEVS,
            metric: Metric::Cosine,
            degree: Some(32),
            build_list: 50,
            threads: 1,
            ..BuildOptions::default()
        };
        build(&base, folder.path().join("index"), &options, &Silent).unwrap();
        (folder, head(&fixture("package-text-2k.query.fbin"), 40))
    })
}

pub(super) fn query_of(queries: &Matrix, query: usize) -> Matrix {
    let mut bytes = vec![0; queries.dim() * queries.element().size()];
    queries.read(query, &mut bytes).unwrap();
    Matrix::new(bytes, 1, queries.dim(), queries.element()).unwrap()
}

/// Re-ranking continues only after a batch whose candidates all become results. A beam width of 1
/// leaves no read for prefetches.
fn stubborn() -> SearchOptions {
    SearchOptions {
        list: 100,
        beam: Some(1),
        strategy: Some(Strategy::BestFirst),
        rerank: Some(Rerank {
            benefit: 1.0,
            ..Rerank::PAPER
        }),
        ..SearchOptions::default()
    }
}

#[test]
fn k_and_two_batches_are_read_before_re_ranking_may_end() {
    let (folder, queries) = wide();
    let index = Index::open(folder.path().join("index"), &OpenOptions::default()).unwrap();
    let most = stubborn().k + 2 * Rerank::PAPER.batch;
    let mut read = 0;
    for query in 0..queries.rows() {
        let found = index
            .search(&query_of(queries, query), &stubborn())
            .unwrap();
        let reads = found.counters.vector_reads as usize;
        assert!(reads <= most, "query {query}: {reads} vectors read");
        assert_eq!(found.counters.reranked as usize, most, "query {query}");
        read += reads;
    }
    // The bound is tight enough to notice one more batch.
    assert!(read > (most - 3) * queries.rows(), "{read}");
}

#[test]
fn a_batch_pays_from_the_benefit_ratio_on() {
    // A ratio of m in ten ends re-ranking with the first batch that adds fewer than m results.
    let (folder, queries) = wide();
    let index = Index::open(folder.path().join("index"), &OpenOptions::default()).unwrap();
    let ranked = |query: &Matrix, tenths: u32| {
        let options = SearchOptions {
            rerank: Some(Rerank {
                benefit: f64::from(tenths) / 10.0,
                ..Rerank::PAPER
            }),
            ..stubborn()
        };
        index.search(query, &options).unwrap().counters.reranked
    };
    let asked = [0, 1, 2, 5, 10];
    let mut sums = [0; 5];
    for query in 0..queries.rows() {
        let query = query_of(queries, query);
        let each = asked.map(|tenths| ranked(&query, tenths));
        assert!(each.is_sorted_by(|a, b| a >= b), "{each:?}");
        assert_eq!((each[0], each[4]), (100, 30));
        assert!(each.iter().all(|ranked| ranked % 10 == 0), "{each:?}");
        for (sum, ranked) in sums.iter_mut().zip(each) {
            *sum += ranked;
        }
    }
    // For some queries, a batch adds some results, but not ten.
    assert!(sums[0] > sums[1] && sums[1] > sums[4], "{sums:?}");
}

#[test]
fn a_batch_is_of_candidates_that_are_not_deleted() {
    let (folder, queries) = wide();
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder.path().join("index")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let write = WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        ..WriteOptions::default()
    };
    let index = LiveIndex::open(copy.path(), &OpenOptions::default(), &write).unwrap();
    let most = stubborn().k + 2 * Rerank::PAPER.batch;
    for query in 0..10 {
        let query_row = query_of(queries, query);
        // The nearest vectors are deleted, and there are more of them than a batch has.
        let near = SearchOptions {
            k: 20,
            ..stubborn()
        };
        let near = index.search(&query_row, &near).unwrap();
        let gone = near.ids.iter().filter(|&&id| id != u64::MAX);
        index.delete(&gone.copied().collect::<Vec<_>>()).unwrap();
        for known in [false, true] {
            let found = index.search(&query_row, &stubborn()).unwrap();
            let ranked = found.counters.reranked as usize;
            // If the deletes are not known, the traversal resumes once.
            let more = if known { 0 } else { 5 };
            assert!(
                (most..=most + more).contains(&ranked),
                "query {query}, known: {known}: {ranked} ranked"
            );
        }
    }
}
