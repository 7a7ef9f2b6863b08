//! Checks files of pages that were not changed after their build.
//!
//! If records are encoded, a table has the number of records on each page, and the parameters to
//! decode them. The table is a directory, or the chunks of a segment. If the table is damaged,
//! pages are checked as far as possible.
//!
//! Codes beside lists have only a checksum. A wrong code misleads a search, but the search ranks
//! its results by exact vectors.

use stratann_codec::ListModel;
use stratann_layout::{DeadSlots, FileKind, LayoutError, PageDirectory, RunsOn};

use super::Check;
use super::pages::{NodeAt, Pages};
use crate::stores::reading;
use crate::stores::records::{PageFormat, PageRecords};
use crate::stores::topology::words;
use crate::stores::vectors::leading::{LeadingFile, LeadingParts};
use crate::stores::vectors::model::VectorModel;
use crate::stores::{Pages as NodesPages, Placed, VectorsAt};
use crate::{Error, stored};

#[derive(Default)]
pub(super) struct Tables {
    raw: bool,
    counts: Option<Vec<u16>>,
    /// The pages whose last record continues on the next page. Empty if `counts` is unknown.
    runs: RunsOn,
    lists: Option<ListModel>,
    /// Each model covers `model_nodes` nodes. A model that does not decode is `None`.
    models: Vec<Option<VectorModel>>,
    model_nodes: u32,
    /// Each base covers `base_nodes` nodes. Vectors are encoded as differences from their base.
    bases: Vec<Option<Vec<u8>>>,
    base_nodes: u32,
    /// Only vectors of nodes below this number may have a base.
    based: u64,
    numbers: Numbers,
}

#[derive(Default)]
enum Numbers {
    #[default]
    Stored,
    /// A merge left the segment unchanged. The current node numbers follow from the directory, and
    /// skip garbage records.
    Anew(PageDirectory, DeadSlots),
    /// A merge left the segment unchanged, but its chunks cannot be read. So node numbers are
    /// unknown.
    Unknown,
}

impl Numbers {
    /// The node of each record on page `page`. `None` for a garbage record.
    fn of_page<'a>(
        &'a self,
        page: u64,
        read: &PageRecords<'_>,
    ) -> impl Iterator<Item = Option<u64>> + 'a {
        let (mut next, dead) = match self {
            Self::Stored => (Some(read.first), &[][..]),
            Self::Anew(directory, dead) => {
                (directory.first_of(page).map(u64::from), dead.of_page(page))
            }
            Self::Unknown => (None, &[][..]),
        };
        let mut dead = dead.iter().peekable();
        (0..read.records.len()).map(move |slot| {
            if dead.next_if(|&&dead| usize::from(dead) == slot).is_some() {
                return None;
            }
            let node = next;
            next = next.map(|node| node + 1);
            node
        })
    }
}

impl Tables {
    fn vector_code(&self, at: u64) -> Option<(&VectorModel, Option<&[u8]>)> {
        let place = |nodes: u32| at.checked_div(u64::from(nodes)).map(|place| place as usize);
        // Nodes inserted after the build use the model of its last segment.
        let last = self.models.len().checked_sub(1)?;
        let model = self.models.get(place(self.model_nodes)?.min(last))?;
        let model = model.as_ref()?;
        let chunk = place(self.base_nodes).filter(|_| at < self.based);
        let base = chunk.and_then(|chunk| self.bases.get(chunk)?.as_deref());
        Some((model, base))
    }
}

impl Check<'_> {
    pub(super) fn built(
        &mut self,
        kind: FileKind,
        n: Option<u32>,
        name: &str,
    ) -> Result<(), Error> {
        let file = reading::pages(self.volume, self.manifest, kind, n)?;
        let tables = self.tables(n);
        let pages = Pages::of(&*file.format, file.pages);
        let end = u64::from(file.first) + file.records;
        let mut records = self.records_of(kind, &tables, &*file.format, file.first);
        let mut next = Some(u64::from(file.first));
        let mut runs = Runs::default();
        self.each_page(file.entry, &pages, |check, page, offset, bytes| {
            let expected = next.take();
            let counts = tables.counts.as_ref();
            let count = counts.and_then(|counts| counts.get(page as usize));
            if let (Some(expected), Some(&count)) = (expected, count) {
                next = Some(expected + u64::from(count));
            }
            let nodes = Some(file.records);
            let read = match file.format.read(page, bytes, nodes, name) {
                Ok(read) => read,
                Err(error) => {
                    runs = Runs::default();
                    return check.report.refused(name, &error.into());
                }
            };
            if read.relocated {
                return check.no_relocated(page, offset, name);
            }
            check.report.pages += 1;
            let (found, held) = (read.first, read.records.len());
            if count.is_none() {
                next = Some(found + held as u64);
            }
            if let Some(&count) = count.filter(|&&count| usize::from(count) != held) {
                let what = format!(
                    "page {page} holds {held} nodes; according to the table of pages, it should hold {count}"
                );
                check.report.problem(name, Some(offset), what);
            }
            let said = count.map(|_| tables.runs.has(page));
            runs.check(check, &read, said, (page, offset), name);
            match expected {
                // Without the right node number, the records cannot be decoded.
                Some(expected) if expected != found => {
                    let what =
                        format!("page {page} begins with node {found}; node {expected} is next");
                    check.report.problem(name, Some(offset), what);
                }
                _ => records.check(check, &read, page, name, Some(offset)),
            }
        })?;
        let padding = file.format.padding(file.records);
        if padding > 0 {
            let offset = pages.start + pages.count * pages.page_bytes as u64;
            let mut zeros = vec![0; padding];
            self.volume.read_at(&file.entry.name, offset, &mut zeros)?;
            if zeros.iter().any(|&byte| byte != 0) {
                let what = "a byte behind its last record is not zero".to_owned();
                self.report.problem(name, Some(offset), what);
            }
        }
        if let Some(found) = next.filter(|&next| next != end) {
            let what =
                format!("its last page ends before node {found}; it should end before {end}");
            self.report.problem(name, None, what);
        }
        match self
            .placement_tables
            .filter(|_| kind == FileKind::Vectors && self.may_grow(n))
        {
            Some(placement_tables) => self.added(&file, &mut records, placement_tables, name),
            None => Ok(()),
        }
    }

    pub(super) fn records_of<'a>(
        &self,
        kind: FileKind,
        tables: &'a Tables,
        format: &'a dyn PageFormat,
        first: u32,
    ) -> Records<'a> {
        let vector_bytes = self.manifest.dimension as usize * self.manifest.element.size();
        let composition = self.composition;
        let in_parts = composition.vectors == VectorsAt::Parts;
        let lists = kind == composition.lists;
        let parts = (in_parts && !lists).then(|| {
            let placement = self.where_nodes_are();
            Parts {
                pages: composition
                    .open(self.volume, self.manifest, &placement)
                    .ok(),
                name: stored::entry(self.volume, self.manifest, composition.lists, None)
                    .map_or_else(|_| String::new(), |entry| entry.name.clone()),
                placement,
                leading: LeadingParts::default(),
            }
        });
        Records {
            lists,
            leading: in_parts && lists,
            parts,
            vectors: kind == FileKind::Vectors || composition.has_vectors_in_records(),
            format,
            tables,
            first,
            links: Vec::new(),
            vector: vec![0; vector_bytes],
        }
    }

    pub(super) fn tables(&self, n: Option<u32>) -> Tables {
        let (volume, manifest) = (self.volume, self.manifest);
        let at = self.composition.vectors;
        let model = |bytes: &Vec<u8>| VectorModel::of_index(bytes, at, manifest).ok();
        if let Some(n) = n {
            let Some(segment) = manifest.segments.get(n as usize) else {
                return Tables::default();
            };
            let Ok(file) = reading::chunks(volume, manifest, n) else {
                return Tables {
                    numbers: match segment.kept {
                        Some(_) => Numbers::Unknown,
                        None => Numbers::Stored,
                    },
                    ..Tables::default()
                };
            };
            let (_, records) = segment.stored();
            return Tables {
                raw: false,
                counts: Some(file.records(segment.first).collect()),
                runs: file.runs.clone(),
                numbers: match segment.kept {
                    Some(_) => Numbers::Anew(file.pages(segment.first), file.dead.clone()),
                    None => Numbers::Stored,
                },
                lists: None,
                models: vec![model(&file.model)],
                model_nodes: u32::MAX,
                base_nodes: file.chunk_vectors,
                based: records,
                bases: file.chunks.into_iter().map(|chunk| chunk.base).collect(),
            };
        }
        if !self.composition.is_encoded() {
            return Tables {
                raw: true,
                ..Tables::default()
            };
        }
        let Ok(file) = reading::directory(volume, manifest) else {
            return Tables::default();
        };
        Tables {
            lists: ListModel::from_bytes(&file.list_model).ok(),
            models: file.vector_models.iter().map(model).collect(),
            model_nodes: file.segment_vectors,
            counts: Some(file.counts),
            ..Tables::default()
        }
    }
}

#[derive(Default)]
pub(super) struct Runs {
    /// The bytes of a spanning record with which the next page must begin.
    left: Option<u64>,
}

impl Runs {
    /// Checks that a page begins with the end of the record that spans from the page before. `said`
    /// is the claim of a table: whether the last record of the page continues on the next page.
    pub(super) fn check(
        &mut self,
        check: &mut Check<'_>,
        read: &PageRecords<'_>,
        said: Option<bool>,
        (page, offset): (u64, u64),
        file: &str,
    ) {
        if let Some(left) = self.left.filter(|&left| left != read.begun) {
            let what = format!(
                "page {page} begins with {} bytes of a spanned record; {left} bytes of this record should follow",
                read.begun
            );
            check.report.problem(file, Some(offset), what);
        }
        if let Some(said) = said.filter(|&said| said != (read.left > 0)) {
            let what = match said {
                true => {
                    "ends with a whole record; according to the table of pages, its last record continues on the next page"
                }
                false => {
                    "ends with a record that continues on the next page; according to the table of pages, it ends with a whole record"
                }
            };
            let what = format!("page {page} {what}");
            check.report.problem(file, Some(offset), what);
        }
        self.left = Some(read.left);
    }
}

struct Parts {
    pages: Option<NodesPages>,
    name: String,
    placement: Placed,
    leading: LeadingParts,
}

pub(super) struct Records<'a> {
    lists: bool,
    /// Whether the file has vectors with their external ids.
    pub(super) vectors: bool,
    pub(super) leading: bool,
    parts: Option<Parts>,
    pub(super) format: &'a dyn PageFormat,
    tables: &'a Tables,
    first: u32,
    pub(super) links: Vec<u32>,
    vector: Vec<u8>,
}

impl Records<'_> {
    /// `offset` is the offset of the page in `file`, or `None` if the journal has the page. Garbage
    /// records must be readable, and are not checked further.
    pub(super) fn check(
        &mut self,
        check: &mut Check<'_>,
        read: &PageRecords<'_>,
        page: u64,
        file: &str,
        offset: Option<u64>,
    ) {
        let nodes = self.tables.numbers.of_page(page, read);
        for ((slot, stored), node) in read.records.iter().enumerate().zip(nodes) {
            let bytes = match (&stored.bytes, node) {
                (Ok(bytes), _) => bytes,
                (Err(error), Some(node)) if read.left > 0 && slot + 1 == read.records.len() => {
                    let place = NodeAt { file, offset, node };
                    check.node_problem(
                        place,
                        format_args!("has a record whose end is missing on the next page: {error}"),
                    );
                    continue;
                }
                (Err(_), None) if read.left > 0 && slot + 1 == read.records.len() => continue,
                (Err(error), _) => {
                    check.report.refused(file, &error.clone().into());
                    continue;
                }
            };
            let Some(node) = node else {
                continue;
            };
            let place = NodeAt { file, offset, node };
            if self.lists {
                check.report.nodes += 1;
                self.list(check, place, &bytes.list);
            }
            if self.vectors {
                let at = (read.first + slot as u64).saturating_sub(u64::from(self.first));
                match self.parts {
                    Some(_) => self.trailing(check, place, &stored.id, &bytes.vector),
                    None => self.vector_at(check, place, at, &bytes.vector),
                }
            }
            if self.leading {
                let at = (read.first + slot as u64).saturating_sub(u64::from(self.first));
                self.leading(check, place, at, &bytes.vector);
            }
            // If vectors are in two parts, both parts have the id. Only ids of leading parts are
            // compared with other ids.
            if self.leading || (self.vectors && self.parts.is_none()) {
                match &stored.id {
                    Ok(id) => check.counted(place, *id),
                    Err(error) => check.report.refused(file, &error.clone().into()),
                }
            }
        }
    }

    fn list(&mut self, check: &mut Check<'_>, place: NodeAt<'_>, bytes: &[u8]) {
        if self.decode_list(check, place, bytes) {
            check.links(place, &self.links, self.format.list_bytes(bytes));
        }
    }

    /// Decodes a list into `links`. The result is `false` if the model is unknown, or if the list
    /// does not decode. A list that does not decode is reported.
    pub(super) fn decode_list(
        &mut self,
        check: &mut Check<'_>,
        place: NodeAt<'_>,
        bytes: &[u8],
    ) -> bool {
        if self.tables.raw {
            words(bytes, &mut self.links);
            return true;
        }
        let (Some(model), Ok(own)) = (&self.tables.lists, u32::try_from(place.node)) else {
            return false;
        };
        match model.decode(own, bytes, &mut self.links) {
            Err(error) => {
                check.node_problem(
                    place,
                    format_args!("has a list that does not decode: {error}"),
                );
                false
            }
            Ok(taken) if taken != bytes.len() => {
                let length = bytes.len();
                check.node_problem(
                    place,
                    format_args!("has a list whose code ends after {taken} of its {length} bytes"),
                );
                false
            }
            // No check of the order is needed: this codec decodes any bytes to ascending links.
            Ok(_) => true,
        }
    }

    pub(super) fn vector(&mut self, check: &mut Check<'_>, place: NodeAt<'_>, bytes: &[u8]) {
        let at = place.node.saturating_sub(u64::from(self.first));
        self.vector_at(check, place, at, bytes);
    }

    fn vector_at(&mut self, check: &mut Check<'_>, place: NodeAt<'_>, at: u64, bytes: &[u8]) {
        if self.tables.raw {
            return check.vector(place, bytes, bytes.len());
        }
        let Some((model, base)) = self.tables.vector_code(at) else {
            return;
        };
        match model.decode(&[], bytes, base, &mut self.vector) {
            Ok(()) => check.vector(place, &self.vector, bytes.len()),
            Err(error) => {
                check.node_problem(
                    place,
                    format_args!("has a vector that does not decode: {error}"),
                );
            }
        }
    }

    pub(super) fn leading(
        &mut self,
        check: &mut Check<'_>,
        place: NodeAt<'_>,
        at: u64,
        bytes: &[u8],
    ) {
        let Some((VectorModel::Trailing(model), _)) = self.tables.vector_code(at) else {
            return;
        };
        if let Err(error) = model.decode_leading(bytes, &mut self.vector) {
            check.node_problem(
                place,
                format_args!("has a leading part that does not decode: {error}"),
            );
        }
    }

    /// Checks the vector that the leading part and the trailing part `bytes` give. Both parts must
    /// have the same id.
    fn trailing(
        &mut self,
        check: &mut Check<'_>,
        place: NodeAt<'_>,
        id: &Result<u64, LayoutError>,
        bytes: &[u8],
    ) {
        let Some((model, _)) = self.tables.vector_code(0) else {
            return;
        };
        let Some(Parts {
            pages: Some(pages),
            name,
            placement,
            leading,
        }) = &mut self.parts
        else {
            return;
        };
        let Ok(node) = u32::try_from(place.node) else {
            return;
        };
        // A missing leading part is reported for the page that should have it.
        let file = LeadingFile {
            volume: check.volume,
            name,
            pages,
            placement: placement.get(),
        };
        let (leading_id, part) = match leading.of(&file, node) {
            Ok(found) => found,
            // If the device failed only for this read, no other check reports the error.
            Err(error @ Error::Tier(_)) => return check.report.refused(place.file, &error),
            Err(_) => return,
        };
        match id {
            Ok(id) if *id == leading_id => {}
            Ok(id) => check.node_problem(
                place,
                format_args!("has the id {id}, but its leading part has the id {leading_id}"),
            ),
            Err(error) => check.report.refused(place.file, &error.clone().into()),
        }
        match model.decode(part, bytes, None, &mut self.vector) {
            Ok(()) => {
                check.vector(place, &self.vector, part.len() + bytes.len());
                check.waits_as(place, node, &self.vector);
            }
            Err(error) => {
                check.node_problem(
                    place,
                    format_args!("has a vector that does not decode: {error}"),
                );
            }
        }
    }
}
