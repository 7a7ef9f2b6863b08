//! Builds the graph of a data set and counts what a search on SSD would read: PQ codes for the path, full vectors for the
//! answer, beam 4, no cache. Counts do not depend on how busy the machine is.
//!
//! ```text
//! graph_eval BASE QUERIES TRUTH [metric=l2] [threads=1] [page=10] [degree=64] [list=100] [alpha=1.2] [codes=32]
//!            [memory=BYTES] [order=locality|input] [queries=1000] [lists=10,20,40]
//! ```
//!
//! `codes=0` walks by exact distances. "whole" is whole-page search: a page that was read serves all its candidates.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use stratann::data::{GroundTruth, Matrix, VectorFile, VectorSource};
use stratann::graph::{Order, Parameters, Task, construct};
use stratann::progress::Progress;
use stratann_vector::{
    DistanceTable, Kernel, Metric, ProductQuantizer, Training, normalize, to_f32,
};

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0.0))
        .collect();
    (fields[11] + fields[12]) / 100.0
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kib| kib >> 10)
}

/// Prints the CPU time of each stage.
struct Stages(Mutex<(String, f64)>);

impl Progress for Stages {
    fn begin(&self, stage: &str, _: u64) {
        *self.0.lock().unwrap() = (stage.to_owned(), cpu());
    }
    fn advance(&self, _: u64) {}
    fn end(&self) {
        let (stage, since) = self.0.lock().unwrap().clone();
        println!("  {stage}: {:.2} CPU-s", cpu() - since);
    }
    fn interrupted(&self) -> bool {
        false
    }
    fn warn(&self, message: &str) {
        println!("{message}");
    }
}

/// What a search walks on.
struct Index {
    rows: Matrix,
    order: Vec<u32>,
    lists: Vec<Vec<u32>>,
    entry: u32,
    kernel: Kernel,
    codes: Vec<u8>,
    code_bytes: usize,
    page: u32,
}

impl Index {
    /// The 10 nearest found, and the number of reads.
    fn search(
        &self,
        query: &[u8],
        table: &DistanceTable,
        length: usize,
        whole: bool,
    ) -> (Vec<(f32, u32)>, usize) {
        let score = |id: u32| match self.code_bytes {
            0 => self.kernel.distance(query, self.rows.row(id as usize)),
            bytes => table.score_one(&self.codes[id as usize * bytes..(id as usize + 1) * bytes]),
        };
        let mut list = vec![(score(self.entry), self.entry, false)];
        let mut seen = HashSet::from([self.entry]);
        let mut pages = HashSet::new();
        let mut exact = Vec::new();
        let mut reads = 0;
        loop {
            let mut beam = Vec::new();
            for item in list.iter_mut().filter(|item| !item.2).take(4) {
                item.2 = true;
                beam.push(item.1);
            }
            if beam.is_empty() {
                break;
            }
            for &id in &beam {
                let fresh = pages.insert(id / self.page);
                reads += usize::from(fresh || !whole);
                if whole && fresh {
                    let first = id / self.page * self.page;
                    exact.extend(first..(first + self.page).min(self.order.len() as u32));
                } else if !whole {
                    exact.push(id);
                }
            }
            if whole {
                for item in list
                    .iter_mut()
                    .filter(|item| !item.2 && pages.contains(&(item.1 / self.page)))
                {
                    item.2 = true;
                    beam.push(item.1);
                }
            }
            for id in beam {
                for &to in &self.lists[id as usize] {
                    if seen.insert(to) {
                        let distance = score(to);
                        let at = list.partition_point(|item| item.0 <= distance);
                        if at < length {
                            list.insert(at, (distance, to, false));
                            list.truncate(length);
                        }
                    }
                }
            }
        }
        let mut found: Vec<(f32, u32)> = exact
            .iter()
            .map(|&id| (self.kernel.distance(query, self.rows.row(id as usize)), id))
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.truncate(10);
        (found, reads)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [base, queries, truth, options @ ..] = &arguments[..] else {
        return Err("graph_eval BASE QUERIES TRUTH [name=value ...]".into());
    };
    let options: HashMap<&str, &str> = options
        .iter()
        .filter_map(|option| option.split_once('='))
        .collect();
    let option = |name: &str, default: f64| {
        options
            .get(name)
            .map_or(Ok(default), |value| value.parse::<f64>())
    };
    let base = VectorFile::open(base)?;
    let queries = Matrix::read(&VectorFile::open(queries)?)?;
    let truth = GroundTruth::read(truth)?;
    let metric: Metric = options.get("metric").unwrap_or(&"l2").parse()?;
    let page = option("page", 10.0)? as usize;
    let threads = option("threads", 1.0)? as usize;
    let parameters = Parameters {
        degree: option("degree", 64.0)? as usize,
        build_list: option("list", 100.0)? as usize,
        alpha: option("alpha", 1.2)? as f32,
        threads,
        seed: option("seed", 1.0)? as u64,
    };
    let order = if options.get("order") == Some(&"input") {
        Order::Input
    } else {
        Order::Locality { page }
    };
    let memory = options
        .get("memory")
        .map(|value| value.parse())
        .transpose()?;
    let scratch = std::env::temp_dir();
    let task = Task {
        metric,
        order,
        parameters: &parameters,
        memory,
        scratch: &scratch,
    };
    let before = cpu();
    let mut built = construct(&base, &task, &Stages(Mutex::default()))?;
    println!(
        "construct: {:.2} CPU-s, peak {} MiB, {:?}",
        cpu() - before,
        peak_mib(),
        built.stats
    );

    let mut lists = vec![Vec::new(); base.rows()];
    for (node, list) in lists.iter_mut().enumerate() {
        built.lists.read(node as u32, list)?;
    }
    let rows = Matrix::read(built.rows.source(&base))?;
    let (dim, element, code_bytes) = (base.dim(), base.element(), option("codes", 32.0)? as usize);
    let as_floats = |bytes: &[u8]| {
        let mut floats = vec![0.0; bytes.len() / element.size()];
        to_f32(element, bytes, &mut floats);
        if metric == Metric::Cosine {
            floats
                .chunks_exact_mut(dim)
                .for_each(|row| _ = normalize(row));
        }
        floats
    };
    let mut codes = vec![0; rows.rows() * code_bytes];
    let mut quantizer = None;
    if code_bytes > 0 {
        let step = (rows.rows() / 50_000).max(1);
        let sample: Vec<f32> = (0..rows.rows())
            .step_by(step)
            .flat_map(|row| as_floats(rows.row(row)))
            .collect();
        let trained = ProductQuantizer::train(
            &sample,
            dim,
            code_bytes,
            &Training {
                iterations: 10,
                seed: 1,
                threads,
            },
        )?;
        let blocks = rows.bytes().chunks(4096 * base.row_bytes());
        for (block, codes) in blocks.zip(codes.chunks_mut(4096 * code_bytes)) {
            trained.encode(&as_floats(block), codes, threads);
        }
        quantizer = Some(trained);
    }
    let index = Index {
        kernel: Kernel::new(metric, element, dim),
        rows,
        order: built.order,
        lists,
        entry: built.entry,
        codes,
        code_bytes,
        page: page as u32,
    };
    let count = (option("queries", 1000.0)? as usize).min(queries.rows());
    let mut table = DistanceTable::new();
    for whole in [false, true] {
        for length in options
            .get("lists")
            .unwrap_or(&"10,15,20,25,30,40,60,100")
            .split(',')
        {
            let length: usize = length.parse()?;
            let (mut hits, mut reads) = (0, 0);
            for query in 0..count {
                let bytes = queries.row(query);
                if let Some(quantizer) = &quantizer {
                    quantizer.table(metric, &as_floats(bytes), &mut table);
                }
                let (found, read) = index.search(bytes, &table, length, whole);
                reads += read;
                let wanted = &truth.ids[query * truth.k..query * truth.k + 10];
                let last = wanted.last().copied().unwrap_or_default();
                let mut row = vec![0; base.row_bytes()];
                base.read(last as usize, &mut row)?;
                let limit = index.kernel.distance(bytes, &row);
                hits += found
                    .iter()
                    .filter(|(distance, id)| {
                        *distance <= limit || wanted.contains(&index.order[*id as usize])
                    })
                    .count();
            }
            println!(
                "{} L {length}: recall@10 {:.4}, {:.1} reads",
                if whole { "whole" } else { "plain" },
                hits as f64 / (count * 10) as f64,
                reads as f64 / count as f64
            );
        }
    }
    Ok(())
}
