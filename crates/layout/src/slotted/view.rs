//! Reads slotted pages in place.
//!
//! Functions for a single record are always inlined, because returning a view through memory takes
//! about as long as finding the record.

use super::{BEFORE, FIXED, NO_IDS, NODE, RELOCATED, SlottedShape};
use crate::block::{self, u16_at, u32_at, u64_at};
use crate::error::LayoutError;
use std::fmt::Display;

const WIDTHS: [usize; 4] = [0, 1, 2, 4];
const COUNT: &str = "count of records on the page";
const ID: &str = "external id";
const NODE_OF: &str = "node of a record";
const BEGUN: &str = "bytes of a record that began before this page";
const PAGE_BEFORE: &str = "checksum of the page before, whose record continues here";
/// The offset, from the end of the checksums on, of the field g of a page ([`super`]).
const BEGUN_AT: usize = 8;

/// A page, read in place.
#[derive(Debug, Clone, Copy)]
pub struct SlottedView<'a> {
    shape: &'a SlottedShape,
    bytes: &'a [u8],
    file: &'a str,
    page: u64,
    first: u32,
    count: usize,
    lists: Lengths<'a>,
    vectors: Lengths<'a>,
    relocated: bool,
    begun: u32,
    id_width: u8,
    least_id: u64,
    ids_at: usize,
    records_at: usize,
}

#[derive(Debug, Clone, Copy)]
struct Lengths<'a> {
    least: u32,
    width: usize,
    more: &'a [u8],
}

impl Lengths<'_> {
    #[inline(always)]
    fn of(&self, slot: usize) -> u64 {
        let more = match self.width {
            0 => 0,
            1 => u32::from(self.more[slot]),
            2 => u32::from(u16_at(self.more, 2 * slot)),
            _ => u32_at(self.more, 4 * slot),
        };
        u64::from(self.least) + u64::from(more)
    }

    /// The sum of the lengths before `slot`, which must exist. The sum of fewer than 2^16 lengths
    /// cannot overflow.
    #[inline(always)]
    fn before(&self, slot: usize) -> u64 {
        let more = &self.more[..slot * self.width];
        let sum = match self.width {
            0 => 0,
            1 => sum_of_bytes(more),
            2 => {
                let words = more.chunks_exact(2).map(|two| u64::from(u16_at(two, 0)));
                words.sum()
            }
            _ => {
                let words = more.chunks_exact(4).map(|four| u64::from(u32_at(four, 0)));
                words.sum()
            }
        };
        slot as u64 * u64::from(self.least) + sum
    }
}

/// The sum of bytes, eight at a time: nearly all pages have some tens of lengths of one byte.
#[inline(always)]
fn sum_of_bytes(bytes: &[u8]) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    const ONES: u64 = 0x0001_0001_0001_0001;
    // Eight bytes become four sums of two bytes each, and then one sum in the highest 16 bits.
    let sum = |eight: u64| ((eight & EVEN) + (eight >> 8 & EVEN)).wrapping_mul(ONES) >> 48;
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let whole: u64 = words.map(|eight| sum(u64_at(eight, 0))).sum();
    if rest.is_empty() {
        return whole;
    }
    match bytes.len().checked_sub(8) {
        // The last eight bytes, shifted such that the bytes already in `whole` are dropped.
        Some(last) => whole + sum(u64_at(bytes, last) >> (8 * (8 - rest.len()))),
        None => rest.iter().map(|&byte| u64::from(byte)).sum(),
    }
}

/// A node's record, read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The encoded list.
    pub list: &'a [u8],
    /// The bytes from the list on to the end of the page, for a decoder that reads whole words.
    pub list_and_rest: &'a [u8],
    /// The encoded vector.
    pub vector: &'a [u8],
}

impl<'a> SlottedView<'a> {
    /// Opens page `page` of `file`. Refuses a wrong length, and widths and counts that are
    /// impossible.
    ///
    /// With `verify`, the method also checks the checksums and the end of the records, and refuses
    /// a relocated page that has a node twice. Without `verify`, damaged bytes cause no panic, but
    /// errors or wrong values.
    #[inline(always)]
    pub fn open(
        shape: &'a SlottedShape,
        bytes: &'a [u8],
        page: u64,
        verify: bool,
        file: &'a str,
    ) -> Result<SlottedView<'a>, LayoutError> {
        if bytes.len() != shape.page_bytes() {
            return Err(wrong_size(shape, bytes, page, file));
        }
        if verify {
            check_blocks(shape, bytes, page, file)?;
        }
        let header_bytes = shape.header_bytes();
        let header = &bytes[4 * shape.blocks..header_bytes];
        let count = usize::from(u16_at(header, 0));
        let id_width = header[2];
        let (list, vector) = (usize::from(header[3] & 7), usize::from(header[3] >> 4));
        let relocated = header[3] & RELOCATED != 0;
        let (mut least_list, least_vector) = (u32_at(header, 8), u32_at(header, 12));
        let wrong = |at, what, found: &dyn Display, expected: &dyn Display| {
            Err(wrong(shape, page, file, at, what, found, expected))
        };
        if count == 0 && !(shape.runs_on() && least_list > 0) {
            return wrong(0, COUNT, &0, &"1 or more");
        }
        if !WIDTHS.contains(&list) || !WIDTHS.contains(&vector) {
            return wrong(3, "bytes of a length", &header[3], &"two of 0, 1, 2 and 4");
        }
        let (mut lists_at, mut begun) = (header_bytes, 0);
        if relocated {
            if !shape.relocates() {
                let expected = "no relocated page, since this file has vectors only";
                return wrong(3, "bytes of a length", &header[3], &expected);
            }
            lists_at += NODE * count;
        }
        if !shape.has_lists() && (list, least_list) != (0, 0) {
            if !shape.runs_on() || list != 0 {
                let found = format_args!("{least_list} or more");
                return wrong(8, "length of a list", &found, &"none in a file of vectors");
            }
            begun = std::mem::take(&mut least_list);
            let room = shape.going_on();
            if begun as usize > room && count > 0 {
                let expected = format_args!("at most {room} before other records");
                return wrong(BEGUN_AT, BEGUN, &begun, &expected);
            }
            if begun > 0 {
                lists_at += BEFORE + room.min(begun as usize);
            }
        }
        if !shape.has_vectors() && (vector, least_vector) != (0, 0) {
            let found = format_args!("{least_vector} or more");
            return wrong(12, "length of a vector", &found, &"none in a file of lists");
        }
        let (id, least_id) = match (shape.has_ids(), id_width) {
            (true, 0..=8) => (usize::from(id_width), u64_at(header, FIXED)),
            (false, NO_IDS) => (0, 0),
            (true, _) => return wrong(2, "bytes of an id", &id_width, &"0 to 8"),
            (false, _) => return wrong(2, "bytes of an id", &id_width, &NO_IDS),
        };
        let vectors_at = lists_at + count * list;
        let ids_at = vectors_at + count * vector;
        let records_at = ids_at + count * id;
        if records_at > bytes.len() {
            return wrong(0, COUNT, &count, &"as many as fit a page");
        }
        let view = SlottedView {
            shape,
            bytes,
            file,
            page,
            first: u32_at(header, 4),
            count,
            lists: Lengths {
                least: least_list,
                width: list,
                more: &bytes[lists_at..vectors_at],
            },
            vectors: Lengths {
                least: least_vector,
                width: vector,
                more: &bytes[vectors_at..ids_at],
            },
            relocated,
            begun,
            id_width,
            least_id,
            ids_at,
            records_at,
        };
        if verify {
            view.check_end()?;
            if relocated {
                view.check_nodes()?;
            }
        }
        Ok(view)
    }

    /// The number of records that start on the page.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no record starts on the page.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The node of the first record, which is not checked. If no record starts on the page, the
    /// node of the next record. On a relocated page, the least node.
    #[inline]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Whether the page stores the node of each record.
    #[inline(always)]
    pub fn is_relocated(&self) -> bool {
        self.relocated
    }

    /// The node of the record in slot `slot`.
    #[inline(always)]
    pub fn node(&self, slot: usize) -> Result<u32, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        if self.relocated {
            return Ok(u32_at(self.nodes(), NODE * slot));
        }
        let node = self.first.checked_add(slot as u32);
        node.ok_or_else(|| self.no_node(slot))
    }

    /// The slot of `node`, if the page has a record of this node.
    #[inline(always)]
    pub fn slot_of(&self, node: u32) -> Option<usize> {
        if self.relocated {
            return self.find(node);
        }
        let slot = node.checked_sub(self.first)? as usize;
        (slot < self.count).then_some(slot)
    }

    #[inline]
    fn find(&self, node: u32) -> Option<usize> {
        let node = node.to_le_bytes();
        let mut nodes = self.nodes().chunks_exact(NODE);
        nodes.position(|four| four == node)
    }

    /// `open` refuses a page that is too short for these bytes.
    #[inline]
    fn nodes(&self) -> &'a [u8] {
        let at = self.shape.header_bytes();
        &self.bytes[at..at + NODE * self.count]
    }

    /// The external id of the record in slot `slot`. Refuses a missing slot or id.
    #[inline(always)]
    pub fn id(&self, slot: usize) -> Result<u64, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        let more = match self.id_width {
            0 => slot as u64,
            NO_IDS => return Err(self.wrong(2, ID, &"none", &"a page with ids")),
            width => {
                let width = usize::from(width);
                let at = self.ids_at + slot * width;
                match self.bytes.get(at..at + 8) {
                    Some(eight) => u64_at(eight, 0) & u64::MAX >> (64 - 8 * width),
                    // Fewer than eight bytes follow, if the records are nearly empty.
                    None => {
                        let mut eight = [0; 8];
                        eight[..width].copy_from_slice(&self.bytes[at..at + width]);
                        u64::from_le_bytes(eight)
                    }
                }
            }
        };
        self.least_id.checked_add(more).ok_or_else(|| {
            let found = format!("{} + {more}", self.least_id);
            self.wrong(FIXED, ID, &found, &"below 2^64")
        })
    }

    /// The record in slot `slot`. Refuses a missing slot, and lengths that lead out of the page.
    #[inline(always)]
    pub fn record(&self, slot: usize) -> Result<Record<'a>, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        let start = self.start_of(slot);
        let middle = start + self.lists.of(slot);
        self.cut(slot, start, middle, middle + self.vectors.of(slot))
    }

    /// The page's records in order, in one pass over the lengths.
    #[inline]
    pub fn records(&self) -> impl ExactSizeIterator<Item = Result<Record<'a>, LayoutError>> + 'a {
        let page = *self;
        let mut next = page.records_at as u64;
        (0..page.count).map(move |slot| {
            let start = next;
            let middle = start + page.lists.of(slot);
            next = middle + page.vectors.of(slot);
            page.cut(slot, start, middle, next)
        })
    }

    /// The offset of a record, which may be outside the page. If `slot` is the count of records,
    /// the offset is the end of the last record.
    #[inline(always)]
    fn start_of(&self, slot: usize) -> u64 {
        self.records_at as u64 + self.lists.before(slot) + self.vectors.before(slot)
    }

    /// The record whose list starts at `start` and whose vector is `middle..end`. The offsets must
    /// ascend.
    #[inline(always)]
    fn cut(
        &self,
        slot: usize,
        start: u64,
        middle: u64,
        end: u64,
    ) -> Result<Record<'a>, LayoutError> {
        if end > self.bytes.len() as u64 {
            return Err(self.outside(slot, end));
        }
        let (start, middle, end) = (start as usize, middle as usize, end as usize);
        let list_and_rest = &self.bytes[start..];
        Ok(Record {
            list: &list_and_rest[..middle - start],
            list_and_rest,
            vector: &list_and_rest[middle - start..end - start],
        })
    }

    /// Bytes of a record from an earlier page that are on this page and later ones.
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Bytes of the last record that are on later pages; 0 if it does not continue.
    pub fn left(&self) -> u64 {
        let end = match self.count {
            0 => (self.shape.header_bytes() + BEFORE) as u64 + u64::from(self.begun),
            count => self.start_of(count),
        };
        end.saturating_sub(self.bytes.len() as u64)
    }

    /// Bytes of the vector in slot `slot`, on this page and later ones. Refuses a missing slot.
    pub fn vector_bytes(&self, slot: usize) -> Result<u64, LayoutError> {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        Ok(self.vectors.of(slot))
    }

    /// The vector of the record in slot `slot`. If the vector continues in `rest`, the following
    /// pages, it is composed in `scratch`. With `verify`, the checksums of these pages are checked.
    #[inline(always)]
    pub fn whole<'s>(
        &self,
        slot: usize,
        rest: &[u8],
        verify: bool,
        scratch: &'s mut Vec<u8>,
    ) -> Result<&'s [u8], LayoutError>
    where
        'a: 's,
    {
        if slot >= self.count {
            return Err(self.no_slot(slot));
        }
        let start = self.start_of(slot) + self.lists.of(slot);
        let end = start + self.vectors.of(slot);
        if end <= self.bytes.len() as u64 {
            return Ok(&self.bytes[start as usize..end as usize]);
        }
        self.put_together(slot, start..end, rest, verify, scratch)?;
        Ok(scratch)
    }

    #[inline(never)]
    fn put_together(
        &self,
        slot: usize,
        place: std::ops::Range<u64>,
        rest: &[u8],
        verify: bool,
        scratch: &mut Vec<u8>,
    ) -> Result<(), LayoutError> {
        let (shape, size) = (self.shape, self.bytes.len());
        let here = usize::try_from(place.start)
            .ok()
            .and_then(|start| self.bytes.get(start..));
        let here = here.filter(|here| !here.is_empty() && shape.runs_on());
        let Some(here) = here.filter(|_| slot + 1 == self.count) else {
            return Err(self.outside(slot, place.end));
        };
        let (at, room) = (shape.header_bytes(), shape.going_on());
        let mut left = place.end - size as u64;
        let pages = left.div_ceil(room as u64);
        if (rest.len() / size) as u64 * (room as u64) < left {
            return Err(LayoutError::Truncated {
                file: self.file.to_owned(),
                offset: shape.file_offset(self.page.saturating_add(1)),
                expected: pages.saturating_mul(size as u64),
                found: rest.len() as u64,
            });
        }
        scratch.clear();
        scratch.extend_from_slice(here);
        let mut before = self.bytes;
        let behind = self.page.saturating_add(1)..;
        for (page, bytes) in behind.zip(rest.chunks_exact(size)).take(pages as usize) {
            if verify {
                check_blocks(shape, bytes, page, self.file)?;
            }
            let begun = u32_at(bytes, 4 + BEGUN_AT);
            if u64::from(begun) != left {
                let wrong = wrong(shape, page, self.file, BEGUN_AT, BEGUN, &begun, &left);
                return Err(wrong);
            }
            let (follows, is) = (u32_at(bytes, at), u32_at(before, 0));
            if follows != is {
                let at = at - 4 * shape.blocks;
                return Err(wrong(
                    shape,
                    page,
                    self.file,
                    at,
                    PAGE_BEFORE,
                    &follows,
                    &is,
                ));
            }
            let more = left.min(room as u64);
            scratch.extend_from_slice(&bytes[at + BEFORE..][..more as usize]);
            left -= more;
            before = bytes;
        }
        Ok(())
    }

    fn check_end(&self) -> Result<(), LayoutError> {
        let end = self.start_of(self.count);
        if end > self.bytes.len() as u64 {
            let last = self.start_of(self.count - 1);
            if self.shape.runs_on() && last < self.bytes.len() as u64 {
                return Ok(());
            }
            return Err(self.outside(self.count - 1, end));
        }
        crate::error::check_zero(
            &self.bytes[end as usize..],
            self.shape.file_offset(self.page).saturating_add(end),
            self.file,
        )
    }

    #[inline(never)]
    fn check_nodes(&self) -> Result<(), LayoutError> {
        // Nearly all pages have few records, and are checked without an allocation.
        let (mut few, mut many) = ([0; 128], Vec::new());
        let nodes = match few.get_mut(..self.count) {
            Some(nodes) => nodes,
            None => {
                many.resize(self.count, 0);
                &mut many[..]
            }
        };
        for (node, four) in nodes.iter_mut().zip(self.nodes().chunks_exact(NODE)) {
            *node = u32_at(four, 0);
        }
        nodes.sort_unstable();
        if nodes[0] != self.first {
            let what = "number of the page's first node";
            return Err(self.wrong(4, what, &self.first, &nodes[0]));
        }
        if let Some(twice) = nodes.windows(2).find(|two| two[0] == two[1]) {
            let (found, at) = (format!("{}, twice", twice[0]), self.find(twice[0]));
            let at = self.node_at(at.unwrap_or(0));
            return Err(self.wrong(at, NODE_OF, &found, &"each node once"));
        }
        Ok(())
    }

    fn node_at(&self, slot: usize) -> usize {
        self.shape.header_bytes() - 4 * self.shape.blocks + NODE * slot
    }

    #[cold]
    fn no_node(&self, slot: usize) -> LayoutError {
        let found = format!("{} + {slot}", self.first);
        self.wrong(4, NODE_OF, &found, &"below 2^32")
    }

    #[cold]
    fn no_slot(&self, slot: usize) -> LayoutError {
        self.wrong(0, COUNT, &self.count, &format_args!("more than {slot}"))
    }

    #[cold]
    fn outside(&self, slot: usize, end: u64) -> LayoutError {
        let found = format!("{end} in slot {slot}");
        let expected = format!("at most {}", self.bytes.len());
        self.wrong(3, "end of a record", &found, &expected)
    }

    #[cold]
    fn wrong(
        &self,
        at: usize,
        what: &'static str,
        found: &dyn Display,
        expected: &dyn Display,
    ) -> LayoutError {
        wrong(self.shape, self.page, self.file, at, what, found, expected)
    }
}

#[inline(never)]
fn check_blocks(
    shape: &SlottedShape,
    bytes: &[u8],
    page: u64,
    file: &str,
) -> Result<(), LayoutError> {
    block::check_page(bytes, shape.first_block(page), file)
}

#[cold]
fn wrong_size(shape: &SlottedShape, bytes: &[u8], page: u64, file: &str) -> LayoutError {
    LayoutError::Truncated {
        file: file.to_owned(),
        offset: shape.file_offset(page),
        expected: shape.page_bytes() as u64,
        found: bytes.len() as u64,
    }
}

#[cold]
fn wrong(
    shape: &SlottedShape,
    page: u64,
    file: &str,
    at: usize,
    what: &'static str,
    found: &dyn Display,
    expected: &dyn Display,
) -> LayoutError {
    let at = (4 * shape.blocks + at) as u64;
    LayoutError::Field {
        file: file.to_owned(),
        offset: shape.file_offset(page).saturating_add(at),
        what,
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::sum_of_bytes;
    use proptest::prelude::*;

    #[test]
    fn the_largest_bytes_sum_up() {
        for length in 0..300 {
            assert_eq!(sum_of_bytes(&vec![255; length]), 255 * length as u64);
        }
        assert_eq!(sum_of_bytes(&vec![255; 65_535]), 255 * 65_535);
    }

    proptest! {
        #[test]
        fn any_bytes_sum_up(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let right: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
            prop_assert_eq!(sum_of_bytes(&bytes), right);
        }
    }
}
