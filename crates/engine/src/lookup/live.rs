//! Look-ups in an index that is open for changes.

use std::collections::HashMap;

use stratann_layout::attributes::Row;

use super::ids::{listed, new_ids};
use super::{LookUp, Rows, Wanted};
use crate::overlay::Seen;
use crate::progress::{Progress, Silent};
use crate::update::{Meanwhile, Snapshot};
use crate::{Error, LiveIndex};

/// The maximum number of repeated look-ups, if ids are replaced meanwhile. After these look-ups,
/// changes wait for one more look-up.
const TRIES: usize = 8;

impl Snapshot {
    /// The node of each id whose vector was on storage at the read timestamp.
    pub(crate) fn nodes(
        &self,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<HashMap<u64, u32>, Error> {
        let mut wanted = Wanted::nodes_alone(ids)?;
        looking_up(self, progress)?.find(&mut wanted)?;
        Ok(wanted.into_nodes())
    }
}

impl LiveIndex {
    /// The vectors of ids, in the order of the call, and the ids that are not in the index. The
    /// call sees the changes of all calls that have returned. If an id changes meanwhile, its
    /// vector is from before or after the change.
    ///
    /// # Errors
    /// Fails as [`Index::vectors`](crate::Index::vectors) does.
    pub fn vectors(&self, ids: &[u64], progress: &dyn Progress) -> Result<Rows, Error> {
        let mut snapshot = self.at_present();
        let index = snapshot.index.clone();
        let mut wanted = Wanted::new(&index, ids)?;
        for tries in 0.. {
            looking_up(&snapshot, progress)?.find(&mut wanted)?;
            let mut missed = false;
            for id in wanted.left() {
                missed |= self.contains(id)?;
            }
            if !missed {
                break;
            }
            if tries == TRIES {
                self.while_nobody_changes(|snapshot| {
                    looking_up(snapshot, progress)?.find(&mut wanted)
                })?;
                break;
            }
            snapshot = self.at_present();
        }
        wanted.into_rows(&index, ids)
    }

    /// The vectors of ids, as [`vectors`](LiveIndex::vectors) returns them, and the attributes and
    /// the payload of each id of the call, or `None` for an id that is not in the index. The vector
    /// and the row of an id are of one state. The call first waits for running changes. If an id is
    /// replaced again and again during the call, later changes wait for the call.
    ///
    /// # Errors
    /// Fails as [`vectors`](LiveIndex::vectors) and [`attributes`](LiveIndex::attributes) do.
    pub fn vectors_with_rows(
        &self,
        ids: &[u64],
        progress: &dyn Progress,
    ) -> Result<(Rows, Vec<Option<Row>>), Error> {
        self.vectors_after_rows(ids, progress, || {})
    }

    /// Does the same. Tests change the index by `between`.
    pub(crate) fn vectors_after_rows(
        &self,
        ids: &[u64],
        progress: &dyn Progress,
        between: impl Fn(),
    ) -> Result<(Rows, Vec<Option<Row>>), Error> {
        let read = |meanwhile| {
            self.reading_at(meanwhile, |snapshot, reading| {
                let rows = reading.attributes(ids)?;
                between();
                let mut wanted = Wanted::new(&snapshot.index, ids)?;
                let look_up = LookUp {
                    nodes: reading.nodes(),
                    ..looking_up(snapshot, progress)?
                };
                look_up.find(&mut wanted)?;
                Ok((wanted.into_rows(&snapshot.index, ids)?, rows))
            })
        };
        // An id may be replaced so often that its row or its vector at the timestamp is forgotten.
        let (found, rows) = read(Meanwhile::Change)?;
        let mut forgotten = rows.iter().flatten().count() != found.ids.len();
        for (&id, row) in ids.iter().zip(&rows) {
            forgotten |= row.is_none() && self.contains(id)?;
        }
        match forgotten {
            true => read(Meanwhile::Wait),
            false => Ok((found, rows)),
        }
    }

    /// The first `most` ids above `after`, ascending. To continue, pass the last id as `after`.
    /// Each id that stays in the index is listed once, whatever other changes run.
    ///
    /// # Errors
    /// Fails as [`Index::ids`](crate::Index::ids) does.
    pub fn ids(&self, after: Option<u64>, most: usize) -> Result<Vec<u64>, Error> {
        let Some(least) = after.map_or(Some(0), |after| after.checked_add(1)) else {
            return Ok(Vec::new());
        };
        // The snapshot and the new ids have the same timestamp. Otherwise both could lack a vector
        // that moves.
        let (snapshot, new) = self.while_nobody_changes(|snapshot| {
            let new = new_ids(&snapshot.overlay, least, most);
            (snapshot.clone(), new)
        });
        listed(&looking_up(&snapshot, &Silent)?, &new, least, most)
    }
}

fn looking_up<'a>(snapshot: &'a Snapshot, progress: &'a dyn Progress) -> Result<LookUp<'a>, Error> {
    let table = snapshot.index.id_table()?;
    Ok(LookUp {
        table: table.or(snapshot.collected.as_deref()),
        index: &snapshot.index,
        seen: Some(Seen {
            overlay: &snapshot.overlay,
            moment: snapshot.moment,
        }),
        nodes: snapshot.index.nodes() as u32,
        progress,
    })
}
