//! Measures searches with one query a call, from many threads of one program, as a server in Rust
//! does: `bench/callers.py` without Python.
//!
//! ```text
//! cargo run --release --example callers -- INDEX QUERIES [CALLERS=8] [LIST=40] [ROUNDS=9]
//! [COUNT=4000]
//! ```
//!
//! QUERIES is a .u8bin, .i8bin or .fbin file. The two ways, one call for all queries and one query
//! a call, take turns on one open index. Each round prints the ratio of their queries a second, and
//! the last line prints the median. The last column is a third way: each query is submitted by
//! itself, with as many in flight as there are callers.

use std::collections::VecDeque;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use stratann::{
    Index, Matrix, OpenOptions, SearchOptions, SubmittedSearch, VectorFile, VectorSource,
    processors,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [index, queries, ..] = &given[..] else {
        return Err("give INDEX QUERIES [CALLERS] [LIST] [ROUNDS] [COUNT]".into());
    };
    let number = |at: usize, usual: usize| given.get(at).map_or(Ok(usual), |text| text.parse());
    let (callers, list) = (number(2, 8)?, number(3, 40)?);
    let (rounds, count) = (number(4, 9)?, number(5, 4_000)?);
    let index = Arc::new(Index::open(index, &OpenOptions::default())?);
    let file = VectorFile::open(queries)?;
    let rows = |range: &mut dyn Iterator<Item = usize>| -> Result<Matrix, Failure> {
        let (mut bytes, mut row, mut rows) = (Vec::new(), vec![0; file.row_bytes()], 0);
        for query in range {
            file.read(query % file.rows(), &mut row)?;
            bytes.extend_from_slice(&row);
            rows += 1;
        }
        Ok(Matrix::new(bytes, rows, file.dim(), file.element())?)
    };
    let all = rows(&mut (0..count))?;
    let each = (0..count)
        .map(|query| rows(&mut std::iter::once(query)))
        .collect::<Result<Vec<_>, _>>()?;
    let threads = callers.min(processors());
    let one = SearchOptions {
        list,
        ..SearchOptions::default()
    };
    let batch = SearchOptions {
        threads,
        in_flight: Some(callers.div_ceil(threads)),
        ..one
    };
    index.search(&all, &batch)?;
    println!("one call, q/s  callers, q/s  ratio  submitted, q/s");
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        index.search(&all, &batch)?;
        let together = count as f64 / begun.elapsed().as_secs_f64();
        let alone = count as f64 / seconds_of(&index, &each, callers, &one)?;
        let begun = Instant::now();
        let mut going = VecDeque::new();
        for query in &each {
            if going.len() == callers {
                let first: Option<SubmittedSearch> = going.pop_front();
                first.map(SubmittedSearch::wait).transpose()?;
            }
            going.push_back(index.submit(
                query.clone(),
                &SearchOptions { threads, ..one },
                None,
            )?);
        }
        going
            .into_iter()
            .try_for_each(|search| search.wait().map(drop))?;
        let submitted = count as f64 / begun.elapsed().as_secs_f64();
        println!(
            "{together:13.0}  {alone:12.0}  {:5.2}  {submitted:14.0}",
            alone / together
        );
        ratios.push(alone / together);
    }
    ratios.sort_by(f64::total_cmp);
    if let Some(median) = ratios.get(ratios.len() / 2) {
        println!("median ratio {median:.2}");
    }
    Ok(())
}

/// The seconds that `callers` threads take to search for all queries, one a call.
fn seconds_of(
    index: &Index,
    queries: &[Matrix],
    callers: usize,
    options: &SearchOptions,
) -> Result<f64, Failure> {
    let gate = Barrier::new(callers + 1);
    let work = |first: usize| -> Result<(), Failure> {
        gate.wait();
        for query in queries.iter().skip(first).step_by(callers) {
            index.search(query, options)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|first| {
                let work = &work;
                scope.spawn(move || work(first))
            })
            .collect();
        gate.wait();
        let begun = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| "a caller panicked")??;
        }
        Ok(begun.elapsed().as_secs_f64())
    })
}
