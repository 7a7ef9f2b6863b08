//! Reads the readable vectors of a checkpoint, page by page.
//!
//! If the header of a file with records of different lengths is damaged, all page sizes are tried,
//! because checksums match under only one size. The checksum of a page also proves its position,
//! and a slotted page has the number of its first node. So vectors are found without any table.

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::slotted::MAX_BLOCKS;
use stratann_layout::{
    BLOCK, FileEntry, FileKind, LayoutError, Manifest, PlacementFile, SegmentFacts, SlottedShape,
    SlottedView,
};
use stratann_tier::Volume;

use super::Lost;
use super::files::{self, Header};
use super::leading::LeadingParts;
use super::rows::Fault;
use super::tables::{Decoded, Decoders};
use crate::progress::Progress;
use crate::stores::VectorsAt;
use crate::stores::composition::{Made, Records, Rewritten};
use crate::stores::records::PageFormat;
use crate::{Error, stored};

/// The most missing pages at the end of a file that are reported one by one.
const MOST_MISSING: u64 = 1 << 20;

const PIECE: usize = 1 << 20;
const SAMPLE: u64 = 64;

/// Takes the id and the vector of a node, or returns the fault of the vector.
pub(super) type Take<'a> = dyn FnMut(u64, &[u8]) -> Result<Option<Fault>, Error> + 'a;

/// Passes all readable vectors to `take`. Returns an upper bound of the number of vectors that
/// should exist.
pub(super) fn salvage(
    volume: &dyn Volume,
    manifest: &Manifest,
    progress: &dyn Progress,
    lost: &mut Vec<Lost>,
    take: &mut Take<'_>,
) -> Result<u64, Error> {
    let mut files = Files {
        volume,
        manifest,
        progress,
        lost,
        take,
        placement: None,
    };
    let layout = stored::layout(volume, manifest)?;
    let composition = layout.composition();
    if let Made::Clusters { extents } = composition.made {
        return files.clusters(extents);
    }
    if let Some(facts) = &manifest.placement {
        return match (&composition.records, composition.vectors) {
            (
                Records::Fixed {
                    format,
                    rewritten: Rewritten::InPlace,
                    ..
                },
                VectorsAt::Records,
            ) => files.journaled(layout, format(manifest)?, facts),
            // New vectors are in segments, even if pages are rewritten in place.
            (_, VectorsAt::Segments | VectorsAt::Parts) => files.apart(layout, facts),
            (
                Records::Slotted
                | Records::Fixed {
                    rewritten: Rewritten::Elsewhere | Rewritten::Nowhere,
                    ..
                },
                VectorsAt::Records,
            ) => files.placed(layout, facts),
            (Records::Clustered, VectorsAt::Records) => Ok(manifest.vectors),
        };
    }
    match composition.vectors {
        VectorsAt::Records => {
            let decoders = Decoders::beside_lists(volume, manifest, composition)?;
            let tables = (FileKind::Directory, None);
            let (records, vectors) = ((0, manifest.vectors), manifest.vectors);
            let kind = composition.lists;
            files.built((kind, None), records, vectors, &decoders, tables, None)?;
        }
        VectorsAt::Segments => files.segments(None)?,
        VectorsAt::Parts => {
            let mut leading = files.leading_parts(composition.lists, None)?;
            files.segments(Some((composition.lists, &mut leading)))?;
        }
    }
    Ok(manifest.vectors)
}

pub(super) struct Files<'m, 'a, 't> {
    pub(super) volume: &'a dyn Volume,
    pub(super) manifest: &'m Manifest,
    pub(super) progress: &'a dyn Progress,
    pub(super) lost: &'a mut Vec<Lost>,
    pub(super) take: &'a mut Take<'t>,
    /// The table of dead vectors in a cluster index with inserts, if it can be read.
    pub(super) placement: Option<PlacementFile>,
}

pub(super) struct Pages {
    pub(super) count: u64,
    pub(super) bytes: usize,
    /// The largest number of pages onto which a record may continue after its first page.
    pub(super) behind: u64,
}

impl Pages {
    pub(super) fn of(format: &dyn PageFormat, nodes: u64, length: u64) -> Self {
        let bytes = format.page_bytes();
        let there = length.saturating_sub(BLOCK as u64) / bytes as u64;
        Self {
            count: format.as_fixed().map_or(there, |fixed| fixed.pages(nodes)),
            bytes,
            behind: format.pages_behind() as u64,
        }
    }
}

#[derive(Default)]
pub(super) struct Tally {
    /// The number of nodes on undamaged pages.
    pub(super) seen: u64,
    /// The number of damaged pages.
    pub(super) pages: u64,
    /// The offset and the fault of the first damaged page.
    pub(super) first: Option<(u64, String)>,
    /// The number of vectors whose records are damaged, or whose bytes are not a vector.
    pub(super) undecodable: u64,
    /// The number of vectors whose decoding parameters are lost.
    pub(super) orphans: u64,
    /// The number of vectors that were taken and may be garbage.
    pub(super) unclear: u64,
    not_finite: u64,
    no_direction: u64,
    twice: u64,
}

impl Tally {
    pub(super) fn page(&mut self, offset: u64, what: String) {
        self.pages += 1;
        self.first.get_or_insert((offset, what));
    }

    /// `garbage` says whether the vector is garbage, if that is known.
    pub(super) fn taken(&mut self, fault: Option<Fault>, garbage: Option<bool>) {
        match (fault, garbage) {
            (None, None) => self.unclear += 1,
            // A live or newer vector with this id was taken before, so this vector is garbage.
            (Some(Fault::Twice), None) => {}
            (fault, _) => self.fault(fault),
        }
    }

    pub(super) fn fault(&mut self, fault: Option<Fault>) {
        match fault {
            None => {}
            Some(Fault::NotFinite) => self.not_finite += 1,
            Some(Fault::NoDirection) => self.no_direction += 1,
            Some(Fault::Twice) => self.twice += 1,
        }
    }
}

impl<'m> Files<'m, '_, '_> {
    /// If segments have trailing parts, `leading` has the leading parts and the kind of their file.
    fn segments(
        &mut self,
        mut leading: Option<(FileKind, &mut LeadingParts<'_>)>,
    ) -> Result<(), Error> {
        let mut unclear = Vec::new();
        for (n, segment) in (0..).zip(&self.manifest.segments) {
            let decoders = Decoders::segment(self.volume, self.manifest, n)?;
            match decoders.garbage.is_known() {
                true => self.segment(n, segment, decoders, &mut leading)?,
                false => unclear.push((n, segment, decoders)),
            }
        }
        // Segments whose garbage is unknown come last, the newest first. So a new vector is taken
        // before the vector that it replaced.
        let mut unclear = unclear.into_iter().rev();
        unclear
            .try_for_each(|(n, segment, decoders)| self.segment(n, segment, decoders, &mut leading))
    }

    /// If the segment has trailing parts, `leading` has the leading parts and the kind of their
    /// file.
    fn segment(
        &mut self,
        n: u32,
        segment: &SegmentFacts,
        mut decoders: Decoders,
        leading: &mut Option<(FileKind, &mut LeadingParts<'_>)>,
    ) -> Result<(), Error> {
        let (kind, n) = (FileKind::Vectors, Some(n));
        let (records, vectors) = (segment.stored(), segment.vectors.into());
        let mut tables = (FileKind::Chunks, n);
        let leading = leading.as_mut().map(|(lists, leading)| {
            // The model is known, so vectors that do not decode lack only their leading parts.
            if decoders.has_model() {
                tables = (*lists, None);
                decoders.wrong = Some(leading.why());
            }
            &mut **leading
        });
        self.built((kind, n), records, vectors, &decoders, tables, leading)
    }

    /// Reads the pages of the records `first..first + count`. Of these records, `vectors` are live.
    /// `tables` is the file with the decoding parameters. If the records are trailing parts,
    /// `leading` has the leading parts.
    fn built(
        &mut self,
        (kind, n): (FileKind, Option<u32>),
        (first, count): (u32, u64),
        vectors: u64,
        decoders: &Decoders,
        tables: (FileKind, Option<u32>),
        mut leading: Option<&mut LeadingParts<'_>>,
    ) -> Result<(), Error> {
        let Some((entry, header)) = self.file(kind, n, vectors)? else {
            return Ok(());
        };
        let file = stored::name_of(self.volume, &entry.name);
        let Some(format) = self.format(kind, entry, header, (first, count), vectors)? else {
            return Ok(());
        };
        let pages = Pages::of(&*format, count, entry.length);
        let nodes = u64::from(first)..u64::from(first) + count;
        let (volume, mut tally) = (self.volume, Tally::default());
        let mut vector = vec![0; self.vector_bytes()];
        self.each_page(entry, &pages, &mut tally, |files, tally, page, bytes| {
            let offset = offset_of(&pages, page);
            let read = match format.read(page, bytes, Some(count), &file) {
                Ok(read) => read,
                Err(error) => {
                    tally.page(offset, files::said(volume, entry, &error));
                    return Ok(());
                }
            };
            let begins = read.first;
            if begins < nodes.start || begins + read.records.len() as u64 > nodes.end {
                tally.page(
                    offset,
                    format!("it begins with node {begins}, which is not in the range of its file"),
                );
                return Ok(());
            }
            let count_here = read.records.len();
            for (slot, stored) in read.records.into_iter().enumerate() {
                let garbage = decoders.garbage.has(page, slot);
                if garbage == Some(true) {
                    continue;
                }
                // A record that continues on a lost page counts as missing.
                let behind = read.left > 0 && slot + 1 == count_here;
                if behind && stored.bytes.as_ref().is_err_and(is_not_whole) {
                    continue;
                }
                tally.seen += 1;
                let (Ok(node), Ok(id), Ok(bytes)) = (stored.node, stored.id, stored.bytes) else {
                    tally.undecodable += 1;
                    continue;
                };
                let part = match &mut leading {
                    None => Some(&[][..]),
                    Some(leading) => leading.of(volume, (node, id), None)?,
                };
                let decoded = part.map_or(Decoded::Orphan, |part| {
                    decoders.decode_with(node, part, &bytes.vector, &mut vector)
                });
                match decoded {
                    Decoded::Vector => tally.taken((files.take)(id, &vector)?, garbage),
                    Decoded::Orphan => tally.orphans += 1,
                    Decoded::Wrong => tally.undecodable += 1,
                }
            }
            Ok(())
        })?;
        // Some lost records may be garbage, so at most all live vectors are lost.
        tally.orphans = tally.orphans.min(vectors);
        if tally.orphans > 0 {
            self.orphans(tables, decoders, entry, tally.orphans);
        }
        self.unclear(tables, decoders, entry, count - vectors, tally.unclear);
        self.tell(entry, &pages, vectors, tally);
        Ok(())
    }

    /// The format of the pages of the nodes `first..first + count`. If no page can be read,
    /// `vectors` vectors are lost.
    pub(super) fn format(
        &mut self,
        kind: FileKind,
        entry: &FileEntry,
        header: Header,
        (first, count): (u32, u64),
        vectors: u64,
    ) -> Result<Option<Box<dyn PageFormat>>, Error> {
        let manifest = self.manifest;
        let composition = stored::layout(self.volume, manifest)?.composition();
        if kind == composition.lists
            && let Some(format) = composition.fixed_format(manifest)?
        {
            return Ok(Some(format));
        }
        match header {
            Header::Right(header) => {
                let file = stored::name_of(self.volume, &entry.name);
                let (shape, facts) = match SlottedShape::from_header(&header, &file) {
                    Ok(found) => found,
                    Err(error) => {
                        let what = files::said(self.volume, entry, &error);
                        self.nothing(entry, what, vectors);
                        return Ok(None);
                    }
                };
                let said = (manifest.element, manifest.dimension as usize);
                if (shape.element(), shape.dim()) != said
                    || (facts.first, facts.nodes) != (first, count)
                {
                    let what = "its header describes other vectors than the MANIFEST, so it is a file of another index";
                    self.nothing(entry, what.into(), vectors);
                    return Ok(None);
                }
                Ok(Some(Box::new(shape)))
            }
            Header::Damaged(what) | Header::None(what) => {
                let Some(shape) = self.guess(kind, entry)? else {
                    let what = format!("{what}, and each page that was tried is damaged");
                    self.nothing(entry, what, vectors);
                    return Ok(None);
                };
                Ok(Some(Box::new(shape)))
            }
        }
    }

    pub(super) fn vector_bytes(&self) -> usize {
        self.manifest.dimension as usize * self.manifest.element.size()
    }

    pub(super) fn orphans(
        &mut self,
        (kind, n): (FileKind, Option<u32>),
        decoders: &Decoders,
        entry: &FileEntry,
        vectors: u64,
    ) {
        let file = stored::file_of(self.volume, self.manifest, kind, n);
        let file = file.unwrap_or_else(|_| self.volume.name());
        let why = decoders
            .wrong
            .as_deref()
            .unwrap_or("its models are damaged");
        let of = &entry.name;
        let what = format!("{why}: {vectors} vectors in {of} cannot be decoded without this file");
        self.lost.push(Lost {
            file,
            what,
            vectors,
        });
    }

    /// Reports that some taken vectors may be garbage. The file has `garbage` garbage records.
    pub(super) fn unclear(
        &mut self,
        (kind, n): (FileKind, Option<u32>),
        decoders: &Decoders,
        entry: &FileEntry,
        garbage: u64,
        taken: u64,
    ) {
        if taken == 0 {
            return;
        }
        let file = stored::file_of(self.volume, self.manifest, kind, n);
        let file = file.unwrap_or_else(|_| self.volume.name());
        let why = decoders
            .wrong
            .as_deref()
            .unwrap_or("it does not say which records are garbage");
        let (of, most) = (&entry.name, garbage.min(taken));
        let what = format!(
            "{why}: {taken} vectors of {of} were recovered without this file, and up to {most} of them may have been deleted or replaced"
        );
        self.lost.push(Lost {
            file,
            what,
            vectors: 0,
        });
    }

    /// Guesses the page size of a file whose header is damaged: most checksums match under this
    /// size.
    fn guess(&self, kind: FileKind, entry: &FileEntry) -> Result<Option<SlottedShape>, Error> {
        let manifest = self.manifest;
        let (dim, degree) = (
            manifest.dimension as usize,
            manifest.graph().degree as usize,
        );
        let all = (entry.length / BLOCK as u64).saturating_sub(1);
        let file = stored::name_of(self.volume, &entry.name);
        let mut best = (0.0, None);
        for blocks in 1..=MAX_BLOCKS {
            let pages = all / blocks as u64;
            if pages == 0 || !all.is_multiple_of(blocks as u64) {
                continue;
            }
            let element = manifest.element;
            let shape = if kind == FileKind::Vectors && blocks == 1 {
                // The largest record matters only if records span pages.
                let largest = self.vector_bytes() + 1;
                SlottedShape::running_on(element, dim, degree, largest)?
            } else {
                // The length of the smallest record for which a page needs `blocks` blocks.
                let largest = (blocks - 1) * BLOCK + 1;
                SlottedShape::new(kind, element, dim, degree, largest)?
            };
            let mut bytes = vec![0; shape.page_bytes()];
            let (mut whole, mut tried) = (0, 0);
            for page in (0..pages).step_by(pages.div_ceil(SAMPLE) as usize) {
                tried += 1;
                if files::read(
                    self.volume,
                    &entry.name,
                    shape.file_offset(page),
                    &mut bytes,
                )? && SlottedView::open(&shape, &bytes, page, true, &file).is_ok()
                {
                    whole += 1;
                }
            }
            let share = f64::from(whole) / f64::from(tried);
            if share > best.0 {
                best = (share, Some(shape));
            }
        }
        Ok(best.1)
    }

    /// Opens a file. If the file is lost, the result is `None`, and the loss is recorded.
    pub(super) fn file(
        &mut self,
        kind: FileKind,
        n: Option<u32>,
        nodes: u64,
    ) -> Result<Option<(&'m FileEntry, Header)>, Error> {
        let Ok(entry) = stored::entry(self.volume, self.manifest, kind, n) else {
            let role = FileEntry::role_of(kind, n);
            self.lost.push(Lost {
                file: stored::name_of(self.volume, MANIFEST),
                what: format!("it does not name the {role} file, which has vectors"),
                vectors: nodes,
            });
            return Ok(None);
        };
        match files::header(self.volume, entry, kind)? {
            Header::None(what) => {
                self.nothing(entry, what, nodes);
                Ok(None)
            }
            header => Ok(Some((entry, header))),
        }
    }

    fn nothing(&mut self, entry: &FileEntry, what: String, vectors: u64) {
        self.lost.push(Lost {
            file: stored::name_of(self.volume, &entry.name),
            what,
            vectors,
        });
    }

    pub(super) fn each_page(
        &mut self,
        entry: &FileEntry,
        pages: &Pages,
        tally: &mut Tally,
        mut each: impl FnMut(&mut Self, &mut Tally, u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.each_page_of(
            entry,
            pages,
            &|_| true,
            tally,
            |files, tally, page, bytes| {
                bytes.map_or(Ok(()), |bytes| each(files, tally, page, bytes))
            },
        )
    }

    /// `each` also gets unreadable pages. The tally already counts these pages.
    pub(super) fn each_page_of(
        &mut self,
        entry: &FileEntry,
        pages: &Pages,
        wanted: &dyn Fn(u64) -> bool,
        tally: &mut Tally,
        mut each: impl FnMut(&mut Self, &mut Tally, u64, Option<&[u8]>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let length = self.volume.len(&entry.name)?.saturating_sub(BLOCK as u64);
        let there = (length / pages.bytes as u64).min(pages.count);
        let step = (PIECE / pages.bytes).max(1) as u64;
        let mut buffer = Vec::new();
        for first in (0..there).step_by(step as usize) {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let end = there.min(first + step);
            let read = there.min(end + pages.behind);
            buffer.resize((read - first) as usize * pages.bytes, 0);
            let all = files::read(
                self.volume,
                &entry.name,
                offset_of(pages, first),
                &mut buffer,
            )?;
            // If a read of several pages fails, the pages are read one by one.
            let mut readable = vec![all; (read - first) as usize];
            if !all {
                let bytes = buffer.chunks_exact_mut(pages.bytes);
                for ((page, bytes), readable) in (first..).zip(bytes).zip(&mut readable) {
                    let offset = offset_of(pages, page);
                    *readable = files::read(self.volume, &entry.name, offset, bytes)?;
                }
            }
            for page in (first..end).filter(|&page| wanted(page)) {
                let (at, to) = (page - first, read.min(page + 1 + pages.behind) - first);
                let together = readable[at as usize..to as usize].iter();
                match together.take_while(|&&readable| readable).count() {
                    0 => {
                        tally.page(offset_of(pages, page), "it cannot be read".into());
                        each(self, tally, page, None)?;
                    }
                    count => {
                        let at = at as usize * pages.bytes;
                        let bytes = &buffer[at..at + count * pages.bytes];
                        each(self, tally, page, Some(bytes))?;
                    }
                }
            }
        }
        // A damaged header may give any number of pages, so only some are reported one by one.
        let end = pages.count.min(there.saturating_add(MOST_MISSING));
        for page in (there..end).filter(|&page| wanted(page)) {
            tally.page(offset_of(pages, page), "the file ends before it".into());
            each(self, tally, page, None)?;
        }
        tally.pages += pages.count - end;
        Ok(())
    }

    pub(super) fn tell(&mut self, entry: &FileEntry, pages: &Pages, nodes: u64, tally: Tally) {
        let missing = nodes.saturating_sub(tally.seen);
        let file = stored::name_of(self.volume, &entry.name);
        let mut say = |vectors: u64, what: String| {
            self.lost.push(Lost {
                file: file.clone(),
                what,
                vectors,
            });
        };
        if let Some((offset, what)) = &tally.first {
            let (bad, all) = (tally.pages, pages.count);
            let text =
                format!("{bad} of {all} pages are damaged, the first at byte {offset}: {what}");
            say(missing, text);
        } else if missing > 0 {
            say(
                missing,
                format!("its pages have {missing} vectors fewer than the MANIFEST says"),
            );
        }
        self.tell_faults(&file, &tally);
    }

    pub(super) fn tell_faults(&mut self, file: &str, tally: &Tally) {
        for (vectors, what) in [
            (tally.undecodable, "do not decode"),
            (tally.not_finite, "have elements that are NaN or infinite"),
            (
                tally.no_direction,
                "have a length that is 0 or not finite, and so no direction for the metric cosine",
            ),
            (
                tally.twice,
                "have the id of another vector, which the repair kept",
            ),
        ] {
            if vectors > 0 {
                self.lost.push(Lost {
                    file: file.to_owned(),
                    what: format!("{vectors} vectors {what}"),
                    vectors,
                });
            }
        }
    }
}

/// Whether the error means that a page is damaged or missing.
fn is_not_whole(error: &LayoutError) -> bool {
    matches!(
        error,
        LayoutError::Checksum { .. } | LayoutError::Truncated { .. }
    )
}

pub(super) fn offset_of(pages: &Pages, page: u64) -> u64 {
    BLOCK as u64 + page.saturating_mul(pages.bytes as u64)
}
