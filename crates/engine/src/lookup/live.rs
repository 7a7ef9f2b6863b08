//! Look-ups in an index that is open for changes.

use std::collections::HashMap;

use super::ids::{listed, new_ids};
use super::{LookUp, Rows, Wanted};
use crate::progress::{Progress, Silent};
use crate::update::{Seen, Snapshot};
use crate::{Error, LiveIndex};

/// How often ids are looked for again that are in the index and were not found, because they were replaced too often meanwhile; then nobody changes
/// anything.
const TRIES: usize = 8;

impl Snapshot {
    /// The nodes of those of some ids whose vectors were on storage at the moment.
    ///
    /// # Errors
    /// As those of [`Index::vectors`](crate::Index::vectors).
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
    /// The vectors of ids, those that are in the index, in the order in which they are asked for, and which ids are not. What was changed before is seen; of what
    /// changes meanwhile, of each id, what was before or what comes. See [`Index::vectors`](crate::Index::vectors).
    ///
    /// # Errors
    /// As those of [`Index::vectors`](crate::Index::vectors).
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

    /// The ids that are in the index, ascending, from the first behind `after` on: `most` of them, or all that are left. Asked again with the last one, it goes on
    /// behind it: who goes through all ids so meets each once that is there throughout, whatever changes meanwhile.
    ///
    /// # Errors
    /// As those of [`Index::ids`](crate::Index::ids).
    pub fn ids(&self, after: Option<u64>, most: usize) -> Result<Vec<u64>, Error> {
        let Some(least) = after.map_or(Some(0), |after| after.checked_add(1)) else {
            return Ok(Vec::new());
        };
        // In one moment of all: an id that goes from the graph to memory and back would else be in neither when it is looked for there.
        let (snapshot, new) = self.while_nobody_changes(|snapshot| {
            let new = new_ids(&snapshot.overlay, least, most);
            (snapshot.clone(), new)
        });
        listed(&looking_up(&snapshot, &Silent)?, &new, least, most)
    }
}

/// A look-up at a moment.
fn looking_up<'a>(snapshot: &'a Snapshot, progress: &'a dyn Progress) -> Result<LookUp<'a>, Error> {
    let table = snapshot.index.id_table()?;
    Ok(LookUp {
        table: table.or(snapshot.collected.as_deref()),
        index: &snapshot.index,
        seen: Some(Seen {
            overlay: &snapshot.overlay,
            moment: snapshot.moment,
        }),
        progress,
    })
}
