//! `stratann cluster search SERVERS QUERIES`

use serde::Serialize;
use stratann::{GroundTruth, Matrix, VectorFile, VectorSource};
use stratann_bench::measured::Latency;
use stratann_node::serve::{Answered, Asking, Client, Means, Unanswered};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress;
use stratann_terminal::size;
use stratann_terminal::table::Table;

use super::{Purpose, connected, fits, unanswered};
use crate::args::ClusterSearchArguments;
use crate::commands::answers;

#[derive(Serialize)]
struct Measured {
    /// The largest list size that a query used. If many found vectors were deleted, a query uses a
    /// larger list than requested.
    list: u32,
    list_asked: Option<usize>,
    k: usize,
    recall: Option<f64>,
    qps: f64,
    latency_us: Latency,
    per_query: PerQuery,
    in_flight: usize,
}

#[derive(Serialize)]
struct PerQuery {
    /// Distances by low codes, distances by high codes, and exact distances.
    low: f64,
    high: f64,
    full: f64,
    /// Rounds between compute server and memory server.
    steps: f64,
    /// Bytes between the compute server and the memory server, and between the compute server and
    /// storage.
    wire: f64,
    storage_wire: f64,
    /// Reads of storage, and their bytes.
    reads: f64,
    read_bytes: f64,
    restarts: f64,
}

impl From<Means> for PerQuery {
    fn from(means: Means) -> PerQuery {
        let Means {
            low,
            high,
            full,
            steps,
            wire,
            storage_wire,
            reads,
            read_bytes,
            restarts,
        } = means;
        PerQuery {
            low,
            high,
            full,
            steps,
            wire,
            storage_wire,
            reads,
            read_bytes,
            restarts,
        }
    }
}

pub fn run(arguments: &ClusterSearchArguments) -> Result<(), Failure> {
    answers::check_out(
        arguments.out.as_deref(),
        arguments.overwrite,
        &[("--list", "list size", arguments.list.len())],
    )?;
    answers::check_lists(&arguments.list, arguments.k)?;
    let queries = Matrix::read(&VectorFile::open(&arguments.queries)?)?;
    let truth = answers::truth(
        arguments.truth.as_deref(),
        queries.rows(),
        &arguments.queries,
        arguments.k,
    )?;
    let (client, collection) = connected(
        &arguments.servers.0,
        arguments.secret_file.as_deref(),
        &arguments.reach,
        arguments.deadline,
        Purpose::Search,
    )?;
    fits(&collection, &queries)?;
    let mut output = Output::lock();
    let mut table = Table::new(&[
        "list",
        "recall",
        "queries/s",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "low",
        "high",
        "full",
        "rounds",
        "wire",
        "reads",
    ]);
    let lists: Vec<Option<usize>> = match arguments.list.is_empty() {
        true => vec![None],
        false => arguments.list.iter().copied().map(Some).collect(),
    };
    let (mut raised, mut longer) = (false, Vec::new());
    for list in lists {
        let found = found(&client, &queries, list, arguments)?;
        raised |= list.is_none() && found.list as usize == arguments.k;
        if let Some(asked) = list.filter(|&asked| (found.list as usize) > asked.max(arguments.k)) {
            longer.push(format!("{} instead of {asked}", found.list));
        }
        let measured = measured((&found, list), truth.as_ref(), queries.rows(), arguments)?;
        // With `--out`, there is only one list size.
        if let Some(path) = &arguments.out {
            answers::write(path, arguments.k, &found.ids, &found.distances)?;
        }
        if arguments.json {
            output.json_line(&measured)?;
            continue;
        }
        let ms = |us: f64| format!("{:.2}", us / 1e3);
        let per = &measured.per_query;
        table.row(vec![
            measured.list.to_string(),
            measured
                .recall
                .map_or_else(|| "-".to_owned(), |recall| format!("{recall:.4}")),
            format!("{:.0}", measured.qps),
            ms(measured.latency_us.mean),
            ms(measured.latency_us.p50),
            ms(measured.latency_us.p99),
            format!("{:.0}", per.low),
            format!("{:.0}", per.high),
            format!("{:.0}", per.full),
            format!("{:.1}", per.steps),
            size::format(per.wire.round() as u64),
            format!("{:.1}", per.reads),
        ]);
    }
    if !arguments.json {
        output.text(table.render())?;
        if raised {
            output.line(format!(
                "the list size is {0}: the default list size of the compute server, or -k if the default is smaller",
                arguments.k
            ))?;
        }
        if !longer.is_empty() {
            output.line(format!(
                "the compute server made lists longer ({}), because some vectors that it found were deleted or replaced after the last merge",
                longer.join(", ")
            ))?;
        }
    }
    output.finish()
}

fn found(
    client: &Client,
    queries: &Matrix,
    list: Option<usize>,
    arguments: &ClusterSearchArguments,
) -> Result<Answered, Failure> {
    let asking = Asking {
        k: arguments.k,
        list,
        beam: arguments.beam,
        in_flight: arguments.in_flight,
    };
    let read = |at: usize, row: &mut Vec<u8>| {
        row.resize(queries.row_bytes(), 0);
        Ok(queries.read(at, row)?)
    };
    let goes_on = || match progress::interrupted() {
        true => Err(stratann::Error::Stopped),
        false => Ok(()),
    };
    let found = client.search_all(queries.rows(), read, &asking, goes_on);
    found.map_err(|why| match why {
        Unanswered::Server(failure) => unanswered(failure),
        Unanswered::Caller(error) => error.into(),
    })
}

fn measured(
    (found, list): (&Answered, Option<usize>),
    truth: Option<&GroundTruth>,
    rows: usize,
    arguments: &ClusterSearchArguments,
) -> Result<Measured, Failure> {
    let recall = truth
        .map(|truth| truth.recall(&found.ids, &found.distances, arguments.k))
        .transpose()?;
    Ok(Measured {
        list: found.list,
        list_asked: list,
        k: arguments.k,
        recall,
        qps: rows as f64 / found.seconds.max(f64::MIN_POSITIVE),
        latency_us: Latency::of(&found.latencies_us),
        per_query: found.means.into(),
        in_flight: arguments.in_flight,
    })
}
