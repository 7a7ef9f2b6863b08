//! Opening the files of an index's graph and vectors, whatever their layout.

use stratann_codec::{CodecError, ListModel, SegmentModel};
use stratann_layout::manifest::KEPT;
use stratann_layout::{FileKind, Manifest};
use stratann_tier::Volume;

use super::coupled::CoupledPages;
use super::inline::InlinePages;
use super::lists::ListPages;
use super::packed::PackedPages;
use super::resident::Resident;
use super::segments::{Kept, Segment, Segments};
use super::slotted::SlottedPages;
use super::{Graph, Pages, Placed};
use crate::{Error, Layout, stored};

/// Opens the graph that the manifest names, with its segments. Reads tables and models; no pages.
///
/// # Errors
/// A file that is missing, damaged, of a later format or of another index.
pub(crate) fn open(volume: &dyn Volume, manifest: &Manifest) -> Result<Graph, Error> {
    match stored::layout(volume, manifest)? {
        Layout::Coupled => coupled(volume, manifest),
        Layout::Inline => inline(volume, manifest),
        Layout::Packed => packed(volume, manifest),
        Layout::Decoupled => decoupled(volume, manifest),
    }
}

fn coupled(volume: &dyn Volume, manifest: &Manifest) -> Result<Graph, Error> {
    let (shape, entry) = stored::coupled(volume, manifest)?;
    let placement = Placed::default();
    let file = stored::name_of(volume, &entry.name);
    Ok(Graph {
        name: entry.name.clone(),
        tier: volume.open_tier(&entry.name)?,
        nodes: manifest.vectors,
        pages: Pages::Coupled(CoupledPages {
            shape,
            nodes: manifest.vectors,
            file: file.clone(),
            placement: placement.clone(),
        }),
        file,
        resident: Resident::default(),
        segments: None,
        placement,
    })
}

fn inline(volume: &dyn Volume, manifest: &Manifest) -> Result<Graph, Error> {
    let (shape, entry) = stored::inline(volume, manifest)?;
    let file = stored::name_of(volume, &entry.name);
    Ok(Graph {
        name: entry.name.clone(),
        tier: volume.open_tier(&entry.name)?,
        nodes: manifest.vectors,
        pages: Pages::Inline(InlinePages {
            shape,
            file: file.clone(),
        }),
        file,
        resident: Resident::default(),
        segments: None,
        placement: Placed::default(),
    })
}

fn packed(volume: &dyn Volume, manifest: &Manifest) -> Result<Graph, Error> {
    let (shape, _, entry) = stored::slotted(volume, manifest, FileKind::Packed, None)?;
    let directory = stored::directory(volume, manifest)?;
    let placement = Placed::default();
    let file = stored::file_of(volume, manifest, FileKind::Directory, None)?;
    let vectors = directory
        .vector_models
        .iter()
        .map(|bytes| model(&file, SegmentModel::from_bytes(bytes)))
        .collect::<Result<Vec<_>, _>>()?;
    let needed = manifest
        .vectors
        .div_ceil(directory.segment_vectors.max(1).into());
    if vectors.len() as u64 != needed {
        return Err(Error::Damaged {
            file,
            what: format!("{} models of vectors; {needed} are needed", vectors.len()),
        });
    }
    let lists = model(&file, ListModel::from_bytes(&directory.list_model))?;
    let file = stored::name_of(volume, &entry.name);
    Ok(Graph {
        name: entry.name.clone(),
        tier: volume.open_tier(&entry.name)?,
        nodes: manifest.vectors,
        pages: Pages::Packed(PackedPages {
            pages: SlottedPages {
                shape,
                directory: directory.pages(0),
                file: file.clone(),
                placement: placement.clone(),
            },
            lists,
            vectors,
            segment_vectors: directory.segment_vectors,
        }),
        file,
        resident: Resident::default(),
        segments: None,
        placement,
    })
}

fn decoupled(volume: &dyn Volume, manifest: &Manifest) -> Result<Graph, Error> {
    let (shape, _, entry) = stored::slotted(volume, manifest, FileKind::Adjacency, None)?;
    let directory = stored::directory(volume, manifest)?;
    let placement = Placed::default();
    let file = stored::file_of(volume, manifest, FileKind::Directory, None)?;
    let lists = model(&file, ListModel::from_bytes(&directory.list_model))?;
    let file = stored::name_of(volume, &entry.name);
    let tier = volume.open_tier(&entry.name)?;
    let segments = (0..manifest.segments.len() as u32)
        .map(|n| segment(volume, manifest, n))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(segments) = Segments::new(segments, manifest.reader_features & KEPT != 0) else {
        return Err(Error::Damaged {
            file: stored::name_of(volume, stratann_layout::manifest::FILE_NAME),
            what: "its segments do not hold equally many vectors each".into(),
        });
    };
    Ok(Graph {
        name: entry.name.clone(),
        tier,
        nodes: manifest.vectors,
        pages: Pages::Lists(ListPages {
            pages: SlottedPages {
                shape,
                directory: directory.pages(0),
                file: file.clone(),
                placement: placement.clone(),
            },
            lists,
        }),
        file,
        resident: Resident::default(),
        segments: Some(segments),
        placement,
    })
}

fn segment(volume: &dyn Volume, manifest: &Manifest, n: u32) -> Result<Segment, Error> {
    let (shape, _, entry) = stored::slotted(volume, manifest, FileKind::Vectors, Some(n))?;
    let (chunks, (_, span)) = (
        stored::chunks(volume, manifest, n)?,
        stored::span(volume, manifest, n)?,
    );
    let kept = manifest.segments.get(n as usize).and_then(|s| s.kept);
    let file = stored::file_of(volume, manifest, FileKind::Chunks, Some(n))?;
    Ok(Segment {
        tier: volume.open_tier(&entry.name)?,
        pages: SlottedPages {
            shape,
            directory: chunks.pages(span.first),
            file: stored::name_of(volume, &entry.name),
            placement: Placed::default(),
        },
        model: model(&file, SegmentModel::from_bytes(&chunks.model))?,
        chunk_vectors: chunks.chunk_vectors,
        first: span.first,
        // Both are the manifest's, whose nodes are `u32`.
        end: span.first + span.nodes as u32,
        name: entry.name.clone(),
        resident: Resident::default(),
        bases: chunks.chunks.into_iter().map(|chunk| chunk.base).collect(),
        kept: kept.map(|kept| Kept {
            first: kept.first,
            dead: chunks.dead,
        }),
    })
}

fn model<T>(file: &str, found: Result<T, CodecError>) -> Result<T, Error> {
    found.map_err(|error| Error::Damaged {
        file: file.to_owned(),
        what: error.to_string(),
    })
}
