//! `stratann stats INDEX`, or of a directory of indexes.

use std::collections::HashSet;

use stratann::{
    BlockFill, Catalog, ClusterStats, Codecs, Due, Index, IndexHealth, MemoryPlan, MergeWhen,
    OpenOptions, QuerySource, Silent, Stats,
};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::size;
use stratann_terminal::table::{Table, facts};

use super::target::indexes_in;
use crate::args::StatsArguments;

/// Prints the properties of an index.
pub fn run(arguments: &StatsArguments) -> Result<(), Failure> {
    if let Some((catalog, names)) = indexes_in(&arguments.index) {
        return list(&catalog, &names, arguments);
    }
    let open = OpenOptions {
        memory: arguments.memory,
        places: arguments.places.all()?,
        unpack: false,
        ..OpenOptions::default()
    };
    let index = Index::open(&arguments.index, &open)?;
    let (mut stats, looked) = index.stats_and_health(&Silent);
    // The memory is that of a search, which may unpack the index.
    stats.memory = index.memory_to_search()?;
    let mut output = Output::lock();
    if arguments.json {
        output.json_document(&stats)?;
        return output.finish();
    }
    let mut lines = vec![
        ("index", arguments.index.display().to_string()),
        ("preset", stats.preset.clone()),
        ("live vectors", size::count(stats.live)),
        ("on storage", size::vectors(stats.vectors)),
        (
            "in the log",
            format!(
                "{}, {}",
                size::vectors(stats.logged),
                size::format(stats.log_bytes)
            ),
        ),
        ("reserved for deletes", size::format(stats.room_bytes)),
        ("deleted", deleted(&stats)),
        ("due", due(&stats)),
        ("health", health(&looked)),
        ("recall", calibrated(&stats)),
        ("dimension", stats.dimension.to_string()),
        ("element", stats.element.clone()),
        ("metric", stats.metric.clone()),
        ("order", stats.order.clone()),
        ("layout", stats.layout.clone()),
    ];
    match &stats.clusters {
        None => lines.extend(of_graph(&stats)),
        Some(clusters) => lines.extend(of_clusters(clusters, &stats)),
    }
    lines.extend([
        ("written by", format!("StratANN {}", stats.created_by)),
        ("format version", stats.format_version.to_string()),
    ]);
    output.text(facts(&lines))?;
    for line in stats.fill.iter().flat_map(fill_lines) {
        output.line(line)?;
    }
    output.line("")?;
    let bytes = &stats.bytes;
    let mut table = Table::new(&["<part", "bytes", "size", "a vector"]);
    let leads = match &stats.clusters {
        None => "graph",
        // The tables include the numbers of members, if these are stored separately.
        Some(_) => "heads and tables",
    };
    for (part, bytes) in [
        (leads, bytes.graph),
        ("vectors", bytes.vectors),
        ("codes", bytes.codes),
        ("ids", bytes.ids),
        ("attributes", bytes.columns),
        ("other", bytes.other),
        ("total", bytes.total),
    ] {
        let is_absent = match part {
            "codes" => stats.clusters.is_some(),
            "attributes" => bytes == 0,
            _ => false,
        };
        if is_absent {
            continue;
        }
        table.row(vec![
            part.to_string(),
            size::count(bytes),
            size::format(bytes),
            format!("{:.1}", bytes as f64 / (stats.vectors as f64).max(1.0)),
        ]);
    }
    output.text(table.render())?;
    if arguments.memory.is_some() {
        output.line("")?;
        output.text(memory_plan(&stats).render())?;
        if let Some([graph, vectors]) = stats.memory.predicted_reads {
            output.line(format!(
                "predicted for each query: {graph:.1} reads of adjacency lists and {vectors:.1} reads of vectors, if queries resemble the indexed vectors"
            ))?;
        }
    }
    output.finish()
}

/// Whether searches find the vectors that were inserted since the last build or merge as reliably
/// as older vectors.
fn health(looked: &Result<IndexHealth, stratann::Error>) -> String {
    let due = MergeWhen::default().drifted;
    match looked {
        Err(error) => format!("unknown: {error}"),
        Ok(health) => match (health.drifted, health.not_looked_at) {
            (_, Some(why)) => format!("not checked: {why}"),
            (Some(share), None) if share >= due => {
                format!("{} (`stratann compact`)", Due::Drifted(share))
            }
            _ => "good".to_owned(),
        },
    }
}

fn due(stats: &Stats) -> String {
    match &stats.due {
        Some(due) => format!("a merge: {due} (`stratann compact`)"),
        None => "nothing".to_owned(),
    }
}

fn calibrated(stats: &Stats) -> String {
    let Some(calibrated) = stats.calibrated else {
        return "not measured (`stratann calibrate`)".to_owned();
    };
    let queries = size::queries(calibrated.queries.into());
    let too_few = match calibrated.is_of_too_few() {
        true => ", which are too few: measure again (`stratann calibrate`)",
        false => "",
    };
    match calibrated.source {
        QuerySource::Index => format!("measured with {queries}, made from vectors of the index"),
        QuerySource::User => format!("measured with {queries} of yours{too_few}"),
    }
}

/// Merges leave some deleted vectors in the files, as garbage.
fn deleted(stats: &Stats) -> String {
    let deleted = size::count(stats.deleted);
    match stats.garbage {
        0 => deleted,
        garbage => format!(
            "{deleted}, and {} that merges left in segments",
            size::count(garbage)
        ),
    }
}

/// Reports how well nodes with the codes of their neighbours fill blocks, and names better options.
pub fn fill_lines(fill: &BlockFill) -> Vec<String> {
    let mut lines = vec![format!("blocks            {}", fill.fill)];
    lines.extend(fill.proposals.iter().map(|p| {
        let change = if p.code_bytes == fill.fill.code_bytes {
            format!("--degree {}", p.degree)
        } else {
            format!("--code-bytes {}", p.code_bytes)
        };
        format!("                  with {change}: {p}")
    }));
    lines
}

/// The number of shown digits of a codebook's hash, which suffice to tell codebooks apart.
const SHORT: usize = 12;

/// An index in an old format has no hash.
fn codebook(hash: &str) -> String {
    match hash {
        "" => "-".to_owned(),
        hash => hash.chars().take(SHORT).collect(),
    }
}

/// Lists the indexes of a directory. Indexes that cannot be read are named at the end.
fn list(catalog: &Catalog, names: &[String], arguments: &StatsArguments) -> Result<(), Failure> {
    if !arguments.places.place.is_empty() {
        return Err(Failure::Wrong(format!(
            "--place applies to one index, and {} is a directory of {}. Name one of them",
            arguments.index.display(),
            size::indexes(names.len() as u64)
        )));
    }
    if let Some(memory) = arguments.memory {
        let one = arguments.index.join(&names[0]);
        return Err(Failure::Wrong(format!(
            "--memory {memory} applies to one index, and {} is a directory of {}. Name one of them, for example {}",
            arguments.index.display(),
            size::indexes(names.len() as u64),
            one.display()
        )));
    }
    let mut output = Output::lock();
    let mut table = Table::new(&[
        "<name",
        "vectors",
        "dimension",
        "<element",
        "<metric",
        "<preset",
        "bytes",
        "<codebook",
    ]);
    let (mut codebooks, mut wrong) = (HashSet::new(), Vec::new());
    let (mut vectors, mut bytes) = (0, 0);
    for name in names {
        let facts = match catalog.facts(name) {
            Ok(facts) => facts,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        if arguments.json {
            output.json_line(&facts)?;
            continue;
        }
        vectors += facts.vectors;
        bytes += facts.bytes;
        table.row(vec![
            facts.name,
            size::count(facts.vectors),
            facts.dimension.to_string(),
            facts.element,
            facts.metric,
            facts.preset,
            size::count(facts.bytes),
            codebook(&facts.codebook),
        ]);
        codebooks.insert(facts.codebook);
    }
    if !arguments.json {
        output.text(table.render())?;
        output.line("")?;
        output.line(format!(
            "{}, {}, {}, {}",
            size::indexes((names.len() - wrong.len()) as u64),
            size::vectors(vectors),
            size::format(bytes),
            size::counted(codebooks.len() as u64, "codebook", "different codebooks")
        ))?;
    }
    output.finish()?;
    match &wrong[..] {
        [] => Ok(()),
        [first, ..] => Err(Failure::Failed(format!(
            "{} of {} in {} cannot be read. The first: {first}",
            wrong.len(),
            size::indexes(names.len() as u64),
            arguments.index.display()
        ))),
    }
}

fn memory_plan(stats: &Stats) -> Table {
    let memory_plan: &MemoryPlan = &stats.memory;
    // Clusters have neither codes nor a cache. The graph of heads is counted with the tables.
    let of_graphs = [
        "codes",
        "codebook",
        "cache",
        "navigation graph",
        "lists and vectors, unpacked",
    ];
    let (tables, lists, vectors) = match &stats.clusters {
        None => ("tables", "pages of lists", "pages of vectors"),
        Some(_) => ("heads and tables", "clusters", "pages of vectors alone"),
    };
    let mut table = Table::new(&["<in memory", "bytes", "size"]);
    // An unpacked graph has no pages.
    let share = |what: &str, share: f64| match memory_plan.unpacked {
        0 => format!("{what}, {:.0} %", 100.0 * share),
        _ => what.to_owned(),
    };
    for (part, bytes) in [
        ("program and threads".to_owned(), memory_plan.program),
        ("queries in flight".to_owned(), memory_plan.queries),
        ("codes".to_owned(), memory_plan.codes),
        ("codebook".to_owned(), memory_plan.codebook),
        (tables.to_owned(), memory_plan.tables),
        ("copies (--place)".to_owned(), memory_plan.places),
        ("cache".to_owned(), memory_plan.cache),
        ("navigation graph".to_owned(), memory_plan.navigation),
        (
            share(lists, memory_plan.graph_share),
            memory_plan.graph_pages,
        ),
        (
            share(vectors, memory_plan.vector_share),
            memory_plan.vector_pages,
        ),
        (
            "lists and vectors, unpacked".to_owned(),
            memory_plan.unpacked,
        ),
        ("changes and deletes".to_owned(), memory_plan.changes),
        ("reserved for inserts".to_owned(), memory_plan.inserting),
        ("unused".to_owned(), memory_plan.unused),
    ] {
        if stats.clusters.is_some() && of_graphs.contains(&&*part) {
            continue;
        }
        table.row(vec![part, size::count(bytes), size::format(bytes)]);
    }
    table
}

fn compression(codecs: &Codecs) -> String {
    let name = |codec: &str| match codec {
        "" => "none".to_owned(),
        codec => codec.to_owned(),
    };
    format!(
        "lists: {}; vectors: {}",
        name(&codecs.list_codec),
        name(&codecs.vector_codec)
    )
}

/// Adding 0.0 turns -0.0 into 0.0, so that a share of 0 has no sign.
fn percent(share: f64) -> String {
    let tenths = (1000.0 * share).round() / 10.0;
    format!("{:.1} %", tenths + 0.0)
}

fn of_graph(stats: &Stats) -> Vec<(&'static str, String)> {
    vec![
        ("compression", compression(&stats.compression)),
        (
            "built with",
            format!(
                "R {}, L {}, alpha {}",
                stats.degree, stats.build_list, stats.alpha
            ),
        ),
        (
            "degree",
            format!(
                "{:.1} on average, {} at most",
                stats.degree_mean, stats.degree_max
            ),
        ),
        ("bits an edge", format!("{:.1}", stats.bits_per_edge)),
        (
            "vector ratio",
            format!("{:.3} (raw bytes / stored bytes)", stats.vector_ratio),
        ),
        (
            "saved",
            format!(
                "{} of the {} that the coupled layout would take",
                percent(stats.saved),
                size::format(stats.coupled_bytes)
            ),
        ),
        (
            "saved of graph and vectors",
            format!(
                "{} of the {} that graph and vectors alone would take in the coupled layout",
                percent(stats.graph_and_vectors.saved),
                size::format(stats.graph_and_vectors.coupled_bytes)
            ),
        ),
        ("code", format!("{} bytes a vector", stats.code_bytes)),
        ("codebook", codebook(&stats.codebook)),
        (
            "navigation graph",
            format!("{} nodes", size::count(stats.navigation_nodes)),
        ),
        (
            "in memory",
            format!(
                "{} of codes and {} of codebook while searching",
                size::format(stats.memory.codes),
                size::format(stats.memory.codebook)
            ),
        ),
    ]
}

fn of_clusters(clusters: &ClusterStats, stats: &Stats) -> Vec<(&'static str, String)> {
    vec![
        (
            "clusters",
            format!(
                "{}, built for about {} vectors each",
                size::count(clusters.clusters),
                clusters.size
            ),
        ),
        (
            "members",
            format!(
                "{:.1} per cluster on average, {} at most, when the index was built",
                clusters.members_mean, clusters.members_max
            ),
        ),
        (
            "replicas",
            format!(
                "{:.2} clusters per vector on average, {} at most, when the index was built",
                clusters.replicas_mean, clusters.replicas
            ),
        ),
        (
            "amplification",
            format!("{:.2} times the bytes of the vectors", stats.amplification),
        ),
        (
            "in memory",
            format!("{} of heads and tables", size::format(stats.memory.tables)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_good_where_somebody_looked_or_nothing_came() {
        let with = |drifted, not_looked_at| {
            let mut health = IndexHealth::default();
            (health.drifted, health.not_looked_at) = (drifted, not_looked_at);
            self::health(&Ok(health))
        };
        assert_eq!(with(None, None), "good");
        assert_eq!(with(Some(0.001), None), "good");
        assert!(with(Some(0.5), None).contains("stratann compact"));
        assert_eq!(with(None, Some("no room")), "not checked: no room");
    }
}
