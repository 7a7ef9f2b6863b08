//! Checks for impossible values in a manifest, and for contradictions.

use std::collections::HashSet;

use super::{
    COLUMNS, DRIFT, FILE_NAME, IDS, KEPT, LARGEST, Manifest, PLACEMENT, RECALL, STATE,
    STATE_DIGITS, field,
};
use crate::error::LayoutError;
use crate::header::FileKind;
use crate::manifest::FileEntry;

fn is_lower_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl Manifest {
    /// Bounds that keep later arithmetic from overflowing.
    pub(super) fn check_numbers(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let lengths = self.files.iter().map(|entry| entry.length);
        let length = lengths.fold(0, u64::saturating_add);
        for (what, found) in [
            ("checkpoint", self.checkpoint),
            ("number of the log", self.log_from.number),
            ("sequence number of the log", self.log_from.sequence),
            ("length of all files", length),
            ("bytes of all lists", self.list_bytes),
            ("bytes of all vectors", self.vector_bytes),
        ] {
            if found > LARGEST {
                return Err(field(file, at, what, found, format!("at most {LARGEST}")));
            }
        }
        self.kind.check_numbers(at, file)?;
        let share = 0.0..=1.0;
        let measured = self.measured.iter();
        let hot = measured.clone().flat_map(|measured| {
            let all = measured.hot_graph.iter().chain(&measured.hot_vectors);
            all.flat_map(|hot| [hot.share, hot.hits])
        });
        let navigation = [self.build.navigation];
        if let Some(found) = hot.chain(navigation).find(|found| !share.contains(found)) {
            return Err(field(file, at, "share", found, "0 to 1"));
        }
        let mut reads = measured.flat_map(|measured| {
            [
                measured.reads_medoid,
                measured.reads_navigation,
                measured.vector_reads,
            ]
        });
        if let Some(found) = reads.find(|found| !(0.0..=LARGEST as f64).contains(found)) {
            return Err(field(file, at, "reads of a query", found, "0 or more"));
        }
        Ok(())
    }

    /// The layout must be known, and the segments, if any, must hold each vector once.
    pub(super) fn check_layout(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let is_called = |kind: &FileKind| kind.layout() == Some(self.layout.as_str());
        let Some(lists) = FileKind::ALL.into_iter().find(is_called) else {
            let names: Vec<_> = FileKind::ALL
                .into_iter()
                .filter_map(FileKind::layout)
                .collect();
            let (found, names) = (format!("{:?}", self.layout), names.join(", "));
            return Err(field(file, at, "layout", found, format!("one of: {names}")));
        };
        if lists.lists().is_none() != self.clusters().is_some() {
            let expected = match self.clusters() {
                Some(_) => "a layout of clusters, since the key `kind` is cluster",
                None => "a layout of a graph, since there is no key `kind`",
            };
            return Err(field(
                file,
                at,
                "layout",
                format!("{:?}", self.layout),
                expected,
            ));
        }
        let hash = &self.codebook;
        if !hash.is_empty() && !is_lower_hexadecimal(hash, 64) {
            let expected = "64 hexadecimal digits";
            return Err(field(file, at, "codebook", format!("{hash:?}"), expected));
        }
        let mut next = 0u64;
        for (number, segment) in self.segments.iter().enumerate() {
            if u64::from(segment.first) != next || segment.vectors == 0 {
                let found = format!(
                    "{number}: {} vectors, first number {}",
                    segment.vectors, segment.first
                );
                let expected = format!("1 or more vectors, first number {next}");
                return Err(field(file, at, "segment", found, expected));
            }
            next += u64::from(segment.vectors);
            let (first, records) = segment.stored();
            if u64::from(first) + records > u64::from(u32::MAX) {
                let found = format!("{number}: {records} records, first number {first}");
                let expected = "a sum of these two numbers of at most 4294967295";
                return Err(field(file, at, "segment", found, expected));
            }
            if segment.kept.is_some() && self.reader_features & KEPT == 0 {
                let (found, expected) = (
                    self.reader_features,
                    "bit 1 set where a segment was kept by a merge",
                );
                return Err(field(file, at, "reader_features", found, expected));
            }
        }
        let needed = if lists.has_segments() {
            self.vectors
        } else {
            0
        };
        if next != needed {
            let what = "number of vectors in all segments";
            let expected = format!("{needed} in the {} layout", self.layout);
            return Err(field(file, at, what, next, expected));
        }
        Ok(())
    }

    /// A placement needs its reader feature bit, because a program that does not know placements
    /// must not read the index.
    pub(super) fn check_placement(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let Some(facts) = &self.placement else {
            return Ok(());
        };
        if self.reader_features & PLACEMENT == 0 {
            let (found, expected) = (self.reader_features, "bit 0 set where there is a placement");
            return Err(field(file, at, "reader_features", found, expected));
        }
        if facts.live > facts.nodes {
            let what = "live vectors of the placement";
            let expected = format!("at most {}, the number of its nodes", facts.nodes);
            return Err(field(file, at, what, facts.live, expected));
        }
        let Some(drift) = &facts.drift else {
            return Ok(());
        };
        if self.writer_features & DRIFT == 0 {
            let (found, expected) = (self.writer_features, "bit 5 set where there is a drift");
            return Err(field(file, at, "writer_features", found, expected));
        }
        if drift.thousandths > 1_000 {
            let what = "thousandths of the drift";
            return Err(field(file, at, what, drift.thousandths, "at most 1000"));
        }
        let came = facts.nodes.saturating_sub(self.vectors);
        if drift.came > came {
            let what = "inserted vectors of the drift";
            return Err(field(
                file,
                at,
                what,
                drift.came,
                format!("at most {came}, the number of inserted vectors"),
            ));
        }
        Ok(())
    }

    /// A state needs its writer feature bit, because a program that does not know states must not
    /// change the index.
    pub(super) fn check_state(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let Some(state) = &self.state else {
            return Ok(());
        };
        if self.writer_features & STATE == 0 {
            let (found, expected) = (self.writer_features, "bit 1 set where there is a state");
            return Err(field(file, at, "writer_features", found, expected));
        }
        if !is_lower_hexadecimal(state, STATE_DIGITS) {
            let expected = format!("{STATE_DIGITS} hexadecimal digits");
            return Err(field(file, at, "state", format!("{state:?}"), expected));
        }
        Ok(())
    }

    /// A file of ids needs its writer feature bit, because a program that does not know such files
    /// must not change the index.
    pub(super) fn check_ids(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        if self.writer_features & IDS == 0 && self.file(FileKind::Ids.name()).is_some() {
            let (found, expected) = (self.writer_features, "bit 0 set where there are ids");
            return Err(field(file, at, "writer_features", found, expected));
        }
        Ok(())
    }

    pub(super) fn check_placeholder(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        if self.has_placeholder() && self.vectors != 1 {
            let expected = "1, since reader feature bit 3 marks a placeholder";
            return Err(field(file, at, "vectors", self.vectors, expected));
        }
        Ok(())
    }

    /// Columns need their writer feature bit, because a program that does not know columns must not
    /// change the index.
    pub(super) fn check_columns(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let is_column = |kind| matches!(kind, FileKind::Rows | FileKind::Columns);
        let of_columns = |entry: &&FileEntry| entry.kind().is_some_and(|(kind, _)| is_column(kind));
        // The roles are in a set, because comparing a million names pairwise would be too slow.
        let files: Vec<&FileEntry> = self.files.iter().filter(of_columns).collect();
        let roles: HashSet<&str> = files.iter().map(|entry| entry.role.as_str()).collect();
        for entry in files {
            let Some((kind @ (FileKind::Rows | FileKind::Columns), n)) = entry.kind() else {
                continue;
            };
            if self.writer_features & COLUMNS == 0 {
                let (found, expected) = (self.writer_features, "bit 2 set where there are columns");
                return Err(field(file, at, "writer_features", found, expected));
            }
            let other = match kind {
                FileKind::Rows => FileKind::Columns,
                _ => FileKind::Rows,
            };
            let other = FileEntry::role_of(other, n);
            if n.is_none() || !roles.contains(other.as_str()) {
                let (what, found) = ("role of a file", format!("{:?}", entry.role));
                let expected =
                    format!("a number, and a file of the role {other:?} with the same number");
                return Err(field(file, at, what, found, expected));
            }
        }
        Ok(())
    }

    /// A file of recall needs its writer feature bit, because a program that does not know such
    /// files must not change the index.
    pub(super) fn check_recall(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        if self.writer_features & RECALL == 0 && self.file(FileKind::Recall.name()).is_some() {
            let (found, expected) = (
                self.writer_features,
                "bit 3 set where there is a file recall",
            );
            return Err(field(file, at, "writer_features", found, expected));
        }
        Ok(())
    }

    /// A manifest cannot refer to files outside the index directory.
    pub(super) fn check_names(&self, at: u64, file: &str) -> Result<(), LayoutError> {
        let (mut names, mut roles) = (HashSet::new(), HashSet::new());
        for entry in &self.files {
            let name = entry.name.as_str();
            let bad = name.is_empty()
                || name == "."
                || name == ".."
                || name == FILE_NAME
                || name
                    .chars()
                    .any(|c| c == '/' || c == '\\' || c.is_control());
            if bad {
                let right = "a file name without any directory";
                return Err(field(
                    file,
                    at,
                    "name of a file",
                    format!("{name:?}"),
                    right,
                ));
            }
            if !names.insert(name) {
                return Err(field(
                    file,
                    at,
                    "name of a file",
                    format!("{name:?}, twice"),
                    "each name once",
                ));
            }
            if !roles.insert(entry.role.as_str()) {
                let role = format!("{:?}, twice", entry.role);
                return Err(field(file, at, "role of a file", role, "each role once"));
            }
        }
        Ok(())
    }
}
