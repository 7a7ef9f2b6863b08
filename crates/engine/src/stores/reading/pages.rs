//! Reads the headers of files of pages, and compares them with the manifest.

use stratann_layout::chunks::SegmentSpan;
use stratann_layout::header::stored_checksum;
use stratann_layout::{
    BLOCK, CoupledShape, CsrShape, FileEntry, FileHeader, FileKind, InlineShape, Manifest,
    SegmentFacts, SlottedFacts, SlottedShape,
};
use stratann_tier::Volume;

use crate::Error;
use crate::stored::{check_file, entry, layout, name_of, of_another_index};
use crate::stores::records::PageFormat;

/// Refuses a file that is damaged, belongs to another index, or has another length. If pages may be
/// appended to the file, it may be longer.
pub(super) fn page_header(
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
) -> Result<FileHeader, Error> {
    let file = name_of(volume, &entry.name);
    check_file(volume, entry, kind)?;
    let mut first = vec![0; BLOCK];
    volume.read_at(&entry.name, 0, &mut first)?;
    let header = FileHeader::decode_as(kind, &first, &file)?;
    header.check_length(entry.length, &file)?;
    if stored_checksum(&first) != entry.header_crc32c {
        return Err(of_another_index(volume, entry));
    }
    Ok(header)
}

pub(crate) struct PagesFile<'m> {
    pub(crate) entry: &'m FileEntry,
    pub(crate) format: Box<dyn PageFormat>,
    pub(crate) pages: u64,
    /// The node number of the first record in the file, and the number of records.
    pub(crate) first: u32,
    pub(crate) records: u64,
}

/// Refuses a file if its header is damaged or belongs to another index, or if its shape or its
/// nodes differ from the manifest.
pub(crate) fn pages<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<PagesFile<'m>, Error> {
    let format = match n {
        None => layout(volume, manifest)?
            .composition()
            .fixed_format(manifest)?,
        Some(_) => None,
    };
    if let Some(format) = format {
        return Ok(PagesFile {
            entry: fixed(volume, manifest, kind, &*format)?,
            pages: format.pages(manifest.vectors),
            format,
            first: 0,
            records: manifest.vectors,
        });
    }
    let (shape, facts, entry) = slotted(volume, manifest, kind, n)?;
    Ok(PagesFile {
        entry,
        format: Box::new(shape),
        pages: facts.pages,
        first: facts.first,
        records: facts.nodes,
    })
}

/// The number of pages of a file. `None` if neither the manifest nor the header has the number.
pub(crate) fn pages_of(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Option<u64> {
    let composition = layout(volume, manifest).ok()?.composition();
    let format = match n {
        None => composition.fixed_format(manifest).ok()?,
        Some(_) => None,
    };
    let computed = format.map(|format| format.pages(manifest.vectors));
    computed.or_else(|| Some(slotted(volume, manifest, kind, n).ok()?.1.pages))
}

/// The format follows from the manifest. The call refuses a header that is damaged, or that belongs
/// to another index or format.
fn fixed<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
    format: &dyn PageFormat,
) -> Result<&'m FileEntry, Error> {
    let entry = entry(volume, manifest, kind, None)?;
    let header = page_header(volume, entry, kind)?;
    match format.is_of(&header, manifest.vectors, &name_of(volume, &entry.name))? {
        true => Ok(entry),
        false => Err(of_another_index(volume, entry)),
    }
}

pub(crate) fn coupled_shape(manifest: &Manifest) -> Result<CoupledShape, Error> {
    let (dim, degree) = (
        manifest.dimension as usize,
        manifest.graph().degree as usize,
    );
    Ok(CoupledShape::new(manifest.element, dim, degree)?)
}

pub(crate) fn inline_shape(manifest: &Manifest) -> Result<InlineShape, Error> {
    let (dim, degree) = (
        manifest.dimension as usize,
        manifest.graph().degree as usize,
    );
    let code_bytes = manifest.code_bytes as usize;
    Ok(InlineShape::new(manifest.element, dim, degree, code_bytes)?)
}

pub(crate) fn csr_shape(manifest: &Manifest) -> Result<CsrShape, Error> {
    let (dim, degree) = (
        manifest.dimension as usize,
        manifest.graph().degree as usize,
    );
    Ok(CsrShape::new(
        manifest.element,
        dim,
        degree,
        manifest.vectors,
    )?)
}

pub(crate) fn csr<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
) -> Result<(CsrShape, &'m FileEntry), Error> {
    let shape = csr_shape(manifest)?;
    Ok((shape, fixed(volume, manifest, FileKind::Csr, &shape)?))
}

pub(crate) fn coupled<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
) -> Result<(CoupledShape, &'m FileEntry), Error> {
    let shape = coupled_shape(manifest)?;
    Ok((shape, fixed(volume, manifest, FileKind::Graph, &shape)?))
}

pub(crate) fn inline<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
) -> Result<(InlineShape, &'m FileEntry), Error> {
    let shape = inline_shape(manifest)?;
    Ok((shape, fixed(volume, manifest, FileKind::Inline, &shape)?))
}

/// Refuses the same files as [`pages`]. If a merge left a segment unchanged, the numbers in its
/// file are not node numbers: some records are garbage, and the merge has renumbered the nodes.
pub(crate) fn slotted<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<(SlottedShape, SlottedFacts, &'m FileEntry), Error> {
    let entry = entry(volume, manifest, kind, n)?;
    let header = page_header(volume, entry, kind)?;
    let (shape, facts) = SlottedShape::from_header(&header, &name_of(volume, &entry.name))?;
    let nodes = match n {
        None => Some((0, manifest.vectors)),
        Some(n) => manifest.segments.get(n as usize).map(SegmentFacts::stored),
    };
    let said = (
        manifest.element,
        manifest.dimension,
        manifest.graph().degree,
    );
    let found = (shape.element(), shape.dim() as u32, shape.degree() as u32);
    if found != said || Some((facts.first, facts.nodes)) != nodes {
        return Err(of_another_index(volume, entry));
    }
    Ok((shape, facts, entry))
}

pub(crate) fn span(
    volume: &dyn Volume,
    manifest: &Manifest,
    n: u32,
) -> Result<(SlottedShape, SegmentSpan), Error> {
    let (shape, facts, _) = slotted(volume, manifest, FileKind::Vectors, Some(n))?;
    let segment = manifest.segments.get(n as usize);
    // `slotted` refuses the file of a segment that does not exist.
    let (first, nodes) = segment.map_or((0, 0), |s| (s.first, u64::from(s.vectors)));
    let span = SegmentSpan {
        first,
        nodes,
        garbage: facts.nodes.saturating_sub(nodes),
        pages: facts.pages,
    };
    Ok((shape, span))
}
