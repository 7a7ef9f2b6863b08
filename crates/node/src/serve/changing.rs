//! Changes of a client, in parts: what `stratann cluster upsert` and `delete` and the Python package do.

use std::collections::HashSet;
use std::fmt;

use super::client::Client;
use crate::role::{Asked, Doubt, Failure};
use crate::wire::{Changed, MOST_ASKED, MOST_NODES, MOST_WANTED};

/// Ids of a part of a change, and bytes of its rows, at most.
const MOST_IDS: usize = MOST_NODES / 2;
const MOST_ROWS: usize = 1 << 20;
const _: () = assert!(MOST_ROWS + 16 * MOST_IDS + 8 * MOST_WANTED + 64 < MOST_ASKED);

/// Why a change went no further.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A part was refused, not made, or not answered in time.
    #[error(transparent)]
    Server(#[from] Failure),
    /// Rows, or ids, that cannot be asked for.
    #[error("{0}")]
    Wrong(String),
    /// Whoever asked wants it no more.
    #[error("it was interrupted")]
    Interrupted,
}

/// What a change did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Ids whose vectors are in the index now.
    pub upserted: u64,
    /// Ids that were in it and are no more.
    pub deleted: u64,
    /// Ids that were to be deleted and were not there, of which nobody knows whether they had been: storage was started anew meanwhile, and may have deleted them before that.
    pub unsure: u64,
}

impl Done {
    /// One more part, of so many ids. `again`: it may have been made before.
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
    /// What was made of it, durably.
    pub done: Done,
    /// How many of its ids that were: also ids that were to be deleted and were not there.
    pub acknowledged: usize,
    /// How many of the ids behind those may have been changed as well, or some of them: nobody knows.
    pub unknown: usize,
    /// Whether these may still be changed, after this: servers could not be told that nobody wants it any more.
    pub yet: bool,
    /// How many ids it has in all.
    pub total: usize,
    /// Why it went no further.
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
                "none of {total} ids is known to be changed; the first {unknown} may be, or some of them"
            )?,
            _ => write!(
                f,
                "the first {acknowledged} of {total} ids are changed, durably"
            )?,
        }
        if *acknowledged > 0 && *unknown > 0 {
            write!(f, "; the next {unknown} may be as well, or some of them")?;
        }
        if *unknown > 0 && *yet {
            f.write_str(", or may become so yet")?;
        }
        f.write_str(
            "; give the same change again, all of it: what is made already is made no second time, but replaced by the same",
        )
    }
}

/// An id that is there twice, if any is: which of its vectors is meant nobody could tell, so a change has each id once.
pub fn twice(ids: &[u64]) -> Option<u64> {
    let mut seen = HashSet::with_capacity(ids.len());
    ids.iter().copied().find(|&id| !seen.insert(id))
}

impl Client {
    /// Puts rows into the index, in place of what has their ids: the next `row_bytes` bytes are asked of `read` for each part, by the number of its first row. When this returns they are
    /// durable on storage, and every search that is asked for then sees them. It is made in parts of a mebibyte, one after the other; behind each `goes_on` is told how many
    /// rows it had, and says whether to go on, as it does several times a second, with 0, while a part is waited for.
    ///
    /// # Errors
    /// [`Unfinished`]: an id that is there twice: then nothing is changed; what `read` says; a part that was refused, failed, or was not answered in time: how much is in, and of how much nobody knows. Of a part that is not answered in time, or
    /// interrupted, storage is asked what became of it, for a second more. The same change may be made again, since it replaces what is there. Whatever became of a change
    /// that ended so, it is not made behind a later change of this client that was acknowledged; where nothing is said to come [yet](Unfinished::yet), it is not made behind this call.
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

    /// Deletes ids, as far as there are such vectors. Else as [`upsert`](Self::upsert).
    ///
    /// # Errors
    /// As those of [`upsert`](Self::upsert).
    pub fn delete(
        &self,
        ids: &[u64],
        goes_on: impl FnMut(usize) -> bool,
    ) -> Result<Done, Unfinished> {
        let part = |_, ids: &[u64]| Ok((Vec::new(), Vec::new(), ids.to_vec()));
        self.in_parts(ids, MOST_IDS, part, goes_on)
    }

    /// Makes a change of `most` ids at a time. `part` gives what is to be asked for: ids that are upserted, their rows, ids that are deleted.
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
                why: ChangeError::Wrong(format!("id {id} is there twice: give each one once")),
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
                // It was not asked for.
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
