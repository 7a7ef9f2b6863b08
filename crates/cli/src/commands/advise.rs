//! `stratann advise BASE`

use stratann::{VectorFile, VectorSource};
use stratann_bench::advise::{AdviseOptions, BoundBy, Candidate, advise};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::Table;

use crate::args::{AdviseArguments, threads_or_cores};

pub fn run(arguments: &AdviseArguments, quiet: bool) -> Result<(), Failure> {
    let base = VectorFile::open(&arguments.base)?;
    let queries = arguments.queries.as_ref().map(VectorFile::open);
    let queries = queries.transpose()?;
    let asked = queries.as_ref().map(|file| file as &dyn VectorSource);
    let options = AdviseOptions {
        metric: arguments.metric,
        device: arguments.device.0,
        rows: arguments.rows,
        recall: arguments.recall,
        k: arguments.k,
        threads: threads_or_cores(arguments.threads),
        in_flight: arguments.in_flight,
        memory: arguments.memory,
        space: arguments.space,
        sample: arguments.sample,
    };
    let scratch = arguments.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let progress = Shown::new(quiet);
    let candidates = advise(&base, asked, &options, &scratch, &progress)?;
    let mut output = Output::lock();
    if arguments.json {
        for candidate in &candidates {
            output.json_line(candidate)?;
        }
        return output.finish();
    }
    let mut table = Table::new(&[
        "<preset",
        "<with",
        "queries/s",
        "<bound by",
        "alone",
        "reads",
        "read",
        "index",
        "of raw",
        "memory",
        "recall",
        "<",
    ]);
    for candidate in &candidates {
        table.row(row(candidate, &options));
    }
    output.text(table.render())?;
    let rows = options.rows.unwrap_or(base.rows() as u64);
    let device = options
        .device
        .map_or("dram".into(), |kind| kind.to_string());
    let best = candidates.first().filter(|best| best.fits);
    output.line(match best {
        Some(best) => format!(
            "an estimate for {} vectors on {device}, from a sample of {}:\n  stratann build {} INDEX --metric {} --preset {}{}{}\n  stratann search INDEX QUERIES {} {}{}",
            size::count(rows),
            size::count(base.rows().min(options.sample) as u64),
            arguments.base.display(),
            options.metric,
            best.preset,
            best.layout.map_or(String::new(), |layout| format!(" --layout {layout}")),
            parameters(best, " --degree ", " --replicas "),
            if best.replicas.is_some() { "--probes" } else { "--list" },
            best.list,
            options.memory.map_or(String::new(), |memory| format!(" --memory {memory}")),
        ),
        None => format!("no candidate fits for {} vectors on {device}", size::count(rows)),
    })?;
    output.finish()
}

fn parameters(candidate: &Candidate, degree: &str, replicas: &str) -> String {
    match (candidate.degree, candidate.replicas) {
        (Some(value), _) => format!("{degree}{value}"),
        (None, Some(value)) => format!("{replicas}{value}"),
        (None, None) => String::new(),
    }
}

fn row(candidate: &Candidate, options: &AdviseOptions) -> Vec<String> {
    let over = |bytes: u64, most: Option<u64>| most.is_some_and(|most| bytes > most);
    let why_not = [
        (candidate.recall < options.recall, "its recall is too low"),
        (over(candidate.memory, options.memory), "needs more memory"),
        (over(candidate.size, options.space), "takes more space"),
    ];
    let why_not: Vec<&str> = why_not
        .iter()
        .filter(|why| why.0)
        .map(|why| why.1)
        .collect();
    vec![
        match candidate.layout {
            Some(layout) => format!("{}, {layout}", candidate.preset),
            None => candidate.preset.into(),
        },
        parameters(candidate, "R ", "copies "),
        size::count(candidate.throughput as u64),
        match candidate.bound_by {
            BoundBy::Computation => "computation".into(),
            BoundBy::Latency => "latency".into(),
            BoundBy::Device => "the device".into(),
        },
        format!("{:.0} µs", candidate.latency_us),
        format!("{:.1}", candidate.reads),
        size::format(candidate.bytes as u64),
        size::format(candidate.size),
        format!("{:.2}", candidate.amplification),
        size::format(candidate.memory),
        format!("{:.3}", candidate.recall),
        match why_not.is_empty() {
            true => String::new(),
            false => why_not.join(", "),
        },
    ]
}
