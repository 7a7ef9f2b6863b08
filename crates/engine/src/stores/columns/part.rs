//! The index part of a segment, which maps values to nodes.

use std::ops::RangeInclusive;

use roaring::RoaringBitmap;
use stratann_layout::FileEntry;
use stratann_layout::columns::part::{
    Group, KEY_PREFIX, PartColumn, PartFile, Posting, Span, Term, Terms, decode_directory, numbers,
};
use stratann_tier::Volume;

use super::bytes::{StreamFile, Window};
use crate::Error;

/// The number of nodes that are sorted and added to a set at a time. A container of a set has at
/// most this many nodes.
const AT_ONCE: usize = 1 << 16;

/// Nodes in order are added fast, so they are sorted first.
fn add_all(nodes: &mut Vec<u32>, out: &mut RoaringBitmap) {
    nodes.sort_unstable();
    // A node occurs twice if it has two values, or if the index part is damaged.
    nodes.dedup();
    if let Ok(set) = RoaringBitmap::from_sorted_iter(nodes.drain(..)) {
        *out |= set;
    }
}

const AHEAD: u64 = 256 << 10;

/// Receives a key and the nodes that have it.
pub(crate) type EachKey<'a> = dyn FnMut(&[u8], &mut dyn Iterator<Item = u32>) + 'a;

/// An open index part. The directory and the set of nodes are in memory.
#[derive(Debug)]
pub(crate) struct PartReader {
    bytes: StreamFile,
    file: PartFile,
    columns: Vec<PartColumn>,
    nodes: RoaringBitmap,
}

impl PartReader {
    pub(crate) fn open(volume: &dyn Volume, entry: &FileEntry) -> Result<Self, Error> {
        let (bytes, file) = StreamFile::open(volume, entry, PartFile::open)?;
        let directory = bytes.read(file.directory.bytes())?;
        let columns = decode_directory(&directory, &file, &bytes.file)?;
        let mut reader = Self {
            bytes,
            file,
            columns,
            nodes: RoaringBitmap::new(),
        };
        reader.nodes = reader.set(file.nodes)?;
        Ok(reader)
    }

    pub(crate) fn file(&self) -> &str {
        &self.bytes.file
    }

    pub(crate) fn columns(&self) -> &[PartColumn] {
        &self.columns
    }

    pub(crate) fn nodes(&self) -> &RoaringBitmap {
        &self.nodes
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let of_column = |column: &PartColumn| {
            let groups = column.groups.iter();
            let groups: usize = groups
                .map(|group| size_of::<Group>() + group.first.capacity() + 16)
                .sum();
            size_of::<PartColumn>() + column.name.capacity() + groups + 16
        };
        let columns: usize = self.columns.iter().map(of_column).sum();
        (columns + bitmap_bytes(&self.nodes)) as u64
    }

    pub(crate) fn column(&self, name: &str) -> Option<&PartColumn> {
        let found = self
            .columns
            .binary_search_by(|column| column.name.as_str().cmp(name));
        found.ok().map(|at| &self.columns[at])
    }

    fn set(&self, span: Span) -> Result<RoaringBitmap, Error> {
        let bytes = self.bytes.read(span.bytes())?;
        let mut rest = &bytes[..];
        match RoaringBitmap::deserialize_from(&mut rest) {
            Ok(set) if rest.is_empty() => Ok(set),
            Ok(_) => Err(self.damaged(span, "bytes follow it")),
            Err(error) => Err(self.damaged(span, error)),
        }
    }

    fn damaged(&self, span: Span, why: impl std::fmt::Display) -> Error {
        let at = span.offset;
        Error::Damaged {
            file: self.file().to_owned(),
            what: format!("the set of nodes at {at} of the payload does not decode: {why}"),
        }
    }

    pub(crate) fn exists(&self, column: &PartColumn) -> Result<RoaringBitmap, Error> {
        self.set(column.exists)
    }

    fn terms(
        &self,
        group: &Group,
        each: &mut dyn FnMut(&Term<'_>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let bytes = self.bytes.read(group.span.bytes())?;
        for term in Terms::new(&bytes, group.span, self.file.payload, self.file()) {
            if !each(&term?)? {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(crate) fn with_key(
        &self,
        column: &PartColumn,
        key: &[u8],
        out: &mut RoaringBitmap,
    ) -> Result<(), Error> {
        let mut apart = None;
        self.find(column, key, &mut |term| match term.posting {
            Posting::Beside(_) => out.extend(term.posting.beside()),
            Posting::Apart(span) => apart = Some(span),
        })?;
        if let Some(span) = apart {
            *out |= self.set(span)?;
        }
        Ok(())
    }

    fn find(
        &self,
        column: &PartColumn,
        key: &[u8],
        found: &mut dyn FnMut(&Term<'_>),
    ) -> Result<(), Error> {
        let prefix = &key[..key.len().min(KEY_PREFIX)];
        let groups = &column.groups;
        // The key may be in the last group that begins at or before it. If long keys have a common
        // prefix, several groups qualify.
        let end = groups.partition_point(|group| &group.first[..] <= prefix);
        let begin = groups.partition_point(|group| &group.first[..] < prefix);
        for group in &groups[begin.saturating_sub(1)..end] {
            let mut done = false;
            self.terms(group, &mut |term| {
                if term.key == key {
                    found(term);
                }
                done = term.key >= key;
                Ok(!done)
            })?;
            if done {
                return Ok(());
            }
        }
        Ok(())
    }

    /// If most numbers are in the range, the numbers outside are looked up, and their nodes are
    /// removed from the set of all nodes with a value.
    pub(crate) fn in_range(
        &self,
        column: &PartColumn,
        range: &RangeInclusive<u64>,
        out: &mut RoaringBitmap,
    ) -> Result<(), Error> {
        let groups = self.groups_of(column, range);
        let most: u64 = groups.iter().map(|group| group.nodes).sum();
        if most <= column.values / 2 {
            return self.of_range(column, range, out);
        }
        let mut outside = RoaringBitmap::new();
        if let Some(last) = range.start().checked_sub(1) {
            self.of_range(column, &(0..=last), &mut outside)?;
        }
        if let Some(first) = range.end().checked_add(1) {
            self.of_range(column, &(first..=u64::MAX), &mut outside)?;
        }
        *out |= self.exists(column)? - outside;
        Ok(())
    }

    fn of_range(
        &self,
        column: &PartColumn,
        range: &RangeInclusive<u64>,
        out: &mut RoaringBitmap,
    ) -> Result<(), Error> {
        let mut nodes = Vec::new();
        let groups = self.groups_of(column, range);
        let mut window = Window::default();
        for group in groups {
            let span = group.span.bytes();
            let to = groups.last().map_or(0, |last| last.span.bytes().end);
            let to = to.min(span.start + AHEAD);
            let bytes = self.bytes.read_in(&mut window, span, to)?;
            let all = numbers(bytes, group.span, self.file())?;
            let within = all.skip_while(|(key, _)| key < range.start());
            for (_, node) in within.take_while(|(key, _)| key <= range.end()) {
                nodes.push(node);
                if nodes.len() == AT_ONCE {
                    add_all(&mut nodes, out);
                }
            }
        }
        add_all(&mut nodes, out);
        Ok(())
    }

    fn groups_of<'a>(&self, column: &'a PartColumn, range: &RangeInclusive<u64>) -> &'a [Group] {
        let groups = &column.groups;
        let key = |group: &Group| {
            let mut eight = [0; 8];
            let length = group.first.len().min(8);
            eight[..length].copy_from_slice(&group.first[..length]);
            u64::from_be_bytes(eight)
        };
        // A number may be in several groups. The first of these groups may begin with a smaller
        // number.
        let begin = groups.partition_point(|group| key(group) < *range.start());
        let end = groups.partition_point(|group| key(group) <= *range.end());
        match range.is_empty() || groups.is_empty() {
            true => &[],
            false => &groups[begin.saturating_sub(1).min(end)..end],
        }
    }

    /// Calls `each` with all keys of a column and their nodes. If `is_number` is true, the keys are
    /// the numbers.
    pub(crate) fn each_key(
        &self,
        column: &PartColumn,
        is_number: bool,
        each: &mut EachKey<'_>,
    ) -> Result<(), Error> {
        for group in &column.groups {
            let (mut keys, mut nodes) = (0u64, 0u64);
            if is_number {
                let bytes = self.bytes.read(group.span.bytes())?;
                for (key, node) in numbers(&bytes, group.span, self.file())? {
                    (keys, nodes) = (keys + 1, nodes + 1);
                    each(&key.to_be_bytes(), &mut [node].into_iter());
                }
            } else {
                self.terms(group, &mut |term| {
                    (keys, nodes) = (keys + 1, nodes + u64::from(term.nodes));
                    match term.posting {
                        Posting::Beside(_) => each(term.key, &mut term.posting.beside()),
                        Posting::Apart(span) => {
                            let set = self.set(span)?;
                            if set.len() != u64::from(term.nodes) {
                                let why = format!(
                                    "it has {} nodes, but should have {}",
                                    set.len(),
                                    term.nodes
                                );
                                return Err(self.damaged(span, why));
                            }
                            each(term.key, &mut set.iter());
                        }
                    }
                    Ok(true)
                })?;
            }
            if (keys, nodes) != (group.keys.into(), group.nodes) {
                let what = format!(
                    "a group of column {:?} has {keys} keys of {nodes} nodes; the directory says {} of {}",
                    column.name, group.keys, group.nodes
                );
                let file = self.file().to_owned();
                return Err(Error::Damaged { file, what });
            }
        }
        Ok(())
    }
}

pub(crate) fn bitmap_bytes(set: &RoaringBitmap) -> usize {
    let statistics = set.statistics();
    let values = statistics.n_bytes_array_containers
        + statistics.n_bytes_run_containers
        + statistics.n_bytes_bitset_containers;
    // The set also has an entry for each container.
    values as usize + statistics.n_containers as usize * 48
}
