//! `stratann cluster upsert SERVERS VECTORS --ids IDS` and `stratann cluster delete SERVERS IDS`.

use std::time::Instant;

use serde::Serialize;
use stratann::{Progress, VectorFile, VectorSource};
use stratann_node::serve::{ChangeError, Done, Unfinished, twice};
use stratann_node::wire::Reason;
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::{self, Shown};
use stratann_terminal::size;
use stratann_terminal::table::facts;

use super::{Purpose, connected, fits};
use crate::args::{ClusterDeleteArguments, ClusterUpsertArguments};
use crate::ids;

#[derive(Debug, Default, Serialize)]
struct Changed {
    upserted: u64,
    deleted: u64,
    missing: u64,
    /// The number of missing ids that this change may have deleted before the storage server was
    /// restarted.
    unsure: u64,
    seconds: f64,
}

/// Each batch is durable before the next one begins.
pub fn upsert(arguments: &ClusterUpsertArguments, quiet: bool) -> Result<(), Failure> {
    let change = &arguments.change;
    let vectors = VectorFile::open(&arguments.vectors)?;
    let ids = ids::read(&arguments.ids)?;
    if ids.len() != vectors.rows() {
        return Err(Failure::Wrong(format!(
            "{} has {} ids, and {} has {} vectors. Give an id for each vector",
            arguments.ids.display(),
            size::count(ids.len() as u64),
            arguments.vectors.display(),
            size::count(vectors.rows() as u64)
        )));
    }
    different(&ids)?;
    let (client, collection) = connected(
        &arguments.servers.0,
        change.secret_file.as_deref(),
        &change.reach,
        change.deadline,
        Purpose::Change,
    )?;
    fits(&collection, &vectors)?;
    let row_bytes = vectors.dim() * vectors.element().size();
    let shown = Shown::new(quiet);
    let start = Instant::now();
    shown.begin("upserting", ids.len() as u64);
    let read =
        |first, rows: &mut [u8]| (vectors.read(first, rows)).map_err(|error| error.to_string());
    let made = client.upsert(&ids, row_bytes, read, |rows| goes_on(&shown, rows));
    tell("upserted", made, ids.len(), start, &shown, change.json)
}

pub fn delete(arguments: &ClusterDeleteArguments, quiet: bool) -> Result<(), Failure> {
    let change = &arguments.change;
    let ids = ids::given(&arguments.id, None)?.unwrap_or_default();
    different(&ids)?;
    let (client, _) = connected(
        &arguments.servers.0,
        change.secret_file.as_deref(),
        &change.reach,
        change.deadline,
        Purpose::Change,
    )?;
    let shown = Shown::new(quiet);
    let start = Instant::now();
    shown.begin("deleting", ids.len() as u64);
    let made = client.delete(&ids, |ids| goes_on(&shown, ids));
    tell("deleted", made, ids.len(), start, &shown, change.json)
}

fn goes_on(shown: &Shown, done: usize) -> bool {
    shown.advance(done as u64);
    !progress::interrupted()
}

fn different(ids: &[u64]) -> Result<(), Failure> {
    let wrong = |id| Failure::Wrong(format!("id {id} is given twice. Give each id once"));
    twice(ids).map_or(Ok(()), |id| Err(wrong(id)))
}

/// Parts that were changed before the failure stay changed.
fn stopped(unfinished: Unfinished) -> Failure {
    let text = unfinished.to_string();
    match unfinished.why {
        ChangeError::Wrong(_) => Failure::Wrong(text),
        ChangeError::Server(failure) if failure.reason() == Some(Reason::Invalid) => {
            Failure::Wrong(text)
        }
        _ => Failure::Failed(text),
    }
}

fn tell(
    what: &'static str,
    made: Result<Done, Unfinished>,
    ids: usize,
    start: Instant,
    shown: &Shown,
    json: bool,
) -> Result<(), Failure> {
    shown.end();
    let made = made.map_err(stopped)?;
    let count = made.upserted + made.deleted;
    let done = Changed {
        upserted: made.upserted,
        deleted: made.deleted,
        missing: (ids as u64).saturating_sub(count + made.unsure),
        unsure: made.unsure,
        seconds: start.elapsed().as_secs_f64(),
    };
    let mut output = Output::lock();
    if json {
        output.json_line(&done)?;
        return output.finish();
    }
    let rate = (count as f64 / done.seconds.max(1e-9)) as u64;
    let mut line = format!(
        "{} in {}, {} a second",
        size::count(count),
        size::seconds(done.seconds),
        size::count(rate)
    );
    if done.missing > 0 {
        line += &format!("; {} ids were not in the index", size::count(done.missing));
    }
    if done.unsure > 0 {
        line += &format!(
            "; for {} ids it is unknown whether they were in the index: the storage server was restarted during this change, and may have deleted them before the restart",
            size::count(done.unsure)
        );
    }
    output.text(facts(&[(what, line)]))?;
    output.finish()
}
