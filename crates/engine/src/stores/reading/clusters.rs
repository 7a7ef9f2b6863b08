//! Reads headers and tables of a cluster index, and compares them with the manifest.

use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{
    AmendedFile, ClusterFacts, ClusterShape, ClustersFile, ExtentKind, ExtentSegment, FileEntry,
    FileKind, Manifest, Members, NavigationFile,
};
use stratann_tier::Volume;

use super::pages::page_header;
use crate::Error;
use crate::stored::{damaged, entry, file_of, name_of, of_another_index, read_stream_whole};

pub(crate) fn cluster_facts<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
) -> Result<&'m ClusterFacts, Error> {
    let facts = manifest.clusters();
    facts.ok_or_else(|| damaged(volume, MANIFEST, "it does not describe a cluster index"))
}

/// Refuses a file if its header is damaged or belongs to another index, or if its shape differs
/// from the manifest.
pub(crate) fn cluster_file<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
) -> Result<(&'m FileEntry, ClusterShape), Error> {
    let facts = cluster_facts(volume, manifest)?;
    let entry = entry(volume, manifest, kind, None)?;
    let header = page_header(volume, entry, kind)?;
    let shape = ClusterShape::from_header(&header, kind, &name_of(volume, &entry.name))?;
    let said = (
        manifest.element,
        u64::from(manifest.dimension),
        facts.clusters,
        manifest.vectors,
    );
    let found = (
        shape.element,
        shape.dim as u64,
        shape.clusters.into(),
        shape.vectors.into(),
    );
    if said != found {
        return Err(of_another_index(volume, entry));
    }
    Ok((entry, shape))
}

pub(crate) fn clusters(
    volume: &dyn Volume,
    manifest: &Manifest,
    kind: (FileKind, ExtentKind),
) -> Result<ClustersFile, Error> {
    let facts = cluster_facts(volume, manifest)?;
    let payload = read_stream_whole(volume, manifest, FileKind::Clusters, None)?;
    let file = file_of(volume, manifest, FileKind::Clusters, None)?;
    let table = ClustersFile::decode(&payload, facts.clusters, &file)?;
    let (entry, shape) = cluster_file(volume, manifest, kind.0)?;
    let wrong = |what: String| {
        Err(Error::Damaged {
            file: file.clone(),
            what,
        })
    };
    let length = table.file_length(kind.1);
    if length != entry.length {
        return wrong(format!(
            "its posting lists have {length} bytes, but their file has {}",
            entry.length
        ));
    }
    let records: u64 = table
        .records
        .iter()
        .map(|&records| u64::from(records))
        .sum();
    let right = match kind.1 {
        ExtentKind::Replicated => records >= manifest.vectors,
        ExtentKind::Grouped => records == manifest.vectors,
        ExtentKind::Postings => records == 0,
    };
    if !right {
        let vectors = manifest.vectors;
        return wrong(format!(
            "its posting lists have {records} vectors, but the index has {vectors}"
        ));
    }
    let stride = kind.1.stride(&shape);
    let short = table
        .bytes
        .iter()
        .zip(&table.records)
        .position(|(&bytes, &records)| {
            u64::from(bytes)
                < (stratann_layout::clusters::extent::FIXED + records as usize * stride) as u64
        });
    match short {
        Some(cluster) => wrong(format!(
            "the posting list of cluster {cluster} is too short for its vectors"
        )),
        None => Ok(table),
    }
}

/// The file of single vectors of the build. Its length must fit the number of its vectors.
pub(crate) fn members<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
) -> Result<(&'m FileEntry, Members), Error> {
    let (entry, shape) = cluster_file(volume, manifest, FileKind::Addressed)?;
    let members = Members::new(shape);
    match members.file_length() == entry.length {
        true => Ok((entry, members)),
        false => Err(of_another_index(volume, entry)),
    }
}

/// `amended` has the clusters written after the build.
pub(crate) fn heads(
    volume: &dyn Volume,
    manifest: &Manifest,
    amended: Option<&AmendedFile>,
) -> Result<NavigationFile, Error> {
    let facts = cluster_facts(volume, manifest)?;
    let payload = read_stream_whole(volume, manifest, FileKind::Navigation, None)?;
    let file = file_of(volume, manifest, FileKind::Navigation, None)?;
    let row_bytes = manifest.dimension as usize * manifest.element.size();
    let heads = NavigationFile::decode(payload, manifest.nodes(), row_bytes, None, &file)?;
    let clusters = match amended {
        Some(amended) => amended.clusters.into(),
        None => facts.clusters,
    };
    let found = heads.nodes.len() as u64;
    if found != clusters || heads.nodes.last().map(|&last| u64::from(last) + 1) != Some(clusters) {
        return Err(Error::Damaged {
            file,
            what: format!("it has the heads of {found} clusters, but the index has {clusters}"),
        });
    }
    Ok(heads)
}

pub(crate) fn amended(
    volume: &dyn Volume,
    manifest: &Manifest,
) -> Result<Option<AmendedFile>, Error> {
    if manifest.placement.is_none() {
        return Ok(None);
    }
    let payload = read_stream_whole(volume, manifest, FileKind::Amended, None)?;
    let file = file_of(volume, manifest, FileKind::Amended, None)?;
    // The function `manifest` refuses counts that need more than 32 bits.
    let counts = (manifest.vectors as u32, manifest.nodes() as u32);
    Ok(Some(AmendedFile::decode(&payload, counts, &file)?))
}

/// Refuses a file with vectors of another type or dimension.
fn later_file<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: FileKind,
    number: u32,
) -> Result<(&'m FileEntry, ClusterShape), Error> {
    let entry = entry(volume, manifest, kind, Some(number))?;
    let header = page_header(volume, entry, kind)?;
    let shape = ClusterShape::from_header(&header, kind, &name_of(volume, &entry.name))?;
    match (shape.element, shape.dim) == (manifest.element, manifest.dimension as usize) {
        true => Ok((entry, shape)),
        false => Err(of_another_index(volume, entry)),
    }
}

pub(crate) fn extent_segment<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    kind: (FileKind, ExtentKind),
    segment: &ExtentSegment,
) -> Result<(&'m FileEntry, ClusterShape), Error> {
    let (entry, shape) = later_file(volume, manifest, kind.0, segment.number)?;
    match segment.file_length(kind.1) == entry.length {
        true => Ok((entry, shape)),
        false => Err(of_another_index(volume, entry)),
    }
}

/// A file of single vectors that were inserted after the build.
pub(crate) fn member_segment<'m>(
    volume: &dyn Volume,
    manifest: &'m Manifest,
    amended: &AmendedFile,
    n: usize,
) -> Result<(&'m FileEntry, Members, std::ops::Range<u32>), Error> {
    let segment = amended.members[n];
    let (entry, shape) = later_file(volume, manifest, FileKind::Addressed, segment.number)?;
    let members = Members::starting_at(shape, segment.first);
    let next = amended.members.get(n + 1).map(|next| next.first);
    let end = next.unwrap_or(manifest.nodes() as u32);
    match members.file_length_to(end) == entry.length {
        true => Ok((entry, members, segment.first..end)),
        false => Err(of_another_index(volume, entry)),
    }
}
