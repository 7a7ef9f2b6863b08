//! A file that gets its name when it is complete. An incomplete file is removed.

use super::DataError;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file with a temporary name, which [`Output::commit`] changes to `path`. Without a commit, a
/// drop removes the file.
#[derive(Debug)]
pub(crate) struct Output {
    writer: BufWriter<File>,
    name: String,
    path: PathBuf,
    /// `None` if the target is a pipe or a device.
    beside: Option<PathBuf>,
    home: stratann_tier::Home,
}

impl Output {
    pub(crate) fn create(path: &Path) -> Result<Output, DataError> {
        let name = path.display().to_string();
        let special = path.metadata().is_ok_and(|about| !about.is_file());
        let beside = if special { None } else { Some(beside(path)) };
        let mut options = OpenOptions::new();
        match beside {
            Some(_) => options.write(true).create(true).truncate(true),
            None => options.write(true),
        };
        let file = options
            .open(beside.as_deref().unwrap_or(path))
            .map_err(|source| DataError::io(&name, "create", source))?;
        let writer = BufWriter::with_capacity(1 << 18, file);
        Ok(Output {
            writer,
            name,
            path: path.to_owned(),
            beside,
            home: stratann_tier::Home::here(),
        })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.writer
            .write_all(bytes)
            .map_err(|source| DataError::io(&self.name, "write", source))
    }

    pub(crate) fn write_words(
        &mut self,
        words: impl Iterator<Item = u32>,
    ) -> Result<(), DataError> {
        for word in words {
            self.write(&word.to_le_bytes())?;
        }
        Ok(())
    }

    /// Writes bytes to the start of the file again. The call fails for a pipe.
    pub(crate) fn write_in_front(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        let written = self.writer.flush();
        let written = written.and_then(|()| self.writer.get_ref().write_all_at(bytes, 0));
        written.map_err(|source| DataError::io(&self.name, "write the header again", source))
    }

    /// Syncs the file under its temporary name.
    pub(crate) fn complete(&mut self) -> Result<(), DataError> {
        let failed = |source| DataError::io(&self.name, "write", source);
        self.writer.flush().map_err(failed)?;
        match self.beside {
            Some(_) => self.writer.get_ref().sync_all().map_err(failed),
            None => Ok(()),
        }
    }

    pub(crate) fn remove_old(&self) -> Result<(), DataError> {
        if self.beside.is_none() {
            return Ok(());
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(DataError::io(&self.name, "replace", error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn commit(mut self) -> Result<(), DataError> {
        self.complete()?;
        if let Some(beside) = &self.beside {
            let failed = |source| DataError::io(&self.name, "write", source);
            std::fs::rename(beside, &self.path).map_err(failed)?;
            self.beside = None;
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside
            && self.home.is_here()
        {
            // A drop cannot return an error, so an error is ignored.
            let _ = std::fs::remove_file(beside);
        }
    }
}

/// The temporary path `folder/.name.<process>.partial`, which no other process uses.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appears_when_complete_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"old").unwrap();
        let mut output = Output::create(&path).unwrap();
        output.write(b"new").unwrap();
        drop(output);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let mut output = Output::create(&path).unwrap();
        output.write(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        output.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_device_is_written_to_as_it_is() {
        let mut output = Output::create(Path::new("/dev/null")).unwrap();
        output.write(b"gone").unwrap();
        output.commit().unwrap();
        let mut output = Output::create(Path::new("/dev/full")).unwrap();
        output.write(b"x").unwrap();
        let text = output.commit().unwrap_err().to_string();
        assert!(
            text.contains("/dev/full: cannot write: No space left"),
            "{text}"
        );
    }
}
