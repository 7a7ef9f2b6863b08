//! `verify`: reads every byte of an index and says everything that is wrong with it.
//!
//! Checked are: the manifest; each file's length, header, and every block's checksum; each page's record count; each
//! node's degree and links; outside ids, which must be unique; the counts that the manifest claims; and that no file
//! lies about that nothing names. Nothing is changed.

use std::path::Path;

use serde::Serialize;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{
    BLOCK, CoupledShape, FileEntry, FileKind, Manifest, NavigationFile, PageView,
};
use stratann_tier::Volume;
use stratann_vector::first_invalid;

use crate::progress::Progress;
use crate::{Error, stored};

/// Bytes of pages read at a time, about.
const PIECE: usize = 1 << 20;
/// Problems listed at most; a file that is all wrong would fill the terminal.
const MOST: usize = 100;

/// Something wrong in an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// Where in it, in bytes, if it is at one place.
    pub offset: Option<u64>,
    /// What is wrong, and the remedy.
    pub what: String,
}

/// What `verify` read and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Files that were read to their end.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Pages of nodes.
    pub pages: u64,
    /// Nodes.
    pub nodes: u64,
    /// Links of nodes.
    pub edges: u64,
    /// What is wrong, the first hundred.
    pub problems: Vec<Problem>,
    /// How many problems there are.
    pub problem_count: u64,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, file: &str, offset: Option<u64>, what: impl Into<String>) {
        self.problem_count += 1;
        if self.problems.len() < MOST {
            self.problems.push(Problem {
                file: file.to_owned(),
                offset,
                what: what.into(),
            });
        }
    }

    fn refused(&mut self, file: &str, error: &Error) {
        let offset = match error {
            Error::Layout(error) => error.offset(),
            _ => None,
        };
        self.problem(file, offset, error.to_string());
    }
}

/// Checks everything in the index at `path`.
///
/// # Errors
/// There is no index, a file cannot be read at all, or the caller interrupted. Damage is no error: it is in the report.
pub fn verify(path: impl AsRef<Path>, progress: &dyn Progress) -> Result<VerifyReport, Error> {
    verify_in(&stored::existing(path.as_ref())?, progress)
}

/// Checks the index in a volume.
pub(crate) fn verify_in(
    volume: &dyn Volume,
    progress: &dyn Progress,
) -> Result<VerifyReport, Error> {
    let mut report = VerifyReport::default();
    let manifest = match stored::manifest(volume) {
        Ok(manifest) => manifest,
        Err(error @ (Error::Layout(_) | Error::Damaged { .. })) => {
            report.refused(&stored::name_of(volume, MANIFEST), &error);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    report.files += 1;
    report.bytes += volume.len(MANIFEST)?;
    let total = manifest.files.iter().map(|entry| entry.length).sum();
    progress.begin("verifying", total);
    let mut check = Check {
        volume,
        manifest: &manifest,
        report,
        progress,
    };
    for entry in &manifest.files {
        check.file(entry)?;
    }
    check.strays()?;
    progress.end();
    Ok(check.report)
}

struct Check<'a> {
    volume: &'a dyn Volume,
    manifest: &'a Manifest,
    report: VerifyReport,
    progress: &'a dyn Progress,
}

impl Check<'_> {
    fn file(&mut self, entry: &FileEntry) -> Result<(), Error> {
        let name = stored::name_of(self.volume, &entry.name);
        let Some(kind) = FileKind::ALL
            .into_iter()
            .find(|kind| kind.name() == entry.role)
        else {
            self.report.problem(
                &name,
                None,
                format!("the MANIFEST gives it an unknown role {:?}", entry.role),
            );
            return Ok(());
        };
        match self.contents(entry, kind, &name) {
            Ok(()) => {
                self.report.files += 1;
                self.report.bytes += entry.length;
                Ok(())
            }
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                self.report.refused(&name, &error);
                Ok(())
            }
        }
    }

    fn contents(&mut self, entry: &FileEntry, kind: FileKind, name: &str) -> Result<(), Error> {
        stored::check_length(self.volume, entry, self.volume.len(&entry.name)?)?;
        match kind {
            FileKind::Graph => self.pages(entry, name),
            _ => {
                let mut first = vec![0; BLOCK];
                self.volume.read_at(&entry.name, 0, &mut first)?;
                if stratann_layout::header::stored_checksum(&first) != entry.header_crc32c {
                    let what = "its header is not the one that the MANIFEST names: a file of another index";
                    self.report.problem(name, Some(0), what);
                }
                let payload = stored::read_stream_whole(self.volume, self.manifest, kind, None)?;
                self.payload(kind, &payload, name)?;
                self.advance(entry.length)
            }
        }
    }

    fn payload(&mut self, kind: FileKind, payload: &[u8], name: &str) -> Result<(), Error> {
        let manifest = self.manifest;
        let expected = match kind {
            FileKind::Codes => manifest.vectors * u64::from(manifest.code_bytes),
            FileKind::Codebook => 4 * 256 * u64::from(manifest.dimension),
            FileKind::Navigation => {
                let row_bytes = manifest.dimension as usize * manifest.element.size();
                NavigationFile::decode(payload, manifest.vectors, row_bytes, name)?;
                return Ok(());
            }
            _ => return Ok(()),
        };
        if payload.len() as u64 != expected {
            let found = payload.len();
            self.report.problem(
                name,
                None,
                format!("it holds {found} bytes; the MANIFEST's counts need {expected}"),
            );
        }
        Ok(())
    }

    fn pages(&mut self, entry: &FileEntry, name: &str) -> Result<(), Error> {
        let manifest = self.manifest;
        let nodes = manifest.vectors;
        let shape = CoupledShape::new(
            manifest.element,
            manifest.dimension as usize,
            manifest.degree as usize,
        )?;
        stored::check_shape(self.volume, entry, &shape, nodes)?;
        let mut ids: Vec<u64> = Vec::with_capacity(nodes as usize);
        let (mut edges, mut degree_max) = (0u64, 0);
        let page_bytes = shape.page_bytes();
        let step = (PIECE / page_bytes).max(1) as u64;
        let mut buffer = vec![0; step as usize * page_bytes];
        let pages = shape.pages(nodes);
        for first in (0..pages).step_by(step as usize) {
            let now = step.min(pages - first);
            let bytes = &mut buffer[..now as usize * page_bytes];
            self.volume
                .read_at(&entry.name, shape.file_offset(first), bytes)?;
            for (page, bytes) in (first..).zip(bytes.chunks_exact(page_bytes)) {
                let expected = shape.nodes_on_page(page, nodes);
                let view = match PageView::open(&shape, bytes, page, Some(expected), true, name) {
                    Ok(view) => view,
                    Err(error) => {
                        self.report.refused(name, &error.into());
                        continue;
                    }
                };
                self.report.pages += 1;
                for (slot, node) in view.nodes().enumerate() {
                    let number = shape.first_node(page) + slot as u64;
                    let node = match node {
                        Ok(node) => node,
                        Err(error) => {
                            self.report.refused(name, &error.into());
                            continue;
                        }
                    };
                    let at = Some(shape.file_offset(page));
                    self.report.nodes += 1;
                    edges += node.neighbours.len() as u64;
                    degree_max = degree_max.max(node.neighbours.len() as u32);
                    ids.push(node.id);
                    if let Some(link) = node
                        .neighbours
                        .iter()
                        .find(|&link| u64::from(link) >= nodes)
                    {
                        self.report.problem(
                            name,
                            at,
                            format!("node {number} links to {link} of {nodes} nodes"),
                        );
                    }
                    if let Some(column) = first_invalid(manifest.element, node.vector) {
                        self.report.problem(
                            name,
                            at,
                            format!("node {number} has NaN or infinity in column {column}"),
                        );
                    }
                }
            }
            self.advance(now * page_bytes as u64)?;
        }
        self.report.edges += edges;
        let whole = ids.len() as u64 == nodes;
        if whole && (edges != manifest.edges || degree_max != manifest.degree_max) {
            let what = format!(
                "{edges} edges and a largest degree of {degree_max}; the MANIFEST says {} and {}",
                manifest.edges, manifest.degree_max
            );
            self.report.problem(name, None, what);
        }
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            self.report
                .problem(name, None, format!("outside id {} stands twice", pair[0]));
        }
        Ok(())
    }

    /// Files that no one names: harmless, but somebody should know.
    fn strays(&mut self) -> Result<(), Error> {
        for name in self.volume.list()? {
            let known = name == MANIFEST || self.manifest.files.iter().any(|e| e.name == name);
            if !known {
                self.progress.warn(&format!(
                    "{}: no part of the index; left by an interrupted writer, or not ours",
                    stored::name_of(self.volume, &name)
                ));
            }
        }
        Ok(())
    }

    fn advance(&self, bytes: u64) -> Result<(), Error> {
        self.progress.advance(bytes);
        if self.progress.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}
