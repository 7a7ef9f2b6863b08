//! The files of a cluster index: every byte of them, and that each vector is where it should be, and in a cluster.

use stratann_codec::ListModel;
use stratann_layout::{
    BLOCK, ClusterShape, ClustersFile, ExtentKind, ExtentPlace, ExtentView, FileEntry, FileKind,
    Members,
};

use super::Check;
use super::pages::NodeAt;
use crate::bits::Bits;
use crate::stores::clusters::{extent_kind, model};
use crate::stores::composition::Made;
use crate::{Error, stored};

/// Bytes that are read at a time where they need not be more.
const PIECE: usize = 1 << 20;

/// What is found in extents.
struct Found {
    /// Vectors that stand in one as their own, and those that are in a cluster.
    own: Bits,
    members: Bits,
    /// Members of all clusters, and of the largest.
    total: u64,
    largest: u64,
    /// Whether all extents could be read.
    complete: bool,
}

/// What reads the extents of a file.
struct Extents<'a> {
    kind: ExtentKind,
    shape: ClusterShape,
    members: Members,
    model: ListModel,
    name: &'a str,
}

impl Check<'_> {
    /// The kind of the file of extents, in a cluster index.
    pub(super) fn extents(&self) -> Option<FileKind> {
        match self.composition.made {
            Made::Clusters { extents } => Some(extents),
            Made::Graph { .. } => None,
        }
    }

    /// A file of clusters: extents, or members alone.
    pub(super) fn clustered(
        &mut self,
        entry: &FileEntry,
        kind: FileKind,
        name: &str,
    ) -> Result<(), Error> {
        match ExtentKind::of(kind) {
            Some(_) => self.all_extents(entry, kind, name),
            None => self.members_alone(entry, name),
        }
    }

    /// The table of extents. It fits their file, and its model decodes.
    pub(super) fn clusters_table(&mut self, name: &str) -> Result<(), Error> {
        let Some(extents) = self.extents() else {
            return Ok(());
        };
        let kind = extent_kind(extents);
        let table = stored::clusters(self.volume, self.manifest, (extents, kind))?;
        model(&table, kind, name)?;
        if kind == ExtentKind::Replicated && !table.model.is_empty() {
            let what = "it has a model of numbers, of which a replicated index has none";
            self.report.problem(name, None, what);
        }
        Ok(())
    }

    fn all_extents(&mut self, entry: &FileEntry, kind: FileKind, name: &str) -> Result<(), Error> {
        let (_, shape) = stored::cluster_file(self.volume, self.manifest, kind)?;
        let extent_kind = extent_kind(kind);
        // What is wrong with the table is told of it: without it, nobody knows where anything stands.
        let Ok(table) = stored::clusters(self.volume, self.manifest, (kind, extent_kind)) else {
            let what = "not checked: the table of its extents is damaged";
            self.report.problem(name, None, what);
            return Ok(());
        };
        let extents = Extents {
            kind: extent_kind,
            shape,
            members: Members::new(shape),
            // That it does not decode is told of the table.
            model: model(&table, extent_kind, name).unwrap_or_else(|_| ListModel::elias_fano(0, 0)),
            name,
        };
        let found = self.each_extent(entry, &extents, &table)?;
        self.add_up(&found, extent_kind, name);
        Ok(())
    }

    fn each_extent(
        &mut self,
        entry: &FileEntry,
        extents: &Extents<'_>,
        table: &ClustersFile,
    ) -> Result<Found, Error> {
        let vectors = u64::from(extents.shape.vectors);
        let mut found = Found {
            own: Bits::new(vectors),
            members: Bits::new(vectors),
            total: 0,
            largest: 0,
            complete: true,
        };
        let offsets = table.offsets(extents.kind);
        let (mut buffer, mut first) = (Vec::new(), 0u32);
        for (cluster, (&bytes, &records)) in (0u32..).zip(table.bytes.iter().zip(&table.records)) {
            let at = offsets[cluster as usize];
            // The zeros behind it, to the end of the file where it is the last.
            let end = match cluster + 1 == extents.shape.clusters {
                true => entry.length,
                false => offsets[cluster as usize + 1],
            };
            buffer.resize((end - at) as usize, 0);
            self.volume.read_at(&entry.name, at, &mut buffer)?;
            let (extent, zeros) = buffer.split_at(bytes as usize);
            if let Some(byte) = zeros.iter().position(|&byte| byte != 0) {
                let offset = at + u64::from(bytes) + byte as u64;
                let what = "a byte between two extents is not zero";
                self.report.problem(extents.name, Some(offset), what);
            }
            let checked = self.extent(extents, (cluster, first, at), extent, &mut found);
            if let Err(error) = checked {
                found.complete = false;
                self.report.refused(extents.name, &error);
            }
            // Not more than there are, or the table is refused.
            first += match extents.kind {
                ExtentKind::Grouped => records,
                ExtentKind::Replicated | ExtentKind::Postings => 0,
            };
            self.report.pages += 1;
            self.advance(end - at)?;
        }
        Ok(found)
    }

    /// An extent: of which cluster, the first number in its group, and where it stands.
    fn extent(
        &mut self,
        extents: &Extents<'_>,
        (cluster, first, offset): (u32, u32, u64),
        bytes: &[u8],
        found: &mut Found,
    ) -> Result<(), Error> {
        let Extents {
            kind,
            shape,
            members,
            model,
            name,
        } = extents;
        let place = ExtentPlace {
            file: name,
            offset,
            cluster,
        };
        let view = ExtentView::new(*kind, shape, bytes, place, true)?;
        let mut others = Vec::new();
        if !view.others().is_empty() {
            let taken = model.decode(first, view.others(), &mut others);
            let wrong = match taken {
                Ok(taken) if taken == view.others().len() => None,
                Ok(taken) => Some(format!("take {taken} bytes of {}", view.others().len())),
                Err(error) => Some(error.to_string()),
            };
            if let Some(wrong) = wrong {
                let what = format!("the numbers of the members of cluster {cluster}: {wrong}");
                self.report.problem(name, Some(offset), what);
                others.clear();
                found.complete = false;
            }
        }
        let size = u64::from(view.records()) + others.len() as u64;
        found.total += size;
        found.largest = found.largest.max(size);
        for slot in 0..view.records() {
            let stored = view.stored(slot);
            let at = offset + (view.vectors_at() + slot as usize * stored.len()) as u64;
            let (node, id, vector) = match kind {
                ExtentKind::Replicated => view.entry(slot),
                ExtentKind::Grouped | ExtentKind::Postings => {
                    let node = first + slot;
                    match members.read(node, stored, at, true, name) {
                        Ok((id, vector)) => (node, id, vector),
                        Err(error) => {
                            found.complete = false;
                            self.report.refused(name, &error.into());
                            continue;
                        }
                    }
                }
            };
            others.push(node);
            if slot < view.own() {
                self.own_vector(node, id, vector, at, name, found);
            }
        }
        for node in others {
            if node >= shape.vectors {
                let what = format!(
                    "cluster {cluster} has vector {node}, of {} in all",
                    shape.vectors
                );
                self.report.problem(name, Some(offset), what);
            } else {
                found.members.add(node.into());
            }
        }
        Ok(())
    }

    /// A vector where it stands once, or first.
    fn own_vector(
        &mut self,
        node: u32,
        id: u64,
        vector: &[u8],
        at: u64,
        name: &str,
        found: &mut Found,
    ) {
        let place = NodeAt {
            node: node.into(),
            offset: Some(at),
            file: name,
        };
        if u64::from(node) < self.manifest.vectors && !found.own.add(node.into()) {
            self.node_problem(place, "has two nearest clusters");
            return;
        }
        self.report.nodes += 1;
        self.vector(place, vector, vector.len());
        self.id(place, id);
        self.expect_id(place, id);
    }

    /// Whether all vectors are there, and in as many clusters as the manifest says.
    fn add_up(&mut self, found: &Found, kind: ExtentKind, name: &str) {
        let Some(facts) = self.manifest.clusters() else {
            return;
        };
        if !found.complete {
            return;
        }
        let vectors = self.manifest.vectors;
        if kind != ExtentKind::Postings && found.own.count() != vectors {
            let what = format!("{} of {vectors} vectors stand in it", found.own.count());
            self.report.problem(name, None, what);
        }
        if found.members.count() != vectors {
            let lacks = vectors - found.members.count();
            let what = format!("{lacks} vectors are in no cluster");
            self.report.problem(name, None, what);
        }
        let said = (facts.members, u64::from(facts.largest));
        if (found.total, found.largest) != said {
            self.claim(format!(
                "it says {} members of all clusters, {} of the largest; they are {}, and {}",
                said.0, said.1, found.total, found.largest
            ));
        }
    }

    /// A file of members alone.
    fn members_alone(&mut self, entry: &FileEntry, name: &str) -> Result<(), Error> {
        let (_, members) = stored::members(self.volume, self.manifest)?;
        let nodes = self.manifest.vectors as u32;
        let stride = members.bytes();
        let step = (PIECE / stride).max(1) as u32;
        let mut found = Found {
            own: Bits::new(nodes.into()),
            members: Bits::new(0),
            total: 0,
            largest: 0,
            complete: true,
        };
        let mut buffer = Vec::new();
        for first in (0..nodes).step_by(step as usize) {
            buffer.resize(step.min(nodes - first) as usize * stride, 0);
            let offset = members.offset(first);
            self.volume.read_at(&entry.name, offset, &mut buffer)?;
            for (node, bytes) in (first..).zip(buffer.chunks_exact(stride)) {
                let at = members.offset(node);
                match members.read(node, bytes, at, true, name) {
                    Ok((id, vector)) => self.own_vector(node, id, vector, at, name, &mut found),
                    Err(error) => self.report.refused(name, &error.into()),
                }
            }
            self.advance(buffer.len() as u64)?;
        }
        let end = members.offset(nodes);
        let mut zeros = vec![0; (entry.length - end) as usize];
        self.volume.read_at(&entry.name, end, &mut zeros)?;
        if let Some(byte) = zeros.iter().position(|&byte| byte != 0) {
            let what = "a byte behind the last vector is not zero";
            self.report.problem(name, Some(end + byte as u64), what);
        }
        self.advance(BLOCK as u64)
    }
}
