//! Tables of an index that are read whole, and decoded.

use stratann_layout::chunks::ChunksFile;
use stratann_layout::heat::HeatFile;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{
    BLOCK, DirectoryFile, EntryPoints, FileKind, JournalFile, Manifest, PendingFile,
    PlacementFacts, PlacementFile, RecallFile,
};
use stratann_tier::Volume;

use super::{damaged, entry, file_of, layout, pages, read_stream_whole, span};
use crate::Error;
use crate::stores::VectorsAt;

/// Pages that a file with a placement may have beyond its end and its nodes.
const UNWRITTEN: u64 = 1 << 12;

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
    let vector_bytes = match layout(volume, manifest)?.composition().vectors {
        // The leading part stands on the page that it waits for.
        VectorsAt::Records | VectorsAt::Parts => {
            manifest.dimension as usize * manifest.element.size()
        }
        // Those of new nodes do not wait for a page of the graph.
        VectorsAt::Segments => 0,
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

/// What searches find with which list; `None` if that was not measured.
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
