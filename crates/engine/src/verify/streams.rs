//! Checks byte strings: their checksums and lengths, and the content of tables.

use stratann_codec::ListModel;
use stratann_layout::{
    BLOCK, ChunksFile, DirectoryFile, EntryPoints, FileEntry, FileKind, HeatFile, NavigationFile,
    RecallFile, header,
};

use super::{Check, added_wrong};
use crate::codebook::Codebook;
use crate::stores::VectorsAt;
use crate::stores::codes::low_codes_of;
use crate::stores::reading;
use crate::stores::vectors::model::VectorModel;
use crate::{Error, stored};

impl Check<'_> {
    pub(super) fn stream(
        &mut self,
        entry: &FileEntry,
        kind: FileKind,
        n: Option<u32>,
        name: &str,
    ) -> Result<(), Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        if kind == FileKind::Ids {
            self.id_file(name)?;
            return self.advance(entry.length);
        }
        if matches!(kind, FileKind::Rows | FileKind::Columns) {
            // The contents of both files of a segment are checked later, together.
            stored::check_stream(volume, manifest, kind, n)?;
            self.whole_columns.insert((kind, n));
            return self.advance(entry.length);
        }
        let mut first = vec![0; BLOCK];
        volume.read_at(&entry.name, 0, &mut first)?;
        if header::stored_checksum(&first) != entry.header_crc32c {
            let what = "its header is not the header that the MANIFEST names, so it is a file of another index";
            self.report.problem(name, Some(0), what);
        }
        let bytes_of = |count: u64, bytes: u32| count.saturating_mul(u64::from(bytes));
        match kind {
            FileKind::Codes => {
                self.length(kind, bytes_of(manifest.vectors, manifest.code_bytes), name)?
            }
            FileKind::Codebook => {
                let low_codes = low_codes_of(manifest).unwrap_or(None);
                let bytes = Codebook::content_bytes(manifest.dimension as usize, low_codes);
                self.length(kind, bytes as u64, name)?;
                self.codebook(name)?;
            }
            _ => {
                let payload = stored::read_stream_whole(volume, manifest, kind, n)?;
                self.payload(kind, n, payload, name)?;
            }
        }
        self.advance(entry.length)
    }

    /// Checks that the index has the codebook that the MANIFEST names. With any other codebook,
    /// codes have no meaning.
    fn codebook(&mut self, name: &str) -> Result<(), Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        if manifest.codebook.is_empty() {
            return Ok(());
        }
        let payload = stored::read_stream_whole(volume, manifest, FileKind::Codebook, None)?;
        let found = blake3::hash(&payload).to_hex();
        if found.as_str() != manifest.codebook {
            let what = format!(
                "its content hash is {found}; the MANIFEST says {}, so it is the codebook of other codes",
                manifest.codebook
            );
            self.report.problem(name, None, what);
        }
        Ok(())
    }

    /// Checks the length of a byte string, without the whole string in memory.
    fn length(&mut self, kind: FileKind, expected: u64, name: &str) -> Result<(), Error> {
        let found = stored::check_stream(self.volume, self.manifest, kind, None)?;
        if found != expected {
            let what = format!("it holds {found} bytes; the MANIFEST's counts need {expected}");
            self.report.problem(name, None, what);
        }
        Ok(())
    }

    fn payload(
        &mut self,
        kind: FileKind,
        n: Option<u32>,
        payload: Vec<u8>,
        name: &str,
    ) -> Result<(), Error> {
        let manifest = self.manifest;
        match kind {
            FileKind::Navigation if self.extents().is_some() => {
                let amended = reading::amended(self.volume, manifest)?;
                reading::heads(self.volume, manifest, amended.as_ref())?;
            }
            FileKind::Clusters => self.clusters_table(name)?,
            FileKind::Amended => drop(reading::amended(self.volume, manifest)?),
            FileKind::Navigation => {
                let row_bytes = manifest.dimension as usize * manifest.element.size();
                let dim = Some(manifest.dimension as usize);
                NavigationFile::decode(payload, manifest.vectors, row_bytes, dim, name)?;
            }
            FileKind::Entries => {
                let code_bytes = manifest.code_bytes as usize;
                let found = EntryPoints::decode(&payload, manifest.vectors, code_bytes, name)?;
                if found.nodes[0] != manifest.graph().entry {
                    let (first, entry) = (found.nodes[0], manifest.graph().entry);
                    let what = format!("its first node is {first}; the MANIFEST says {entry}");
                    self.report.problem(name, None, what);
                }
            }
            FileKind::Directory => self.directory(&payload, name)?,
            FileKind::Chunks => self.chunks(n, &payload, name)?,
            FileKind::Heat => self.heat(&payload, name)?,
            FileKind::Recall => drop(RecallFile::decode(&payload, name)?),
            FileKind::Placement => {
                if let Some(facts) = &manifest.placement {
                    let placement = reading::placement_of(self.volume, manifest, facts, payload)?;
                    if let Some(what) = added_wrong(self.layout, &placement) {
                        self.report.problem(name, None, what);
                    }
                }
            }
            FileKind::Pending => {
                if let Some(facts) = &manifest.placement {
                    reading::pending_of(self.volume, manifest, facts, &payload)?;
                }
            }
            FileKind::Journal => self.journal(payload, name)?,
            // Codes, codebooks and ids are checked above, and files of other forms in other code.
            _ => self.report.problem(
                name,
                None,
                "this program has no check for a file of this kind",
            ),
        }
        Ok(())
    }

    /// The directory must fit the file of lists, and its models must decode.
    fn directory(&mut self, payload: &[u8], name: &str) -> Result<(), Error> {
        // Without a valid header of the file of lists, the right size of the directory is unknown.
        let Ok(pages) = reading::pages(self.volume, self.manifest, self.composition.lists, None)
        else {
            return Ok(());
        };
        let file = DirectoryFile::decode(payload, pages.records, pages.pages, name)?;
        if let Err(error) = ListModel::from_bytes(&file.list_model) {
            let what = format!("the model of the lists does not decode: {error}");
            self.report.problem(name, None, what);
        }
        let needed = self.composition.has_models_in_directory();
        if needed == file.vector_models.is_empty() {
            let models = file.vector_models.len();
            let layout = self.layout;
            let what = format!(
                "it has {models} models of vectors, which does not fit the {layout} layout"
            );
            self.report.problem(name, None, what);
        }
        for (n, model) in file.vector_models.iter().enumerate() {
            self.vector_model(format_args!("model {n} of the vectors"), model, name);
        }
        Ok(())
    }

    /// The chunks must fit the file of the segment, and their model must decode.
    fn chunks(&mut self, n: Option<u32>, payload: &[u8], name: &str) -> Result<(), Error> {
        let Ok((shape, span)) = reading::span(self.volume, self.manifest, n.unwrap_or(0)) else {
            return Ok(());
        };
        let file = ChunksFile::decode(payload, span, shape.vector_bytes(), name)?;
        self.vector_model(format_args!("the model of the vectors"), &file.model, name);
        if self.composition.vectors == VectorsAt::Parts
            && let Ok(directory) = reading::directory(self.volume, self.manifest)
            && directory.vector_models.get(n.unwrap_or(0) as usize) != Some(&file.model)
        {
            let what =
                "the model of the trailing parts differs from the model of the leading parts";
            self.report.problem(name, None, what);
        }
        Ok(())
    }

    fn vector_model(&mut self, which: std::fmt::Arguments<'_>, model: &[u8], name: &str) {
        let at = self.composition.vectors;
        if let Err(error) = VectorModel::of_index(model, at, self.manifest) {
            let what = format!("{which} does not fit the index: {error}");
            self.report.problem(name, None, what);
        }
    }

    fn heat(&mut self, payload: &[u8], name: &str) -> Result<(), Error> {
        let (volume, manifest) = (self.volume, self.manifest);
        let pages = reading::pages_of(volume, manifest, self.composition.lists, None);
        let segments = 0..manifest.segments.len() as u32;
        let of_vectors = |n| reading::pages_of(volume, manifest, FileKind::Vectors, Some(n));
        let apart = segments.map(of_vectors);
        if let (Some(pages), Some(apart)) = (pages, apart.sum()) {
            HeatFile::decode(payload, pages, apart, name)?;
        }
        Ok(())
    }
}
