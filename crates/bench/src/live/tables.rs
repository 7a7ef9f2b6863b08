//! The result of a job of live updates as tables for a terminal.

use stratann_terminal::size;
use stratann_terminal::table::Table;

use crate::live::keys::MergeAt;
use crate::live::result::{BrokenDown, Live, OverTime, Span};
use crate::report::Report;

/// The tables; empty for a job of searches.
pub fn render(report: &Report) -> String {
    let mut over_time: Vec<(&str, &OverTime)> = Vec::new();
    let mut broken_down: Vec<(&str, &BrokenDown)> = Vec::new();
    for run in &report.runs {
        match &run.live {
            Some(Live::Timeline(result)) => over_time.push((&run.name, result)),
            Some(Live::Breakdown(result)) => broken_down.push((&run.name, result)),
            None => {}
        }
    }
    let mut out = String::new();
    if !over_time.is_empty() {
        out += &windows(&over_time);
        out += &summary(&over_time);
    }
    if !broken_down.is_empty() {
        out += &breakdown(&broken_down);
    }
    if !out.is_empty() && !report.others.is_empty() {
        out += "\nThe results of --with have no inserts, so they are only in the JSON.\n";
    }
    out
}

fn dash() -> String {
    "-".into()
}

fn windows(runs: &[(&str, &OverTime)]) -> String {
    let mut table = Table::new(&[
        "<run",
        "from s",
        "to s",
        "inserts/s",
        "deletes/s",
        "searches/s",
        "p50 us",
        "p90 us",
        "p99 us",
        "recall@10",
        "memory",
        "on storage",
        "pages read an insert",
        "pages written an insert",
        "<",
    ]);
    for (name, result) in runs {
        for (i, window) in result.windows.iter().enumerate() {
            let each = |pages: Option<u64>| match pages {
                Some(pages) if window.inserts > 0 => {
                    format!("{:.1}", pages as f64 / window.inserts as f64)
                }
                _ => dash(),
            };
            table.row(vec![
                if i == 0 {
                    (*name).to_string()
                } else {
                    String::new()
                },
                format!("{:.0}", window.from),
                format!("{:.0}", window.to),
                format!("{:.0}", window.rate(window.inserts)),
                format!("{:.0}", window.rate(window.deletes)),
                format!("{:.0}", window.rate(window.searches)),
                format!("{:.0}", window.p50_us),
                format!("{:.0}", window.p90_us),
                format!("{:.0}", window.p99_us),
                window
                    .recall
                    .map_or_else(dash, |recall| format!("{recall:.4}")),
                size::format(window.rss_bytes),
                size::format(window.storage_bytes),
                each(window.pages_read),
                each(window.pages_written),
                note(window),
            ]);
        }
    }
    table.render()
}

fn note(window: &Span) -> String {
    if window.alone {
        return "searches alone".into();
    }
    match (window.merging, window.inserting) {
        (true, true) => "merge".into(),
        (true, false) => "merge, no rows left".into(),
        (false, false) => "no rows left".into(),
        (false, true) => String::new(),
    }
}

fn summary(runs: &[(&str, &OverTime)]) -> String {
    let mut table = Table::new(&[
        "<run",
        "<way",
        "most inserts/s",
        "set inserts/s",
        "inserted",
        "least p50 us",
        "most p50 us",
        "most/least",
        "alone: least p50 us",
        "alone: most/least",
        "first recall",
        "last recall",
        "peak memory",
        "on storage",
        "merges",
        "time of merges",
    ]);
    let mut stale = String::new();
    for (name, result) in runs {
        let p50 = |at: usize| {
            result
                .p50_us
                .map_or_else(dash, |p50s| format!("{:.0}", p50s[at]))
        };
        let recall = |span: Option<&Span>| {
            let recall = span.and_then(|span| span.recall);
            recall.map_or_else(dash, |recall| format!("{recall:.4}"))
        };
        let alone = result.alone_p50_us;
        let inserted: u64 = result.seconds.iter().map(|second| second.inserts).sum();
        let merging: f64 = result.merges.iter().map(|merge| merge.seconds).sum();
        table.row(vec![
            (*name).to_string(),
            result.way.clone(),
            result
                .most_a_second
                .map_or_else(dash, |most| format!("{most:.0}")),
            result
                .rate
                .map_or_else(|| "most".into(), |rate| format!("{rate:.0}")),
            size::count(inserted),
            p50(0),
            p50(1),
            result
                .p50_ratio
                .map_or_else(dash, |ratio| format!("{ratio:.3}")),
            alone.map_or_else(dash, |[least, _]| format!("{least:.0}")),
            alone.map_or_else(dash, |[least, most]| {
                format!("{:.3}", most / least.max(1e-9))
            }),
            recall(result.windows.first()),
            recall(result.windows.last()),
            size::format(result.peak_rss_bytes),
            result
                .seconds
                .last()
                .map_or_else(dash, |second| size::format(second.storage_bytes)),
            match result.settings.merge {
                MergeAt::Never => dash(),
                _ => result.merges.len().to_string(),
            },
            match result.merges.is_empty() {
                true => dash(),
                false => size::seconds(merging),
            },
        ]);
        if result.stale > 0 {
            stale += &format!(
                "WRONG: results of \"{name}\" had {} ids that had been deleted before the search\n",
                result.stale
            );
        }
    }
    let first = runs.first().map(|(_, result)| *result);
    let sample = first.map_or(0, |result| result.recall_of);
    let (search, list) = first.map_or((1, 0), |result| {
        (result.settings.search_threads, result.settings.list)
    });
    format!(
        "\n{}{stale}least and most p50: the extremes of the median latency of searches over the windows with inserts; alone: the same over the windows before the first insert, without the first window; searches: list size {list}, {search} at once;\n\
         recall: of up to {sample} queries in a pass, among the rows that were live during the search; memory and storage: at the end of the window\n",
        table.render()
    )
}

fn breakdown(runs: &[(&str, &BrokenDown)]) -> String {
    let mut table = Table::new(&[
        "<run",
        "<way",
        "inserts/s",
        "time of merge",
        "call p50 us",
        "call p99 us",
        "pages read",
        "pages written",
        "lists changed",
        "recall@10",
        "reads a query",
        "queries/s",
        "on storage",
        "on storage, closed",
        "time of close",
        "peak memory",
    ]);
    for (name, result) in runs {
        let inserted = &result.inserted;
        let number = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.1}"));
        let merge = inserted.merge.as_ref();
        table.row(vec![
            (*name).to_string(),
            inserted.way.clone(),
            format!("{:.0}", inserted.inserts_a_second),
            merge.map_or_else(dash, |merge| size::seconds(merge.seconds)),
            format!("{:.0}", result.call.p50_us),
            format!("{:.0}", result.call.p99_us),
            number(inserted.pages_read),
            number(inserted.pages_written),
            number(inserted.lists_changed),
            format!("{:.4}", inserted.searches.recall),
            format!("{:.1}", inserted.searches.reads),
            format!("{:.0}", inserted.searches.qps),
            size::format(inserted.storage_bytes),
            size::format(inserted.closed_bytes),
            size::seconds(inserted.close_seconds),
            size::format(inserted.peak_rss_bytes),
        ]);
    }
    let settings = runs.first().map(|(_, result)| &result.settings);
    let words = settings.map_or_else(String::new, |settings| {
        format!(
            "inserts/s: {} rows into an index of {} rows, {} threads, including the merge if there is one; call: an insert of one row, on one thread; pages and lists: for each \
             insert;\nsearches after the inserts: list size {}, one query in flight; closed: after the changes in memory were written to storage\n",
            size::count(settings.rows as u64),
            size::count(settings.built as u64),
            settings.threads,
            settings.list
        )
    });
    format!("{}{words}", table.render())
}
