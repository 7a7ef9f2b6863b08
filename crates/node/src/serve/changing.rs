//! Sends the changes of a client in parts, for the command and the Python package.

use std::collections::HashSet;
use std::fmt;

use super::client::Client;
use crate::role::{Asked, Doubt, Failure};
use crate::wire::{Changed, MOST_ASKED, MOST_NODES, MOST_WANTED};

/// The largest number of ids of a part, and of bytes of its rows.
const MOST_IDS: usize = MOST_NODES / 2;
const MOST_ROWS: usize = 1 << 20;
const _: () = assert!(MOST_ROWS + 16 * MOST_IDS + 8 * MOST_WANTED + 64 < MOST_ASKED);

/// The reasons why a change ended early.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A server refused a part, could not make it, or did not answer in time.
    #[error(transparent)]
    Server(#[from] Failure),
    /// The rows or ids are invalid.
    #[error("{0}")]
    Wrong(String),
    /// The caller interrupted the change.
    #[error("the change was interrupted")]
    Interrupted,
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The number of ids that were inserted or replaced.
    pub upserted: u64,
    /// The number of ids that were deleted.
    pub deleted: u64,
    /// The number of ids that did not exist, but that storage may have deleted before its restart.
    pub unsure: u64,
}

impl Done {
    fn add(&mut self, part: Changed, again: bool, ids: usize) {
        self.upserted += u64::from(part.upserted);
        self.deleted += u64::from(part.deleted);
        if again {
            let done = u64::from(part.upserted) + u64::from(part.deleted);
            self.unsure += (ids as u64).saturating_sub(done);
        }
    }
}

/// A change that ended before all of it was made.
#[derive(Debug, thiserror::Error)]
pub struct Unfinished {
    /// The durable part.
    pub done: Done,
    /// The number of ids in the durable part, including ids to delete that did not exist.
    pub acknowledged: usize,
    /// The number of ids in doubt, which follow the durable part and may have been changed.
    pub unknown: usize,
    /// Whether storage may still change the ids in doubt.
    pub yet: bool,
    /// The number of all ids of the change.
    pub total: usize,
    /// The reason why the change ended.
    #[source]
    pub why: ChangeError,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unfinished {
            acknowledged,
            unknown,
            yet,
            total,
            why,
            ..
        } = self;
        write!(f, "{why}; ")?;
        match (acknowledged, unknown) {
            (0, 0) => return f.write_str("nothing was changed"),
            (0, _) => write!(
                f,
                "none of {total} ids is known to be changed, but some or all of the first {unknown} may be changed"
            )?,
            _ => write!(
                f,
                "the first {acknowledged} of {total} ids were changed durably"
            )?,
        }
        if *acknowledged > 0 && *unknown > 0 {
            write!(f, "; some or all of the next {unknown} may be changed too")?;
        }
        if *unknown > 0 && *yet {
            f.write_str(", or may be changed later")?;
        }
        f.write_str(
            ". Make the whole change again; repeating a part that was made has no further effect",
        )
    }
}

/// Returns an id that occurs twice. A change refuses such an id, because it is unclear which of the
/// two vectors is the last.
pub fn twice(ids: &[u64]) -> Option<u64> {
    let mut seen = HashSet::with_capacity(ids.len());
    ids.iter().copied().find(|&id| !seen.insert(id))
}

impl Client {
    /// Inserts or replaces rows. On return, they are durable, and every later search finds them.
    ///
    /// A part has at most a mebibyte of rows. `read` receives the number of a part's first row, and
    /// a buffer for its rows of `row_bytes` bytes each. After each part, `goes_on` receives the
    /// number of rows of the part. In between, it receives 0 several times a second. If `goes_on`
    /// returns false, the change ends.
    ///
    /// # Errors
    /// [`Unfinished`], with the durable part and the part in doubt: `read` failed, or a part was
    /// refused, failed, interrupted or late. For the outcome of an interrupted or late part, the
    /// call waits one second. If an id is given twice, nothing is changed.
    ///
    /// The same change may be made again. Storage makes no part of an unfinished change after a
    /// later acknowledged change of this client. Unless [`yet`](Unfinished::yet) is set, storage
    /// also makes no part after this call.
    pub fn upsert(
        &self,
        ids: &[u64],
        row_bytes: usize,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), String>,
        goes_on: impl FnMut(usize) -> bool,
    ) -> Result<Done, Unfinished> {
        let most = (MOST_ROWS / row_bytes.max(1)).clamp(1, MOST_IDS);
        let part = |first, ids: &[u64]| {
            let mut rows = vec![0; ids.len() * row_bytes];
            read(first, &mut rows).map_err(ChangeError::Wrong)?;
            Ok((ids.to_vec(), rows, Vec::new()))
        };
        self.in_parts(ids, most, part, goes_on)
    }

    /// Deletes ids, if they exist, like [`upsert`](Self::upsert).
    ///
    /// # Errors
    /// The errors of [`upsert`](Self::upsert).
    pub fn delete(
        &self,
        ids: &[u64],
        goes_on: impl FnMut(usize) -> bool,
    ) -> Result<Done, Unfinished> {
        let part = |_, ids: &[u64]| Ok((Vec::new(), Vec::new(), ids.to_vec()));
        self.in_parts(ids, MOST_IDS, part, goes_on)
    }

    /// `part` returns the ids to upsert, their rows, and the ids to delete.
    fn in_parts(
        &self,
        ids: &[u64],
        most: usize,
        mut part: impl FnMut(usize, &[u64]) -> Result<(Vec<u64>, Vec<u8>, Vec<u64>), ChangeError>,
        mut goes_on: impl FnMut(usize) -> bool,
    ) -> Result<Done, Unfinished> {
        let (mut done, total) = (Done::default(), ids.len());
        if let Some(id) = twice(ids) {
            return Err(Unfinished {
                done,
                acknowledged: 0,
                unknown: 0,
                yet: false,
                total,
                why: ChangeError::Wrong(format!(
                    "id {id} occurs twice, and each id may occur once"
                )),
            });
        }
        for (first, ids) in (0..).step_by(most).zip(ids.chunks(most)) {
            let made = match part(first, ids) {
                Ok((upserts, rows, deletes)) => {
                    let asked = Asked::Change {
                        upserts,
                        rows,
                        deletes,
                    };
                    self.changed(asked, &mut || goes_on(0))
                }
                Err(why) => Err((why, Doubt::Nothing)),
            };
            let stopped = |done, acknowledged, doubt, why| Unfinished {
                done,
                acknowledged,
                unknown: match doubt {
                    Doubt::Nothing => 0,
                    Doubt::Perhaps | Doubt::Yet => ids.len(),
                },
                yet: doubt == Doubt::Yet,
                total,
                why,
            };
            match made {
                Ok((changed, again)) => done.add(changed, again, ids.len()),
                Err((why, doubt)) => return Err(stopped(done, first, doubt, why)),
            }
            let behind = first + ids.len();
            if !goes_on(ids.len()) && behind < total {
                return Err(stopped(
                    done,
                    behind,
                    Doubt::Nothing,
                    ChangeError::Interrupted,
                ));
            }
        }
        Ok(done)
    }
}
