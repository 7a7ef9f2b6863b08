//! `stratann search INDEX QUERIES --within DISTANCE`, and `stratann search INDEX --like ID,..`.

use serde::Serialize;
use stratann::{Index, Matrix, Range, RangeResults, SearchOptions, Silent, VectorSource};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress;

use super::answers;
use super::beside::{AllBeside, Shown};
use super::search::{options_of, queries_of};
use super::target::Target;
use crate::args::{SearchArguments, threads_or_cores};

struct Asked {
    vector: Matrix,
    id: Option<u64>,
}

#[derive(Serialize)]
struct Page<'a> {
    query: usize,
    ids: &'a [u64],
    distances: &'a [f32],
    #[serde(flatten)]
    beside: Option<AllBeside>,
    /// Whether all vectors nearer than the last result of this page have certainly been returned.
    complete: bool,
}

pub fn run(arguments: &SearchArguments, quiet: bool) -> Result<(), Failure> {
    let paths = Target::paths(arguments);
    if paths.len() != 1 {
        return Err(Failure::Wrong(format!(
            "--within and --like search one index, and {} indexes are given. Search each separately",
            paths.len()
        )));
    }
    let target = Target::open(
        paths,
        arguments,
        0,
        Some(&progress::Shown::of_reader(quiet)),
    )?;
    let options = options_of(&target, arguments, threads_or_cores(arguments.threads))?;
    let list = arguments.list.first().copied();
    let options = SearchOptions {
        list: list.unwrap_or(arguments.k.max(100)),
        probes: arguments
            .probes
            .first()
            .copied()
            .or(list.filter(|_| target.has_clusters())),
        recall: arguments.recall,
        exact: true,
        ..options
    };
    let Target::One(index) = &target else {
        return Err(Failure::Wrong(
            "--within and --like search one index. Give one index".into(),
        ));
    };
    let shown = Shown::of(arguments.attributes.as_deref(), &target)?;
    let mut output = Output::lock();
    match arguments.within {
        Some(distance) => {
            let options = SearchOptions { k: 1, ..options };
            for (query, asked) in asked(index, arguments)?.iter().enumerate() {
                let range = Range {
                    without: asked.id,
                    ..Range::of(distance)
                };
                print_range(
                    &mut output,
                    (index, arguments, shown.as_ref()),
                    (query, asked),
                    range,
                    &options,
                )?;
            }
        }
        None => {
            let filter = arguments.filter.as_ref();
            let found = index.search_like(&arguments.like, &options, filter, &Silent)?;
            answers::print(
                &mut output,
                arguments.json,
                found.k,
                (&found.ids, &found.distances),
                shown.as_ref(),
            )?;
        }
    }
    output.finish()
}

fn asked(index: &Index, arguments: &SearchArguments) -> Result<Vec<Asked>, Failure> {
    let one = |bytes: &[u8]| Matrix::new(bytes.to_vec(), 1, index.dim(), index.element());
    if !arguments.like.is_empty() {
        let rows = index.vectors(&arguments.like, &Silent)?;
        if let Some(missing) = rows.missing.first() {
            return Err(Failure::Wrong(format!(
                "--like {missing}: no vector of the index has this id. Give ids that are in the index"
            )));
        }
        return rows
            .iter()
            .map(|(id, bytes)| {
                let vector = one(bytes)?;
                let id = Some(id);
                Ok(Asked { vector, id })
            })
            .collect();
    }
    let file = queries_of(arguments)?;
    if let Some(outline) = file.outline()? {
        let options = SearchOptions {
            k: 1,
            ..SearchOptions::default()
        };
        index.check_queries(&outline, &options)?;
        if let Some(filter) = &arguments.filter {
            index.check_filter(filter)?;
        }
    }
    let (queries, _) = file.open(&Silent)?;
    let queries = Matrix::read(&*queries)?;
    let row = queries.row_bytes().max(1);
    let rows = queries.bytes().chunks_exact(row);
    rows.map(|bytes| {
        let vector = Matrix::new(bytes.to_vec(), 1, queries.dim(), queries.element())?;
        Ok(Asked { vector, id: None })
    })
    .collect()
}

/// Only one page of results is in memory at a time.
fn print_range(
    output: &mut Output,
    (index, arguments, shown): (&Index, &SearchArguments, Option<&Shown<'_>>),
    (query, asked): (usize, &Asked),
    mut range: Range,
    options: &SearchOptions,
) -> Result<(), Failure> {
    let filter = arguments.filter.as_ref();
    loop {
        let page = index.search_range(&asked.vector, &range, options, filter, &Silent)?;
        print_page(output, (arguments.json, shown), query, &range, &page)?;
        match page.next {
            Some(next) => range.after = Some(next),
            None => return Ok(()),
        }
    }
}

fn print_page(
    output: &mut Output,
    (json, shown): (bool, Option<&Shown<'_>>),
    query: usize,
    range: &Range,
    page: &RangeResults,
) -> Result<(), Failure> {
    let beside = shown.map(|shown| shown.read(&page.ids)).transpose()?;
    if json {
        return output.json_line(&Page {
            query,
            ids: &page.ids,
            distances: &page.distances,
            beside,
            complete: page.complete,
        });
    }
    let mut table = answers::table(shown);
    let first = range.after.map_or(0, |after| after.rank);
    let found = (&page.ids[..], &page.distances[..]);
    answers::add_rows(&mut table, (query, first + 1), found, beside.as_ref());
    if !page.ids.is_empty() {
        output.text(table.render())?;
    }
    if page.next.is_none() && !page.complete {
        output.line(format!(
            "query {query}: some vectors within the distance may be missing, since searches of a graph or of clusters are approximate. A larger --list finds more"
        ))?;
    }
    Ok(())
}
