//! Checks the files of a cluster index: every byte, and that each vector is in a cluster.
//!
//! After changes, all posting lists of each later segment are checked, even replaced lists. At the
//! end, each live vector must be in a current posting list.

use stratann_codec::ListModel;
use stratann_layout::{
    AmendedFile, BLOCK, ClusterShape, ClustersFile, ExtentKind, ExtentPlace, ExtentView, FileEntry,
    FileKind, Members,
};

use super::Check;
use super::pages::NodeAt;
use crate::bits::Bits;
use crate::stores::ClusterStores;
use crate::stores::clusters::{Vectors, extent_kind, model};
use crate::stores::composition::Made;
use crate::stores::reading;
use crate::{Error, stored};

const PIECE: usize = 1 << 20;

struct Found {
    own: Bits,
    /// The vectors that are in any cluster.
    members: Bits,
    /// The number of members of all clusters.
    total: u64,
    largest: u64,
    complete: bool,
}

struct Extents<'a> {
    kind: ExtentKind,
    shape: ClusterShape,
    members: Members,
    model: ListModel,
    name: &'a str,
}

impl Check<'_> {
    pub(super) fn extents(&self) -> Option<FileKind> {
        match self.composition.made {
            Made::Clusters { extents } => Some(extents),
            Made::Graph { .. } => None,
        }
    }

    pub(super) fn clustered(
        &mut self,
        entry: &FileEntry,
        kind: FileKind,
        n: Option<u32>,
        name: &str,
    ) -> Result<(), Error> {
        match (ExtentKind::of(kind), n) {
            (Some(_), None) => self.all_extents(entry, kind, name),
            (None, None) => {
                let (_, members) = reading::members(self.volume, self.manifest)?;
                self.members_alone(entry, members, 0..self.manifest.vectors as u32, name)
            }
            (extents, Some(number)) => {
                // The check of the table itself reports its faults.
                let Ok(Some(amended)) = reading::amended(self.volume, self.manifest) else {
                    let what = "not checked: the table of changes since the build is damaged";
                    self.report.problem(name, None, what);
                    return Ok(());
                };
                match extents {
                    Some(extents) => self.extent_segment((kind, extents), &amended, number, name),
                    None => {
                        let n = amended
                            .members
                            .iter()
                            .position(|file| file.number == number);
                        let (entry, members, numbers) = reading::member_segment(
                            self.volume,
                            self.manifest,
                            &amended,
                            n.unwrap_or_default(),
                        )?;
                        self.members_alone(entry, members, numbers, name)
                    }
                }
            }
        }
    }

    pub(super) fn amends(&self, kind: FileKind, n: Option<u32>) -> bool {
        let files = self.later_files();
        // If the table cannot be read, the file may belong to the changes.
        let unknown = || reading::amended(self.volume, self.manifest).is_err();
        files.contains(&(kind, n)) || unknown()
    }

    pub(super) fn later_files(&self) -> Vec<(FileKind, Option<u32>)> {
        let Some(extents) = self.extents() else {
            return Vec::new();
        };
        let Ok(Some(amended)) = reading::amended(self.volume, self.manifest) else {
            return Vec::new();
        };
        let segments = amended
            .extents
            .iter()
            .map(|file| (extents, Some(file.number)));
        let members = amended.members.iter();
        let members = members.map(|file| (FileKind::Addressed, Some(file.number)));
        segments.chain(members).collect()
    }

    fn extent_segment(
        &mut self,
        (kind, extents): (FileKind, ExtentKind),
        amended: &AmendedFile,
        number: u32,
        name: &str,
    ) -> Result<(), Error> {
        let Some(segment) = amended.extents.iter().find(|file| file.number == number) else {
            return Ok(());
        };
        let (volume, manifest) = (self.volume, self.manifest);
        let (entry, shape) = reading::extent_segment(volume, manifest, (kind, extents), segment)?;
        let offsets = segment.offsets(extents);
        let mut buffer = Vec::new();
        for (n, extent) in segment.extents.iter().enumerate() {
            let at = offsets[n];
            let end = match n + 1 == segment.extents.len() {
                true => entry.length,
                false => offsets[n + 1],
            };
            buffer.resize((end - at) as usize, 0);
            volume.read_at(&entry.name, at, &mut buffer)?;
            let (bytes, zeros) = buffer.split_at(extent.bytes as usize);
            self.zeros(zeros, at + u64::from(extent.bytes), name);
            let place = ExtentPlace {
                file: name,
                offset: at,
                cluster: extent.cluster,
            };
            match ExtentView::new(extents, &shape, bytes, place, true) {
                Ok(view) if view.records() != extent.records => {
                    let (found, said) = (view.records(), extent.records);
                    let what = format!(
                        "{found} vectors are in the posting list of cluster {}; its table says {said}",
                        extent.cluster
                    );
                    self.report.problem(name, Some(at), what);
                }
                Ok(_) => {}
                Err(error) => self.report.refused(name, &error.into()),
            }
            self.report.pages += 1;
            self.advance(end - at)?;
        }
        Ok(())
    }

    fn zeros(&mut self, zeros: &[u8], at: u64, name: &str) {
        if let Some(byte) = zeros.iter().position(|&byte| byte != 0) {
            let what = "a byte between two posting lists is not zero";
            self.report.problem(name, Some(at + byte as u64), what);
        }
    }

    /// Checks a cluster index that changed. In the layout `replicated`, each vector must have
    /// exactly one own cluster.
    pub(super) fn current_clusters(&mut self) -> Result<(), Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        let (Some(_), Some(facts), Some(tables)) =
            (self.extents(), manifest.placement, self.placement_tables)
        else {
            return Ok(());
        };
        // Other checks report faults of a table, of a header or of an unreadable posting list.
        let Ok(stores) = ClusterStores::open(volume, manifest) else {
            return Ok(());
        };
        let is_replicated = matches!(stores.vectors, Vectors::Replicated);
        let nodes = stores.nodes();
        let (mut members, mut own) = (Bits::new(nodes), Bits::new(nodes));
        let (mut bytes, mut others) = (Vec::new(), Vec::new());
        let mut live = 0;
        for cluster in 0..stores.clusters() {
            self.advance(0)?;
            let at = stores.place(cluster);
            let name = stores.files[at.file].file.clone();
            bytes.resize(at.bytes, 0);
            volume.read_at(&stores.files[at.file].name, at.offset, &mut bytes)?;
            let Ok(view) = stores.view(cluster, &bytes, true) else {
                return Ok(());
            };
            if let Err(error) = stores.others(cluster, &view, &mut others) {
                if !stores.is_as_built(cluster) {
                    self.report.refused(&name, &error);
                }
                return Ok(());
            }
            for &node in &others {
                members.add(node.into());
            }
            if !is_replicated {
                if stores.is_as_built(cluster) {
                    for node in stores.group(cluster) {
                        members.add(node.into());
                    }
                }
                continue;
            }
            for slot in 0..view.records() {
                let (node, id, vector) = view.entry(slot);
                let place = NodeAt {
                    node: node.into(),
                    offset: Some(at.offset),
                    file: &name,
                };
                if u64::from(node) >= nodes {
                    self.node_problem(
                        place,
                        format_args!("does not exist; there are {nodes} nodes"),
                    );
                    continue;
                }
                members.add(node.into());
                if slot >= view.own() {
                    continue;
                }
                if !own.add(node.into()) {
                    self.node_problem(place, "has two own clusters");
                    continue;
                }
                live += u64::from(!tables.placement.is_dead(id, node));
                if u64::from(node) >= manifest.vectors {
                    self.report.nodes += 1;
                    self.vector(place, vector, vector.len());
                    self.counted(place, id);
                }
            }
        }
        if is_replicated {
            if live != facts.live {
                let said = facts.live;
                self.claim(format!(
                    "it says that {said} vectors are live; {live} have an own cluster"
                ));
            }
            return Ok(());
        }
        let stray = |node: &u64| self.live.has(*node) && !members.has(*node);
        let strays = (0..nodes).filter(stray).count();
        if let Some(first) = (0..nodes).find(stray) {
            let name = stored::file_of(volume, manifest, FileKind::Amended, None)?;
            let what = format!("{strays} live vectors are in no cluster; the first is {first}");
            self.report.problem(&name, None, what);
        }
        Ok(())
    }

    pub(super) fn clusters_table(&mut self, name: &str) -> Result<(), Error> {
        let Some(extents) = self.extents() else {
            return Ok(());
        };
        let kind = extent_kind(extents);
        let table = reading::clusters(self.volume, self.manifest, (extents, kind))?;
        model(&table, kind, name)?;
        if kind == ExtentKind::Replicated && !table.model.is_empty() {
            let what = "it has a model of numbers, and a replicated index has none";
            self.report.problem(name, None, what);
        }
        Ok(())
    }

    fn all_extents(&mut self, entry: &FileEntry, kind: FileKind, name: &str) -> Result<(), Error> {
        let (_, shape) = reading::cluster_file(self.volume, self.manifest, kind)?;
        let extent_kind = extent_kind(kind);
        // The check of the table itself reports its faults.
        let Ok(table) = reading::clusters(self.volume, self.manifest, (kind, extent_kind)) else {
            let what = "not checked: the table of its posting lists is damaged";
            self.report.problem(name, None, what);
            return Ok(());
        };
        let extents = Extents {
            kind: extent_kind,
            shape,
            members: Members::new(shape),
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
            // `end` is the start of the next posting list, or the end of the file. Zeros fill the
            // bytes before `end`.
            let end = match cluster + 1 == extents.shape.clusters {
                true => entry.length,
                false => offsets[cluster as usize + 1],
            };
            buffer.resize((end - at) as usize, 0);
            self.volume.read_at(&entry.name, at, &mut buffer)?;
            let (extent, zeros) = buffer.split_at(bytes as usize);
            self.zeros(zeros, at + u64::from(bytes), extents.name);
            let checked = self.extent(extents, (cluster, first, at), extent, &mut found);
            if let Err(error) = checked {
                found.complete = false;
                self.report.refused(extents.name, &error);
            }
            first += match extents.kind {
                ExtentKind::Grouped => records,
                ExtentKind::Replicated | ExtentKind::Postings => 0,
            };
            self.report.pages += 1;
            self.advance(end - at)?;
        }
        Ok(found)
    }

    /// The three numbers are the cluster, the first node of its group, and the offset in the file.
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
                Ok(taken) => Some(format!(
                    "they take {taken} of {} bytes",
                    view.others().len()
                )),
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
                    match members.read(node, stored, || at, true, name) {
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
                    "cluster {cluster} has vector {node}, but there are only {} vectors",
                    shape.vectors
                );
                self.report.problem(name, Some(offset), what);
            } else {
                found.members.add(node.into());
            }
        }
        Ok(())
    }

    /// Checks a vector. If a vector has several copies, only the copy in its own cluster is
    /// checked.
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
        self.counted(place, id);
        if let Some(tables) = self.placement_tables
            && self.live.takes(node.into())
            && !tables.placement.is_dead(id, node)
        {
            self.live.add(node.into());
        }
    }

    /// Each vector must be in a cluster, and the numbers of members in the manifest must be
    /// correct.
    fn add_up(&mut self, found: &Found, kind: ExtentKind, name: &str) {
        let Some(facts) = self.manifest.clusters() else {
            return;
        };
        if !found.complete {
            return;
        }
        let vectors = self.manifest.vectors;
        if kind != ExtentKind::Postings && found.own.count() != vectors {
            let what = format!("it has {} of {vectors} vectors", found.own.count());
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
                "it says that all clusters have {} members and the largest cluster has {}; the clusters have {} members, and the largest has {}",
                said.0, said.1, found.total, found.largest
            ));
        }
    }

    fn members_alone(
        &mut self,
        entry: &FileEntry,
        members: Members,
        numbers: std::ops::Range<u32>,
        name: &str,
    ) -> Result<(), Error> {
        let nodes = numbers.end;
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
        for first in numbers.step_by(step as usize) {
            buffer.resize(step.min(nodes - first) as usize * stride, 0);
            let offset = members.offset(first);
            self.volume.read_at(&entry.name, offset, &mut buffer)?;
            for (node, bytes) in (first..).zip(buffer.chunks_exact(stride)) {
                let at = members.offset(node);
                match members.read(node, bytes, || at, true, name) {
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
