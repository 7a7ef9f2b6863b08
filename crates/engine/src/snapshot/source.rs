//! The source of a snapshot: the files of one MANIFEST, open, and the logs behind it.

use stratann_layout::inserts::{Unreadable, decode};
use stratann_layout::log::FIRST_RECORD;
use stratann_layout::log::marks::read_marks;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{LogHeader, Manifest};
use stratann_tier::{TierError, Volume, VolumeReader};

use crate::durable::{inserts, log_name, log_number};
use crate::{Error, stored};

/// How often the front of a log is read before it counts as damaged: a writer may be at its marks meanwhile.
const TRIES: usize = 100;

/// The index as a MANIFEST names it.
pub(super) struct Source<'a> {
    volume: &'a dyn Volume,
    encoded: Vec<u8>,
    manifest: Manifest,
    files: Vec<Part>,
}

/// A file of it.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) reader: Box<dyn VolumeReader>,
    /// Whether pages are written in it while the MANIFEST stands.
    has_pages: bool,
}

/// A log, as it was at a moment.
pub(super) struct LogPart {
    pub(super) name: String,
    pub(super) reader: Box<dyn VolumeReader>,
    /// Its header and marks, which were read first.
    pub(super) front: Vec<u8>,
    /// Its length after that, in bytes.
    pub(super) length: u64,
}

impl<'a> Source<'a> {
    /// Opens all files that the MANIFEST names. `None`: another one has taken its place meanwhile.
    ///
    /// # Errors
    /// No index that opens; a file that is missing or cannot be opened.
    pub(super) fn open(volume: &'a dyn Volume) -> Result<Option<Self>, Error> {
        let manifest = stored::manifest(volume)?;
        let encoded = volume.read(MANIFEST)?;
        let mut found = Self {
            volume,
            files: Vec::with_capacity(manifest.files.len()),
            manifest,
            encoded,
        };
        if Manifest::decode(&found.encoded, &stored::name_of(volume, MANIFEST))? != found.manifest {
            return Ok(None);
        }
        for entry in &found.manifest.files {
            let reader = match volume.open_reader(&entry.name) {
                Ok(reader) => reader,
                Err(error @ TierError::Missing { .. }) => {
                    return match found.stands()? {
                        true => Err(error.into()),
                        false => Ok(None),
                    };
                }
                Err(error) => return Err(error.into()),
            };
            // A kind that this version does not know may be anything.
            let has_pages = entry.kind().is_none_or(|(kind, _)| kind.has_pages());
            found.files.push(Part {
                name: entry.name.clone(),
                reader,
                has_pages,
            });
        }
        Ok(found.stands()?.then_some(found))
    }

    /// Whether its MANIFEST is the one that counts.
    pub(super) fn stands(&self) -> Result<bool, Error> {
        Ok(self.volume.read(MANIFEST)? == self.encoded)
    }

    /// The MANIFEST.
    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The MANIFEST as it stands on storage.
    pub(super) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Where the index is.
    pub(super) fn volume(&self) -> &dyn Volume {
        self.volume
    }

    /// What the index knows of inserts that can go on, as it is now, if it knows of any.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn inserts(&self) -> Result<Option<Vec<u8>>, Error> {
        // Damage stays where it is.
        let text = inserts::text(self.volume)?;
        Ok(text.filter(|text| decode(text) != Err(Unreadable::Damaged)))
    }

    /// Files in which pages are written while the MANIFEST stands.
    pub(super) fn pages(&self) -> impl Iterator<Item = &Part> {
        self.files.iter().filter(|part| part.has_pages)
    }

    /// Files that nobody writes to any more.
    pub(super) fn written_once(&self) -> impl Iterator<Item = &Part> {
        self.files.iter().filter(|part| !part.has_pages)
    }

    /// Bytes that are to be copied, but for what comes meanwhile.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0u64;
        for part in &self.files {
            bytes = bytes.saturating_add(part.reader.size()?);
        }
        Ok(bytes)
    }

    /// The logs from the one on at which the MANIFEST goes on, as they are now. `None`: one of them is gone meanwhile, as another MANIFEST has it.
    ///
    /// # Errors
    /// One cannot be read.
    pub(super) fn logs(&self) -> Result<Option<Vec<LogPart>>, Error> {
        let first = self.manifest.log_from.number;
        let names = self.volume.list()?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| log_number(name)).collect();
        numbers.retain(|&number| number >= first);
        numbers.sort_unstable();
        let mut logs = Vec::with_capacity(numbers.len());
        for number in numbers {
            match self.log(number) {
                Ok(log) => logs.push(log),
                // A merge that has committed, or a writer that has closed it and found it empty.
                Err(Error::Tier(TierError::Missing { .. })) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(logs))
    }

    fn log(&self, number: u64) -> Result<LogPart, Error> {
        let name = log_name(number);
        let place = stored::name_of(self.volume, &name);
        let reader = self.volume.open_reader(&name)?;
        let mut tries = 1;
        // The marks before the length: the file is at least as long by then as they say.
        let front = loop {
            let mut front = vec![0; reader.size()?.min(FIRST_RECORD) as usize];
            reader.read_at(0, &mut front)?;
            let torn = match LogHeader::decode(&front, number, &place) {
                Ok(header) => header.marked && read_marks(&front, number).is_none(),
                // The log is being made; if it is damaged, the replay says so.
                Err(_) => false,
            };
            if !torn || tries == TRIES {
                break front;
            }
            tries += 1;
        };
        Ok(LogPart {
            length: reader.size()?,
            name,
            reader,
            front,
        })
    }
}
