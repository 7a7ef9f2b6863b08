//! The rows in the order of the nodes, from which the build writes the index.

use stratann_vector::Element;

use super::scratch::ScratchFile;
use crate::data::{DataError, Matrix, VectorSource, check_range};

/// The place where the rows are stored.
#[derive(Debug)]
pub enum Rows {
    /// The rows are in the source, at the numbers in [`Constructed::order`](super::Constructed).
    Source,
    /// The rows are in memory.
    Memory(Matrix),
    /// The rows are in a scratch file. When [`Lists`](super::Lists) and this value are dropped, the
    /// file is freed.
    Scratch(ScratchRows),
}

impl Rows {
    /// Returns the rows in the order of the nodes. `source` is the source of the graph, and `order`
    /// has each node's row number.
    pub fn in_order<'a>(&'a self, order: &'a [u32], source: &'a dyn VectorSource) -> NodeRows<'a> {
        match self {
            Rows::Source => NodeRows {
                rows: source,
                order: Some(order),
            },
            Rows::Memory(matrix) => NodeRows::of(matrix),
            Rows::Scratch(rows) => NodeRows::of(rows),
        }
    }
}

/// Rows in the order of the nodes. Row `i` belongs to node `i`.
#[derive(Clone, Copy)]
pub struct NodeRows<'a> {
    rows: &'a dyn VectorSource,
    /// The row number of each node. `None` if the rows are in the order of the nodes.
    order: Option<&'a [u32]>,
}

impl<'a> NodeRows<'a> {
    fn of(rows: &'a dyn VectorSource) -> NodeRows<'a> {
        NodeRows { rows, order: None }
    }
}

impl NodeRows<'_> {
    /// The number of a node's row in the source, or the node's number if the rows are in the order
    /// of the nodes.
    pub(crate) fn row_of(&self, node: usize) -> usize {
        self.order.map_or(node, |order| order[node] as usize)
    }
}

impl VectorSource for NodeRows<'_> {
    fn rows(&self) -> usize {
        self.rows.rows()
    }

    fn dim(&self) -> usize {
        self.rows.dim()
    }

    fn element(&self) -> Element {
        self.rows.element()
    }

    fn name(&self) -> &str {
        self.rows.name()
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        match self.order {
            None => self.rows.read(first, out),
            Some(order) => {
                let count = check_range(self, first, out.len())?;
                let rows = &order[first..first + count];
                if rows.is_sorted() {
                    return self.rows.gather(rows, out);
                }
                // Rows are read in the order of the source, which suits the read-ahead of a file.
                let row_bytes = self.row_bytes();
                let mut places: Vec<(u32, usize)> = rows.iter().copied().zip(0..).collect();
                places.sort_unstable();
                for (row, place) in places {
                    self.rows
                        .read(row as usize, &mut out[place * row_bytes..][..row_bytes])?;
                }
                Ok(())
            }
        }
    }
}

/// Rows in a scratch file.
#[derive(Debug)]
pub struct ScratchRows {
    pub(super) file: ScratchFile,
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) dim: usize,
    pub(super) element: Element,
    /// The position of each node's row. `None` if the rows are in the order of the nodes.
    pub(super) places: Option<Vec<u32>>,
}

impl ScratchRows {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DataError> {
        self.file
            .read_at(offset, out)
            .map_err(|source| DataError::Io {
                file: self.file.path().display().to_string(),
                action: format!("read {} bytes at offset {offset}", out.len()),
                source,
            })
    }
}

impl VectorSource for ScratchRows {
    fn rows(&self) -> usize {
        self.rows
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn element(&self) -> Element {
        self.element
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, first: usize, out: &mut [u8]) -> Result<(), DataError> {
        let count = check_range(self, first, out.len())?;
        let row_bytes = self.row_bytes();
        let Some(places) = &self.places else {
            return self.read_at(first as u64 * row_bytes as u64, out);
        };
        for (&place, row) in places[first..first + count]
            .iter()
            .zip(out.chunks_exact_mut(row_bytes))
        {
            self.read_at(u64::from(place) * row_bytes as u64, row)?;
        }
        Ok(())
    }
}
