//! Checks the claims of the manifest: its files, its division of nodes into segments, and its sums.

use stratann_layout::manifest::{FILE_NAME as MANIFEST, IDS};
use stratann_layout::{FileEntry, FileKind, Form, SegmentFacts};

use super::Check;
use crate::stored;
use crate::stores::VectorsAt;

#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) lists: u64,
    /// The number of links in these lists.
    pub(super) edges: u64,
    pub(super) degree_max: u32,
    pub(super) list_bytes: u64,
    pub(super) vectors: u64,
    /// The bytes of these vectors on storage.
    pub(super) vector_bytes: u64,
}

impl Check<'_> {
    pub(super) fn belongs(&self, kind: FileKind, n: Option<u32>) -> bool {
        let of_segment = || n.is_some_and(|n| (n as usize) < self.manifest.segments.len());
        match kind {
            FileKind::Chunks => of_segment(),
            FileKind::Directory => self.composition.has_directory(),
            FileKind::Codes | FileKind::Entries => Some(kind) == self.composition.codes.file(),
            FileKind::Codebook | FileKind::Heat => self.extents().is_none(),
            FileKind::Clusters => self.extents().is_some(),
            FileKind::Placement => self.manifest.placement.is_some(),
            FileKind::Amended => self.manifest.placement.is_some() && self.extents().is_some(),
            FileKind::Pending | FileKind::Journal => {
                self.manifest.placement.is_some()
                    && self.extents().is_none()
                    && kind == self.composition.waiting()
            }
            FileKind::Navigation
            | FileKind::Ids
            | FileKind::Rows
            | FileKind::Columns
            | FileKind::Recall => true,
            _ => match kind.form() {
                Form::Lists(_) => kind == self.composition.lists,
                Form::Segment => of_segment(),
                Form::Clusters(_) if n.is_some() => self.amends(kind, n),
                Form::Clusters(_) => kind == self.composition.lists || Some(kind) == self.extents(),
                // A MANIFEST names no log files, and no byte strings of other kinds.
                Form::Log | Form::Stream => false,
            },
        }
    }

    /// All segments except the last must have the same number of records, because the segment of a
    /// node is computed by a division.
    pub(super) fn claims(&mut self) {
        let mut needed = vec![(self.composition.lists, None)];
        needed.extend(self.composition.codes.file().map(|kind| (kind, None)));
        let has_heads = match (self.extents(), &self.manifest.kind) {
            (Some(extents), _) => {
                needed.extend([(FileKind::Clusters, None), (extents, None)]);
                true
            }
            (None, _) => {
                needed.push((FileKind::Codebook, None));
                self.manifest.kind.navigation_nodes() > 0
            }
        };
        if self.composition.has_directory() {
            needed.push((FileKind::Directory, None));
        }
        if has_heads {
            needed.push((FileKind::Navigation, None));
        }
        if self.manifest.writer_features & IDS != 0 {
            needed.push((FileKind::Ids, None));
        }
        for n in (0..).take(self.manifest.segments.len()) {
            needed.extend([(FileKind::Vectors, Some(n)), (FileKind::Chunks, Some(n))]);
        }
        if self.manifest.placement.is_some() {
            let waiting = match self.extents() {
                Some(_) => FileKind::Amended,
                None => self.composition.waiting(),
            };
            needed.extend([(FileKind::Placement, None), (waiting, None)]);
            needed.extend(self.later_files());
        }
        for (kind, n) in needed {
            let role = FileEntry::role_of(kind, n);
            if self.manifest.file(&role).is_none() {
                self.claim(format!("it names no {role} file"));
            }
        }
        let segments = &self.manifest.segments;
        let Some((last, others)) = segments.split_last() else {
            return;
        };
        // Garbage records count too, because segments were full when they were written.
        let records = |segment: &SegmentFacts| segment.stored().1;
        let capacity = records(&segments[0]);
        let wrong = |&n: &usize| match others.get(n) {
            Some(segment) => records(segment) != capacity,
            None => records(last) > capacity,
        };
        if let Some(n) = (0..segments.len()).find(wrong) {
            let vectors = records(&segments[n]);
            self.claim(format!(
                "segment {n} has {vectors} vectors; the first has {capacity}, and only the last may have fewer"
            ));
        }
        if last.kept.is_some() {
            self.claim(
                "its last segment takes new vectors, but it is one that a merge kept".into(),
            );
        }
    }

    /// Checks the sums of the manifest, if all lists and vectors could be read. An index with
    /// direct inserts is not checked, because the sums are only about the build.
    pub(super) fn sums(&mut self) {
        if self.manifest.placement.is_some() {
            return;
        }
        let (found, manifest) = (&self.sums, self.manifest);
        let mut wrong = Vec::new();
        if found.lists == manifest.vectors && self.extents().is_none() {
            let (edges, most) = (found.edges, found.degree_max);
            if (edges, most) != (manifest.graph().edges, manifest.graph().degree_max) {
                wrong.push(format!(
                    "it says {} edges and a largest degree of {}; there are {edges} edges, and the largest degree is {most}",
                    manifest.graph().edges, manifest.graph().degree_max
                ));
            }
        }
        // Early versions of StratANN, which had no layouts with codes, wrote no sums of bytes.
        let silent = !self.composition.is_encoded() && !self.composition.has_codes_in_records();
        for (what, complete, claimed, found) in [
            ("lists", found.lists, manifest.list_bytes, found.list_bytes),
            (
                "vectors",
                found.vectors,
                manifest.vector_bytes,
                found.vector_bytes,
            ),
        ] {
            if complete == manifest.vectors && claimed != found && !(silent && claimed == 0) {
                wrong.push(format!(
                    "it says that all {what} take {claimed} bytes; they take {found}"
                ));
            }
        }
        for what in wrong {
            self.claim(what);
        }
    }

    /// Reports repeated ids that were found only after all ids were sorted.
    pub(super) fn repeated_ids(&mut self) {
        let (kind, n) = match self.composition.vectors {
            VectorsAt::Records | VectorsAt::Parts => (self.composition.lists, None),
            VectorsAt::Segments => (FileKind::Vectors, Some(0)),
        };
        // Equal ids may be in different segments.
        let file = match self.manifest.segments.len() {
            0 | 1 => stored::file_of(self.volume, self.manifest, kind, n).ok(),
            _ => None,
        };
        let file = file.unwrap_or_else(|| self.volume.name());
        for id in self.ids.repeated() {
            self.report
                .problem(&file, None, format!("external id {id} occurs twice"));
        }
    }

    pub(super) fn claim(&mut self, what: String) {
        let file = stored::name_of(self.volume, MANIFEST);
        self.report.problem(&file, None, what);
    }
}
