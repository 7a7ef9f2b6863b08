//! `stratann build BASE INDEX`, and `stratann create INDEX`, which is a build without rows.

use std::collections::HashSet;

use serde::Serialize;
use stratann::{
    BuildOptions, BuildReport, Codebook, Index, NoRows, OpenOptions, Schema, SpaceChoice,
    VectorSource,
};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::{Table, facts};

use super::stats::fill_lines;
use crate::args::{BuildArguments, CreateArguments, ShapeArguments, threads_or_cores};
use crate::input::Files;

pub fn run(arguments: &BuildArguments, quiet: bool) -> Result<(), Failure> {
    let progress = Shown::new(quiet);
    let files = Files {
        vectors: &arguments.base,
        column: arguments.column.as_deref(),
        ids: arguments.ids.as_deref(),
        rows: &arguments.rows,
        index: &arguments.index,
        memory: arguments.shape.memory,
    };
    let options = |source: &dyn VectorSource| {
        Ok::<_, Failure>(BuildOptions {
            calibrate: !arguments.no_calibrate,
            overwrite: arguments.overwrite,
            resume: arguments.resume,
            savepoint_seconds: arguments.savepoint_seconds,
            places: arguments.places.all()?,
            ..options(&arguments.shape, source)?
        })
    };
    let check = |shape: &NoRows| {
        let (element, dim) = (shape.element(), shape.dim());
        Ok(stratann::check_build(
            &arguments.index,
            element,
            dim,
            &options(shape)?,
        )?)
    };
    let input = files.open(&progress, check)?;
    let source = &*input.vectors;
    let options = BuildOptions {
        ids: match input.ids {
            Some(ids) => Some(ids),
            None => ids(arguments.first_id, source.rows())?,
        },
        ..options(source)?
    };
    let report = match &input.rows {
        Some(rows) => {
            stratann::build_with_rows(source, rows, &arguments.index, &options, &progress)?
        }
        None => stratann::build(source, &arguments.index, &options, &progress)?,
    };
    let mut output = Output::lock();
    if arguments.json {
        output.json_line(&report)?;
    } else {
        let index = arguments.index.display().to_string();
        print(&mut output, (index, &arguments.shape), source, &report)?;
        if arguments.resume {
            print_savepoints(&mut output, &report)?;
        }
    }
    output.finish()
}

#[derive(Serialize)]
struct Created {
    there_already: bool,
    dimension: usize,
    element: String,
    metric: String,
    #[serde(flatten)]
    report: Option<BuildReport>,
}

pub fn create(arguments: &CreateArguments, quiet: bool) -> Result<(), Failure> {
    let none = NoRows::new(arguments.dtype, arguments.dimension);
    let options = BuildOptions {
        overwrite: arguments.overwrite,
        places: arguments.places.all()?,
        ..options(&arguments.shape, &none)?
    };
    let (progress, path) = (Shown::new(quiet), &arguments.index);
    let mut names = HashSet::new();
    if let Some((name, _)) = arguments
        .columns
        .iter()
        .find(|(name, _)| !names.insert(name))
    {
        return Err(Failure::Wrong(format!(
            "--columns names {name:?} twice; a column has one type. Remove one of the two"
        )));
    }
    let columns = arguments.columns.iter();
    let columns = Schema::of(columns.map(|(name, kind)| (name.as_str(), *kind)))?;
    let (element, dim) = (arguments.dtype, arguments.dimension);
    let report = match arguments.exist_ok {
        true => stratann::create_if_absent(path, element, dim, &columns, &options, &progress)?,
        false => {
            let created =
                stratann::create_with_columns(path, element, dim, &columns, &options, &progress);
            Some(created?)
        }
    };
    if report.is_none() && !columns.is_empty() {
        let there = Index::open(path, &OpenOptions::default())?.schema();
        there.check_has(&columns, path)?;
    }
    let mut output = Output::lock();
    let index = path.display().to_string();
    match &report {
        _ if arguments.json => output.json_line(&Created {
            there_already: report.is_none(),
            dimension: none.dim(),
            element: none.element().to_string(),
            metric: options.metric.to_string(),
            report,
        })?,
        Some(report) => print(&mut output, (index, &arguments.shape), &none, report)?,
        None => output.line(format!("{index} exists already, and is unchanged"))?,
    }
    output.finish()
}

pub fn options(shape: &ShapeArguments, source: &dyn VectorSource) -> Result<BuildOptions, Failure> {
    let codebook = shape.codebook.as_ref().map(Codebook::read).transpose()?;
    Ok(BuildOptions {
        preset: shape.preset,
        metric: shape.metric,
        degree: shape.degree,
        build_list: shape.build_list,
        alpha: shape.alpha,
        code_bytes: shape.code_bytes,
        low_codes: shape.low_codes,
        codebook,
        order: shape.order,
        layout: shape.layout,
        compression: shape.compression,
        chunk_bytes: match shape.chunk_overhead {
            Some(overhead) => {
                stratann::chunk_bytes_for_overhead(overhead, source.row_bytes() as u64)?
            }
            None => shape.chunk,
        },
        segment_bytes: shape.segment,
        navigation: shape.navigation,
        memory: shape.memory,
        search_memory: shape.search_memory,
        space: shape.space,
        cluster_size: shape.cluster_size,
        replicas: shape.replicas,
        query_log: shape.query_log.clone(),
        threads: threads_or_cores(shape.threads),
        seed: shape.seed,
        ..BuildOptions::default()
    })
}

/// Returns `None` if the ids are the row numbers.
fn ids(first: u64, rows: usize) -> Result<Option<Vec<u64>>, Failure> {
    if first == 0 {
        return Ok(None);
    }
    match first.checked_add(rows as u64) {
        Some(end) => Ok(Some((first..end).collect())),
        None => Err(Failure::Wrong(format!(
            "--first-id {first} leaves too few ids for {rows} rows. Give at most {}",
            u64::MAX - rows as u64
        ))),
    }
}

fn print(
    output: &mut Output,
    (index, shape): (String, &ShapeArguments),
    source: &dyn VectorSource,
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
        ("index", index),
        ("preset", shape.preset.to_string()),
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
    output.text(facts(&lines))?;
    for line in report.fill.iter().flat_map(fill_lines) {
        output.line(line)?;
    }
    Ok(())
}

fn print_savepoints(output: &mut Output, report: &BuildReport) -> Result<(), Failure> {
    let resumed = match report.resumed.is_empty() {
        true => "nothing".to_owned(),
        false => report.resumed.join("; "),
    };
    let lines = [
        ("from savepoints", resumed),
        ("savepoints", size::format(report.savepoint_bytes)),
    ];
    output.text(facts(&lines))
}

fn chosen_for(space: &SpaceChoice) -> String {
    let next = match space.next {
        None => "no larger R is tried".to_owned(),
        Some((degree, bytes)) => format!("{} expected with R {degree}", size::format(bytes)),
    };
    format!(
        "{} at most: R {}, {} expected; {next}",
        size::format(space.budget),
        space.degree,
        size::format(space.expected)
    )
}
