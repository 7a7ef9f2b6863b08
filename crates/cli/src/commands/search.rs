//! `stratann search INDEX.. QUERIES`

use std::path::PathBuf;

use serde::Serialize;
use stratann::{
    ByWay, Error, ErrorKind, Explained, GroundTruth, LiveRecall, Matrix, Outline, Preset, Press,
    SearchOptions, SearchResults, Silent, VectorSource, Way, bounds,
};
use stratann_bench::measured::{Detailed, Latency, Measured, PartsUs, PerQuery};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress;
use stratann_terminal::size;
use stratann_terminal::table::Table;

use super::beside::Shown;
use super::target::Target;
use super::{answers, near};
use crate::args::{SearchArguments, threads_or_cores};
use crate::input::{Vectors, check_parquet};

/// The most times that a search opens an index again after another process's change.
const MOST_OPENINGS: usize = 20;

struct Searcher<'a> {
    target: Target,
    arguments: &'a SearchArguments,
    /// Bytes outside the index that count towards its memory budget.
    beside: u64,
    opening: progress::Shown,
    queries: Box<dyn VectorSource>,
    truth: Option<GroundTruth>,
    options: SearchOptions,
}

/// Refuses `--attributes NAMES` without `=`, in which the parser takes the names for a file.
fn check_names_joined(arguments: &SearchArguments) -> Result<(), Failure> {
    let is_names = |path: &&PathBuf| {
        let text = path.to_str();
        text.is_some_and(|text| !text.contains(['/', '.'])) && !path.exists()
    };
    let without_names = arguments.attributes.as_deref() == Some("");
    match arguments.files.iter().find(is_names) {
        Some(names) if without_names => Err(Failure::Wrong(format!(
            "{names} is neither a file nor an index; names of attributes must follow --attributes after a =. \
             Give --attributes={names}, or the right path",
            names = names.display()
        ))),
        _ => Ok(()),
    }
}

pub fn run(arguments: &SearchArguments, quiet: bool) -> Result<(), Failure> {
    check_names_joined(arguments)?;
    if arguments.within.is_some() || !arguments.like.is_empty() {
        return near::run(arguments, quiet);
    }
    if arguments.indexes().is_empty() {
        return Err(Failure::Wrong(format!(
            "<QUERIES> is missing. Give the file of query vectors after the index {}",
            arguments.queries().display()
        )));
    }
    if arguments.queries().is_dir() {
        return Err(Failure::Wrong(format!(
            "{} is a directory; the last argument is the file of query vectors. Give index directories first, and this file last",
            arguments.queries().display()
        )));
    }
    let widths = [
        ("--probes", "number of probes", arguments.probes.len()),
        ("--list", "list size", arguments.list.len()),
    ];
    answers::check_out(arguments.out.as_deref(), arguments.overwrite, &widths)?;
    if arguments.print {
        answers::check_one("--print", &widths)?;
    }
    let keeps = arguments.out.is_some() || arguments.print;
    if arguments.attributes.is_some() && !arguments.print {
        return Err(Failure::Wrong(
            "--attributes is given without --print; attributes are printed beside results. Add --print, or leave --attributes out"
                .into(),
        ));
    }
    let mut searcher = Searcher::open(arguments, quiet)?;
    Shown::of(arguments.attributes.as_deref(), &searcher.target)?;
    let mut printer = Printer::new(arguments, &searcher);
    let last = match arguments.recall {
        Some(target) => {
            let (measured, results) = match arguments.find_list {
                true => searcher.reach(target)?,
                false => searcher.measure(Width::Recall(target))?,
            };
            printer.add(measured, searcher.target.live_recall()?)?;
            Some(results)
        }
        None => {
            let mut last = None;
            for probes in &arguments.probes {
                let (measured, results) = searcher.measure(Width::Probes(*probes))?;
                printer.add(measured, searcher.target.live_recall()?)?;
                last = keeps.then_some(results);
            }
            let width = searcher.width();
            let default = match width(0) {
                Width::List(_) | Width::Recall(_) => [arguments.k.max(100)],
                Width::Probes(_) => [searcher.options.probes_of()],
            };
            let lists = if !arguments.probes.is_empty() {
                &[]
            } else if arguments.list.is_empty() {
                &default[..]
            } else {
                &arguments.list
            };
            answers::check_lists(lists, arguments.k)?;
            for list in lists {
                let (measured, results) = searcher.measure(width(*list))?;
                printer.add(measured, searcher.target.live_recall()?)?;
                // The next search may need the memory of earlier results.
                last = keeps.then_some(results);
            }
            last
        }
    };
    if let (Some(path), Some(results)) = (&arguments.out, &last) {
        answers::write(path, results.k, &results.ids, &results.distances)?;
    }
    if let Some(results) = last.filter(|_| arguments.print) {
        let found = (&results.ids[..], &results.distances[..]);
        let shown = Shown::of(arguments.attributes.as_deref(), &searcher.target)?;
        let output = &mut printer.output;
        answers::print(output, arguments.json, results.k, found, shown.as_ref())?;
        return printer.output.finish();
    }
    printer.finish()
}

pub(super) fn queries_of(arguments: &SearchArguments) -> Result<Vectors<'_>, Failure> {
    let (file, column) = (arguments.queries(), arguments.column.as_deref());
    if column.is_some() {
        check_parquet(&[file])?;
    }
    Ok(Vectors {
        file,
        column,
        ids: None,
        memory: Some(arguments.memory),
    })
}

/// Checks the index and the options before the long copy of a Parquet file.
fn check_before_copy(
    arguments: &SearchArguments,
    paths: &[PathBuf],
    queries: &Outline,
) -> Result<(), Failure> {
    answers::check_lists(&arguments.list, arguments.k)?;
    let truth = arguments.truth.as_deref();
    answers::truth(truth, queries.rows, arguments.queries(), arguments.k)?;
    let target = Target::open(paths.to_owned(), arguments, 0, None)?;
    let options = options_of(&target, arguments, threads_or_cores(arguments.threads))?;
    let list = options.list.max(options.k);
    let options = SearchOptions { list, ..options };
    Ok(target.check(queries, &options, arguments.filter.as_ref())?)
}

impl Searcher<'_> {
    fn open(arguments: &SearchArguments, quiet: bool) -> Result<Searcher<'_>, Failure> {
        let paths = Target::paths(arguments);
        let queries = queries_of(arguments)?;
        if let Some(outline) = queries.outline()? {
            check_before_copy(arguments, &paths, &outline)?;
        }
        // The buffers of the read are free again before the index is opened.
        let (queries, _) = queries.open(&Silent)?;
        // Thousands of queries take a tenth of a tiny budget, so they stay in their file.
        let queries: Box<dyn VectorSource> = match arguments.memory {
            Some(budget) if budget < TINY => queries,
            _ => Box::new(Matrix::read(&*queries)?),
        };
        let truth = answers::truth(
            arguments.truth.as_deref(),
            queries.rows(),
            arguments.queries(),
            arguments.k,
        )?;
        if arguments.watch_recall.is_some() && arguments.k > bounds::MOST_WATCHED_K {
            return Err(Failure::Wrong(format!(
                "-k {} is too large for --watch-recall; it measures searches for at most {} neighbours. Lower -k, or leave out --watch-recall",
                arguments.k,
                bounds::MOST_WATCHED_K
            )));
        }
        let threads = threads_or_cores(arguments.threads);
        let beside = beside(&*queries, arguments, threads);
        let opening = progress::Shown::of_reader(quiet);
        let target = Target::open(paths, arguments, beside, Some(&opening))?;
        if let Some(target) = arguments.recall
            && !(target > 0.0 && target <= 1.0)
        {
            return Err(Failure::Wrong(format!(
                "--recall {target} is not a share. Give a number above 0 and up to 1, for example 0.95"
            )));
        }
        let options = options_of(&target, arguments, threads)?;
        Ok(Searcher {
            target,
            arguments,
            beside,
            opening,
            queries,
            truth,
            options,
        })
    }

    /// Opens the index again if another process has reused its pages.
    fn search(&mut self, options: &SearchOptions) -> Result<SearchResults, Failure> {
        for _ in 0..MOST_OPENINGS {
            let filter = self.arguments.filter.as_ref();
            let shown = &self.opening;
            let found = self.target.search(&*self.queries, options, filter, shown);
            match found {
                Err(error) if error.kind() == ErrorKind::Outdated => {
                    let paths = Target::paths(self.arguments);
                    let shown = Some(&self.opening);
                    self.target = Target::open(paths, self.arguments, self.beside, shown)?;
                }
                found => return found.map_err(|error| refused(error, self.arguments)),
            }
        }
        let filter = self.arguments.filter.as_ref();
        let found = self
            .target
            .search(&*self.queries, options, filter, &self.opening);
        found.map_err(|error| refused(error, self.arguments))
    }

    fn measure(&mut self, width: Width) -> Result<(Detailed, SearchResults), Failure> {
        let (list, options) = match width {
            Width::List(list) => (list, self.options),
            Width::Recall(recall) => {
                let recall = Some(recall);
                let options = SearchOptions {
                    recall,
                    ..self.options
                };
                let longest = self.target.longest(&options);
                let longest = longest.map_err(|error| refused(error, self.arguments))?;
                (longest, options)
            }
            Width::Probes(probes) => {
                let probes = Some(probes);
                (
                    self.options.k.max(100),
                    SearchOptions {
                        probes,
                        ..self.options
                    },
                )
            }
        };
        let options = SearchOptions { list, ..options };
        let results = self.search(&options)?;
        // An inexact distance does not show whether another vector is equally near.
        let unknown = vec![f32::INFINITY; if results.exact { 0 } else { results.ids.len() }];
        let distances = if results.exact {
            &results.distances
        } else {
            &unknown
        };
        let recall = self
            .truth
            .as_ref()
            .map(|truth| truth.recall(&results.ids, distances, results.k))
            .transpose()?;
        let queries = self.queries.rows();
        let measured = Measured {
            list: match width {
                Width::Recall(_) => list,
                Width::List(number) | Width::Probes(number) => number,
            },
            k: options.k,
            recall,
            qps: queries as f64 / results.seconds.max(1e-9),
            latency_us: Latency::of(&results.latencies_us),
            per_query: PerQuery::of(&results.counters, queries),
            threads: options.threads,
            in_flight: results.in_flight,
            in_flight_tried: results.tried.clone(),
            cpu_us: results.process_cpu_seconds * 1e6 / queries.max(1) as f64,
            distance_error: Some(results.distance_error).filter(|error| error.is_finite()),
            peak_rss_bytes: stratann::peak_rss_bytes(),
            filter: results.explained,
            parts: results.parts.map(|parts| PartsUs::of(&parts, queries)),
        };
        let detailed = Detailed {
            measured,
            queries,
            seconds: results.seconds,
            cpu_seconds: results.cpu_seconds,
            backend: self.target.backend()?.to_string(),
            short: short(&results),
        };
        Ok((detailed, results))
    }

    /// The parameter that trades recall for speed.
    fn width(&self) -> fn(usize) -> Width {
        match self.target.has_clusters() {
            true => Width::Probes,
            false => Width::List,
        }
    }

    /// Doubles the list size, or the number of probes, until the recall reaches `target`. Then
    /// bisects, and ignores noise in the recall.
    fn reach(&mut self, target: f64) -> Result<(Detailed, SearchResults), Failure> {
        let largest = self.target.vectors();
        let recall = |detailed: &Detailed| detailed.measured.recall.unwrap_or(0.0);
        let of = self.width();
        let mut list = match of(0) {
            Width::Probes(_) => 1,
            Width::List(_) | Width::Recall(_) => self.options.k,
        };
        let mut below = list - 1;
        let mut best = loop {
            let found = self.measure(of(list))?;
            let reached = recall(&found.0);
            if reached >= target {
                break found;
            }
            // Larger lists would read thousands of pages for a query. Brute force is better then.
            if list >= largest.min(LARGEST_LIST) {
                let remedy = match of(0) {
                    Width::List(_) | Width::Recall(_) => {
                        "a larger --degree, --build-list or --code-bytes"
                    }
                    Width::Probes(_) => "more --replicas, or a larger --cluster-size",
                };
                return Err(Failure::Failed(format!(
                    "--recall {target} cannot be reached with this index; {} {list} gives {reached:.4}. Rebuild the index with {remedy}",
                    of(0).what()
                )));
            }
            below = list;
            list = (list * 2).min(largest).min(LARGEST_LIST);
        };
        while best.0.measured.list - below > 1 {
            let middle = below + (best.0.measured.list - below) / 2;
            let found = self.measure(of(middle))?;
            if recall(&found.0) >= target {
                best = found;
            } else {
                below = middle;
            }
        }
        Ok(best)
    }
}

pub fn options_of(
    target: &Target,
    arguments: &SearchArguments,
    threads: usize,
) -> Result<SearchOptions, Failure> {
    // Typed options take precedence over --preset, and --preset over the preset of the index.
    let preset = preset_of(target, arguments)?;
    Ok(SearchOptions {
        k: arguments.k,
        beam: arguments.beam.or(preset.map(|p: Preset| p.beam)),
        strategy: arguments.strategy.or(preset.map(|p| p.strategy)),
        // If the index has no navigation graph, or no memory for one, the search does not use one.
        navigation: arguments
            .navigation()
            .or(preset.map(|p| p.navigation && target.has_navigation())),
        whole_page: arguments.whole_page().or(preset.map(|p| p.whole_page)),
        rerank: target.rerank(arguments),
        press: Press {
            low: arguments.low_list.unwrap_or(Press::default().low),
            ratio: arguments.refine.unwrap_or(Press::default().ratio),
            seeds: arguments.seeds.unwrap_or(Press::default().seeds),
        },
        seeds: arguments.seeds.unwrap_or(0),
        // Written results serve as ground truth, which needs exact distances.
        exact: arguments.exact || arguments.out.is_some() || arguments.print,
        stop_early: arguments.stop_early,
        way: arguments.way,
        parts: arguments.parts,
        threads,
        in_flight: arguments.in_flight,
        ..SearchOptions::default()
    })
}

/// The parameter that trades recall for speed.
#[derive(Clone, Copy)]
enum Width {
    List(usize),
    Probes(usize),
    Recall(f64),
}

impl Width {
    fn what(self) -> &'static str {
        match self {
            Self::List(_) | Self::Recall(_) => "list size",
            Self::Probes(_) => "probes:",
        }
    }
}

/// For a cluster index, presets of clusters have no effect, and presets of graphs are refused.
fn preset_of(target: &Target, arguments: &SearchArguments) -> Result<Option<Preset>, Failure> {
    match arguments.preset {
        Some(preset) if target.has_clusters() => match preset.layout {
            Some(layout) if layout.has_clusters() => Ok(None),
            _ => Err(Failure::Wrong(format!(
                "--preset {} does not apply to a cluster index; this preset is for graphs. Leave out --preset",
                preset.name
            ))),
        },
        preset => Ok(preset),
    }
}

/// If an argument of --preset does not go with a recall, the error names that option.
fn refused(error: Error, arguments: &SearchArguments) -> Failure {
    let (
        Error::Argument {
            what,
            reason,
            remedy,
            ..
        },
        Some(preset),
        Some(_),
    ) = (&error, arguments.preset, arguments.recall)
    else {
        return error.into();
    };
    let typed = match what.split(' ').next() {
        _ if !remedy.contains("recall") => true,
        Some("strategy") => arguments.strategy.is_some(),
        Some("rerank") => Target::types_rerank(arguments),
        _ => true,
    };
    match typed {
        true => error.into(),
        false => Failure::Wrong(format!(
            "--preset {} is given with --recall; {reason}. Leave out --preset, or give --list instead of --recall",
            preset.name
        )),
    }
}

fn two_digits(number: f32) -> String {
    match number >= 10.0 {
        true => format!("{number:.0}"),
        false => format!("{number:.1e}"),
    }
}

/// A missing result is the id 2^64-1 at an infinite distance.
fn short(results: &SearchResults) -> usize {
    let rows = results.ids.chunks_exact(results.k.max(1));
    rows.filter(|ids| ids.last() == Some(&u64::MAX)).count()
}

/// If `of_clusters` is set, the search adapts the number of probes, and not the list size.
fn explained(
    filter: &Explained,
    of_clusters: bool,
    per_query: &PerQuery,
    queries: usize,
) -> String {
    let reads = per_query.graph_reads + per_query.vector_reads;
    let read = size::format(per_query.bytes_read.round() as u64);
    let ByWay { within, before } = filter.indexes;
    let several = within + before > 1;
    let found = match (several, within, before) {
        (false, _, _) => filter.way.to_string(),
        (true, indexes, 0) => format!("within in {indexes} indexes"),
        (true, 0, indexes) => format!("before in {indexes} indexes"),
        (true, within, before) => format!("within in {within} indexes, before in {before}"),
    };
    let mut text = format!(
        "{} match; filter strategy {found}: {reads:.1} reads, {read}, {:.0} distances a query\n",
        size::vectors(filter.matching),
        per_query.distance_computations,
    );
    text += &format!(
        "  evaluating the filter took {} reads of columns, {}, once for all queries\n",
        size::count(filter.column_reads),
        size::format(filter.column_bytes),
    );
    for (way, expected) in [
        (Way::Within, filter.estimates.within),
        (Way::Before, filter.estimates.before),
    ] {
        let is_adapted = way == Way::Within && (several && within > 0 || filter.way == way);
        let list = match (is_adapted, of_clusters) {
            (false, _) => String::new(),
            (true, true) => format!(", with up to {} probes", filter.list),
            (true, false) if several => format!(", with list sizes of up to {}", filter.list),
            (true, false) => format!(", with a list size of up to {}", filter.list),
        };
        let all = if several { " in all indexes" } else { "" };
        text += &format!("  {way}: expected to cost as much as {expected:.1} reads{all}{list}\n");
    }
    let asked = size::count(queries as u64 * u64::from((within + before).max(1)));
    let all = if several {
        ", counted once for each index,"
    } else {
        ""
    };
    if filter.wider > 0 {
        text += &format!(
            "  {} of {asked} queries{all} probed further clusters, because matches are not spread evenly\n",
            size::count(filter.wider),
        );
    }
    if filter.dry > 0 {
        text += &format!(
            "  {} of {asked} queries{all} found too few matches, or only distant matches, with the strategy \"within\", and continued with \"before\"\n",
            size::count(filter.dry),
        );
    }
    text
}

/// The bytes of queries, ground truth, results and threads, beyond `PROGRAM`.
fn beside(queries: &dyn VectorSource, arguments: &SearchArguments, threads: usize) -> u64 {
    /// The bytes of an id and a distance; in the ground truth, an id has four bytes.
    const ANSWER: usize = 12;
    const EXACT: usize = 8;
    /// The budget's part for the program includes space for some thousands of results.
    const PROGRAM: u64 = 512 << 10;
    let Some(budget) = arguments.memory else {
        return 0;
    };
    let held = if budget < TINY {
        0
    } else {
        queries.row_bytes()
    };
    let exact = if arguments.truth.is_some() { EXACT } else { 0 };
    let answers = arguments.k.saturating_mul(ANSWER + exact);
    let each = answers.saturating_add(held + size_of::<f32>()) as u64;
    let held = each.saturating_mul(queries.rows() as u64);
    // With this limit, sums cannot overflow.
    held.saturating_sub(PROGRAM).min(1 << 50) + threads_beside(threads)
}

/// Bytes of threads beyond the two that a memory budget includes.
pub fn threads_beside(threads: usize) -> u64 {
    threads.saturating_sub(2) as u64 * stratann::THREAD_BYTES
}

const LARGEST_LIST: usize = 8192;

/// Under smaller budgets, queries stay in their file.
const TINY: u64 = 32 << 20;

/// A line of JSON after the measurement.
#[derive(Serialize)]
struct Live {
    live_recall: LiveRecall,
}

const PROBES: &str = "probes";

/// Prints each measurement as JSON when it is ready, or all measurements as a table at the end.
struct Printer {
    output: Output,
    /// Whether to print results instead of measurements.
    answers: bool,
    json: bool,
    measure: bool,
    filtered: bool,
    explain: bool,
    table: Table,
    width: &'static str,
    live_recall: Vec<String>,
    parts: Option<Table>,
    /// The last measurement, for the facts that are the same in all rows.
    last: Option<Detailed>,
    indexes: usize,
}

impl Printer {
    fn new(arguments: &SearchArguments, searcher: &Searcher) -> Printer {
        let recall = format!("recall@{}", arguments.k);
        let [width, hops, graph_reads, vector_reads] = match searcher.width()(0) {
            Width::List(_) | Width::Recall(_) => ["list", "hops", "graph reads", "vector reads"],
            Width::Probes(_) => [PROBES, "probed", "cluster reads", "stray reads"],
        };
        Printer {
            output: Output::lock(),
            answers: arguments.print,
            json: arguments.json,
            measure: arguments.measure,
            filtered: arguments.filter.is_some(),
            explain: arguments.explain,
            table: Table::new(&[
                width,
                &recall,
                "queries/s",
                "CPU us",
                "mean ms",
                "p50",
                "p90",
                "p99",
                hops,
                graph_reads,
                vector_reads,
                "read",
                "cache hits",
                "distances",
            ]),
            parts: arguments
                .parts
                .then(|| Table::new(&[&[width], &PartsUs::COLUMNS[..], &["mean"]].concat())),
            width,
            live_recall: Vec::new(),
            last: None,
            indexes: searcher.target.indexes(),
        }
    }

    fn add(&mut self, detailed: Detailed, live: Option<LiveRecall>) -> Result<(), Failure> {
        if self.answers {
            return Ok(());
        }
        if self.json {
            match self.measure {
                true => self.output.json_line(&detailed)?,
                false => self.output.json_line(&detailed.measured)?,
            }
            return live.map_or(Ok(()), |live_recall| {
                self.output.json_line(&Live { live_recall })
            });
        }
        if let Some(last) = live.and_then(|live| live.last) {
            self.live_recall.push(format!(
                "recall@{} at {} {}: {:.4} on {} queries that were compared by brute force; {:.4} for the worst query",
                detailed.measured.k,
                self.width,
                detailed.measured.list,
                last.found,
                size::count(last.queries),
                last.lowest,
            ));
        }
        let measured = &detailed.measured;
        let ms = |us: f64| format!("{:.2}", us / 1e3);
        let per = &measured.per_query;
        self.table.row(vec![
            measured.list.to_string(),
            measured
                .recall
                .map_or("-".into(), |recall| format!("{recall:.4}")),
            format!("{:.0}", measured.qps),
            format!("{:.0}", measured.cpu_us),
            ms(measured.latency_us.mean),
            ms(measured.latency_us.p50),
            ms(measured.latency_us.p90),
            ms(measured.latency_us.p99),
            format!("{:.1}", per.hops),
            format!("{:.1}", per.graph_reads),
            format!("{:.1}", per.vector_reads),
            size::format(per.bytes_read.round() as u64),
            format!("{:.1}", per.cache_hits),
            format!("{:.0}", per.distance_computations),
        ]);
        if let (Some(table), Some(parts)) = (&mut self.parts, &measured.parts) {
            let mean = measured.latency_us.mean;
            let mut cells = vec![measured.list.to_string()];
            cells.extend(parts.cells(mean));
            cells.push(format!("{mean:.1}"));
            table.row(cells);
        }
        self.last = Some(detailed);
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        if let Some(last) = &self.last {
            self.output.text(self.table.render())?;
            self.output.line("")?;
            if let Some(parts) = &self.parts {
                self.output
                    .line("time of the parts of a query, in microseconds:")?;
                self.output.text(parts.render())?;
                self.output.line("")?;
            }
            for line in &self.live_recall {
                self.output.line(line)?;
            }
            let indexes = match self.indexes {
                1 => String::new(),
                indexes => format!(" in {} indexes", size::count(indexes as u64)),
            };
            self.output.line(format!(
                "{}{indexes}, {}, {} in flight on each{}, {}; peak memory {}",
                size::queries(last.queries as u64),
                size::counted(last.measured.threads as u64, "thread", "threads"),
                last.measured.in_flight,
                if last.measured.in_flight_tried.is_empty() {
                    ""
                } else {
                    " (chosen by measurement)"
                },
                last.backend,
                size::format(last.measured.peak_rss_bytes)
            ))?;
            if let Some(filter) = last.measured.filter.filter(|_| self.explain) {
                let of_clusters = self.width == PROBES;
                let per_query = &last.measured.per_query;
                let text = explained(&filter, of_clusters, per_query, last.queries);
                self.output.text(text)?;
            }
            match last.measured.distance_error {
                Some(0.0) => {}
                Some(error) => self.output.line(format!(
                    "distances are exact to within {} (four standard deviations of the least certain distance); --exact makes all of them exact to the last bit",
                    two_digits(error)
                ))?,
                None => self.output.line(
                    "some distances are estimates by the leading parts of vectors, without a bound of the error; --exact makes all distances exact to the last bit",
                )?,
            }
            if last.short > 0 {
                self.output.line(format!(
                    "{} of the queries at {} {} have fewer than {} results: the index has too few vectors{}, or the search did not reach enough of them",
                    size::count(last.short as u64),
                    self.width,
                    last.measured.list,
                    last.measured.k,
                    if self.filtered { " that match" } else { "" }
                ))?;
            }
        }
        self.output.finish()
    }
}
