//! Reads the tables of an index that are decoded as a whole.

use stratann_layout::chunks::ChunksFile;
use stratann_layout::heat::HeatFile;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{
    BLOCK, DirectoryFile, EntryPoints, FileKind, JournalFile, Manifest, PendingFile,
    PlacementFacts, PlacementFile, RecallFile,
};
use stratann_tier::Volume;

use super::{pages, span};
use crate::Error;
use crate::stored::{damaged, entry, file_of, layout, read_stream_whole};
use crate::stores::VectorsAt;

/// The number of pages in a placement is at most the pages of its file, plus the nodes, plus this
/// number.
const UNWRITTEN: u64 = 1 << 12;

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

/// The placement table. `None` if the index took no direct inserts.
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

/// The pending changes, in layouts whose records move.
pub(crate) fn pending(volume: &dyn Volume, manifest: &Manifest) -> Result<PendingFile, Error> {
    let Some(facts) = &manifest.placement else {
        return Ok(PendingFile::default());
    };
    let payload = read_stream_whole(volume, manifest, FileKind::Pending, None)?;
    pending_of(volume, manifest, facts, &payload)
}

/// The journal, in layouts whose pages stay in place.
pub(crate) fn journal(
    volume: &dyn Volume,
    manifest: &Manifest,
    page_bytes: usize,
) -> Result<JournalFile, Error> {
    let file = file_of(volume, manifest, FileKind::Journal, None)?;
    let payload = read_stream_whole(volume, manifest, FileKind::Journal, None)?;
    Ok(JournalFile::decode(payload, page_bytes, &file)?)
}

/// The table must fit the manifest.
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
        // The records have the codes of new nodes as well.
        true => 0,
        false => manifest.code_bytes,
    };
    let placement = PlacementFile::decode(payload, code_bytes as usize, &file)?;
    // Few pages are allocated but not written yet.
    let there = volume.len(&entry(volume, manifest, composition.lists, None)?.name);
    let pages = there.map_or(3 * facts.nodes, |bytes| bytes / BLOCK as u64);
    let most = pages + facts.nodes + UNWRITTEN;
    if facts.pages > most {
        return Err(damaged(
            volume,
            MANIFEST,
            format!(
                "it says that the placement has {} pages, but its file and {} nodes allow at most {most}",
                facts.pages, facts.nodes
            ),
        ));
    }
    if placement.page_of.is_empty() == moves {
        return Err(Error::Damaged {
            file,
            what: match moves {
                true => "it has no table of pages, and the layout of this index needs one".into(),
                false => "it has a table of pages, and the layout of this index has none".into(),
            },
        });
    }
    let found = (u64::from(placement.nodes), u64::from(placement.built));
    if found != (facts.nodes, manifest.vectors) || u64::from(placement.pages) != facts.pages {
        return Err(Error::Damaged {
            file,
            what: format!(
                "it has {} nodes, {} of them from the build, on {} pages; by the MANIFEST, there are {} nodes, {} of them from the build, on {} pages",
                found.0, found.1, placement.pages, facts.nodes, manifest.vectors, facts.pages
            ),
        });
    }
    Ok(placement)
}

pub(crate) fn pending_of(
    volume: &dyn Volume,
    manifest: &Manifest,
    facts: &PlacementFacts,
    payload: &[u8],
) -> Result<PendingFile, Error> {
    let file = file_of(volume, manifest, FileKind::Pending, None)?;
    let vector_bytes = match layout(volume, manifest)?.composition().vectors {
        // A pending node has its whole vector, even if vectors are in two parts.
        VectorsAt::Records | VectorsAt::Parts => {
            manifest.dimension as usize * manifest.element.size()
        }
        // New vectors are written to segments, and are never pending.
        VectorsAt::Segments => 0,
    };
    let nodes = u32::try_from(facts.nodes).unwrap_or(u32::MAX);
    Ok(PendingFile::decode(payload, nodes, vector_bytes, &file)?)
}

/// `None` if the build made no sample queries. `lists` and `vectors` are the numbers of pages.
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

pub(crate) fn recall(
    volume: &dyn Volume,
    manifest: &Manifest,
) -> Result<Option<RecallFile>, Error> {
    if manifest.file(FileKind::Recall.name()).is_none() {
        return Ok(None);
    }
    let payload = read_stream_whole(volume, manifest, FileKind::Recall, None)?;
    let file = file_of(volume, manifest, FileKind::Recall, None)?;
    Ok(Some(RecallFile::decode(&payload, &file)?))
}

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
