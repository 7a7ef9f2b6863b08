//! Adjacency lists as the memory server holds and sends them: compressed, one behind the other.
//!
//! ```text
//!   sent, for each node   0: node u32   4: its list, as `stratann_codec` codes it, which says itself where it ends
//! ```
//!
//! In the order of a locality build gaps are short: a neighbour takes 10 to 13 bits instead of 32, in memory and on the wire.

use stratann_codec::ListModel;

use crate::Error;

/// Nodes of a block whose lists begin within 4 GiB of each other.
const BLOCK: usize = 1 << 16;

/// Compressed lists of all nodes.
pub(super) struct PackedLists {
    model: ListModel,
    bytes: Vec<u8>,
    /// Where each block's lists begin.
    blocks: Vec<u64>,
    /// Where each node's begins, from there on, and its bytes.
    starts: Vec<u32>,
    lengths: Vec<u16>,
}

impl PackedLists {
    /// None yet; nodes come in order.
    pub(super) fn new(model: ListModel, nodes: usize) -> Self {
        Self {
            model,
            bytes: Vec::new(),
            blocks: Vec::with_capacity(nodes.div_ceil(BLOCK)),
            starts: Vec::with_capacity(nodes),
            lengths: Vec::with_capacity(nodes),
        }
    }

    /// Adds the list of the next node, ascending.
    ///
    /// # Errors
    /// A list that does not ascend, or is longer than any is.
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
            return Err(damaged(format!("a list of {} nodes", list.len())));
        };
        self.starts.push(start);
        self.lengths.push(length);
        Ok(())
    }

    /// Nodes that have come.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// What decodes them.
    pub(super) fn model(&self) -> &ListModel {
        &self.model
    }

    /// Bytes that they take in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.blocks.capacity() * size_of::<u64>()
            + self.starts.capacity() * size_of::<u32>()
            + self.lengths.capacity() * size_of::<u16>()
    }

    /// Gives up room that nobody came for.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    fn list(&self, node: u32) -> &[u8] {
        let at = node as usize;
        let start = self.blocks[at / BLOCK] as usize + self.starts[at] as usize;
        &self.bytes[start..start + usize::from(self.lengths[at])]
    }

    /// Appends a node and its list.
    pub(super) fn append(&self, node: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&node.to_le_bytes());
        out.extend_from_slice(self.list(node));
    }

    /// Puts the neighbours of a node into `list`, in place of what is there.
    ///
    /// # Errors
    /// A list that does not decode.
    pub(super) fn decode(&self, node: u32, list: &mut Vec<u32>) -> Result<(), Error> {
        let decoded = self.model.decode(node, self.list(node), list);
        let wrong = |error: stratann_codec::CodecError| {
            let expected = "one that decodes: start this server anew, which reads the index again";
            Error::call(
                format!("the list of node {node} in memory"),
                error.to_string(),
                expected,
            )
        };
        decoded.map(drop).map_err(wrong)
    }
}

/// Calls `each` with the lists that were sent.
///
/// # Errors
/// Bytes that are none, and what `each` says.
pub(super) fn each_list(
    model: &ListModel,
    mut bytes: &[u8],
    scratch: &mut Vec<u32>,
    mut each: impl FnMut(&[u32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let wrong = |what: String| Error::call("lists of a memory server", what, "whole ones");
    while !bytes.is_empty() {
        let Some((node, rest)) = bytes.split_first_chunk() else {
            return Err(wrong(format!("{} bytes of a list", bytes.len())));
        };
        let decoded = model.decode(u32::from_le_bytes(*node), rest, scratch);
        let taken = decoded.map_err(|error| wrong(error.to_string()))?;
        each(scratch)?;
        bytes = &rest[taken..];
    }
    Ok(())
}
