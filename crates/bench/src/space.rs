//! The storage sizes of indexes: the parts, bits per edge, and the space saved against the coupled
//! layout.

use serde::Serialize;
use serde_json::Value;
use stratann_terminal::size;
use stratann_terminal::table::Table;

use crate::report::RunResult;

/// One index.
#[derive(Debug, Serialize)]
pub struct Space {
    /// The folder of the index in the cache.
    pub key: String,
    /// The runs that search the index.
    pub runs: Vec<String>,
    /// The output of `stratann stats --json` about space.
    #[serde(flatten)]
    facts: Value,
}

const FACTS: [&str; 9] = [
    "layout",
    "compression",
    "order",
    "bytes",
    "bits_per_edge",
    "vector_ratio",
    "coupled_bytes",
    "saved",
    "graph_and_vectors",
];

/// Lists each index of a job once. The list is empty if all runs search the same index.
pub fn space(runs: &[RunResult]) -> Vec<Space> {
    let mut all: Vec<Space> = Vec::new();
    for run in runs {
        match all.iter_mut().find(|space| space.key == run.index.key) {
            Some(space) => space.runs.push(run.name.clone()),
            None => all.push(Space {
                key: run.index.key.clone(),
                runs: vec![run.name.clone()],
                facts: FACTS
                    .iter()
                    .filter_map(|key| Some((*key, run.index.stats.get(*key)?.clone())))
                    .collect(),
            }),
        }
    }
    if all.len() < 2 {
        all.clear();
    }
    all
}

/// Returns the table. The text is empty if there are no two indexes to compare.
pub fn render(all: &[Space]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "<space of the index of",
        "<layout",
        "<lists",
        "<vectors",
        "graph",
        "vectors",
        "codes",
        "ids",
        "other",
        "total",
        "bits an edge",
        "vector ratio",
        "saved in total",
        "saved of graph and vectors",
    ]);
    let dash = || "-".to_string();
    for space in all {
        let facts = &space.facts;
        let word = |value: &Value| match value.as_str() {
            Some("") | None => dash(),
            Some(word) => word.to_string(),
        };
        let part = |name: &str| {
            facts["bytes"][name]
                .as_u64()
                .map_or_else(dash, size::format)
        };
        let number = |name: &str, digits: usize| {
            facts[name]
                .as_f64()
                .map_or_else(dash, |number| format!("{number:.digits$}"))
        };
        let percent = |value: &Value| {
            value
                .as_f64()
                .map_or_else(dash, |share| format!("{:.1} %", share * 100.0))
        };
        table.row(vec![
            space.runs.first().cloned().unwrap_or_default(),
            word(&facts["layout"]),
            word(&facts["compression"]["list_codec"]),
            word(&facts["compression"]["vector_codec"]),
            part("graph"),
            part("vectors"),
            part("codes"),
            part("ids"),
            part("other"),
            part("total"),
            number("bits_per_edge", 2),
            number("vector_ratio", 3),
            percent(&facts["saved"]),
            percent(&facts["graph_and_vectors"]["saved"]),
        ]);
    }
    table.render()
        + "saved: share of the bytes in the coupled layout; vector ratio: raw bytes / stored bytes\n\n"
}
