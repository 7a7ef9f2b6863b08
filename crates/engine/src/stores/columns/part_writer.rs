//! Builds an index part from sorted records. Each record maps a key of a column to a node.
//!
//! ```text
//!   record   number of the column u16 | 0, or 1 and a key | node u32
//!            all with the most significant byte first
//! ```
//!
//! A record with 0 says that the node has a value in the column. Such a record sorts before the
//! records with keys, so that each column is written front to back.

use roaring::RoaringBitmap;
use stratann_layout::PAYLOAD;
use stratann_layout::attributes::{ColumnType, Value};
use stratann_layout::columns::part::{
    BESIDE, Group, KEY_PREFIX, NUMBER, PartColumn, Span, TermNodes, encode_number, encode_term,
};

use super::keys::{each_key, is_sorted};
use super::write::Stream;
use crate::Error;
use crate::sorter::{Sorted, Sorter};

/// The approximate number of groups of keys in a segment. The first key of each group is in memory.
const GROUPS: usize = 16 << 10;
/// The most and the least groups of one column.
const MOST_GROUPS: usize = 1 << 10;
const LEAST_GROUPS: usize = 16;

const HAS_VALUE: u8 = 0;
const HAS_KEY: u8 = 1;

pub(super) struct Records<'a> {
    columns: &'a [(String, ColumnType)],
    sorter: Sorter<'a>,
}

impl<'a> Records<'a> {
    pub(super) fn new(columns: &'a [(String, ColumnType)], sorter: Sorter<'a>) -> Self {
        Self { columns, sorter }
    }

    pub(super) fn push(&mut self, name: &str, value: &Value, node: u32) -> Result<(), Error> {
        let found = self
            .columns
            .binary_search_by(|(other, _)| (**other).cmp(name));
        let Ok(at) = found else {
            return Ok(());
        };
        // There are fewer than 2^16 columns.
        let (column, node) = ((at as u16).to_be_bytes(), node.to_be_bytes());
        let sorter = &mut self.sorter;
        sorter.push(&[&column, &[HAS_VALUE], &node])?;
        let mut pushed = Ok(());
        each_key(value, &mut |key| {
            if pushed.is_ok() {
                pushed = sorter.push(&[&column, &[HAS_KEY], key, &node]);
            }
        });
        pushed
    }
}

struct Record<'r> {
    column: usize,
    /// `None` if the record only says that the node has a value.
    key: Option<&'r [u8]>,
    node: u32,
}

impl<'r> Record<'r> {
    fn of(bytes: &'r [u8]) -> Self {
        let (front, node) = bytes.split_at(bytes.len() - 4);
        Self {
            column: usize::from(u16::from_be_bytes([front[0], front[1]])),
            key: (front[2] == HAS_KEY).then_some(&front[3..]),
            node: u32::from_be_bytes([node[0], node[1], node[2], node[3]]),
        }
    }
}

/// For each column, the bytes of its keys and of the first few nodes of each key.
fn sizes(columns: &[(String, ColumnType)], records: &Sorted<'_>) -> Result<Vec<usize>, Error> {
    let mut sizes = vec![0; columns.len()];
    // The column and the key of the last record, and the number of nodes of this key.
    let (mut last, mut nodes) = ((usize::MAX, Vec::new()), 0);
    records.each(&mut |bytes| {
        let Record { column, key, .. } = Record::of(bytes);
        let Some(key) = key else {
            return Ok(());
        };
        if is_sorted(columns[column].1) {
            sizes[column] += NUMBER;
            return Ok(());
        }
        if last.0 != column || last.1 != key {
            (last.0, nodes) = (column, 0);
            last.1.clear();
            last.1.extend_from_slice(key);
            sizes[column] += 8 + key.len();
        }
        nodes += 1;
        if nodes <= BESIDE {
            sizes[column] += 4;
        }
        Ok(())
    })?;
    Ok(sizes)
}

pub(super) struct PartWriter<'a> {
    columns: &'a [(String, ColumnType)],
    stream: &'a mut Stream,
    group_bytes: Vec<usize>,
    directory: Vec<PartColumn>,
    /// The nodes with a value in the current column. When its first key comes, the set is written,
    /// and `exists_at` gets the position of the set.
    exists: RoaringBitmap,
    values: u64,
    exists_at: Option<Span>,
    groups: Vec<Group>,
    group: GroupAtHand,
    term: TermAtHand,
}

#[derive(Default)]
struct GroupAtHand {
    bytes: Vec<u8>,
    first: Vec<u8>,
    keys: u32,
    nodes: u64,
}

/// The current key with its nodes: a list of the first few nodes, or the set of all its nodes.
#[derive(Default)]
struct TermAtHand {
    key: Vec<u8>,
    beside: Vec<u32>,
    all: Option<RoaringBitmap>,
}

impl<'a> PartWriter<'a> {
    pub(super) fn write(
        columns: &'a [(String, ColumnType)],
        records: Records<'_>,
        stream: &'a mut Stream,
    ) -> Result<Vec<PartColumn>, Error> {
        let records = records.sorter.sorted()?;
        let most_groups = (GROUPS / columns.len().max(1)).clamp(LEAST_GROUPS, MOST_GROUPS);
        let sizes = sizes(columns, &records)?;
        let of_column = |(size, (_, kind)): (usize, &(String, ColumnType))| match is_sorted(*kind) {
            true => (size / NUMBER).div_ceil(most_groups).max(PAYLOAD / NUMBER) * NUMBER,
            false => (size / most_groups).max(PAYLOAD),
        };
        let group_bytes = sizes.into_iter().zip(columns).map(of_column).collect();
        let mut writer = Self {
            columns,
            stream,
            group_bytes,
            directory: Vec::with_capacity(columns.len()),
            exists: RoaringBitmap::new(),
            values: 0,
            exists_at: None,
            groups: Vec::new(),
            group: GroupAtHand::default(),
            term: TermAtHand::default(),
        };
        records.each(&mut |bytes| writer.take(&Record::of(bytes)))?;
        while writer.directory.len() < columns.len() {
            writer.end_column()?;
        }
        Ok(writer.directory)
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), Error> {
        while self.directory.len() < record.column {
            self.end_column()?;
        }
        let Some(key) = record.key else {
            let _ = self.exists.try_push(record.node);
            return Ok(());
        };
        self.end_exists()?;
        if is_sorted(self.columns[record.column].1) {
            return self.take_number(key, record.node);
        }
        if !self.term.beside.is_empty() && self.term.key != key {
            self.end_term()?;
        }
        self.term.take(key, record.node);
        Ok(())
    }

    fn take_number(&mut self, key: &[u8], node: u32) -> Result<(), Error> {
        let mut eight = [0; 8];
        eight.copy_from_slice(key);
        let group = &mut self.group;
        if group.keys == 0 {
            group.first = key.to_vec();
        }
        group
            .bytes
            .extend_from_slice(&encode_number(u64::from_be_bytes(eight), node));
        (group.keys, group.nodes) = (group.keys + 1, group.nodes + 1);
        self.end_group_if_full()
    }

    /// The set of nodes with a value is complete when the first key comes.
    fn end_exists(&mut self) -> Result<Span, Error> {
        if let Some(span) = self.exists_at {
            return Ok(span);
        }
        let mut exists = std::mem::take(&mut self.exists);
        self.values = exists.len();
        let span = self.stream.set(&mut exists)?;
        self.exists_at = Some(span);
        Ok(span)
    }

    fn end_term(&mut self) -> Result<(), Error> {
        let TermAtHand { key, beside, all } = std::mem::take(&mut self.term);
        let count = match all {
            None => {
                encode_term(&key, TermNodes::Beside(&beside), &mut self.group.bytes);
                beside.len() as u64
            }
            Some(mut all) => {
                let nodes = TermNodes::Apart(all.len() as u32, self.stream.set(&mut all)?);
                encode_term(&key, nodes, &mut self.group.bytes);
                all.len()
            }
        };
        let group = &mut self.group;
        if group.keys == 0 {
            group.first = key[..key.len().min(KEY_PREFIX)].to_vec();
        }
        (group.keys, group.nodes) = (group.keys + 1, group.nodes + count);
        self.end_group_if_full()
    }

    fn end_group_if_full(&mut self) -> Result<(), Error> {
        match self.group.bytes.len() >= self.group_bytes[self.directory.len()] {
            true => self.end_group(),
            false => Ok(()),
        }
    }

    fn end_group(&mut self) -> Result<(), Error> {
        if self.group.keys > 0 {
            let group = &mut self.group;
            self.groups.push(Group {
                first: std::mem::take(&mut group.first),
                span: self.stream.part(&group.bytes)?,
                keys: group.keys,
                nodes: group.nodes,
            });
            group.bytes.clear();
            (group.keys, group.nodes) = (0, 0);
        }
        Ok(())
    }

    fn end_column(&mut self) -> Result<(), Error> {
        let exists = self.end_exists()?;
        if !self.term.beside.is_empty() {
            self.end_term()?;
        }
        self.end_group()?;
        let (name, kind) = &self.columns[self.directory.len()];
        let groups = std::mem::take(&mut self.groups);
        self.directory.push(PartColumn {
            name: name.clone(),
            kind: kind.code(),
            values: self.values,
            keys: groups.iter().map(|group| u64::from(group.keys)).sum(),
            exists,
            groups,
        });
        self.exists_at = None;
        Ok(())
    }
}

impl TermAtHand {
    /// Nodes must ascend.
    fn take(&mut self, key: &[u8], node: u32) {
        if self.beside.is_empty() {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        match &mut self.all {
            Some(all) => _ = all.try_push(node),
            None if self.beside.len() < BESIDE => self.beside.push(node),
            None => {
                let mut all: RoaringBitmap = self.beside.iter().copied().collect();
                let _ = all.try_push(node);
                self.all = Some(all);
            }
        }
    }
}
