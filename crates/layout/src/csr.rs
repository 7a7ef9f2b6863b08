//! Rows of a compressed sparse row (CSR) graph: the id, vector and list of each node, without gaps.
//!
//! Memory with byte granularity (RDMA, CXL, NVM) allows a record at any position, so padding has no
//! benefit (§5 of the paper on second-tier memory). A build fills every list up to the degree R, so
//! all rows have equal length, and a multiplication replaces the row pointers.
//!
//! ```text
//! file = [header block][row 0][row 1]..[row n-1][zeros up to a multiple of 4096]
//!        row i starts at byte 4096 + i * row_bytes
//! ```
//!
//! The header's fields: element code u32, dimension u32, degree R u32, nodes u64.
//!
//! ```text
//! offset        size  contents (row)
//!      0           4  crc32c of (node as u64, then the row's other bytes)
//!      4           8  external id u64
//!     12           V  the vector
//!   12+V           2  degree u16: links in use
//!   14+V  ceil(RB/8)  links of B bits each, lowest bits first; unused bits are zero
//!
//! V = dimension * element size; B = bits of the number nodes - 1, at least 1
//! ```
//!
//! A row is the unit of reads, so a checksum covers a row. Rows are never rewritten.

use crate::block::{BLOCK, u16_at, u32_at, u64_at};
use crate::error::{CHOOSE, LayoutError};
use crate::geometry::{MAX_DEGREE, MAX_DIMENSION, read_element};
use crate::header::{FieldsWriter, FileHeader, FileKind};
use stratann_vector::Element;

/// Format version of [`FileKind::Csr`]. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

const VECTOR_AT: usize = 12;

/// The properties that determine all positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsrShape {
    element: Element,
    dim: usize,
    degree: usize,
    nodes: u64,
    vector_bytes: usize,
    link_bits: u32,
    row_bytes: usize,
}

impl CsrShape {
    /// The shape for `nodes` vectors of `dim` elements with at most `degree` neighbours each.
    ///
    /// # Errors
    /// Fails for 0, and for numbers above [`MAX_DIMENSION`], [`MAX_DEGREE`] or `u32::MAX`.
    pub fn new(
        element: Element,
        dim: usize,
        degree: usize,
        nodes: u64,
    ) -> Result<CsrShape, LayoutError> {
        let refused = |what, found, expected| {
            Err(LayoutError::Shape {
                what,
                found,
                expected,
                remedy: CHOOSE,
            })
        };
        if dim == 0 || dim > MAX_DIMENSION {
            return refused("the dimension", dim as u64, "1 to 65536");
        }
        if degree == 0 || degree > MAX_DEGREE {
            return refused("the degree R", degree as u64, "1 to 4096");
        }
        if nodes > u64::from(u32::MAX) {
            return refused("the number of nodes", nodes, "at most 4294967295");
        }
        let vector_bytes = dim * element.size();
        let link_bits = (u64::BITS - nodes.saturating_sub(1).leading_zeros()).max(1);
        let links = (degree * link_bits as usize).div_ceil(8);
        Ok(CsrShape {
            element,
            dim,
            degree,
            nodes,
            vector_bytes,
            link_bits,
            row_bytes: VECTOR_AT + vector_bytes + 2 + links,
        })
    }

    /// The vectors' element type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Elements of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The most neighbours of a node (R).
    pub fn degree(&self) -> usize {
        self.degree
    }

    /// Rows of the file.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Bytes of a vector.
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes
    }

    /// Bytes of a row.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of a list with its degree.
    pub fn list_bytes(&self) -> usize {
        self.row_bytes - self.list_at()
    }

    /// The byte offset of a node's row in the file.
    #[inline]
    pub fn file_offset(&self, node: u64) -> u64 {
        node.saturating_mul(self.row_bytes as u64)
            .saturating_add(BLOCK as u64)
    }

    /// The number of zero bytes after the last row.
    pub fn padding(&self) -> usize {
        let end = self.file_offset(self.nodes);
        (end.next_multiple_of(BLOCK as u64) - end) as usize
    }

    /// The length of the file, in bytes.
    pub fn file_length(&self) -> u64 {
        self.file_offset(self.nodes) + self.padding() as u64
    }

    fn list_at(&self) -> usize {
        VECTOR_AT + self.vector_bytes
    }

    /// The header of the file.
    pub fn header(&self) -> FileHeader {
        let fields = FieldsWriter::new()
            .u32(u32::from(self.element.code()))
            .u32(self.dim as u32)
            .u32(self.degree as u32)
            .u64(self.nodes)
            .finish();
        FileHeader::new(FileKind::Csr, self.file_length(), fields)
    }

    /// Decodes the shape from a header.
    ///
    /// # Errors
    /// Fails if the kind, a field or the length of the file is wrong.
    pub fn from_header(header: &FileHeader, file: &str) -> Result<CsrShape, LayoutError> {
        header.expect_kind(FileKind::Csr, file)?;
        let mut fields = header.fields(file);
        let element = read_element(&mut fields, file)?;
        let at = fields.offset();
        let dim = fields.u32("dimension")?;
        let degree = fields.u32("degree")?;
        let nodes = fields.u64("number of nodes")?;
        fields.end()?;
        let field = |offset, what, found, expected| LayoutError::Field {
            file: file.to_owned(),
            offset,
            what,
            found,
            expected,
        };
        let shape = CsrShape::new(element, dim as usize, degree as usize, nodes).map_err(|_| {
            let found = format!("{dim}, {degree} and {nodes}");
            let expected = "1 to 65536, 1 to 4096 and at most 4294967295";
            field(
                at,
                "dimension, degree and nodes",
                found,
                expected.to_owned(),
            )
        })?;
        let length = shape.file_length();
        if header.length != length {
            let expected = format!("{length} for {nodes} nodes");
            return Err(field(
                32,
                "file length",
                header.length.to_string(),
                expected,
            ));
        }
        Ok(shape)
    }

    /// Appends the row of a node.
    ///
    /// # Panics
    /// Panics if an argument has a wrong length, or a neighbour does not fit a link.
    pub fn push(&self, node: u32, id: u64, vector: &[u8], neighbours: &[u32], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.row_bytes, 0);
        let row = &mut out[start..];
        self.put_list(neighbours, row);
        self.put_vector(id, vector, row);
        self.seal(node, row);
    }

    /// Writes the list of a node into its row. The bytes of the list must be zero before the call.
    ///
    /// # Panics
    /// Panics if an argument has a wrong length, or a neighbour does not fit a link.
    pub fn put_list(&self, neighbours: &[u32], row: &mut [u8]) {
        assert!(
            neighbours.len() <= self.degree,
            "{} neighbours, the format allows {}",
            neighbours.len(),
            self.degree
        );
        let (degree, mut links) = row[self.list_at()..self.row_bytes].split_at_mut(2);
        degree.copy_from_slice(&(neighbours.len() as u16).to_le_bytes());
        let (mut waiting, mut bits) = (0u64, 0);
        let mut put = |byte: u64| {
            let (first, rest) = std::mem::take(&mut links).split_at_mut(1);
            first[0] = byte as u8;
            links = rest;
        };
        for &neighbour in neighbours {
            assert!(
                u64::from(neighbour) >> self.link_bits == 0,
                "a link to {neighbour} of {} nodes",
                self.nodes
            );
            waiting |= u64::from(neighbour) << bits;
            bits += self.link_bits;
            while bits >= 8 {
                put(waiting);
                waiting >>= 8;
                bits -= 8;
            }
        }
        if bits > 0 {
            put(waiting);
        }
    }

    /// Writes the id and the vector of a node into its row.
    ///
    /// # Panics
    /// Panics if the row or the vector has the wrong length.
    pub fn put_vector(&self, id: u64, vector: &[u8], row: &mut [u8]) {
        assert_eq!(
            vector.len(),
            self.vector_bytes,
            "the vector has the wrong number of bytes"
        );
        row[4..VECTOR_AT].copy_from_slice(&id.to_le_bytes());
        row[VECTOR_AT..self.list_at()].copy_from_slice(vector);
    }

    /// Writes the checksum of a row whose list and vector are complete.
    ///
    /// # Panics
    /// Panics if the row has the wrong length.
    pub fn seal(&self, node: u32, row: &mut [u8]) {
        let (sum, rest) = row[..self.row_bytes].split_at_mut(4);
        sum.copy_from_slice(&crate::block::checksum(node.into(), rest).to_le_bytes());
    }

    /// Decodes the neighbours in a list of a row. The list begins with its degree. If the list is
    /// damaged, the numbers may be too large.
    ///
    /// # Errors
    /// Fails if the list has the wrong length, or a degree above R.
    #[inline]
    pub fn links(
        &self,
        list: &[u8],
        node: u64,
        file: &str,
        out: &mut Vec<u32>,
    ) -> Result<(), LayoutError> {
        out.clear();
        if list.len() != self.list_bytes() {
            return Err(self.cut(list.len(), self.list_bytes(), node, file));
        }
        let degree = usize::from(u16_at(list, 0));
        if degree > self.degree {
            return Err(self.bad_degree(degree, node, file));
        }
        let links = &list[2..];
        let (bits, mask) = (self.link_bits as usize, (1u64 << self.link_bits) - 1);
        // Each link fits a window of eight bytes: up to seven bits before the link, and up to 32
        // bits of it.
        let windows = match links.len() {
            bytes @ 8.. => (((bytes - 8) * 8 + 7) / bits + 1).min(degree),
            _ => 0,
        };
        out.extend((0..windows).map(|n| {
            let at = n * bits;
            (u64_at(links, at / 8) >> (at % 8) & mask) as u32
        }));
        let mut last = [0; 16];
        let rest = links.len().saturating_sub(8);
        let tail = links.len() - rest;
        last[..tail].copy_from_slice(&links[rest..]);
        out.extend((windows..degree).map(|n| {
            let at = n * bits - 8 * rest;
            (u64_at(&last, at / 8) >> (at % 8) & mask) as u32
        }));
        Ok(())
    }

    #[cold]
    fn cut(&self, found: usize, expected: usize, node: u64, file: &str) -> LayoutError {
        LayoutError::Truncated {
            file: file.to_owned(),
            offset: self.file_offset(node),
            expected: expected as u64,
            found: found as u64,
        }
    }

    #[cold]
    fn bad_degree(&self, degree: usize, node: u64, file: &str) -> LayoutError {
        LayoutError::Field {
            file: file.to_owned(),
            offset: self.file_offset(node) + self.list_at() as u64,
            what: "degree of a node",
            found: degree.to_string(),
            expected: format!("at most {}", self.degree),
        }
    }
}

/// A row, read in place.
#[derive(Debug, Clone, Copy)]
pub struct CsrRow<'a> {
    /// The external id.
    pub id: u64,
    /// The vector.
    pub vector: &'a [u8],
    /// Degree and links, as input for [`CsrShape::links`].
    pub list: &'a [u8],
}

impl<'a> CsrRow<'a> {
    /// Opens the row of a node. With `check`, verifies its checksum.
    ///
    /// # Errors
    /// Fails if the bytes are not one row long, or the checksum does not match.
    #[inline]
    pub fn open(
        shape: &CsrShape,
        bytes: &'a [u8],
        node: u64,
        check: bool,
        file: &str,
    ) -> Result<CsrRow<'a>, LayoutError> {
        if bytes.len() != shape.row_bytes {
            return Err(shape.cut(bytes.len(), shape.row_bytes, node, file));
        }
        if check {
            let (stored, computed) = (u32_at(bytes, 0), crate::block::checksum(node, &bytes[4..]));
            if stored != computed {
                return Err(LayoutError::Checksum {
                    file: file.to_owned(),
                    offset: shape.file_offset(node),
                    stored,
                    computed,
                });
            }
        }
        let (head, list) = bytes.split_at(shape.list_at());
        Ok(CsrRow {
            id: u64_at(head, 4),
            vector: &head[VECTOR_AT..],
            list,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_row_takes_as_many_bits_a_link_as_its_largest_has() {
        for (nodes, bits) in [
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 2),
            (1 << 20, 20),
            ((1 << 20) + 1, 21),
        ] {
            let shape = CsrShape::new(Element::U8, 128, 32, nodes).unwrap();
            assert_eq!(shape.link_bits, bits);
            assert_eq!(
                shape.row_bytes(),
                4 + 8 + 128 + 2 + (32 * bits as usize).div_ceil(8)
            );
            assert_eq!(shape.file_length() % 4096, 0);
        }
        let largest = CsrShape::new(Element::U8, 1, 1, u64::from(u32::MAX)).unwrap();
        assert_eq!(largest.link_bits, 32);
        CsrShape::new(Element::U8, 1, 1, 1 << 32).unwrap_err();
        CsrShape::new(Element::U8, 0, 1, 1).unwrap_err();
        CsrShape::new(Element::U8, 1, 4097, 1).unwrap_err();
    }

    proptest! {
        #[test]
        fn rows_are_read_as_they_were_written(
            nodes in 1u64..=u64::from(u32::MAX),
            dim in 1usize..40,
            degree in 1usize..70,
            seeds in proptest::collection::vec(any::<u64>(), 0..70),
            id in any::<u64>(),
        ) {
            let shape = CsrShape::new(Element::U8, dim, degree, nodes).unwrap();
            let list: Vec<u32> = seeds.iter().take(degree).map(|seed| (seed % nodes) as u32).collect();
            let vector: Vec<u8> = (0..dim).map(|i| (i * 37) as u8).collect();
            let (mut rows, node) = (vec![1, 2, 3], (id % nodes) as u32);
            shape.push(node, id, &vector, &list, &mut rows);
            let bytes = &rows[3..];
            prop_assert_eq!(bytes.len(), shape.row_bytes());
            let row = CsrRow::open(&shape, bytes, node.into(), true, "f").unwrap();
            prop_assert_eq!((row.id, row.vector), (id, &vector[..]));
            let mut links = vec![9];
            shape.links(row.list, node.into(), "f", &mut links).unwrap();
            prop_assert_eq!(links, list);
            CsrRow::open(&shape, bytes, u64::from(node) + 1, true, "f").unwrap_err();
            let mut flipped = bytes.to_vec();
            flipped[(id % bytes.len() as u64) as usize] ^= 1 << (id % 8);
            CsrRow::open(&shape, &flipped, node.into(), true, "f").unwrap_err();
        }

        #[test]
        fn any_bytes_are_a_list_or_refused(
            nodes in 1u64..1 << 30,
            degree in 1usize..40,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let shape = CsrShape::new(Element::F32, 3, degree, nodes).unwrap();
            let mut links = Vec::new();
            let mut list = bytes;
            let _ = shape.links(&list, 7, "f", &mut links);
            list.resize(shape.list_bytes(), 0);
            if shape.links(&list, 7, "f", &mut links).is_ok() {
                prop_assert!(links.len() <= degree);
            }
            let _ = CsrRow::open(&shape, &list, 7, true, "f");
        }
    }

    #[test]
    fn headers_are_read_back_and_checked() {
        let shape = CsrShape::new(Element::F16, 20, 9, 1000).unwrap();
        let header = shape.header();
        assert_eq!(CsrShape::from_header(&header, "f").unwrap(), shape);
        let longer = FileHeader::new(FileKind::Csr, header.length + 4096, header.fields.clone());
        let error = CsrShape::from_header(&longer, "f").unwrap_err().to_string();
        assert!(error.contains("file length"), "{error}");
        let other = FileHeader::new(FileKind::Graph, header.length, header.fields.clone());
        CsrShape::from_header(&other, "f").unwrap_err();
    }
}
