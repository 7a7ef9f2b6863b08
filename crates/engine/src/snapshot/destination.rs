//! The destination of a snapshot, in which no index opens until the copy is complete and durable.
//!
//! ```text
//!   SNAPSHOT.new            made first and synced; while it exists, other files may be removed
//!   graph-000004  ..        written and synced
//!   SNAPSHOT.new            the MANIFEST is written into it, and synced
//!   SNAPSHOT.new ─> MANIFEST    renamed, directory synced
//! ```

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use stratann_layout::LogShape;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_tier::{LOCK_FILE, TierError, Volume, VolumeFile, VolumeReader};

use super::source::{LogPart, Part, Source};
use crate::Error;
use crate::durable::{LogPosition, is_ours, log_number, replay};
use crate::progress::Progress;
use crate::stored::UNFINISHED_SNAPSHOT as UNFINISHED;

const NOTE: &[u8] =
    b"An unfinished snapshot of an index. Run `stratann snapshot` to this directory again, or remove the directory.\n";

const PIECE: u64 = 1 << 20;

/// Fails with [`Error::Exists`] if a directory has files other than an unfinished snapshot.
pub(super) fn check_vacant(path: &Path) -> Result<(), Error> {
    let failed = |source| TierError::io("list", path.display().to_string(), 0, 0, source);
    let entries = match path.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(Error::Exists {
                path: path.to_owned(),
                reason: "it is a file. Give a directory that does not exist yet".into(),
            });
        }
        Err(error) => return Err(failed(error).into()),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name());
    }
    // The names of other files of an unfinished snapshot are checked when these files are removed.
    let unfinished = names.iter().any(|name| name == UNFINISHED);
    match names.iter().find(|&name| name != LOCK_FILE) {
        Some(name) if !unfinished => Err(taken(path, name)),
        _ => Ok(()),
    }
}

/// Fails if a directory is inside the index, since the copy would be moved or removed with the
/// index.
pub(super) fn check_outside(index: &Path, path: &Path) -> Result<(), Error> {
    let (Ok(index), Ok(whole)) = (index.canonicalize(), std::path::absolute(path)) else {
        return Ok(());
    };
    // The deepest existing part of the path, without symbolic links.
    let there = whole
        .ancestors()
        .find_map(|folder| folder.canonicalize().ok());
    match there {
        Some(there) if there.starts_with(&index) => Err(Error::call(
            "the folder of the snapshot",
            path.display(),
            format!(
                "it is in the index ({}), so the copy would be moved or removed with it",
                index.display()
            ),
            "Name a folder beside the index",
        )),
        _ => Ok(()),
    }
}

fn taken(path: &Path, name: &impl fmt::Debug) -> Error {
    Error::Exists {
        path: path.to_owned(),
        reason: format!(
            "it holds {name:?}. Give the snapshot a directory that is empty or does not exist yet"
        ),
    }
}

/// A copy of an index that is being made. A drop before `finish` removes the copied files.
pub(super) struct Unfinished<'a> {
    volume: &'a dyn Volume,
    mark: Box<dyn VolumeFile>,
    written: Vec<String>,
    bytes: u64,
    shared: u64,
    /// Whether the drop keeps the files, which are or may be an index.
    stays: bool,
}

impl<'a> Unfinished<'a> {
    /// Begins a copy in a locked volume, and removes the files of an unfinished snapshot. Other
    /// files are an error ([`Error::Exists`]).
    pub(super) fn begin(volume: &'a dyn Volume) -> Result<Self, Error> {
        let names = volume.list()?;
        let left = names.iter().any(|name| name == UNFINISHED);
        let in_the_way = |name: &&String| match left {
            true => *name == MANIFEST || *name != UNFINISHED && !is_ours(name),
            false => true,
        };
        if let Some(name) = names.iter().find(in_the_way) {
            return Err(taken(Path::new(&volume.name()), name));
        }
        let mark = match left {
            true => volume.open(UNFINISHED)?,
            false => volume.create(UNFINISHED)?,
        };
        let mut begun = Self {
            volume,
            mark,
            written: names
                .into_iter()
                .filter(|name| name != UNFINISHED)
                .collect(),
            bytes: 0,
            shared: 0,
            stays: false,
        };
        begun.write_mark(NOTE)?;
        volume.sync()?;
        begun.clear()?;
        Ok(begun)
    }

    fn write_mark(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.mark.set_len(0)?;
        self.mark.write_at(0, bytes)?;
        self.mark.sync()
    }

    /// Removes the files that were written so far. If a file stays, the copy fails, since the
    /// directory must have no other files when the MANIFEST gets its name.
    pub(super) fn clear(&mut self) -> Result<(), Error> {
        (self.bytes, self.shared) = (0, 0);
        while let Some(name) = self.written.last() {
            match self.volume.remove(name) {
                Ok(()) | Err(TierError::Missing { .. }) => drop(self.written.pop()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn create(&mut self, name: &str) -> Result<Box<dyn VolumeFile>, Error> {
        self.written.push(name.to_owned());
        Ok(self.volume.create(name)?)
    }

    pub(super) fn files<'p>(
        &mut self,
        parts: impl Iterator<Item = &'p Part>,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        for part in parts {
            let mut file = self.create(&part.name)?;
            if file.share(&*part.reader)? {
                self.shared += file.len();
                told(progress, file.len())?;
            } else {
                // Pages that are appended later do not belong to the checkpoint of the MANIFEST.
                let length = part.reader.size()?;
                copy(&*part.reader, &mut *file, (0, length), progress)?;
            }
            file.sync()?;
            self.bytes += file.len();
        }
        Ok(())
    }

    pub(super) fn small(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let mut file = self.create(name)?;
        file.write_at(0, bytes)?;
        file.sync()?;
        self.bytes += file.len();
        Ok(())
    }

    pub(super) fn log(&mut self, log: &LogPart, progress: &dyn Progress) -> Result<(), Error> {
        let mut file = self.create(&log.name)?;
        file.write_at(0, &log.front)?;
        let first = log.front.len() as u64;
        // After the log was opened, a writer may have truncated a failed write. No record of this
        // write was acknowledged.
        let end = log.length.min(log.reader.size()?).max(first);
        copy(&*log.reader, &mut *file, (first, end), progress)?;
        Ok(file.sync()?)
    }

    /// Cuts the last log after its last complete record, since a writer may have been writing
    /// during the copy. Returns the number of records. If the copy and the original are damaged,
    /// the error names the original.
    pub(super) fn cut_logs(&mut self, of: &Source<'_>, logs: &[LogPart]) -> Result<u64, Error> {
        let manifest = of.manifest();
        let shape = LogShape::new(manifest.element, manifest.dimension as usize)?;
        let from = LogPosition::from(manifest.log_from);
        let mut ignore = |_, _: stratann_layout::LogRecord<'_>| Ok(());
        let replayed = replay(self.volume, shape, from, &mut ignore).map_err(|error| {
            // The error should name a file that the user can still find.
            let original = replay(of.volume(), shape, from, &mut ignore);
            original.err().unwrap_or(error)
        })?;
        if let (Some(torn), Some(last)) = (&replayed.torn, logs.last()) {
            match torn.offset {
                // Even the header of the log was incomplete.
                0 => {
                    self.volume.remove(&last.name)?;
                    self.written.retain(|name| *name != last.name);
                }
                offset => {
                    let mut file = self.volume.open(&last.name)?;
                    file.set_len(offset)?;
                    file.sync()?;
                }
            }
        }
        Ok(replayed.records)
    }

    /// Commits the copy as an index, and returns its files, bytes and shared bytes.
    /// [`Error::Undurable`] means that the index is complete, but a crash may lose it.
    pub(super) fn finish(mut self, manifest: &[u8]) -> Result<(u64, u64, u64), Error> {
        for name in self
            .written
            .iter()
            .filter(|name| log_number(name).is_some())
        {
            self.bytes += self.volume.len(name)?;
        }
        self.write_mark(manifest)?;
        // All names must be durable before the rename that commits the copy.
        self.volume.sync()?;
        self.stays = true;
        if let Err(error) = self.volume.rename(UNFINISHED, MANIFEST) {
            match self.volume.read(MANIFEST) {
                Ok(now) if now == manifest => {}
                not => {
                    self.stays = !matches!(not, Err(TierError::Missing { .. }));
                    return Err(error.into());
                }
            }
        }
        self.volume.sync().map_err(|source| Error::Undurable {
            path: self.volume.name().into(),
            source: Box::new(source),
        })?;
        let files = self.written.len() as u64 + 1;
        Ok((files, self.bytes + manifest.len() as u64, self.shared))
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // `SNAPSHOT.new` is removed last: only while it exists, the other files may be removed.
        if self.clear().is_ok() && self.volume.sync().is_ok() {
            let _ = self.volume.remove(UNFINISHED);
            let _ = self.volume.sync();
        }
    }
}

fn copy(
    from: &dyn VolumeReader,
    to: &mut dyn VolumeFile,
    (mut offset, end): (u64, u64),
    progress: &dyn Progress,
) -> Result<(), Error> {
    let mut piece = vec![0; PIECE.min(end.saturating_sub(offset)) as usize];
    while offset < end {
        piece.truncate((end - offset).min(PIECE) as usize);
        from.read_at(offset, &mut piece)?;
        to.write_at(offset, &piece)?;
        offset += piece.len() as u64;
        told(progress, piece.len() as u64)?;
    }
    Ok(())
}

fn told(progress: &dyn Progress, bytes: u64) -> Result<(), Error> {
    progress.advance(bytes);
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
