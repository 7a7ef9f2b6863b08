//! The scratch files of a build under a memory cap, removed when their [`Scratch`] is dropped.

use stratann_tier::Home;

use super::GraphError;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    home: Home,
}

impl Scratch {
    pub(super) fn new(within: &Path) -> Result<Scratch, GraphError> {
        let mut number = 0;
        loop {
            let folder = within.join(format!("build-scratch-{}-{number}", std::process::id()));
            match std::fs::create_dir(&folder) {
                Ok(()) => {
                    return Ok(Scratch {
                        folder,
                        home: Home::here(),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(source) => {
                    return Err(GraphError::Scratch {
                        path: folder,
                        action: "create",
                        source,
                    });
                }
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn create(&self, name: &str, buffer: usize) -> Result<Spool, GraphError> {
        let path = self.path(name);
        match File::create_new(&path) {
            Ok(file) => Ok(Spool {
                writer: BufWriter::with_capacity(buffer, file),
                path,
            }),
            Err(source) => Err(GraphError::Scratch {
                path,
                action: "create",
                source,
            }),
        }
    }

    pub(super) fn open(&self, name: &str) -> Result<ScratchFile, GraphError> {
        let path = self.path(name);
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => Ok(ScratchFile { file, path }),
            Err(source) => Err(GraphError::Scratch {
                path,
                action: "open",
                source,
            }),
        }
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), GraphError> {
        let path = self.path(name);
        std::fs::remove_file(&path).map_err(|source| GraphError::Scratch {
            path,
            action: "remove",
            source,
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return; // A process that was forked during the build must leave the files unchanged.
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(
                "{}: the scratch files of the build cannot be removed: {error}",
                self.folder.display()
            );
        }
    }
}

/// A scratch file that is being written.
#[derive(Debug)]
pub(super) struct Spool {
    writer: BufWriter<File>,
    path: PathBuf,
}

impl Spool {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), GraphError> {
        self.writer
            .write_all(bytes)
            .map_err(|source| self.error(source))
    }

    pub(super) fn write_words(
        &mut self,
        words: impl IntoIterator<Item = u32>,
    ) -> Result<(), GraphError> {
        for word in words {
            self.write(&word.to_le_bytes())?;
        }
        Ok(())
    }

    /// Writes the buffer to the file, which can then be opened for reading.
    pub(super) fn finish(mut self) -> Result<(), GraphError> {
        self.writer.flush().map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> GraphError {
        GraphError::Scratch {
            path: self.path.clone(),
            action: "write",
            source,
        }
    }
}

/// A complete scratch file.
#[derive(Debug)]
pub(super) struct ScratchFile {
    file: File,
    path: PathBuf,
}

impl ScratchFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), GraphError> {
        self.read_at(offset, out)
            .map_err(|source| GraphError::Scratch {
                path: self.path.clone(),
                action: "read",
                source,
            })
    }
}

impl ScratchFile {
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), GraphError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|source| GraphError::Scratch {
                path: self.path.clone(),
                action: "write",
                source,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::Scratch;

    #[test]
    fn files_are_gone_when_the_scratch_is() {
        let within = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(within.path()).unwrap();
        let other = Scratch::new(within.path()).unwrap();
        let mut spool = scratch.create("a", 16).unwrap();
        spool.write_words([1, 2, 3]).unwrap();
        spool.finish().unwrap();
        let file = scratch.open("a").unwrap();
        let mut bytes = [0; 4];
        file.read(8, &mut bytes).unwrap();
        assert_eq!(bytes, [3, 0, 0, 0]);
        assert!(
            file.read(9, &mut bytes)
                .unwrap_err()
                .to_string()
                .contains("/a")
        );
        assert!(other.open("a").is_err());
        drop((scratch, other));
        assert_eq!(std::fs::read_dir(within.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = Scratch::new(std::path::Path::new("/nonexistent"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("/nonexistent/build-scratch-"), "{error}");
    }
}
