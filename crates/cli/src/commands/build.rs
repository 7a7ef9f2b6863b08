//! `stratann build BASE INDEX`

use stratann::{BuildOptions, BuildReport, Codebook, SpaceChoice, VectorFile, VectorSource};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::{Table, facts};

use super::stats::fill_lines;
use crate::args::{BuildArguments, threads_or_cores};

/// Builds, then says what was built and what it cost.
pub fn run(arguments: &BuildArguments, quiet: bool) -> Result<(), Failure> {
    let source = VectorFile::open(&arguments.base)?;
    let codebook = arguments
        .codebook
        .as_ref()
        .map(Codebook::read)
        .transpose()?;
    let options = BuildOptions {
        preset: arguments.preset,
        metric: arguments.metric,
        degree: arguments.degree,
        build_list: arguments.build_list,
        alpha: arguments.alpha,
        code_bytes: arguments.code_bytes,
        codebook,
        order: arguments.order,
        layout: arguments.layout,
        compression: arguments.compression,
        chunk_bytes: match arguments.chunk_overhead {
            Some(overhead) => {
                stratann::chunk_bytes_for_overhead(overhead, source.row_bytes() as u64)?
            }
            None => arguments.chunk,
        },
        segment_bytes: arguments.segment,
        navigation: arguments.navigation,
        memory: arguments.memory,
        search_memory: arguments.search_memory,
        space: arguments.space,
        cluster_size: arguments.cluster_size,
        replicas: arguments.replicas,
        query_log: arguments.query_log.clone(),
        threads: threads_or_cores(arguments.threads),
        seed: arguments.seed,
        ids: ids(arguments.first_id, source.rows())?,
        overwrite: arguments.overwrite,
        resume: arguments.resume,
        savepoint_seconds: arguments.savepoint_seconds,
        places: arguments.places.all()?,
    };
    let progress = Shown::new(quiet);
    let report = stratann::build(&source, &arguments.index, &options, &progress)?;
    let mut output = Output::lock();
    if arguments.json {
        output.json_line(&report)?;
    } else {
        print(&mut output, arguments, &source, &report)?;
    }
    output.finish()
}

/// Ids that count on from the first one; row numbers need not be listed.
fn ids(first: u64, rows: usize) -> Result<Option<Vec<u64>>, Failure> {
    if first == 0 {
        return Ok(None);
    }
    match first.checked_add(rows as u64) {
        Some(end) => Ok(Some((first..end).collect())),
        None => Err(Failure::Wrong(format!(
            "--first-id {first} leaves no ids for {rows} rows: give at most {}",
            u64::MAX - rows as u64
        ))),
    }
}

fn print(
    output: &mut Output,
    arguments: &BuildArguments,
    source: &VectorFile,
    report: &BuildReport,
) -> Result<(), Failure> {
    let mut stages = Table::new(&["<stage", "time"]);
    for (stage, seconds) in &report.stages {
        stages.row(vec![stage.clone(), size::seconds(*seconds)]);
    }
    output.text(stages.render())?;
    output.line("")?;
    let vectors = format!(
        "{} of {} {}",
        size::count(report.vectors as u64),
        source.dim(),
        source.element()
    );
    let mut lines = vec![
        ("index", arguments.index.display().to_string()),
        ("preset", arguments.preset.to_string()),
        ("vectors", vectors),
        ("layout", report.layout.to_string()),
    ];
    match report.clusters {
        Some(clusters) => lines.push(("clusters", size::count(clusters))),
        None => lines.extend([
            (
                "compression",
                format!(
                    "lists: {}; vectors: {}",
                    report.list_codec, report.vector_codec
                ),
            ),
            (
                "degree",
                format!(
                    "R {}, L {}; {:.1} on average",
                    report.degree, report.build_list, report.degree_mean
                ),
            ),
        ]),
    }
    if let Some(space) = report.space {
        lines.push(("space", chosen_for(&space)));
    }
    lines.extend([
        ("on storage", size::format(report.bytes)),
        ("time", size::seconds(report.seconds)),
        ("CPU time", size::seconds(report.cpu_seconds)),
        ("peak memory", size::format(report.peak_rss_bytes)),
    ]);
    if arguments.resume {
        let resumed = match report.resumed.is_empty() {
            true => "nothing".to_owned(),
            false => report.resumed.join("; "),
        };
        lines.push(("taken over", resumed));
        lines.push(("savepoints", size::format(report.savepoint_bytes)));
    }
    output.text(facts(&lines))?;
    for line in report.fill.iter().flat_map(fill_lines) {
        output.line(line)?;
    }
    Ok(())
}

/// Why a degree was chosen for a budget of space.
fn chosen_for(space: &SpaceChoice) -> String {
    let next = match space.next {
        None => "none larger is tried".to_owned(),
        Some((degree, bytes)) => format!("{} expected with R {degree}", size::format(bytes)),
    };
    format!(
        "{} at most: R {}, {} expected; {next}",
        size::format(space.budget),
        space.degree,
        size::format(space.expected)
    )
}
