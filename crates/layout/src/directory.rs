//! The directory: the page of each node, for pages with different numbers of records.
//!
//! The payload of a [stream](crate::stream) of kind `Directory` is little-endian. It has a model of
//! the lists with `m` bytes, `s` models of the vectors, and `p` pages:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | `p`, the pages |
//! | 4 | 4 | `m`, bytes of the model of the lists |
//! | 8 | 4 | the nodes of each model of the vectors (the last may have fewer); 0 without models |
//! | 12 | 4 | `s`, the models of the vectors |
//! | 16 | 4 s | bytes of each model of the vectors |
//! | … | m | the model of the lists |
//! | … | … | the models of the vectors, one after another |
//! | … | 2 p | records on each page, 1 or more |
//!
//! In memory the directory is a [`PageDirectory`]. It has a bit for each node, which is set for the
//! first node of a page, and the count of set bits before each 512 nodes. Pages without a node,
//! which only [segments](crate::chunks) have, are listed separately.

use crate::error::LayoutError;
use crate::payload::PayloadReader;

/// Format version of these files. 1: the first.
pub const FORMAT_VERSION: u32 = 1;

/// The nodes from one count of set bits (a rank) to the next. Their bits are one cache line.
const RANKED: u64 = 512;
const WORDS: usize = RANKED as usize / 64;

/// Maps a node to its page, in about 0.13 bytes a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageDirectory {
    first: u32,
    nodes: u64,
    pages: u64,
    /// A bit for each node, set for the first node of a page. The number of words is a multiple of
    /// [`WORDS`].
    bits: Vec<u64>,
    ranks: Vec<u32>,
    empty: Vec<u32>,
}

impl PageDirectory {
    /// The directory of a file whose first node is `first`. `counts` has the number of nodes on
    /// each page.
    pub fn from_counts(first: u32, counts: impl IntoIterator<Item = u16>) -> PageDirectory {
        let (mut nodes, mut pages, mut bits) = (0u64, 0u64, Vec::new());
        let mut empty = Vec::new();
        for count in counts {
            if count == 0 {
                empty.push(pages as u32);
                pages += 1;
                continue;
            }
            let word = (nodes / 64) as usize;
            if word >= bits.len() {
                bits.resize(word + 1, 0u64);
            }
            bits[word] |= 1 << (nodes % 64);
            nodes += u64::from(count);
            pages += 1;
        }
        bits.resize(nodes.div_ceil(RANKED) as usize * WORDS, 0);
        bits.shrink_to_fit();
        let mut before = 0;
        let ranks = bits
            .chunks_exact(WORDS)
            .map(|words| {
                let rank = before;
                before += words.iter().map(|word| word.count_ones()).sum::<u32>();
                rank
            })
            .collect();
        PageDirectory {
            first,
            nodes,
            pages,
            bits,
            ranks,
            empty,
        }
    }

    /// The page that has `node`. If no page has it, the page of the nearest node, or 0 in an empty
    /// file.
    #[inline]
    pub fn page_of(&self, node: u32) -> u64 {
        let Some(last) = self.nodes.checked_sub(1) else {
            return 0;
        };
        let at = u64::from(node.saturating_sub(self.first)).min(last);
        let (word, bit) = ((at / 64) as usize, at % 64);
        let start = word - word % WORDS;
        let mut ones = self.ranks[word / WORDS];
        for bits in &self.bits[start..word] {
            ones += bits.count_ones();
        }
        // The count includes the bit of `node`. The first node's bit is set, so the count is at
        // least 1.
        ones += (self.bits[word] << (63 - bit)).count_ones();
        self.nth_in_use(u64::from(ones) - 1)
    }

    /// Whether `node` is the last node that starts on its page.
    #[inline]
    pub fn is_last(&self, node: u32) -> bool {
        let next = u64::from(node.saturating_sub(self.first)) + 1;
        next >= self.nodes || self.bits[(next / 64) as usize] >> (next % 64) & 1 != 0
    }

    #[inline]
    fn nth_in_use(&self, nth: u64) -> u64 {
        // A page without nodes precedes the result if at most `nth` pages with nodes precede that
        // page.
        let (mut low, mut high) = (0, self.empty.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match u64::from(self.empty[middle]) - middle as u64 <= nth {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        nth + low as u64
    }

    /// Whether a page has a node.
    pub fn holds(&self, page: u64) -> bool {
        let number = u32::try_from(page).ok().filter(|_| page < self.pages);
        number.is_some_and(|page| self.empty.binary_search(&page).is_err())
    }

    /// The first node of a page, if it has one, in time logarithmic in the number of nodes.
    pub fn first_of(&self, page: u64) -> Option<u32> {
        if page >= self.pages {
            return None;
        }
        let number = u32::try_from(page).ok()?;
        let page = page - self.empty.binary_search(&number).err()? as u64;
        let ranked = self
            .ranks
            .partition_point(|&rank| u64::from(rank) <= page)
            .checked_sub(1)?;
        let mut before = page - u64::from(self.ranks[ranked]);
        for word in ranked * WORDS..(ranked + 1) * WORDS {
            let mut bits = self.bits[word];
            let ones = u64::from(bits.count_ones());
            if before >= ones {
                before -= ones;
                continue;
            }
            for _ in 0..before {
                bits &= bits - 1;
            }
            let at = 64 * word as u64 + u64::from(bits.trailing_zeros());
            return u32::try_from(u64::from(self.first) + at).ok();
        }
        None
    }

    /// The first node of the file.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Nodes in the file.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Pages of the file.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let words = self.ranks.capacity() + self.empty.capacity();
        size_of::<PageDirectory>() + 8 * self.bits.capacity() + 4 * words
    }
}

/// A decoded directory file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryFile {
    /// The model of the codec of the lists.
    pub list_model: Vec<u8>,
    /// The nodes of each model of the vectors; the last may have fewer. 0 without models.
    pub segment_vectors: u32,
    /// The models of the vectors, one for each `segment_vectors` nodes.
    pub vector_models: Vec<Vec<u8>>,
    /// Records on each page.
    pub counts: Vec<u16>,
}

impl DirectoryFile {
    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for field in [
            self.counts.len() as u32,
            self.list_model.len() as u32,
            self.segment_vectors,
            self.vector_models.len() as u32,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for model in &self.vector_models {
            out.extend_from_slice(&(model.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.list_model);
        for model in &self.vector_models {
            out.extend_from_slice(model);
        }
        out.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        out
    }

    /// Decodes a payload. `nodes` and `pages` are the totals ([`crate::SlottedFacts`]).
    ///
    /// # Errors
    /// Fails if a length, a number or a total does not match, or a page has no records.
    pub fn decode(
        payload: &[u8],
        nodes: u64,
        pages: u64,
        file: &str,
    ) -> Result<DirectoryFile, LayoutError> {
        let mut reader = PayloadReader::new(payload, file);
        let found_pages = reader.u32("number of pages")?;
        let list_bytes = reader.u32("bytes of the model of the lists")?;
        let segment_vectors = reader.u32("nodes of a model of the vectors")?;
        let models = reader.u32("number of models of the vectors")?;
        if u64::from(found_pages) != pages {
            return Err(reader.wrong(0, "number of pages", found_pages, pages));
        }
        let needed = match segment_vectors {
            0 => 0,
            every => nodes.div_ceil(u64::from(every)),
        };
        if u64::from(models) != needed {
            let expected = format!("{needed} for {nodes} nodes, {segment_vectors} nodes a model");
            return Err(reader.wrong(12, "number of models of the vectors", models, expected));
        }
        let lengths = reader.u32s(u64::from(models), "bytes of the models of the vectors")?;
        let list_model = reader.bytes(u64::from(list_bytes), "model of the lists")?;
        let vector_models = lengths
            .iter()
            .map(|&length| {
                let model = reader.bytes(u64::from(length), "model of the vectors")?;
                Ok(model.to_vec())
            })
            .collect::<Result<_, LayoutError>>()?;
        let counts_at = reader.at();
        let counts = reader.u16s(pages, "records on each page")?;
        if let Some(page) = counts.iter().position(|&count| count == 0) {
            return Err(reader.wrong(counts_at + 2 * page, "records on a page", 0, "1 or more"));
        }
        let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if sum != nodes {
            return Err(reader.wrong(counts_at, "records on all pages", sum, nodes));
        }
        reader.end()?;
        Ok(DirectoryFile {
            list_model: list_model.to_vec(),
            segment_vectors,
            vector_models,
            counts,
        })
    }

    /// The directory of the pages, from node `first` on.
    pub fn pages(&self, first: u32) -> PageDirectory {
        PageDirectory::from_counts(first, self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> DirectoryFile {
        DirectoryFile {
            list_model: vec![1, 2, 3],
            segment_vectors: 4,
            vector_models: vec![vec![9], vec![], vec![8, 7]],
            counts: vec![5, 1, 4],
        }
    }

    fn decode(payload: &[u8]) -> Result<DirectoryFile, LayoutError> {
        DirectoryFile::decode(payload, 10, 3, "directory")
    }

    fn assert_right(directory: &PageDirectory, first: u32, counts: &[u16]) {
        let nodes: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        assert_eq!(directory.nodes(), nodes);
        assert_eq!(directory.pages(), counts.len() as u64);
        assert_eq!(directory.first(), first);
        let mut node = first;
        for (page, &count) in (0..).zip(counts) {
            assert_eq!(directory.first_of(page), (count > 0).then_some(node));
            assert_eq!(directory.holds(page), count > 0);
            for left in (0..count).rev() {
                assert_eq!(directory.page_of(node), page, "node {node}");
                assert_eq!(directory.is_last(node), left == 0, "node {node}");
                node = node.saturating_add(1);
            }
        }
        assert_eq!(directory.first_of(counts.len() as u64), None);
        assert_eq!(directory.first_of(u64::MAX), None);
        assert!(!directory.holds(counts.len() as u64) && !directory.holds(u64::MAX));
        let in_use = |page: Option<usize>| page.unwrap_or(0) as u64;
        let last = in_use(counts.iter().rposition(|&count| count > 0));
        assert_eq!(directory.page_of(node.max(1)), last);
        assert_eq!(directory.page_of(u32::MAX), last);
        let least = in_use(counts.iter().position(|&count| count > 0));
        assert_eq!(directory.page_of(0), least);
        assert_eq!(directory.page_of(first.saturating_sub(1)), least);
    }

    #[test]
    fn every_node_is_found() {
        let varied: Vec<u16> = (0..700u32)
            .map(|page| 1 + (page * page % 90) as u16)
            .collect();
        for counts in [
            &[] as &[u16],
            &[1],
            &[1, 1],
            &[u16::MAX, 1, u16::MAX],
            &[64, 64, 1],
            &[63, 1, 64],
            &[512, 512],
            &[511, 1, 511, 2],
            &[513, 511],
            &[1; 512],
            &[1; 1025],
            &varied,
            &[0],
            &[0, 0, 3],
            &[3, 0],
            &[0, 5, 0, 0, 511, 1, 0, 64, 0],
        ] {
            for first in [0, 1, 63, 1_000_000] {
                let directory = PageDirectory::from_counts(first, counts.iter().copied());
                assert_right(&directory, first, counts);
            }
        }
        let directory = PageDirectory::from_counts(u32::MAX - 9, [5, 5]);
        assert_right(&directory, u32::MAX - 9, &[5, 5]);
    }

    #[test]
    fn it_takes_little_memory() {
        let directory = PageDirectory::from_counts(0, std::iter::repeat_n(24, 100_000));
        let bytes = directory.memory_bytes() as f64 / directory.nodes() as f64;
        assert!((0.13..0.134).contains(&bytes), "{bytes}");
    }

    #[test]
    fn round_trips() {
        let file = sample();
        assert_eq!(decode(&file.encode()).unwrap(), file);
        assert_right(&file.pages(7), 7, &[5, 1, 4]);
        let plain = DirectoryFile {
            counts: vec![7, 3],
            ..DirectoryFile::default()
        };
        let back = DirectoryFile::decode(&plain.encode(), 10, 2, "d").unwrap();
        assert_eq!(back, plain);
        let none = DirectoryFile::default();
        let back = DirectoryFile::decode(&none.encode(), 0, 0, "d").unwrap();
        assert_eq!(back, none);
    }

    #[test]
    fn bytes_stand_where_the_table_says() {
        let bytes = sample().encode();
        assert_eq!(bytes[..8], [3, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[8..16], [4, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[16..28], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[28..34], [1, 2, 3, 9, 8, 7]);
        assert_eq!(bytes[34..], [5, 0, 1, 0, 4, 0]);
    }

    #[test]
    fn every_contradiction_is_refused() {
        for (change, text) in [
            (
                (|file| file.counts[1] = 2) as fn(&mut DirectoryFile),
                "directory: records on all pages at offset 4134 is 11; expected 10",
            ),
            (
                |file| file.counts = vec![6, 0, 4],
                "records on a page at offset 4136 is 0; expected 1 or more",
            ),
            (
                |file| file.counts.push(1),
                "number of pages at offset 4100 is 4; expected 3",
            ),
            (|file| file.counts.truncate(2), "number of pages"),
            (
                |file| drop(file.vector_models.pop()),
                "number of models of the vectors at offset 4112 is 2; expected 3 for 10 nodes, 4 nodes a model",
            ),
            (
                |file| file.vector_models.clear(),
                "number of models of the vectors",
            ),
            (
                |file| file.segment_vectors = 0,
                "is 3; expected 0 for 10 nodes",
            ),
            (|file| file.segment_vectors = 10, "is 3; expected 1"),
        ] {
            let mut file = sample();
            change(&mut file);
            let found = decode(&file.encode()).unwrap_err().to_string();
            assert!(found.contains(text), "{found}\n{text}");
        }
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            decode(&bytes[..length]).unwrap_err();
        }
        let text = decode(&[&bytes[..], &[0]].concat())
            .unwrap_err()
            .to_string();
        assert!(text.contains("payload length"), "{text}");
        for at in [4, 16, 20, 24] {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].fill(255);
            let text = decode(&bytes).unwrap_err().to_string();
            assert!(text.contains("cut off after"), "{text}");
        }
        for (nodes, pages) in [(9, 3), (11, 3), (10, 2), (10, 4), (0, 0)] {
            DirectoryFile::decode(&bytes, nodes, pages, "d").unwrap_err();
        }
        DirectoryFile::decode(&bytes, u64::MAX, u64::MAX, "d").unwrap_err();
    }

    #[test]
    fn errors_name_the_place_in_the_file() {
        let file = DirectoryFile {
            list_model: vec![0; 5000],
            segment_vectors: 0,
            vector_models: Vec::new(),
            counts: vec![1, 0],
        };
        let error = DirectoryFile::decode(&file.encode(), 1, 2, "d").unwrap_err();
        let stream = crate::stream::encode(crate::FileKind::Directory, &file.encode(), &[]);
        let at = error.offset().unwrap() as usize;
        assert_eq!(stream[at - 2..at + 2], [1, 0, 0, 0]);
        assert_eq!(at, 2 * 4096 + 4 + 5018 - 4092);
    }

    proptest! {
        #[test]
        fn any_counts_are_found(
            first in 0u32..1 << 31,
            counts in prop::collection::vec(prop_oneof![0u16..4, 1u16..100, 1u16..2000], 0..300),
        ) {
            let directory = PageDirectory::from_counts(first, counts.iter().copied());
            assert_right(&directory, first, &counts);
        }

        #[test]
        fn any_file_round_trips(
            list_model in prop::collection::vec(any::<u8>(), 0..50),
            vector_models in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..10),
            counts in prop::collection::vec(1u16.., 1..50),
        ) {
            let nodes: u64 = counts.iter().map(|&count| u64::from(count)).sum();
            let segment_vectors = match vector_models.len() as u64 {
                0 => 0,
                models => nodes.div_ceil(models) as u32,
            };
            prop_assume!(segment_vectors == 0 || nodes.div_ceil(u64::from(segment_vectors)) == vector_models.len() as u64);
            let file = DirectoryFile { list_model, segment_vectors, vector_models, counts };
            let pages = file.counts.len() as u64;
            prop_assert_eq!(DirectoryFile::decode(&file.encode(), nodes, pages, "d").unwrap(), file);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            (nodes, pages) in any::<(u64, u64)>(),
            node: u32,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let _ = DirectoryFile::decode(&bytes, nodes, pages, "d");
            let mut close = sample().encode();
            for (at, byte) in damage {
                let at = at.index(close.len());
                close[at] = byte;
            }
            if let Ok(file) = decode(&close) {
                prop_assert!(file.pages(3).page_of(node) < 3);
            }
        }
    }
}
