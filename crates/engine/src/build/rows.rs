//! Attributes of vectors in a build: a segment of columns in the order of the nodes.

use std::borrow::Cow;
use std::fmt;

use stratann_layout::FileEntry;
use stratann_tier::Volume;

use super::BuildOptions;
use crate::Error;
use crate::data::RowSource;
use crate::durable::Checkpoint;
use crate::filter::Schema;
use crate::plan::segment_memory;
use crate::progress::{Progress, Stage};
use crate::stores::columns::{SegmentWriter, encoded};

const BETWEEN_LOOKS: usize = 1 << 12;

/// The rows of attributes in an existing index, by their row numbers in the next build.
pub(crate) trait CarriedRows: Sync + fmt::Debug {
    fn schema(&self) -> Schema;

    /// The encoded row of attributes; empty if the vector has no attributes.
    fn bytes(&self, row: usize) -> Result<Cow<'_, [u8]>, Error>;
}

pub(crate) enum Rows<'a> {
    Given(&'a dyn RowSource, Schema),
    Carried(&'a dyn CarriedRows),
    Empty(Schema),
}

impl<'a> Rows<'a> {
    pub(super) fn of(
        source: &'a dyn RowSource,
        vectors: usize,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        if source.rows() != vectors {
            return Err(Error::call(
                format!("number of rows of {}", source.name()),
                source.rows(),
                format!("there are {vectors} vectors"),
                "Give one row for each vector",
            ));
        }
        let _stage = Stage::begin(progress, "looking at rows", vectors as u64);
        let mut schema = Schema::default();
        for at in 0..vectors {
            let mut row = source.row(at)?;
            let taken = schema.take(&mut row).and_then(|()| encoded(&row));
            taken.map_err(|error| of_row(error, source, at))?;
            if at.is_multiple_of(BETWEEN_LOOKS) {
                go_on(progress)?;
            }
            progress.advance(1);
        }
        Ok(Self::Given(source, schema))
    }

    pub(super) fn schema(&self) -> Schema {
        match self {
            Self::Given(_, schema) | Self::Empty(schema) => schema.clone(),
            Self::Carried(rows) => rows.schema(),
        }
    }

    pub(super) fn bytes(&self, at: usize) -> Result<Cow<'_, [u8]>, Error> {
        match self {
            Self::Given(source, schema) => {
                let mut row = source.row(at)?;
                let known = match schema.knows(&mut row) {
                    true => encoded(&row),
                    false => Err(Error::call(
                        "its content",
                        "not as before",
                        "rows must not change during a build",
                        "Build again while no process changes them",
                    )),
                };
                Ok(known.map_err(|error| of_row(error, *source, at))?.into())
            }
            Self::Carried(rows) => rows.bytes(at),
            Self::Empty(_) => Ok(Cow::default()),
        }
    }

    /// `order` has the row of each node.
    pub(super) fn write(
        &self,
        volume: &dyn Volume,
        checkpoint: &Checkpoint<'_>,
        order: &[u32],
        options: &BuildOptions,
        progress: &dyn Progress,
    ) -> Result<[FileEntry; 2], Error> {
        let _stage = Stage::begin(progress, "writing rows", order.len() as u64);
        let ids = options.ids.as_deref();
        let memory = segment_memory(options.memory);
        let mut writer = SegmentWriter::create(volume, checkpoint, 0, &self.schema(), memory)?;
        for (node, &row) in (0..).zip(order) {
            let id = ids.map_or(u64::from(row), |ids| ids[row as usize]);
            writer.push(node, id, &self.bytes(row as usize)?)?;
            if (node as usize).is_multiple_of(BETWEEN_LOOKS) {
                go_on(progress)?;
            }
            progress.advance(1);
        }
        Ok(writer.finish()?.1)
    }
}

fn of_row(error: Error, source: &dyn RowSource, at: usize) -> Error {
    error.within(&format!("row {at} of {}", source.name()))
}

fn go_on(progress: &dyn Progress) -> Result<(), Error> {
    match progress.interrupted() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
