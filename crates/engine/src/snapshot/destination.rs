//! The destination of a snapshot: a directory in which no index opens until all of it is there, and durable.
//!
//! ```text
//!   SNAPSHOT.new            made first, durable before anything else: as long as it is there, the other files may be cleared
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

/// Its text, for people who look into the directory.
const NOTE: &[u8] =
    b"A snapshot of an index that is not finished. `stratann snapshot` to this directory begins it anew; or remove the directory.\n";

/// Bytes that are read and written at once.
const PIECE: u64 = 1 << 20;

/// Refuses a directory that holds anything but the files of an unfinished snapshot.
///
/// # Errors
/// [`Error::Exists`]; it cannot be listed.
pub(super) fn check_vacant(path: &Path) -> Result<(), Error> {
    let failed = |source| TierError::io("list", path.display().to_string(), 0, 0, source);
    let entries = match path.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(Error::Exists {
                path: path.to_owned(),
                reason: "it is a file; give a directory that does not exist yet".into(),
            });
        }
        Err(error) => return Err(failed(error).into()),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name());
    }
    // Files of one that was not finished are looked at by name, when they are cleared.
    let unfinished = names.iter().any(|name| name == UNFINISHED);
    match names.iter().find(|&name| name != LOCK_FILE) {
        Some(name) if !unfinished => Err(taken(path, name)),
        _ => Ok(()),
    }
}

/// Refuses a directory within that of the index: whoever replaces, moves or removes the index would do so to the copy.
///
/// # Errors
/// A wrong argument ([`Error::Call`]).
pub(super) fn check_outside(index: &Path, path: &Path) -> Result<(), Error> {
    let (Ok(index), Ok(whole)) = (index.canonicalize(), std::path::absolute(path)) else {
        return Ok(());
    };
    // As much of the path as is there, without links.
    let there = whole
        .ancestors()
        .find_map(|folder| folder.canonicalize().ok());
    match there {
        Some(there) if there.starts_with(&index) => Err(Error::call(
            "the folder of the snapshot",
            path.display(),
            format!(
                "one outside of the index ({}): the copy would go wherever the index goes. Name a folder beside it",
                index.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// A directory that holds something else.
fn taken(path: &Path, name: &impl fmt::Debug) -> Error {
    Error::Exists {
        path: path.to_owned(),
        reason: format!(
            "it holds {name:?}; a snapshot goes to a directory that is empty or does not exist yet"
        ),
    }
}

/// A copy of an index on its way. Dropped before it is finished, it removes its files.
pub(super) struct Unfinished<'a> {
    volume: &'a dyn Volume,
    mark: Box<dyn VolumeFile>,
    written: Vec<String>,
    bytes: u64,
    shared: u64,
    /// Whether its files are to stay: they are the index, or nobody can tell.
    stays: bool,
}

impl<'a> Unfinished<'a> {
    /// Begins one in a volume that the caller has locked; removes the files of an earlier one that was not finished.
    ///
    /// # Errors
    /// The volume holds something else ([`Error::Exists`]), or fails.
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
        // One that is there keeps its name until all else is gone.
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

    /// Removes the files that were written so far.
    ///
    /// # Errors
    /// A file cannot be removed: no other file than those of the index is to lie there when the MANIFEST does.
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

    /// Copies files, as they are now.
    ///
    /// # Errors
    /// Reading or writing fails; an interruption.
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
                // Pages that are added meanwhile are none that the MANIFEST names.
                let length = part.reader.size()?;
                copy(&*part.reader, &mut *file, (0, length), progress)?;
            }
            file.sync()?;
            self.bytes += file.len();
        }
        Ok(())
    }

    /// Writes a file that is in memory.
    ///
    /// # Errors
    /// Writing fails.
    pub(super) fn small(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let mut file = self.create(name)?;
        file.write_at(0, bytes)?;
        file.sync()?;
        self.bytes += file.len();
        Ok(())
    }

    /// Copies a log, as far as it went at its moment.
    ///
    /// # Errors
    /// As those of [`files`](Unfinished::files).
    pub(super) fn log(&mut self, log: &LogPart, progress: &dyn Progress) -> Result<(), Error> {
        let mut file = self.create(&log.name)?;
        file.write_at(0, &log.front)?;
        let first = log.front.len() as u64;
        // A write that failed since may have been cut off: nothing of it had been acknowledged.
        let end = log.length.min(log.reader.size()?).max(first);
        copy(&*log.reader, &mut *file, (first, end), progress)?;
        Ok(file.sync()?)
    }

    /// Cuts the last log off behind its last whole record: a writer may have been in the midst of the next one. Returns how many records there are.
    ///
    /// # Errors
    /// A log that is damaged: as the original is, if it can be read.
    pub(super) fn cut_logs(&mut self, of: &Source<'_>, logs: &[LogPart]) -> Result<u64, Error> {
        let manifest = of.manifest();
        let shape = LogShape::new(manifest.element, manifest.dimension as usize)?;
        let from = LogPosition::from(manifest.log_from);
        let mut ignore = |_, _: stratann_layout::LogRecord<'_>| Ok(());
        let replayed = replay(self.volume, shape, from, &mut ignore).map_err(|error| {
            // It is to name the file that stays.
            let original = replay(of.volume(), shape, from, &mut ignore);
            original.err().unwrap_or(error)
        })?;
        if let (Some(torn), Some(last)) = (&replayed.torn, logs.last()) {
            match torn.offset {
                // Not even its header was whole.
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

    /// Makes it an index. Returns how many files there are, their bytes, and how many of these are shared with the original.
    ///
    /// # Errors
    /// The volume fails; [`Error::Undurable`] where the index is whole, and a crash may take it away.
    pub(super) fn finish(mut self, manifest: &[u8]) -> Result<(u64, u64, u64), Error> {
        for name in self
            .written
            .iter()
            .filter(|name| log_number(name).is_some())
        {
            self.bytes += self.volume.len(name)?;
        }
        self.write_mark(manifest)?;
        // All names before the one that counts.
        self.volume.sync()?;
        self.stays = true;
        if let Err(error) = self.volume.rename(UNFINISHED, MANIFEST) {
            match self.volume.read(MANIFEST) {
                Ok(now) if now == manifest => {}
                not => {
                    // Where nobody can tell, the files stay.
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
        // The mark goes last: as long as a file is left, the mark says that it may be cleared.
        if self.clear().is_ok() && self.volume.sync().is_ok() {
            let _ = self.volume.remove(UNFINISHED);
            let _ = self.volume.sync();
        }
    }
}

/// Copies the bytes of a file from an offset to before another.
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
