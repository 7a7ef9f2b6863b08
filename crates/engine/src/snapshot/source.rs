//! The source of a snapshot: the open files of one MANIFEST, and the logs that follow it.

use stratann_layout::inserts::{Unreadable, decode};
use stratann_layout::log::FIRST_RECORD;
use stratann_layout::log::marks::read_marks;
use stratann_layout::manifest::FILE_NAME as MANIFEST;
use stratann_layout::{LogHeader, Manifest};
use stratann_tier::{TierError, Volume, VolumeReader};

use crate::durable::{inserts, log_name, log_number};
use crate::{Error, stored};

/// The attempts to read the start of a log, which may fail while a writer writes the marks.
const TRIES: usize = 100;

pub(super) struct Source<'a> {
    volume: &'a dyn Volume,
    encoded: Vec<u8>,
    manifest: Manifest,
    files: Vec<Part>,
}

pub(super) struct Part {
    pub(super) name: String,
    pub(super) reader: Box<dyn VolumeReader>,
    /// Whether pages may be written to the file while the MANIFEST is unchanged.
    has_pages: bool,
}

pub(super) struct LogPart {
    pub(super) name: String,
    pub(super) reader: Box<dyn VolumeReader>,
    /// The header and the marks, which were read before the length.
    pub(super) front: Vec<u8>,
    pub(super) length: u64,
}

impl<'a> Source<'a> {
    /// Opens all files that the MANIFEST names. `None` if another MANIFEST replaces this one
    /// meanwhile.
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
            // A file of an unknown kind may have pages.
            let has_pages = entry.kind().is_none_or(|(kind, _)| kind.has_pages());
            found.files.push(Part {
                name: entry.name.clone(),
                reader,
                has_pages,
            });
        }
        Ok(found.stands()?.then_some(found))
    }

    pub(super) fn stands(&self) -> Result<bool, Error> {
        Ok(self.volume.read(MANIFEST)? == self.encoded)
    }

    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    pub(super) fn volume(&self) -> &dyn Volume {
        self.volume
    }

    /// The file of inserts that can be resumed, if it exists and is whole.
    pub(super) fn inserts(&self) -> Result<Option<Vec<u8>>, Error> {
        let text = inserts::text(self.volume)?;
        Ok(text.filter(|text| decode(text) != Err(Unreadable::Damaged)))
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = &Part> {
        self.files.iter().filter(|part| part.has_pages)
    }

    pub(super) fn written_once(&self) -> impl Iterator<Item = &Part> {
        self.files.iter().filter(|part| !part.has_pages)
    }

    /// The number of bytes to copy, without bytes that are added during the copy.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0u64;
        for part in &self.files {
            bytes = bytes.saturating_add(part.reader.size()?);
        }
        Ok(bytes)
    }

    /// Opens the logs that the MANIFEST needs. `None` if a log was removed meanwhile.
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
                // A merge has committed, or a writer has removed an empty log when it closed the
                // index.
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
        // The marks are read before the length, so that the length includes all bytes that the
        // marks declare durable.
        let front = loop {
            let mut front = vec![0; reader.size()?.min(FIRST_RECORD) as usize];
            reader.read_at(0, &mut front)?;
            let torn = match LogHeader::decode(&front, number, &place) {
                Ok(header) => header.marked && read_marks(&front, number).is_none(),
                // The log is being created, or its header is damaged, which the replay of the copy
                // reports.
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
