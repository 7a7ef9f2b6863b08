//! The files of an index directory: finding them, reading them whole, and refusing what does not fit the manifest.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use stratann_layout::chunks::{ChunksFile, SegmentSpan};
use stratann_layout::header::stored_checksum;
use stratann_layout::heat::HeatFile;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{
    BLOCK, CoupledShape, DirectoryFile, EntryPoints, FileEntry, FileHeader, FileKind, InlineShape,
    JournalFile, LayoutError, Manifest, PendingFile, PlacementFacts, PlacementFile, SegmentFacts,
    SlottedFacts, SlottedShape, StreamReader,
};
use stratann_tier::{Directory, TierError, Volume, VolumeReader};

use crate::stores::records::PageFormat;
use crate::{Error, Layout, bounds};

/// Bytes taken from a file at a time, so that a large file never exists twice in memory.
const PIECE: usize = 256 * BLOCK;

/// Pages that a file with a placement may have beyond its end and its nodes.
const UNWRITTEN: u64 = 1 << 12;

/// What a file system keeps for itself in its topmost directory, where only root may look.
const LOST: &str = "lost+found";

/// Where an index lives, wherever the process goes later: a relative path would lead elsewhere then.
pub(crate) fn home(path: &Path) -> Result<PathBuf, Error> {
    bounds::path(path)?;
    let failed = |source| TierError::io("look for", path.display().to_string(), 0, 0, source);
    Ok(std::path::absolute(path).map_err(failed)?)
}

/// The directory at `path`, which must exist. What may not be looked at is told from what is not there.
pub(crate) fn existing(path: &Path) -> Result<Directory, Error> {
    bounds::path(path)?;
    Directory::open(path).map_err(|error| match &error {
        TierError::Missing { .. } => Error::not_an_index(
            path,
            "no such directory; build an index there with `stratann build BASE INDEX`",
        ),
        TierError::Io { source, .. } if source.kind() == ErrorKind::NotADirectory => {
            Error::not_an_index(path, "it is a file; an index is a directory")
        }
        _ => error.into(),
    })
}

/// The manifest of the index in a volume.
pub(crate) fn manifest(volume: &dyn Volume) -> Result<Manifest, Error> {
    let bytes = match volume.read(MANIFEST) {
        Ok(bytes) => bytes,
        Err(TierError::Missing { .. }) => return Err(no_manifest(volume)),
        Err(error) => return Err(error.into()),
    };
    let manifest = Manifest::decode(&bytes, &name_of(volume, MANIFEST))?;
    let wrong = |what: String| Err(damaged(volume, MANIFEST, what));
    let (vectors, dimension) = (manifest.vectors, manifest.dimension);
    if vectors == 0 || vectors >= u64::from(u32::MAX) || dimension == 0 {
        return wrong(format!("{vectors} vectors of {dimension} dimensions"));
    }
    if manifest.code_bytes == 0 || manifest.code_bytes > dimension {
        return wrong(format!(
            "codes of {} bytes for {dimension} dimensions",
            manifest.code_bytes
        ));
    }
    if u64::from(manifest.entry) >= vectors {
        return wrong(format!("entry node {} of {vectors}", manifest.entry));
    }
    let nodes = manifest.placement.map_or(vectors, |facts| facts.nodes);
    if nodes < vectors || nodes >= u64::from(u32::MAX) {
        return wrong(format!("{nodes} nodes, of which its build had {vectors}"));
    }
    Ok(manifest)
}

/// Whether an operating-system error says that there is nothing of that name.
pub(crate) fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether a directory has a MANIFEST.
///
/// # Errors
/// Nobody knows: it may not be looked into, or the file system is broken there.
pub(crate) fn is_index(path: &Path) -> Result<bool, Error> {
    let place = path.join(MANIFEST);
    match std::fs::metadata(&place) {
        Ok(facts) => Ok(facts.is_file()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => {
            Err(TierError::io("look at", place.display().to_string(), 0, 0, error).into())
        }
    }
}

/// The names of the indexes in a directory, sorted.
///
/// # Errors
/// It cannot be listed, or one of its directories may not be looked into.
pub(crate) fn indexes_in(path: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| TierError::io("list", path.display().to_string(), 0, 0, source);
    let mut indexes = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        // Names that are not UTF-8 cannot be asked for.
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string()
            && name != LOST
            && is_index(&path.join(&name))?
        {
            indexes.push(name);
        }
    }
    indexes.sort_unstable();
    Ok(indexes)
}

/// What is said of a directory that certainly has no manifest.
fn no_manifest(volume: &dyn Volume) -> Error {
    let path = PathBuf::from(volume.name());
    let indexes = match indexes_in(&path) {
        Ok(indexes) => indexes,
        // It is a simulated one.
        Err(Error::Tier(TierError::Missing { .. })) => Vec::new(),
        // That there is no index here is certain all the same.
        Err(error) => {
            let reason = format!(
                "it has no MANIFEST; whether it is a folder of indexes, nobody can tell: {error}"
            );
            return Error::NotAnIndex { path, reason };
        }
    };
    let reason = match indexes.first() {
        None => "it has no MANIFEST: a build that was interrupted, or another directory; build the index again".into(),
        Some(first) => format!(
            "it is a folder of {} index{}: open one of them, as {}, or all of them as a catalog (in Python \
             `stratann.Catalog(path)`, in Rust `Catalog::open`)",
            indexes.len(),
            if indexes.len() == 1 { "" } else { "es" },
            path.join(first).display()
        ),
    };
    Error::NotAnIndex { path, reason }
}

/// How many vectors the index in a directory holds, from its manifest alone: what a cache's size as a share of them
/// needs to know before the index is opened.
///
/// # Errors
/// No index there, or a manifest that is damaged or of a later format.
pub fn vectors_in(path: impl AsRef<Path>) -> Result<usize, Error> {
    let manifest = manifest(&existing(path.as_ref())?)?;
    Ok(manifest.vectors as usize)
}

/// How the nodes of an index became bytes.
pub(crate) fn layout(volume: &dyn Volume, manifest: &Manifest) -> Result<Layout, Error> {
    manifest.layout.parse().map_err(|_| {
        let layout = &manifest.layout;
        damaged(
            volume,
            MANIFEST,
            format!("layout {layout:?}, which this version does not know"),
        )
    })
}

/// The manifest's entry for a file of this kind: the `n`-th, from 0, of a kind of which an index has several.
pub(crate) fn entry<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<&'m FileEntry, Error> {
    let role = FileEntry::role_of(kind, n);
    manifest
        .file(&role)
        .ok_or_else(|| damaged(volume, MANIFEST, format!("it names no {role} file")))
}

/// Refuses a file whose length is not what the manifest says.
pub(crate) fn check_length(
    volume: &dyn Volume,
    entry: &FileEntry,
    found: u64,
) -> Result<(), Error> {
    if found == entry.length {
        return Ok(());
    }
    Err(LayoutError::Length {
        file: name_of(volume, &entry.name),
        expected: entry.length,
        found,
        by: "the MANIFEST says so",
    }
    .into())
}

/// Refuses a file that is shorter than the manifest says, and one that is longer and to which no pages are ever added.
pub(crate) fn check_file(
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
) -> Result<(), Error> {
    let length = volume.len(&entry.name)?;
    if takes_pages(kind) && length >= entry.length {
        return Ok(());
    }
    check_length(volume, entry, length)
}

/// Whether direct inserts add pages to files of a kind: to the last of those of vectors. What is behind the pages of a checkpoint is of no account: a crash
/// may have left it there.
fn takes_pages(kind: FileKind) -> bool {
    kind.layout().is_some() || kind == FileKind::Vectors
}

/// Reads the header of a file of pages, and refuses one that is damaged or of another index, and a file of another
/// length than both say; one that pages were added to may be longer.
fn page_header(
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

/// A file of pages as its build left it.
pub(crate) struct PagesFile<'m> {
    pub(crate) entry: &'m FileEntry,
    pub(crate) format: Box<dyn PageFormat>,
    pub(crate) pages: u64,
    /// Its records: the first node by their numbers, and how many they are.
    pub(crate) first: u32,
    pub(crate) records: u64,
}

/// The file of lists, or of a segment of vectors; `n` as for [`entry`]. Refuses one whose header is damaged, of another index, or of
/// another shape or other nodes than the manifest says.
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

/// Pages of a file, if they follow from the manifest or the header can be read; `n` as for [`entry`].
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

/// The entry of a file of lists whose format follows from the manifest. Refuses one whose header is damaged, of another index, or of
/// another format than that.
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

/// The shape of coupled pages.
pub(crate) fn coupled_shape(manifest: &Manifest) -> Result<CoupledShape, Error> {
    let (dim, degree) = (manifest.dimension as usize, manifest.degree as usize);
    Ok(CoupledShape::new(manifest.element, dim, degree)?)
}

/// The shape of inline pages.
pub(crate) fn inline_shape(manifest: &Manifest) -> Result<InlineShape, Error> {
    let (dim, degree) = (manifest.dimension as usize, manifest.degree as usize);
    let code_bytes = manifest.code_bytes as usize;
    Ok(InlineShape::new(manifest.element, dim, degree, code_bytes)?)
}

/// The shape of the file of coupled pages; refuses what [`pages`] does.
pub(crate) fn coupled<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
) -> Result<(CoupledShape, &'m FileEntry), Error> {
    let shape = coupled_shape(manifest)?;
    Ok((shape, fixed(volume, manifest, FileKind::Graph, &shape)?))
}

/// The shape of the file of inline pages; refuses what [`pages`] does.
pub(crate) fn inline<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
) -> Result<(InlineShape, &'m FileEntry), Error> {
    let shape = inline_shape(manifest)?;
    Ok((shape, fixed(volume, manifest, FileKind::Inline, &shape)?))
}

/// The shape of a file of slotted pages and the nodes that it holds by its own numbers, `n` as for [`entry`]. Refuses one whose
/// header is damaged, of another index, or of other nodes than the manifest says. (Of a segment that a merge kept, these are
/// records: some are garbage, and nodes are numbered otherwise since.)
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
    let said = (manifest.element, manifest.dimension, manifest.degree);
    let found = (shape.element(), shape.dim() as u32, shape.degree() as u32);
    if found != said || Some((facts.first, facts.nodes)) != nodes {
        return Err(of_another_index(volume, entry));
    }
    Ok((shape, facts, entry))
}

/// The directory of the file that holds the lists of the packed or decoupled layout.
pub(crate) fn directory(volume: &dyn Volume, manifest: &Manifest) -> Result<DirectoryFile, Error> {
    let kind = layout(volume, manifest)?.composition().lists;
    let pages = pages(volume, manifest, kind, None)?;
    let payload = read_stream_whole(volume, manifest, FileKind::Directory, None)?;
    let file = file_of(volume, manifest, FileKind::Directory, None)?;
    Ok(DirectoryFile::decode(
        &payload,
        pages.records,
        pages.pages,
        &file,
    )?)
}

/// The chunks of segment `n` of the decoupled layout.
pub(crate) fn chunks(
    volume: &dyn Volume,
    manifest: &Manifest,
    n: u32,
) -> Result<ChunksFile, Error> {
    let (shape, span) = span(volume, manifest, n)?;
    let payload = read_stream_whole(volume, manifest, FileKind::Chunks, Some(n))?;
    let file = file_of(volume, manifest, FileKind::Chunks, Some(n))?;
    Ok(ChunksFile::decode(
        &payload,
        span,
        shape.vector_bytes(),
        &file,
    )?)
}

/// What manifest and header say of segment `n`.
pub(crate) fn span(
    volume: &dyn Volume,
    manifest: &Manifest,
    n: u32,
) -> Result<(SlottedShape, SegmentSpan), Error> {
    let (shape, facts, _) = slotted(volume, manifest, FileKind::Vectors, Some(n))?;
    let segment = manifest.segments.get(n as usize);
    // `slotted` refuses a file of a segment that is not there.
    let (first, nodes) = segment.map_or((0, 0), |s| (s.first, u64::from(s.vectors)));
    let span = SegmentSpan {
        first,
        nodes,
        garbage: facts.nodes.saturating_sub(nodes),
        pages: facts.pages,
    };
    Ok((shape, span))
}

/// Where nodes stand that came since the build or were written anew; `None` if nothing was inserted directly.
pub(crate) fn placement(
    volume: &dyn Volume,
    manifest: &Manifest,
) -> Result<Option<PlacementFile>, Error> {
    let Some(facts) = &manifest.placement else {
        return Ok(None);
    };
    let payload = read_stream_whole(volume, manifest, FileKind::Placement, None)?;
    placement_of(volume, manifest, facts, payload).map(Some)
}

/// What waits for its page, in an index of a layout whose records move.
pub(crate) fn pending(volume: &dyn Volume, manifest: &Manifest) -> Result<PendingFile, Error> {
    let Some(facts) = &manifest.placement else {
        return Ok(PendingFile::default());
    };
    let payload = read_stream_whole(volume, manifest, FileKind::Pending, None)?;
    pending_of(volume, manifest, facts, &payload)
}

/// Pages that are about to be written in their places, in an index of a layout whose pages stay there.
pub(crate) fn journal(
    volume: &dyn Volume,
    manifest: &Manifest,
    page_bytes: usize,
) -> Result<JournalFile, Error> {
    let file = file_of(volume, manifest, FileKind::Journal, None)?;
    let payload = read_stream_whole(volume, manifest, FileKind::Journal, None)?;
    Ok(JournalFile::decode(payload, page_bytes, &file)?)
}

/// Decodes the table from node to page. Refuses one of other nodes or pages than the manifest says.
pub(crate) fn placement_of(
    volume: &dyn Volume,
    manifest: &Manifest,
    facts: &PlacementFacts,
    payload: Vec<u8>,
) -> Result<PlacementFile, Error> {
    let file = file_of(volume, manifest, FileKind::Placement, None)?;
    let composition = layout(volume, manifest)?.composition();
    let moves = composition.records_move();
    let code_bytes = match composition.has_codes_in_records() {
        // Those of new nodes as well.
        true => 0,
        false => manifest.code_bytes,
    };
    let placement = PlacementFile::decode(payload, code_bytes as usize, &file)?;
    // Pages that were taken and not written are few, and each was taken for a node.
    let there = volume.len(&entry(volume, manifest, composition.lists, None)?.name);
    let pages = there.map_or(3 * facts.nodes, |bytes| bytes / BLOCK as u64);
    let most = pages + facts.nodes + UNWRITTEN;
    if facts.pages > most {
        return Err(damaged(
            volume,
            MANIFEST,
            format!(
                "{} pages of the placement; its file and {} nodes can have {most}",
                facts.pages, facts.nodes
            ),
        ));
    }
    if placement.page_of.is_empty() == moves {
        return Err(Error::Damaged {
            file,
            what: match moves {
                true => "it has no table of pages, which the layout of this index needs".into(),
                false => "it has a table of pages, where they follow from the nodes".into(),
            },
        });
    }
    let found = (u64::from(placement.nodes), u64::from(placement.built));
    if found != (facts.nodes, manifest.vectors) || u64::from(placement.pages) != facts.pages {
        return Err(Error::Damaged {
            file,
            what: format!(
                "{} nodes, {} of the build, on {} pages; the MANIFEST says {}, {} and {}",
                found.0, found.1, placement.pages, facts.nodes, manifest.vectors, facts.pages
            ),
        });
    }
    Ok(placement)
}

/// Decodes what waits for its page.
pub(crate) fn pending_of(
    volume: &dyn Volume,
    manifest: &Manifest,
    facts: &PlacementFacts,
    payload: &[u8],
) -> Result<PendingFile, Error> {
    let file = file_of(volume, manifest, FileKind::Pending, None)?;
    // Where vectors are apart, those of new nodes do not wait for a page of the graph.
    let vector_bytes = match layout(volume, manifest)?.has_vectors_in_records() {
        true => manifest.dimension as usize * manifest.element.size(),
        false => 0,
    };
    // `manifest` refuses more.
    let nodes = u32::try_from(facts.nodes).unwrap_or(u32::MAX);
    Ok(PendingFile::decode(payload, nodes, vector_bytes, &file)?)
}

/// How often each page was read by the sample of queries that the build tried; `None` if it tried none. There are so many pages of
/// lists and of vectors.
pub(crate) fn heat(
    volume: &dyn Volume,
    manifest: &Manifest,
    (lists, vectors): (u64, u64),
) -> Result<Option<HeatFile>, Error> {
    if manifest.file(FileKind::Heat.name()).is_none() {
        return Ok(None);
    }
    let payload = read_stream_whole(volume, manifest, FileKind::Heat, None)?;
    let file = file_of(volume, manifest, FileKind::Heat, None)?;
    Ok(Some(HeatFile::decode(&payload, lists, vectors, &file)?))
}

/// The entry points of an inline index.
pub(crate) fn entry_points(volume: &dyn Volume, manifest: &Manifest) -> Result<EntryPoints, Error> {
    let payload = read_stream_whole(volume, manifest, FileKind::Entries, None)?;
    let file = file_of(volume, manifest, FileKind::Entries, None)?;
    let code_bytes = manifest.code_bytes as usize;
    Ok(EntryPoints::decode(
        &payload,
        manifest.vectors,
        code_bytes,
        &file,
    )?)
}

/// The most nodes that the files of an index may have, whatever they say: each takes a byte or more.
pub(crate) fn most_nodes(volume: &dyn Volume, manifest: &Manifest) -> u64 {
    let nodes = manifest
        .placement
        .map_or(manifest.vectors, |facts| facts.nodes);
    let lengths = manifest.files.iter().map(|file| volume.len(&file.name));
    let bytes = lengths.map(|length| length.unwrap_or(0));
    nodes.min(bytes.fold(0, u64::saturating_add))
}

/// Refuses a byte string whose file is too short for a payload of so many bytes: before memory is taken for these.
pub(crate) fn check_room(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    payload: u64,
) -> Result<(), Error> {
    let entry = entry(volume, manifest, kind, None)?;
    let (found, expected) = (
        volume.len(&entry.name)?,
        stratann_layout::stream::file_length(payload),
    );
    if found >= expected {
        return Ok(());
    }
    Err(LayoutError::Length {
        file: name_of(volume, &entry.name),
        expected,
        found,
        by: "the vectors that the MANIFEST says need that",
    }
    .into())
}

/// Reads a byte string of the index into `out`, which is as long as its payload must be.
pub(crate) fn read_stream(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    out: &mut [u8],
) -> Result<(), Error> {
    stream(volume, manifest, kind, None, |reader, piece| {
        reader.push_into(piece, out)
    })
}

/// Reads a byte string of the index whose length only its header knows; `n` as for [`entry`].
pub(crate) fn read_stream_whole(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::new();
    stream(volume, manifest, kind, n, |reader, piece| {
        reader.push_with(piece, |bytes| payload.extend_from_slice(bytes))
    })?;
    Ok(payload)
}

/// Checks all of a byte string of the index, none of which is kept; `n` as for [`entry`]. Gives the length of its
/// payload.
pub(crate) fn check_stream(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<u64, Error> {
    let mut length = 0;
    stream(volume, manifest, kind, n, |reader, piece| {
        reader.push_with(piece, |bytes| length += bytes.len() as u64)
    })?;
    Ok(length)
}

/// Takes a byte string through `sink` piece by piece, checking its length, header and every block.
fn stream(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
    sink: impl FnMut(&mut StreamReader, &[u8]) -> Result<(), LayoutError>,
) -> Result<(), Error> {
    let entry = entry(volume, manifest, kind, n)?;
    stream_of(
        &*volume.open_reader(&entry.name)?,
        volume,
        entry,
        kind,
        sink,
    )
}

/// As [`stream`], of a file that is open.
fn stream_of(
    opened: &dyn VolumeReader,
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
    mut sink: impl FnMut(&mut StreamReader, &[u8]) -> Result<(), LayoutError>,
) -> Result<(), Error> {
    let file = name_of(volume, &entry.name);
    check_length(volume, entry, opened.size()?)?;
    let mut buffer = vec![0; PIECE.min(entry.length as usize).max(BLOCK)];
    opened.read_at(0, &mut buffer[..BLOCK])?;
    let mut reader = StreamReader::open(kind, &buffer[..BLOCK], &file)?;
    reader.header().check_length(entry.length, &file)?;
    let mut offset = BLOCK as u64;
    while offset < entry.length {
        let now = (entry.length - offset).min(buffer.len() as u64) as usize;
        opened.read_at(offset, &mut buffer[..now])?;
        sink(&mut reader, &buffer[..now])?;
        offset += now as u64;
    }
    reader.finish()?;
    Ok(())
}

/// As [`read_stream_whole`], of a file that is open, whatever has become of its name.
pub(crate) fn read_opened(
    opened: &dyn VolumeReader,
    volume: &dyn Volume,
    entry: &FileEntry,
    kind: FileKind,
) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::new();
    stream_of(opened, volume, entry, kind, |reader, piece| {
        reader.push_with(piece, |bytes| payload.extend_from_slice(bytes))
    })?;
    Ok(payload)
}

/// The file of a kind as errors name it; `n` as for [`entry`].
pub(crate) fn file_of(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: FileKind,
    n: Option<u32>,
) -> Result<String, Error> {
    Ok(name_of(volume, &entry(volume, manifest, kind, n)?.name))
}

/// Something in a file of the index contradicts itself.
fn damaged(volume: &dyn Volume, name: &str, what: impl Into<String>) -> Error {
    Error::Damaged {
        file: name_of(volume, name),
        what: what.into(),
    }
}

/// A file that is whole, but not the one that the manifest means.
pub(crate) fn of_another_index(volume: &dyn Volume, entry: &FileEntry) -> Error {
    damaged(
        volume,
        &entry.name,
        "its header is not the one that the MANIFEST names: a file of another index",
    )
}

/// A file of the index as errors name it.
pub(crate) fn name_of(volume: &dyn Volume, name: &str) -> String {
    volume.place(name)
}
