//! Encodes the lists and vectors of a batch on several threads. One vector takes about ten
//! microseconds.

use std::ops::Range;

use stratann_codec::{ListCodec, ListModel};

use super::coding::SegmentCode;
use super::sweep::Nodes;
use crate::stores::vectors::model::VectorModel;
use crate::{Error, threads};

/// For fewer nodes, a thread is not worth its start.
const LEAST_SHARE: usize = 64;

pub(crate) struct Encoder {
    lists: ListModel,
    /// Together, the shares of the threads are the codes of the batch in order.
    shares: Vec<Share>,
    list_bytes: u64,
    vector_bytes: u64,
    gaps: u64,
    others: u64,
    vector_codecs: Vec<&'static str>,
}

pub(crate) struct NodeCode<'a> {
    pub(crate) list: &'a [u8],
    /// Empty if vectors are not in two parts.
    pub(crate) leading: &'a [u8],
    pub(crate) vector: &'a [u8],
}

impl NodeCode<'_> {
    /// The bytes of the leading part of the vector, or of the whole vector.
    pub(crate) fn beside(&self) -> usize {
        match self.leading.is_empty() {
            true => self.vector.len(),
            false => self.leading.len(),
        }
    }
}

#[derive(Default)]
struct Share {
    bytes: Vec<u8>,
    /// For each node, the ends of its list, of its leading part and of its vector.
    ends: Vec<[usize; 3]>,
    trailing: Vec<u8>,
    gaps: u64,
    list: Vec<u32>,
}

impl Encoder {
    pub(crate) fn new(lists: ListModel, threads: usize) -> Self {
        Self {
            lists,
            shares: (0..threads).map(|_| Share::default()).collect(),
            list_bytes: 0,
            vector_bytes: 0,
            gaps: 0,
            others: 0,
            vector_codecs: Vec::new(),
        }
    }

    /// All nodes must be in the segment that `vectors` was trained for. Without `vectors`, only
    /// lists are encoded.
    pub(crate) fn encode(
        &mut self,
        nodes: &Nodes<'_>,
        vectors: Option<&SegmentCode>,
    ) -> Result<(), Error> {
        let lists = &self.lists;
        let share = nodes.len().div_ceil(self.shares.len()).max(LEAST_SHARE);
        let ranges = (0..self.shares.len())
            .map(|i| (i * share).min(nodes.len())..((i + 1) * share).min(nodes.len()));
        let mut work: Vec<_> = self.shares.iter_mut().zip(ranges).collect();
        // For a small batch some threads have no work, but all shares must be cleared.
        work.iter_mut().for_each(|(share, _)| share.clear());
        work.retain(|(_, range)| !range.is_empty());
        let encoded = threads::shared(work.into_iter(), |(share, range)| {
            share.encode(nodes, range, lists, vectors)
        });
        encoded.into_iter().collect::<Result<(), Error>>()?;
        for code in self.shares.iter().flat_map(Share::codes) {
            self.list_bytes += code.list.len() as u64;
            self.vector_bytes += (code.leading.len() + code.vector.len()) as u64;
        }
        let gaps: u64 = self.shares.iter().map(|share| share.gaps).sum();
        self.gaps += gaps;
        self.others += nodes.len() as u64 - gaps;
        if let Some(name) = vectors.map(SegmentCode::name)
            && !self.vector_codecs.contains(&name)
        {
            self.vector_codecs.push(name);
        }
        Ok(())
    }

    pub(crate) fn codes(&self) -> impl Iterator<Item = NodeCode<'_>> {
        self.shares.iter().flat_map(Share::codes)
    }

    pub(crate) fn list_model(&self) -> Vec<u8> {
        self.lists.to_bytes()
    }

    pub(crate) fn list_bytes(&self) -> u64 {
        self.list_bytes
    }

    pub(crate) fn vector_bytes(&self) -> u64 {
        self.vector_bytes
    }

    pub(crate) fn list_codecs(&self) -> String {
        match (self.gaps, self.others) {
            (0, _) => "elias-fano",
            (_, 0) => "gaps",
            (gaps, others) if gaps < others => "elias-fano, gaps",
            _ => "gaps, elias-fano",
        }
        .to_owned()
    }

    pub(crate) fn vector_codecs(&self) -> String {
        self.vector_codecs.join(", ")
    }
}

impl Share {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.gaps = 0;
    }

    fn encode(
        &mut self,
        nodes: &Nodes<'_>,
        range: Range<usize>,
        lists: &ListModel,
        vectors: Option<&SegmentCode>,
    ) -> Result<(), Error> {
        self.clear();
        for place in range {
            let node = nodes.number(place);
            let wrong = |source| Error::codec(format!("node {node}"), source);
            // The code of a list is the code of a set, so the list is sorted.
            self.list.clear();
            self.list.extend_from_slice(nodes.list(place));
            self.list.sort_unstable();
            let codec = lists
                .encode(node, &self.list, &mut self.bytes)
                .map_err(wrong)?;
            self.gaps += u64::from(codec == ListCodec::Gaps);
            let list_end = self.bytes.len();
            let mut leading_end = list_end;
            if let Some(code) = vectors {
                let vector = nodes.vector(place);
                match &code.model {
                    VectorModel::Whole(model) => model
                        .encode(vector, code.base(node), &mut self.bytes)
                        .map_err(wrong)?,
                    VectorModel::Trailing(model) => {
                        self.trailing.clear();
                        model
                            .encode(vector, &mut self.bytes, &mut self.trailing)
                            .map_err(wrong)?;
                        leading_end = self.bytes.len();
                        self.bytes.extend_from_slice(&self.trailing);
                    }
                }
            }
            self.ends.push([list_end, leading_end, self.bytes.len()]);
        }
        Ok(())
    }

    fn codes(&self) -> impl Iterator<Item = NodeCode<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&[_, _, end]| end));
        starts
            .zip(&self.ends)
            .map(|(start, &[list, leading, end])| NodeCode {
                list: &self.bytes[start..list],
                leading: &self.bytes[list..leading],
                vector: &self.bytes[leading..end],
            })
    }
}
