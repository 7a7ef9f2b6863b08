//! Thousands of small indexes in one process: queries a second, time of a switch, and memory.
//!
//! ```text
//! cargo run --release -p stratann --example catalog -- DATA DIR COUNT ROWS [QUERIES]
//! ```
//!
//! Builds COUNT `aisaq` indexes of ROWS rows each in DIR, unless they exist (R = 32, one codebook
//! of 16 bytes, one thread each). Index `i` has the rows from `i * ROWS` on, modulo the rows of the
//! file.
//!
//! Then the program starts itself again, so that the build does not count in peak memory. It
//! answers QUERIES queries (20,000) one by one through a catalog of 64 MB, each in an index drawn
//! at random. Queries are rows of DATA drawn at random. recall@10 is measured for the first
//! thousand.

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stratann::{
    BuildOptions, Catalog, CatalogOptions, Codebook, Matrix, MatrixRef, Metric, Preset,
    SearchOptions, Silent, TrainOptions, VectorFile, VectorSource, brute_force, build,
};

const MEMORY: u64 = 64_000_000;
const K: usize = 10;
const LIST: usize = 40;
/// Queries whose recall is measured by brute force.
const SAMPLE: usize = 1_000;
/// The first argument of the second invocation.
const SEARCH: &str = "--search";

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The arguments.
struct Task {
    data: VectorFile,
    folder: String,
    count: usize,
    rows: usize,
    queries: usize,
}

impl Task {
    fn of(arguments: &[String]) -> Outcome<Self> {
        let usage = "arguments: DATA DIR COUNT ROWS [QUERIES]";
        let [data, folder, count, rows, rest @ ..] = arguments else {
            return Err(usage.into());
        };
        let task = Self {
            data: VectorFile::open(data)?,
            folder: folder.clone(),
            count: count.parse()?,
            rows: rows.parse()?,
            queries: rest.first().map_or(Ok(20_000), |queries| queries.parse())?,
        };
        if task.count == 0 || !(K..=task.data.rows()).contains(&task.rows) || task.queries == 0 {
            return Err(format!("{usage}: at least one index of {K} rows, and one query").into());
        }
        Ok(task)
    }

    fn name(number: usize) -> String {
        format!("{number:05}")
    }

    /// The rows of an index.
    fn rows_of(&self, number: usize) -> Outcome<Vec<u8>> {
        let (all, row_bytes) = (self.data.rows(), self.data.row_bytes());
        let first = number * self.rows % all;
        let before_end = self.rows.min(all - first);
        let mut bytes = vec![0; self.rows * row_bytes];
        let (now, round) = bytes.split_at_mut(before_end * row_bytes);
        self.data.read(first, now)?;
        self.data.read(0, round)?;
        Ok(bytes)
    }

    fn build(&self) -> Outcome<()> {
        let training = TrainOptions {
            code_bytes: Some(16),
            ..TrainOptions::default()
        };
        let codebook = Codebook::train(&self.data, &training, &Silent)?;
        let cores = stratann::processors();
        let (next, stages) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Outcome<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.count {
                    return Ok(());
                }
                let path = Path::new(&self.folder).join(Self::name(number));
                if path.join("MANIFEST").exists() {
                    continue;
                }
                let bytes = self.rows_of(number)?;
                let (dim, element) = (self.data.dim(), self.data.element());
                let rows = MatrixRef::new(&bytes, self.rows, dim, element)?;
                let first = (number * self.rows) as u64;
                let options = BuildOptions {
                    preset: Preset::AISAQ,
                    degree: Some(32),
                    build_list: 50,
                    codebook: Some(codebook.clone()),
                    navigation: 0.0,
                    threads: 1,
                    // Different ids, so that no two indexes are equal.
                    ids: Some((first..first + self.rows as u64).collect()),
                    ..BuildOptions::default()
                };
                let report = build(&rows, &path, &options, &Silent)?;
                let mut stages = stages.lock().unwrap_or_else(PoisonError::into_inner);
                stages.push((report.seconds, report.cpu_seconds, report.stages));
            }
        };
        let start = Instant::now();
        std::thread::scope(|scope| -> Outcome<()> {
            let workers: Vec<_> = (0..cores)
                .map(|_| scope.spawn(|| work().map_err(|error| error.to_string())))
                .collect();
            for worker in workers {
                worker.join().map_err(|_| "a build panicked")??;
            }
            Ok(())
        })?;
        let built = stages.into_inner().unwrap_or_else(PoisonError::into_inner);
        if built.is_empty() {
            return Ok(());
        }
        let ms = |sum: f64| 1e3 * sum / built.len() as f64;
        println!(
            "built {} indexes of {} rows in {:.1} s, {cores} at a time; one takes {:.1} ms:",
            built.len(),
            self.rows,
            start.elapsed().as_secs_f64(),
            ms(built.iter().map(|one| one.0).sum())
        );
        for (at, (stage, _)) in built[0].2.iter().enumerate() {
            let sum = built.iter().filter_map(|one| one.2.get(at)).map(|s| s.1);
            println!("  {stage:<12} {:8.2} ms", ms(sum.sum()));
        }
        Ok(())
    }

    fn search(&self) -> Outcome<()> {
        let options = CatalogOptions {
            memory: Some(MEMORY),
            ..CatalogOptions::default()
        };
        let catalog = Catalog::open(&self.folder, &options)?;
        let start = Instant::now();
        let there = catalog.len()?;
        println!(
            "{there} indexes, listed in {:.1} ms",
            1e3 * start.elapsed().as_secs_f64()
        );
        let search = SearchOptions {
            k: K,
            list: LIST.max(K),
            exact: true,
            ..SearchOptions::default()
        };
        let mut random = random(1);
        let mut query = vec![0; self.data.row_bytes()];
        let (mut switches, mut switching) = (0_u32, Duration::ZERO);
        let (mut searching, mut reads, mut found) = (Duration::ZERO, 0, Vec::new());
        let mut most_accounted = 0;
        for _ in 0..self.queries {
            let number = random() % self.count;
            let name = Self::name(number);
            let row = random() % self.data.rows();
            self.data.read(row, &mut query)?;
            let (dim, element) = (self.data.dim(), self.data.element());
            let query = MatrixRef::new(&query, 1, dim, element)?;
            let is_switch = !catalog.is_open(&name);
            let start = Instant::now();
            let index = catalog.index(&name)?;
            let opened = start.elapsed();
            let results = index.search(&query, &search)?;
            searching += start.elapsed();
            if is_switch {
                switches += 1;
                switching += opened;
            }
            reads += results.counters.graph_reads;
            most_accounted = most_accounted.max(catalog.memory_bytes());
            if found.len() < SAMPLE {
                found.push((number, row, results));
            }
        }
        let peak = stratann::peak_rss_bytes();
        let queries = self.queries as f64;
        let us = |time: Duration| 1e6 * time.as_secs_f64();
        println!(
            "{} queries, k {K}, list {LIST}, one at a time: {:.0} a second",
            self.queries,
            queries / searching.as_secs_f64()
        );
        println!("  a query      {:8.1} us", us(searching) / queries);
        println!(
            "  a switch     {:8.1} us, in {:.1} % of the queries",
            us(switching) / f64::from(switches.max(1)),
            100.0 * f64::from(switches) / queries
        );
        println!(
            "  the search   {:8.1} us",
            us(searching - switching) / queries
        );
        println!("  reads        {:8.1} of a page", reads as f64 / queries);
        println!(
            "open at the end: {}, codebooks {}",
            catalog.open_count(),
            catalog.codebook_count()
        );
        println!(
            "memory: peak {:.1} MB, accounted {:.1} MB at most, budget {:.0} MB",
            peak as f64 / 1e6,
            most_accounted as f64 / 1e6,
            MEMORY as f64 / 1e6
        );
        println!(
            "recall@{K} of {} queries: {:.4}",
            found.len(),
            self.recall(&found)?
        );
        if peak > MEMORY {
            return Err(
                format!("peak memory of {peak} bytes is over the budget of {MEMORY}").into(),
            );
        }
        Ok(())
    }

    /// The recall of queries, given by their index, their row and their answers.
    fn recall(&self, found: &[(usize, usize, stratann::SearchResults)]) -> Outcome<f64> {
        let mut sum = 0.0;
        for (number, row, results) in found {
            let (dim, element) = (self.data.dim(), self.data.element());
            let base = Matrix::new(self.rows_of(*number)?, self.rows, dim, element)?;
            let mut query = vec![0; self.data.row_bytes()];
            self.data.read(*row, &mut query)?;
            let query = Matrix::new(query, 1, dim, element)?;
            let truth = brute_force(&base, &query, K, Metric::L2, 1, &Silent)?;
            let first = (number * self.rows) as u64;
            let ids: Vec<u64> = results
                .ids
                .iter()
                .map(|id| id.wrapping_sub(first))
                .collect();
            sum += truth.recall(&ids, &results.distances, K)?;
        }
        Ok(sum / found.len() as f64)
    }
}

/// A linear congruential generator, with the same numbers in every run.
fn random(seed: u64) -> impl FnMut() -> usize {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    }
}

fn run() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((SEARCH, rest)) = arguments
        .split_first()
        .map(|(first, rest)| (&**first, rest))
    {
        return Task::of(rest)?.search();
    }
    Task::of(&arguments)?.build()?;
    let status = Command::new(std::env::current_exe()?)
        .arg(SEARCH)
        .args(&arguments)
        .status()?;
    if !status.success() {
        return Err("the search failed".into());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
