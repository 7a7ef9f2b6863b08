//! The result of a job as tables for a terminal.

use stratann_terminal::size;
use stratann_terminal::table::Table;

use crate::budget::Budget;
use crate::live;
use crate::machine::Machine;
use crate::measured::PartsUs;
use crate::report::{Report, RunResult, lines};
use crate::space;

/// The report as tables for a terminal.
pub fn render(report: &Report) -> String {
    let mut out = format!("{}\n{}\n\n", report.title, machine_line(&report.machine));
    out += &indexes(&report.runs);
    let live = live::tables::render(report);
    if !live.is_empty() {
        return out + &live;
    }
    out += &space::render(&report.space);
    let all = lines(&report.runs, &report.others);
    let k = report
        .runs
        .first()
        .and_then(|run| run.points.first())
        .map_or(10, |p| p.k);
    let recall = format!("recall@{k}");
    let mut table = Table::new(&[
        "<run",
        "list",
        &recall,
        "reads",
        "queries/s",
        "spread",
        "mean ms",
        "p99 ms",
        "CPU us",
        "memory",
    ]);
    let dash = || "-".to_string();
    let ms = |us: Option<f64>| us.map_or_else(dash, |us| format!("{:.2}", us / 1e3));
    for line in &all {
        let run = report
            .runs
            .iter()
            .find(|run| !line.other && run.name == line.name);
        for (i, point) in line.points.iter().enumerate() {
            let own = run.map(|run| &run.points[i]);
            table.row(vec![
                if i == 0 {
                    line.name.clone()
                } else {
                    String::new()
                },
                point.list.to_string(),
                format!("{:.4}", point.recall),
                point.reads.map_or_else(dash, |reads| format!("{reads:.1}")),
                format!("{:.0}", point.qps),
                own.map_or_else(dash, |p| {
                    format!("{:.1} %", (p.qps_max - p.qps_min) / p.qps.max(1e-9) * 100.0)
                }),
                ms(point.mean_us),
                ms(point.p99_us),
                own.map_or_else(dash, |p| format!("{:.0}", p.cpu_us)),
                point.memory.map_or_else(dash, size::format),
            ]);
        }
    }
    out += &table.render();
    out += &parts(&report.runs, &recall);
    if !report.comparisons.is_empty() {
        out.push('\n');
        let mut table = Table::new(&[
            &recall,
            "<run",
            "reads",
            "queries/s",
            "queries/s of run / of first run",
            "mean ms",
            "<from",
        ]);
        for c in &report.comparisons {
            table.row(vec![
                c.recall.to_string(),
                c.run.clone(),
                c.reads.map_or_else(dash, |reads| format!("{reads:.1}")),
                format!("{:.0}", c.qps),
                format!("{:.2} x", c.against_first),
                ms(c.mean_us),
                c.from.clone(),
            ]);
        }
        out += &table.render();
    }
    out += &budgets(&report.budgets);
    for run in &report.refused {
        out += &format!("\nrefused: \"{run}\", because its memory budget is too small");
    }
    for noise in &report.noise {
        out += &format!(
            "\nnoise: the two series of \"{}\" differ by {:.1} % in queries/s, {:.1} % in latency, {:.1} % in reads, and {:.4} in recall",
            noise.run,
            noise.qps * 100.0,
            noise.latency * 100.0,
            noise.reads * 100.0,
            noise.recall
        );
    }
    out += &format!(
        "\n{} the median of {} repeats, in which the runs took turns; list: list size; reads: for each query; spread: queries/s of the fastest minus queries/s of the slowest repeat; CPU us: CPU time of a query, including the kernel\n",
        if report.others.is_empty() {
            "each figure is"
        } else {
            "the figures of StratANN are"
        },
        report.repeat
    );
    out
}

/// The machine in one line.
pub fn machine_line(machine: &Machine) -> String {
    format!(
        "{} ({}), {} cores, {} RAM, Linux {}",
        machine.cpu,
        machine.architecture,
        machine.cores,
        machine.memory_bytes.map_or("unknown".into(), size::format),
        machine.kernel
    )
}

fn indexes(runs: &[RunResult]) -> String {
    let mut table = Table::new(&[
        "<index",
        "<order",
        "build time",
        "build CPU time",
        "peak memory",
        "on storage",
        "bits an edge",
        "<",
    ]);
    let mut seen: Vec<&str> = Vec::new();
    for run in runs {
        if seen.contains(&run.index.key.as_str()) {
            continue;
        }
        seen.push(&run.index.key);
        let report = &run.index.report;
        let seconds = |name: &str| report[name].as_f64().map_or("-".into(), size::seconds);
        table.row(vec![
            run.index.key.clone(),
            run.build.order.clone().unwrap_or_default(),
            seconds("seconds"),
            seconds("cpu_seconds"),
            report["peak_rss_bytes"]
                .as_u64()
                .map_or("-".into(), size::format),
            run.index.stats["bytes"]["total"]
                .as_u64()
                .map_or("-".into(), size::format),
            run.index.stats["bits_per_edge"]
                .as_f64()
                .map_or("-".into(), |bits| format!("{bits:.1}")),
            if run.index.reused {
                "built earlier".into()
            } else {
                String::new()
            },
        ]);
    }
    table.render() + "\n"
}

fn parts(runs: &[RunResult], recall: &str) -> String {
    let mut table = Table::new(
        &[
            &[
                "<time of a query of",
                "list",
                recall,
                "cache hits",
                "graph reads",
                "vector reads",
                "prefetched",
                "re-ranked",
            ],
            &PartsUs::COLUMNS[..],
            &["mean us"],
        ]
        .concat(),
    );
    let mut any = false;
    for run in runs {
        let mut name = run.name.clone();
        for point in &run.points {
            let Some(parts) = point.parts else { continue };
            any = true;
            let per = &point.per_query;
            let mean = point.latency_us.mean;
            let mut cells = vec![
                std::mem::take(&mut name),
                point.list.to_string(),
                format!("{:.4}", point.recall),
                format!("{:.1}", per.cache_hits),
                format!("{:.1}", per.graph_reads),
                format!("{:.1}", per.vector_reads),
                format!("{:.1}", per.prefetched),
                format!("{:.1}", per.reranked),
            ];
            cells.extend(parts.cells(mean));
            cells.push(format!("{mean:.1}"));
            table.row(cells);
        }
    }
    match any {
        true => format!(
            "\n{}times are microseconds, including the cost of reading the clock; the column `reads` is the wait for reads\n",
            table.render()
        ),
        false => String::new(),
    }
}

fn budgets(budgets: &[Budget]) -> String {
    if budgets.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "recall",
        "<run",
        "budget",
        "peak memory",
        "reads",
        "queries/s",
        "<from",
    ]);
    for budget in budgets {
        for point in &budget.points {
            table.row(vec![
                budget.recall.to_string(),
                budget.name.clone(),
                size::format(point.budget),
                size::format(point.peak_rss_bytes),
                point
                    .reads
                    .map_or("-".into(), |reads| format!("{reads:.1}")),
                format!("{:.0}", point.qps),
                point.from.clone(),
            ]);
        }
    }
    format!("\n{}", table.render())
}
