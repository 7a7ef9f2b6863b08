//! `stratann delete`, `stratann set-attributes` and `stratann compact`, and their common part with
//! `stratann insert`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use stratann::{
    CodebookFate, CompactReport, DirectCounts, DirectOptions, Error, ErrorKind, Filter, LiveIndex,
    MergeWhen, OpenOptions, Strategy, WriteOptions,
};
use stratann_terminal::failure::Failure;
use stratann_terminal::output::Output;
use stratann_terminal::progress::Shown;
use stratann_terminal::size;
use stratann_terminal::table::facts;

use super::search::threads_beside;
use crate::args::{
    CompactArguments, DeleteArguments, SetAttributesArguments, WriteArguments, threads_or_cores,
};
use crate::{ids, input};

#[derive(Debug, Default, Serialize)]
pub(super) struct Changed {
    inserted: u64,
    /// The number of rows that a resumed insert found in the index.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_before: Option<u64>,
    /// The files whose cut-off inserts were forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten: Option<Vec<String>>,
    deleted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<u64>,
    /// The added columns, with their types.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_columns: Option<BTreeMap<String, String>>,
    #[serde(skip)]
    by_filter: bool,
    vectors: u64,
    /// The time without the merge.
    seconds: f64,
    direct: Option<DirectCounts>,
    compact: Option<CompactReport>,
    due: Option<String>,
    /// An error that did not prevent the changes, such as a failed checkpoint.
    trouble: Option<String>,
}

impl Changed {
    pub(super) fn by_forgetting(file: &str, inserts: usize, seconds: f64) -> Self {
        Self {
            forgotten: Some(vec![file.to_owned(); inserts]),
            seconds,
            ..Self::default()
        }
    }

    pub(super) fn by_insert(inserted: u64, in_before: Option<u64>, seconds: f64) -> Self {
        Self {
            inserted,
            in_before,
            seconds,
            ..Self::default()
        }
    }
}

enum Wanted<'a> {
    Ids(Vec<u64>),
    Matching(&'a Filter),
}

pub fn delete(arguments: &DeleteArguments, quiet: bool) -> Result<(), Failure> {
    let wanted = match (
        ids::given(&arguments.id, arguments.ids.as_deref())?,
        &arguments.filter,
    ) {
        (Some(ids), _) => Wanted::Ids(ids),
        (None, Some(filter)) => Wanted::Matching(filter),
        (None, None) => {
            return Err(Failure::Wrong(
                "no vectors to delete are given. Give ids, a file of ids, or --filter with a condition on attributes"
                    .into(),
            ));
        }
    };
    let live = open(&arguments.index, &arguments.write)?;
    let shown = Shown::new(quiet);
    let start = Instant::now();
    let deleted = match wanted {
        Wanted::Ids(ids) => (live.delete_observed(&ids, &shown)).map(|()| ids.len() as u64),
        Wanted::Matching(filter) => live.delete_matching_observed(filter, &shown),
    };
    let changed = Changed {
        deleted: made(&live, deleted)?,
        by_filter: arguments.filter.is_some(),
        seconds: start.elapsed().as_secs_f64(),
        ..Changed::default()
    };
    finish(&live, changed, arguments.compact, arguments.json, &shown)
}

pub fn set_attributes(arguments: &SetAttributesArguments, quiet: bool) -> Result<(), Failure> {
    let shown = Shown::new(quiet);
    // Refuses a wrong path first. The index is opened later, because the read may need the memory
    // that an open index takes.
    stratann::vectors_in(&arguments.index).map_err(changing)?;
    let (rows, ids) = input::attributes(arguments, &shown)?;
    let live = open(&arguments.index, &arguments.write)?;
    let before = live.schema();
    let start = Instant::now();
    let set = match arguments.keep {
        true => live.update_attributes(&ids, &rows, &shown),
        false => live.set_attributes(&ids, &rows, &shown),
    };
    made(&live, set)?;
    let seconds = start.elapsed().as_secs_f64();
    let now = live.schema();
    let new = now.iter().filter(|(name, _)| before.get(name).is_none());
    let changed = Changed {
        set: Some(ids.len() as u64),
        new_columns: Some(
            new.map(|(name, kind)| (name.to_owned(), kind.to_string()))
                .collect(),
        ),
        seconds,
        ..Changed::default()
    };
    finish(&live, changed, arguments.compact, arguments.json, &shown)
}

/// Makes the changes durable, even if the call ended early.
fn made<T>(live: &LiveIndex, changed: Result<T, Error>) -> Result<T, Failure> {
    let flushed = live.flush();
    let changed = changed.map_err(changing)?;
    flushed.map_err(changing)?;
    Ok(changed)
}

pub fn compact(arguments: &CompactArguments, quiet: bool) -> Result<(), Failure> {
    let live = open(&arguments.index, &arguments.write)?;
    let shown = Shown::new(quiet);
    finish(&live, Changed::default(), true, arguments.json, &shown)
}

pub(super) fn open(index: &Path, write: &WriteArguments) -> Result<LiveIndex, Failure> {
    let open = OpenOptions {
        memory: write.memory,
        beside: threads_beside(threads_or_cores(write.threads)),
        places: write.places.all()?,
        ..OpenOptions::default()
    };
    let options = WriteOptions {
        durability: write.durability,
        threads: threads_or_cores(write.threads),
        update: write.update,
        direct: DirectOptions {
            list: write.insert_list,
            // If the user chooses a method, no merge replaces the inserts.
            merge_many: write.insert_list.is_none() && write.update.is_none(),
            ..DirectOptions::default()
        },
    };
    LiveIndex::open(index, &open, &options).map_err(changing)
}

/// On a full disk, the error warns that deletes do not help.
pub(super) fn changing(error: Error) -> Failure {
    let advice = match error.kind() == ErrorKind::NoSpace {
        true => {
            ". The index can be searched as before. Deleting vectors frees no space by itself: the merge that frees it first writes the \
             new index beside the old one"
        }
        false => "",
    };
    match Failure::from(error) {
        Failure::Failed(message) => Failure::Failed(message + advice),
        failure => failure,
    }
}

/// The change is durable, so the text tells the user not to repeat it.
fn not_merged(index: &Path, changed: &Changed, error: Error) -> Failure {
    let done = match (changed.inserted, changed.deleted) {
        (0, 0) => match changed.set {
            None | Some(0) => return changing(error),
            Some(set) => format!(
                "the attributes of {} are set, durably",
                size::counted(set, "row", "rows")
            ),
        },
        (0, ids) => format!(
            "{} deleted, durably",
            size::counted(ids, "id is", "ids are")
        ),
        (rows, _) => format!(
            "{} inserted, durably",
            size::counted(rows, "row is", "rows are")
        ),
    };
    let again = match changed.inserted {
        0 => "",
        _ => ", and do not insert them again",
    };
    let why = match error {
        // The text of `Interrupted` says that nothing was changed, but a change was made.
        Error::Interrupted => Error::Stopped.to_string(),
        error => error.to_string(),
    };
    Failure::Failed(format!(
        "{done}; the changes were not merged: {why}. Run `stratann compact {}` later{again}",
        index.display()
    ))
}

pub(super) fn finish(
    live: &LiveIndex,
    mut changed: Changed,
    compact: bool,
    json: bool,
    shown: &Shown,
) -> Result<(), Failure> {
    let stats = live.stats();
    changed.direct = stats.direct;
    if compact {
        let merged = live.compact(shown);
        changed.compact = Some(merged.map_err(|error| not_merged(live.path(), &changed, error))?);
    }
    changed.vectors = live.len() as u64;
    changed.due = live.due(&MergeWhen::default()).map(|due| due.to_string());
    changed.trouble = live.stats().trouble;
    let mut output = Output::lock();
    if json {
        output.json_line(&changed)?;
        return output.finish();
    }
    let mut lines = vec![("index", live.path().display().to_string())];
    let rate = |count: u64| {
        let rate = (count as f64 / changed.seconds.max(1e-9)) as u64;
        let (count, rate) = (size::count(count), size::count(rate));
        format!(
            "{count} in {}, {rate} a second",
            size::seconds(changed.seconds)
        )
    };
    if let Some(before) = changed.in_before {
        lines.push((
            "inserted before",
            format!("the first {}", size::count(before)),
        ));
    }
    for file in changed.forgotten.iter().flatten() {
        lines.push((
            "forgotten",
            format!("the unfinished insert of {file}; its rows stay in the index"),
        ));
    }
    if changed.inserted > 0 {
        lines.push(("inserted", rate(changed.inserted)));
    }
    if changed.deleted > 0 {
        lines.push(("deleted", rate(changed.deleted)));
    }
    if let Some(set) = changed.set {
        lines.push(("set", rate(set)));
    }
    if changed.by_filter && changed.deleted == 0 {
        lines.push(("deleted", "nothing: no vector matches".into()));
    }
    // New columns are listed, so that the user notices a misspelt key.
    let new = changed.new_columns.iter().flatten();
    let new: Vec<String> = new
        .map(|(name, kind)| format!("{name:?} ({kind})"))
        .collect();
    if !new.is_empty() {
        lines.push(("new columns", new.join(", ")));
    }
    if let Some(direct) = changed.direct.filter(|direct| direct.inserts > 0) {
        let each = |count: u64| count as f64 / direct.inserts as f64;
        lines.push((
            "graph",
            format!(
                "for each insert {:.1} lists changed, {:.1} pages read and {:.1} pages written",
                each(direct.changes),
                each(direct.pages_read),
                each(direct.pages_written)
            ),
        ));
    }
    if let Some(report) = &changed.compact {
        let some = |count: u64, from: &str| match count {
            0 => String::new(),
            count => format!(", {} of them {from}", size::count(count)),
        };
        let from_log = some(report.merged, "from the log");
        let direct = some(report.direct, "inserted directly since the last merge");
        let merged = format!(
            "{}{from_log}{direct}; {} deleted or replaced vectors were left out; in {}",
            size::vectors(report.vectors),
            size::count(report.removed),
            size::seconds(report.seconds)
        );
        let segments = format!(
            "{} unchanged, {} rewritten with {}",
            size::count(report.segments_kept),
            size::count(report.segments_rewritten),
            size::vectors(report.vectors_rewritten)
        );
        let storage = format!(
            "{}, before the merge {}",
            size::format(report.bytes_after),
            size::format(report.bytes_before)
        );
        match report.seconds > 0.0 {
            true => {
                lines.push(("merged", merged));
                if report.segments_kept + report.segments_rewritten > 0 {
                    lines.push(("segments", segments));
                }
                match report.codebook {
                    CodebookFate::Kept => {}
                    CodebookFate::Trained => lines.push((
                        "codes",
                        "from a new codebook, because the index has too many vectors for the old one"
                            .into(),
                    )),
                    CodebookFate::Outgrown => lines.push((
                        "codes",
                        "from the old codebook, which was given to the build. The index has too many vectors for this codebook. Rebuild the index with another --codebook, or without --codebook"
                            .into(),
                    )),
                }
                lines.push(("on storage", storage));
            }
            false => lines.push((
                "merged",
                "nothing: there are no changes since the checkpoint".into(),
            )),
        }
    }
    lines.push(("vectors", size::count(changed.vectors)));
    let is_merged = changed
        .compact
        .as_ref()
        .is_some_and(|report| report.seconds > 0.0);
    let is_changed = changed.inserted + changed.deleted + changed.set.unwrap_or(0) > 0;
    let again = match (is_merged, is_changed) {
        (true, _) => Some(
            "running servers still search the old checkpoint. Restart all servers, except memory servers with --follow",
        ),
        (false, true) => Some(
            "running servers lack this change until the storage server is restarted. While servers run, make changes through them (`stratann cluster upsert`)",
        ),
        (false, false) => None,
    };
    if let Some(again) = again.filter(|_| live.index().preset().strategy == Strategy::Press) {
        lines.push(("servers", again.to_owned()));
    }
    if let Some(due) = &changed.due {
        lines.push(("due", format!("a merge: {due} (`stratann compact`)")));
    }
    if let Some(trouble) = &changed.trouble {
        lines.push(("trouble", trouble.clone()));
    }
    output.text(facts(&lines))?;
    output.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_in_is_not_said_to_have_been_nothing() {
        let said = |changed: Changed, error| match not_merged(Path::new("x.idx"), &changed, error) {
            Failure::Failed(message) => message,
            failure => panic!("the change was made, but its report is {failure:?}"),
        };
        let inserted = || Changed {
            inserted: 3,
            ..Changed::default()
        };
        let deleted = || Changed {
            deleted: 3,
            ..Changed::default()
        };
        let none_left = || Error::Memory {
            budget: 1,
            needs: 2,
            part: "the merged index".into(),
        };
        for error in [Error::Interrupted, none_left()] {
            let message = said(inserted(), error);
            assert!(
                message.contains("3 rows are inserted, durably"),
                "{message}"
            );
            assert!(message.contains("do not insert them again"), "{message}");
            assert!(message.contains("stratann compact x.idx"), "{message}");
            assert!(!message.contains("nothing was changed"), "{message}");
        }
        let set = Changed {
            set: Some(3),
            ..Changed::default()
        };
        let message = said(set, none_left());
        assert!(
            message.contains("the attributes of 3 rows are set, durably"),
            "{message}"
        );
        let message = said(deleted(), none_left());
        assert!(message.contains("3 ids are deleted, durably"), "{message}");
        assert!(!message.contains("insert"), "{message}");
        let nothing = said(Changed::default(), Error::Interrupted);
        assert!(nothing.contains("nothing was changed"), "{nothing}");
    }

    #[test]
    fn a_full_disk_says_what_works_and_what_does_not_help() {
        let full = || {
            // ENOSPC
            let full = std::io::Error::from_raw_os_error(28);
            Error::Tier(stratann::TierError::io(
                "write",
                "x.idx/log-000001",
                0,
                4096,
                full,
            ))
        };
        let partly = Error::Partly {
            done: 3,
            total: 5,
            given: None,
            source: Box::new(full()),
        };
        for error in [full(), partly] {
            let Failure::Failed(message) = changing(error) else {
                panic!("a full disk became the failure of a wrong call");
            };
            for word in ["no space left", "can be searched", "frees no space"] {
                assert!(message.contains(word), "{message}");
            }
        }
        let Failure::Failed(message) = changing(Error::Interrupted) else {
            panic!("`Error::Interrupted` became the failure of a wrong call");
        };
        assert!(!message.contains("frees no space"), "{message}");
    }
}
