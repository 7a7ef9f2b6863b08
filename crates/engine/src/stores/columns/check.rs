//! Verifies a segment of columns: its rows, and its index part, which maps values to nodes.
//!
//! The check adds up the hashes of all pairs of a key and a node. The rows and the index part must
//! have the same sum. So neither file must be in memory.

use std::collections::BTreeMap;

use stratann_layout::attributes::ColumnType;

use super::keys::{each_key, is_sorted};
use super::{PartReader, RowWindows, RowsReader, decoded};
use crate::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    kind: u8,
    values: u64,
    exists: u64,
    keys: u64,
}

fn mixed(key: &[u8], node: u32) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(&node.to_le_bytes());
    hash.update(key);
    let mut eight = [0; 8];
    eight.copy_from_slice(&hash.finalize().as_bytes()[..8]);
    u64::from_le_bytes(eight)
}

/// Calls `wrong` for each fault. Other code verifies the checksums.
pub(crate) fn check(
    rows: &RowsReader,
    part: &PartReader,
    nodes: u64,
    wrong: &mut dyn FnMut(&str, String),
) -> Result<(), Error> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    let (mut missing, mut at) = (0u64, 0u64);
    let mut windows = RowWindows::default();
    rows.each(0, &mut |entry, row| {
        if u64::from(entry.node) >= nodes {
            let what = format!(
                "it has a row of node {}, but there are only {nodes} nodes",
                entry.node
            );
            wrong(rows.file(), what);
        }
        missing += u64::from(!part.nodes().contains(entry.node));
        match decoded(row) {
            Err(error) => wrong(rows.file(), format!("the row of id {}: {error}", entry.id)),
            Ok(row) => {
                for (name, value) in row.attributes {
                    let sum = sums.entry(name).or_default();
                    let kind = value.column_type().code();
                    if sum.values > 0 && sum.kind != kind {
                        let what = format!(
                            "the row of id {} has a value of another type than its column",
                            entry.id
                        );
                        wrong(rows.file(), what);
                    }
                    sum.kind = kind;
                    sum.values += 1;
                    sum.exists = sum.exists.wrapping_add(mixed(&[], entry.node));
                    let mut keys: Vec<Box<[u8]>> = Vec::new();
                    each_key(&value, &mut |key| keys.push(key.into()));
                    keys.sort_unstable();
                    keys.dedup();
                    for key in keys {
                        sum.keys = sum.keys.wrapping_add(mixed(&key, entry.node));
                    }
                }
            }
        }
        Ok(true)
    })?;
    let mut last = None;
    for n in 0..rows.rows() {
        let (id, entry) = rows.id(n, &mut windows)?;
        let found = rows.entry(entry.into(), &mut windows)?.id;
        if last.is_some_and(|last| last >= id) || found != id {
            wrong(
                rows.file(),
                format!(
                    "the id at position {n} is {id}; it is out of order, or differs from the id {found} in its entry"
                ),
            );
        }
        last = Some(id);
        at += 1;
    }
    if missing > 0 || part.nodes().len() != at {
        let what = format!(
            "its set of nodes lacks {missing} of {at} nodes with a row, and has {} nodes",
            part.nodes().len()
        );
        wrong(part.file(), what);
    }
    for column in part.columns() {
        let expected = sums.remove(&column.name).unwrap_or(Sum {
            kind: column.kind,
            ..Sum::default()
        });
        let exists = part.exists(column)?;
        let mut found = Sum {
            kind: column.kind,
            values: exists.len(),
            ..Sum::default()
        };
        for node in &exists {
            found.exists = found.exists.wrapping_add(mixed(&[], node));
        }
        let is_number = ColumnType::from_code(column.kind).is_some_and(is_sorted);
        part.each_key(column, is_number, &mut |key, nodes| {
            for node in nodes {
                found.keys = found.keys.wrapping_add(mixed(key, node));
            }
        })?;
        if found != expected || column.values != found.values {
            let what = format!(
                "its values of column {:?} differ from the rows (`stratann repair` makes them from the rows again)",
                column.name
            );
            wrong(part.file(), what);
        }
    }
    for name in sums.keys() {
        wrong(
            part.file(),
            format!("it has no column {name:?}, but rows have values of it"),
        );
    }
    Ok(())
}
