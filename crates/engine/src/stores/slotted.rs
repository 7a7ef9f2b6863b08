//! Slotted pages: the common code of packed pages, layered pages, pages of lists, and segments.

use std::borrow::Cow;

use stratann_codec::{CodecError, ListModel};
use stratann_layout::{
    DirectoryFile, FileHeader, FileKind, LayoutError, Manifest, PageDirectory, SlottedBuilder,
    SlottedShape, SlottedView,
};
use stratann_tier::Volume;

use super::records::{PageFormat, PageRecords, Stored, StoredBytes};
use super::{Composer, PageView, Placed, Record, undecodable};
use crate::plan::PageFile;
use crate::stores::reading;
use crate::{Error, stored};

pub(crate) struct SlottedPages {
    pub(crate) shape: SlottedShape,
    pub(crate) directory: PageDirectory,
    pub(crate) file: String,
    /// In a segment, the placement stays empty.
    pub(crate) placement: Placed,
}

impl SlottedPages {
    pub(crate) fn open(
        volume: &dyn Volume,
        manifest: &Manifest,
        kind: FileKind,
        directory: &DirectoryFile,
        placement: &Placed,
    ) -> Result<Self, Error> {
        let (shape, _, entry) = reading::slotted(volume, manifest, kind, None)?;
        Ok(Self {
            shape,
            directory: directory.pages(0),
            file: stored::name_of(volume, &entry.name),
            placement: placement.clone(),
        })
    }

    pub(crate) fn file(&self) -> PageFile {
        PageFile::new(self.directory.pages(), self.shape.page_bytes())
    }

    #[inline]
    pub(crate) fn page_of(&self, node: u32) -> u64 {
        match self.placement.get() {
            None => self.directory.page_of(node),
            Some(placement) => u64::from(placement.page_of(node)),
        }
    }

    #[inline]
    pub(crate) fn place(&self, page: u64) -> (u64, usize) {
        (self.shape.file_offset(page), self.shape.page_bytes())
    }

    /// `check` verifies the checksums of the page. `ids` says whether the page has ids.
    #[inline]
    pub(crate) fn view<'p>(
        &'p self,
        bytes: &'p [u8],
        page: u64,
        check: bool,
        ids: bool,
    ) -> Result<Slotted<'p>, Error> {
        let view = SlottedView::open(&self.shape, bytes, page, check, &self.file)?;
        Ok(Slotted { view, ids })
    }

    #[inline]
    pub(crate) fn list(
        &self,
        model: &ListModel,
        node: u32,
        record: &Record<'_>,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        match model.decode(node, record.list_and_rest, out) {
            Ok(_) => Ok(()),
            Err(error) => Err(undecodable(&self.file, node, &error)),
        }
    }

    pub(crate) fn records_a_page(&self) -> usize {
        (self.directory.nodes() / self.directory.pages().max(1)).max(1) as usize
    }

    pub(crate) fn encode_list(
        &self,
        model: &ListModel,
        node: u32,
        list: &[u32],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match model.encode(node, list, out) {
            Ok(_) => Ok(()),
            Err(error) => Err(undecodable(&self.file, node, &error)),
        }
    }
}

impl PageFormat for SlottedShape {
    fn page_bytes(&self) -> usize {
        SlottedShape::page_bytes(self)
    }

    fn pages_behind(&self) -> usize {
        self.pages_per_record() - 1
    }

    fn list_bytes(&self, list: &[u8]) -> usize {
        list.len()
    }

    fn is_of(&self, header: &FileHeader, nodes: u64, file: &str) -> Result<bool, LayoutError> {
        let (shape, facts) = Self::from_header(header, file)?;
        Ok((shape, facts.nodes) == (*self, nodes))
    }

    fn read<'p>(
        &'p self,
        page: u64,
        bytes: &'p [u8],
        _: Option<u64>,
        file: &'p str,
    ) -> Result<PageRecords<'p>, LayoutError> {
        let size = bytes.len().min(SlottedShape::page_bytes(self));
        let (bytes, behind) = bytes.split_at(size);
        let view = SlottedView::open(self, bytes, page, true, file)?;
        let has_ids = self.has_ids();
        let records = view.records().enumerate().map(|(slot, record)| Stored {
            node: view.node(slot),
            id: match has_ids {
                true => view.id(slot),
                false => Ok(0),
            },
            bytes: record.map(|record| StoredBytes {
                list: Cow::Borrowed(record.list),
                vector: Cow::Borrowed(record.vector),
            }),
        });
        let (mut records, left): (Vec<_>, _) = (records.collect(), view.left());
        if let Some(last) = records.last_mut().filter(|_| left > 0) {
            let mut whole = Vec::new();
            let read = view
                .whole(view.len() - 1, behind, true, &mut whole)
                .map(|_| ());
            last.bytes = read.map(|()| StoredBytes {
                list: Cow::Borrowed(&[]),
                vector: Cow::Owned(whole),
            });
        }
        Ok(PageRecords {
            relocated: view.is_relocated(),
            first: view.first().into(),
            begun: view.begun().into(),
            left,
            records,
        })
    }
}

pub(crate) fn model<T>(file: &str, found: Result<T, CodecError>) -> Result<T, Error> {
    found.map_err(|error| Error::Damaged {
        file: file.to_owned(),
        what: error.to_string(),
    })
}

pub(crate) struct SlottedComposer {
    builder: SlottedBuilder,
    nodes: Vec<u32>,
}

impl SlottedComposer {
    pub(crate) fn new(shape: SlottedShape) -> Self {
        Self {
            builder: SlottedBuilder::new(shape),
            nodes: Vec::new(),
        }
    }
}

impl Composer for SlottedComposer {
    fn start(&mut self) {
        self.builder.start_relocated();
        self.nodes.clear();
    }

    fn push(&mut self, node: u32, id: u64, list: &[u8], vector: &[u8]) -> bool {
        // A node comes twice only if a page with its record is damaged.
        if self.nodes.contains(&node) {
            return false;
        }
        let fits = self.builder.push_node(node, id, list, vector);
        if fits {
            self.nodes.push(node);
        }
        fits
    }

    fn finish(&mut self, page: u32) -> &[u8] {
        self.builder.finish(page.into())
    }
}

/// A slotted page with lists. The page has ids only if it has vectors.
#[derive(Clone, Copy)]
pub(crate) struct Slotted<'p> {
    view: SlottedView<'p>,
    ids: bool,
}

impl<'p> PageView<'p> for Slotted<'p> {
    #[inline]
    fn node(self, slot: usize) -> Result<u32, Error> {
        Ok(self.view.node(slot)?)
    }

    #[inline]
    fn slot_of(self, node: u32) -> Option<usize> {
        self.view.slot_of(node)
    }

    #[inline]
    fn len(self) -> usize {
        self.view.len()
    }

    #[inline]
    fn record(self, slot: usize) -> Result<Record<'p>, Error> {
        let record = self.view.record(slot)?;
        Ok(Record {
            id: if self.ids { self.view.id(slot)? } else { 0 },
            list: record.list,
            list_and_rest: record.list_and_rest,
            codes: &[],
            vector: record.vector,
        })
    }
}
