//! The attributes of the vectors of a merge, by their rows in the next checkpoint.

use std::borrow::Cow;
use std::fmt;

use parking_lot::Mutex;

use super::survey::{NOWHERE, Rows};
use crate::Error;
use crate::build::CarriedRows;
use crate::filter::Schema;
use crate::index::Index;
use crate::stores::columns::{RowBytes, Windows};

pub(super) struct MergedRows<'a> {
    index: &'a Index,
    node_of: Vec<u32>,
    new: &'a [Option<RowBytes>],
    windows: Mutex<Windows>,
}

impl fmt::Debug for MergedRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows, {} new", self.node_of.len(), self.new.len())
    }
}

impl<'a> MergedRows<'a> {
    pub(super) fn of(index: &'a Index, rows: &'a Rows) -> Option<Self> {
        if index.columns().is_empty() && rows.attributes.iter().all(Option::is_none) {
            return None;
        }
        let stored = rows.ids.len() - rows.attributes.len();
        let mut node_of = vec![NOWHERE; stored];
        for (node, &row) in (0..).zip(&rows.row_of) {
            if row != NOWHERE {
                node_of[row as usize] = node;
            }
        }
        Some(Self {
            index,
            node_of,
            new: &rows.attributes,
            windows: Mutex::default(),
        })
    }
}

impl CarriedRows for MergedRows<'_> {
    fn schema(&self) -> Schema {
        self.index.columns().schema()
    }

    fn bytes(&self, row: usize) -> Result<Cow<'_, [u8]>, Error> {
        let Some(&node) = self.node_of.get(row) else {
            let row = self.new.get(row - self.node_of.len());
            return Ok(row.and_then(Option::as_deref).unwrap_or_default().into());
        };
        let found = self
            .index
            .columns()
            .row_of(node, &mut self.windows.lock())?;
        Ok(found
            .map_or_else(Vec::new, |found| found.row.to_vec())
            .into())
    }
}
