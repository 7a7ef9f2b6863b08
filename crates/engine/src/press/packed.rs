//! Adjacency lists as DistVS's memory server stores and sends them: compressed, one after another.
//!
//! ```text
//!   sent, for each node   0: node u32
//!                         4: its list, coded by `stratann_codec`, which marks its own end
//! ```
//!
//! In locality order, a neighbour takes 10 to 13 bits.

use stratann_codec::ListModel;

use crate::Error;

/// The number of nodes in a block. The starts of all lists of a block are within 4 GiB.
const BLOCK: usize = 1 << 16;

pub(super) struct PackedLists {
    model: ListModel,
    bytes: Vec<u8>,
    blocks: Vec<u64>,
    /// The offset of each node's list in its block. `lengths` has the length of each list in bytes.
    starts: Vec<u32>,
    lengths: Vec<u16>,
}

impl PackedLists {
    /// Nodes are added in order.
    pub(super) fn new(model: ListModel, nodes: usize) -> Self {
        Self {
            model,
            bytes: Vec::new(),
            blocks: Vec::with_capacity(nodes.div_ceil(BLOCK)),
            starts: Vec::with_capacity(nodes),
            lengths: Vec::with_capacity(nodes),
        }
    }

    /// Fails if the list does not ascend, or is too long.
    pub(super) fn push(&mut self, list: &[u32], file: &str) -> Result<(), Error> {
        let (node, start) = (self.starts.len(), self.bytes.len());
        let damaged = |what: String| Error::Damaged {
            file: file.to_owned(),
            what,
        };
        let encoded = self.model.encode(node as u32, list, &mut self.bytes);
        encoded.map_err(|error| damaged(format!("list of node {node}: {error}")))?;
        if node % BLOCK == 0 {
            self.blocks.push(start as u64);
        }
        let base = self.blocks[node / BLOCK];
        let length = u16::try_from(self.bytes.len() - start);
        let (Ok(start), Ok(length)) = (u32::try_from(start as u64 - base), length) else {
            return Err(damaged(format!(
                "the list of node {node} has {} nodes, which take more than 65,535 bytes",
                list.len()
            )));
        };
        self.starts.push(start);
        self.lengths.push(length);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn model(&self) -> &ListModel {
        &self.model
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.blocks.capacity() * size_of::<u64>()
            + self.starts.capacity() * size_of::<u32>()
            + self.lengths.capacity() * size_of::<u16>()
    }

    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    fn list(&self, node: u32) -> &[u8] {
        let at = node as usize;
        let start = self.blocks[at / BLOCK] as usize + self.starts[at] as usize;
        &self.bytes[start..start + usize::from(self.lengths[at])]
    }

    pub(super) fn append(&self, node: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&node.to_le_bytes());
        out.extend_from_slice(self.list(node));
    }

    /// Replaces the contents of `list` by the neighbours of a node.
    pub(super) fn decode(&self, node: u32, list: &mut Vec<u32>) -> Result<(), Error> {
        let decoded = self.model.decode(node, self.list(node), list);
        let wrong = |error: stratann_codec::CodecError| {
            Error::call(
                format!("the list of node {node} in memory"),
                "damaged",
                error.to_string(),
                "Restart this server, which reads the index again",
            )
        };
        decoded.map(drop).map_err(wrong)
    }
}

/// Calls `each` with each list in a message of the memory server.
pub(super) fn each_list(
    model: &ListModel,
    mut bytes: &[u8],
    scratch: &mut Vec<u32>,
    mut each: impl FnMut(&[u32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let wrong = |found: &str, reason: String| {
        Error::call("a list of a memory server", found, reason, super::ALIKE)
    };
    while !bytes.is_empty() {
        let Some((node, rest)) = bytes.split_first_chunk() else {
            let found = format!("{} bytes", bytes.len());
            return Err(wrong(
                &found,
                "it is shorter than the number of a node".into(),
            ));
        };
        let decoded = model.decode(u32::from_le_bytes(*node), rest, scratch);
        let taken = decoded.map_err(|error| wrong("damaged", error.to_string()))?;
        each(scratch)?;
        bytes = &rest[taken..];
    }
    Ok(())
}
