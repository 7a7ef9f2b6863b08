//! The errors of the engine. One type adds context to the small errors of the modules.

mod data;
mod graph;

use std::path::{Path, PathBuf};
use std::time::Duration;

use stratann_codec::CodecError;
use stratann_layout::LayoutError;
use stratann_tier::TierError;
use stratann_tier::remote::Fault;
use stratann_vector::QuantizerError;

pub use self::data::DataError;
pub use self::graph::GraphError;

/// Any failure of the engine. The text names the argument or file, its value, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has an impossible value, or contradicts another argument.
    #[error("{what} is {found}; {reason}. {remedy}")]
    Argument {
        /// The name of the argument.
        what: String,
        /// The value that was given.
        found: String,
        /// Why the value is not possible.
        reason: String,
        /// How the caller can repair the call.
        remedy: String,
    },
    /// A filter cannot be parsed, or the columns of the index cannot evaluate it.
    #[error("filter{}: {reason}", position.map(|at| format!(", at character {at}")).unwrap_or_default())]
    Filter {
        /// The number of the character with the error, from 1. `None` if the filter was not parsed.
        position: Option<usize>,
        /// The error and the remedy.
        reason: String,
    },
    /// The directory has no index that can be opened.
    #[error("{}: not an index: {reason}", path.display())]
    NotAnIndex {
        /// The directory.
        path: PathBuf,
        /// The reason and the remedy.
        reason: String,
    },
    /// A catalog has no index of this name.
    #[error("{}: no index {name:?}: {remedy}", catalog.display())]
    NoSuchIndex {
        /// The catalog's directory.
        catalog: PathBuf,
        /// The requested name.
        name: String,
        /// The remedy, which has the names that exist.
        remedy: String,
    },
    /// A build refuses to replace existing files.
    #[error("{}: {reason}", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// The existing files and the remedy.
        reason: String,
    },
    /// The memory budget is smaller than the work needs.
    #[error(
        "memory budget of {budget} bytes is too small; {needs} bytes are needed for {part}. Give at least that much"
    )]
    Memory {
        /// The bytes given.
        budget: u64,
        /// The bytes needed.
        needs: u64,
        /// The part of the work that needs these bytes.
        part: String,
    },
    /// The memory budget of a catalog is too small for the changes of an index beside the indexes
    /// in use.
    #[error(
        "memory budget of {budget} bytes: no memory for {what} beside the other indexes in use ({others}; waited {} s). Close unused indexes \
         (`index.close()`, or the end of its `with` block; in Rust drop the `LiveIndex`), or open the catalog with {needs} bytes",
        waited.as_secs()
    )]
    Crowded {
        /// The catalog's budget, in bytes.
        budget: u64,
        /// The budget that suffices for the indexes in use and this part, in bytes.
        needs: u64,
        /// The part that does not fit into the budget.
        what: String,
        /// The number of indexes in use.
        others: usize,
        /// How long the call waited for other indexes to free memory.
        waited: Duration,
    },
    /// Two parts of an index contradict each other.
    #[error(
        "{file}: damaged: {what}. Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The contradiction.
        what: String,
    },
    /// The log has lost durable records.
    #[error(
        "{file}: damaged: its records end at offset {offset} ({reason}), before sequence number {sequence}, but {evidence}. \
         Of the {missing} records after this offset, {}{whole} can be read. Restore a copy, or run `stratann repair`, which keeps \
         the readable records",
        if *more { "at least " } else { "" }
    )]
    DamagedLog {
        /// The file.
        file: String,
        /// The offset of the first lost record, in bytes.
        offset: u64,
        /// The sequence number of the first lost record.
        sequence: u64,
        /// Why the bytes at this offset are no record.
        reason: String,
        /// The evidence that the log had more records.
        evidence: String,
        /// The number of records that the log had from this offset on.
        missing: u64,
        /// The number of these records that can still be read.
        whole: u64,
        /// Whether `whole` is a lower bound, since the count ended early.
        more: bool,
    },
    /// Another process has changed the index and removed pages that this process needs.
    #[error("{}: another process has changed it since it was opened here. Open it again (in Python index.refresh())", path.display())]
    Outdated {
        /// The directory.
        path: PathBuf,
    },
    /// Another index is now in the directory of the index, and its vectors have another form.
    #[error("{}: an index of {found} has replaced the index of {opened} that was opened here. Open the new index (in Python stratann.open(path))", path.display())]
    OtherIndex {
        /// The directory.
        path: PathBuf,
        /// The form of the opened index: dimension, element type and metric, in words.
        opened: String,
        /// The form of the index that is now in the directory.
        found: String,
    },
    /// An index changed too fast for the call to copy, export or measure a snapshot of it.
    #[error("{}: {what}. {remedy}", path.display())]
    Restless {
        /// The directory of the index.
        path: PathBuf,
        /// The changes that interfered with the call.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// A commit may not survive a crash of the machine, since a sync failed.
    #[error(
        "{}: the commit may not be durable, since a sync failed: {source}. A crash of the machine may bring back the checkpoint before this commit. Check the disk, then open the index for changes once, or rebuild it",
        path.display()
    )]
    Undurable {
        /// The directory.
        path: PathBuf,
        /// The error of the sync.
        source: Box<TierError>,
    },
    /// A build succeeded, but its copies could not be made on the given places.
    #[error(
        "{}: the index was built, but it could not be placed on {places}: {source}. Open it with other places, or without places",
        path.display()
    )]
    NotPlaced {
        /// The directory.
        path: PathBuf,
        /// The given places.
        places: String,
        /// The error that prevented the copies.
        source: Box<Error>,
    },
    /// This handle accepts no more changes of the index. It can still search the index.
    #[error("{}: takes no more changes through this handle: {reason}. Close this handle, then open the index again", path.display())]
    Halted {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A damaged index has too few readable parts for a repair.
    #[error(
        "{}: cannot be repaired: {reason}; nothing was changed. Restore a copy, or build the index again from its source",
        path.display()
    )]
    Unrepairable {
        /// The directory.
        path: PathBuf,
        /// The part that is missing.
        reason: String,
    },
    /// The caller asked the call to stop before it changed anything.
    #[error("interrupted; nothing was changed")]
    Interrupted,
    /// A search was not finished at its deadline.
    #[error(
        "the deadline passed before the search was done. Allow more time, or ask for less (a shorter list, fewer queries a search)"
    )]
    DeadlineExceeded,
    /// The caller asked the call to stop after it did a part of the work.
    #[error("interrupted")]
    Stopped,
    /// An insert of several batches failed before the last batch.
    #[error("{source}; the first {done} of {total} rows are in the index{}", others(*given, *total))]
    Partly {
        /// The number of rows that are in the index.
        done: usize,
        /// The number of rows of the call.
        total: usize,
        /// The ids of the first and the last inserted row, if the index chose the ids.
        given: Option<(u64, u64)>,
        /// The error that ended the insert.
        source: Box<Error>,
    },
    /// An interrupted insert had the same rows, so this call would insert some of them twice.
    #[error(
        "{file}: an insert of these rows was cut off; the first {done} of {total} are in the index, with ids {first_id} to {}. Continue it (`--resume`), or forget it and insert all \
         rows (`--no-resume`)",
        first_id.saturating_add(*done as u64).saturating_sub(1)
    )]
    CutOff {
        /// The name of the rows, which is the path of their file.
        file: String,
        /// The number of rows that are in the index, at least 1: the first rows of the file.
        done: usize,
        /// The number of all rows of the file.
        total: usize,
        /// The id of the first row. Later rows have the next ids.
        first_id: u64,
    },
    /// A change of attributes failed before the last row.
    #[error(
        "{source}; the first {done} of {total} rows are set, and stay so. Set the others, or all of them again"
    )]
    PartlySet {
        /// The number of rows with new attributes, which are the first rows of the call.
        done: usize,
        /// The number of rows of the call.
        total: usize,
        /// The error that ended the change.
        source: Box<Error>,
    },
    /// A deletion by filter failed before the last matching vector.
    #[error(
        "{source}; {deleted} of the {matched} vectors that matched are deleted, and stay so. Delete by the filter again for the others"
    )]
    PartlyDeleted {
        /// The number of vectors that this call deleted.
        deleted: u64,
        /// The number of vectors that matched the filter at the start of the call.
        matched: u64,
        /// The error that ended the deletion.
        source: Box<Error>,
    },
    /// A file of vectors or of ground truth has an error.
    #[error(transparent)]
    Data(DataError),
    /// The bytes of an index have an error.
    #[error(transparent)]
    Layout(LayoutError),
    /// A list or a vector cannot be encoded or decoded.
    #[error("{place}: {source}")]
    Codec {
        /// The name of the file, or the number of the node.
        place: String,
        /// The error and the remedy.
        source: CodecError,
    },
    /// A read or a write failed.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// The training of a quantiser failed.
    #[error(transparent)]
    Quantizer(#[from] QuantizerError),
    /// The construction of a graph failed.
    #[error(transparent)]
    Graph(GraphError),
}

/// The cause of an error, for callers that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The value of an argument is not possible.
    Call,
    /// A memory budget is too small.
    Memory,
    /// The index, file or name does not exist.
    NotFound,
    /// The target exists already.
    Exists,
    /// The user of this process has no permission.
    Denied,
    /// Another process, or another handle of this process, is changing the index.
    InUse,
    /// The device is full, or the user of this process has used up the quota.
    NoSpace,
    /// The process has reached its limit of open files.
    TooManyFiles,
    /// The system has no threads or no memory left.
    Exhausted,
    /// The caller asked the call to stop. A part of the work may be done.
    Interrupted,
    /// A search was not finished at its deadline.
    DeadlineExceeded,
    /// The index or file has been changed or replaced since it was opened. Open it again.
    Outdated,
    /// This handle takes no more changes. Close it, then open the index again.
    Halted,
    /// A commit may not survive a crash of the machine, since a sync failed.
    Undurable,
    /// Bytes contradict themselves or other bytes, or have an unknown format version.
    Damaged,
    /// A file of vectors has wrong contents.
    Data,
    /// Any other error of the device or the system.
    Io,
    /// Any other cause.
    Other,
}

impl ErrorKind {
    fn of_io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        // ENFILE and EMFILE, with the same numbers on Linux and the BSDs.
        const TOO_MANY: [i32; 2] = [23, 24];
        match (error.raw_os_error(), error.kind()) {
            (Some(code), _) if TOO_MANY.contains(&code) => Self::TooManyFiles,
            (_, Kind::NotFound) => Self::NotFound,
            (_, Kind::AlreadyExists) => Self::Exists,
            (_, Kind::PermissionDenied | Kind::ReadOnlyFilesystem) => Self::Denied,
            (_, Kind::StorageFull | Kind::QuotaExceeded) => Self::NoSpace,
            (_, Kind::WouldBlock | Kind::OutOfMemory) => Self::Exhausted,
            _ => Self::Io,
        }
    }

    fn of_tier(error: &TierError) -> Self {
        match error {
            TierError::NoSpace { .. }
            | TierError::NoSpaceForCopy { .. }
            | TierError::NoRoom { .. } => Self::NoSpace,
            TierError::Denied { .. } | TierError::NotPrivate { .. } => Self::Denied,
            TierError::Server {
                fault: Fault::Secret(_),
                ..
            } => Self::Denied,
            TierError::Missing { .. } => Self::NotFound,
            TierError::InUse { .. } => Self::InUse,
            TierError::TooManyFiles { .. } => Self::TooManyFiles,
            TierError::Replaced { .. } => Self::Outdated,
            TierError::Forked { .. } => Self::Halted,
            TierError::NoThread { .. } | TierError::NoMemory { .. } => Self::Exhausted,
            TierError::Short { .. }
            | TierError::OutOfRange { .. }
            | TierError::Misaligned { .. } => Self::Damaged,
            TierError::Io { source, .. } => Self::of_io(source),
            _ => Self::Io,
        }
    }
}

impl Error {
    /// The cause of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Argument { .. } | Self::Filter { .. } => ErrorKind::Call,
            Self::NotAnIndex { .. } | Self::NoSuchIndex { .. } => ErrorKind::NotFound,
            Self::Exists { .. } | Self::CutOff { .. } => ErrorKind::Exists,
            Self::Memory { .. } => ErrorKind::Memory,
            Self::Damaged { .. } | Self::DamagedLog { .. } | Self::Unrepairable { .. } => {
                ErrorKind::Damaged
            }
            Self::Layout(_) | Self::Codec { .. } => ErrorKind::Damaged,
            Self::Outdated { .. } | Self::OtherIndex { .. } => ErrorKind::Outdated,
            Self::Restless { .. } | Self::Crowded { .. } => ErrorKind::InUse,
            Self::Halted { .. } => ErrorKind::Halted,
            Self::Undurable { .. } => ErrorKind::Undurable,
            Self::Interrupted | Self::Stopped => ErrorKind::Interrupted,
            Self::DeadlineExceeded => ErrorKind::DeadlineExceeded,
            Self::Partly { source, .. }
            | Self::PartlySet { source, .. }
            | Self::PartlyDeleted { source, .. }
            | Self::NotPlaced { source, .. } => source.kind(),
            Self::Tier(error) => ErrorKind::of_tier(error),
            Self::Data(error) if error.is_call_wrong() => ErrorKind::Call,
            Self::Data(DataError::Room { .. }) => ErrorKind::Exhausted,
            Self::Data(_) => self.cause().unwrap_or(ErrorKind::Data),
            Self::Quantizer(_) | Self::Graph(_) => self.cause().unwrap_or(ErrorKind::Other),
        }
    }

    /// The kind of the underlying error of the operating system or the tier.
    fn cause(&self) -> Option<ErrorKind> {
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<TierError>() {
                return Some(ErrorKind::of_tier(error));
            }
            if let Some(error) = error.downcast_ref::<std::io::Error>() {
                return Some(ErrorKind::of_io(error));
            }
            cause = error.source();
        }
        None
    }

    pub(crate) fn call(
        what: impl Into<String>,
        found: impl ToString,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Argument {
            what: what.into(),
            found: found.to_string(),
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    /// The same error for an argument that is a part of `whole`.
    pub(crate) fn within(self, whole: &str) -> Self {
        match self {
            Self::Argument {
                what,
                found,
                reason,
                remedy,
            } => Self::Argument {
                what: format!("{whole}: {what}"),
                found,
                reason,
                remedy,
            },
            other => other,
        }
    }

    pub(crate) fn codec(place: impl Into<String>, source: CodecError) -> Self {
        Self::Codec {
            place: place.into(),
            source,
        }
    }

    pub(crate) fn not_an_index(path: &Path, reason: impl Into<String>) -> Self {
        Self::NotAnIndex {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    /// Whether the call was wrong (such as a bad argument).
    pub fn is_call_wrong(&self) -> bool {
        match self {
            Self::Argument { .. }
            | Self::Filter { .. }
            | Self::Memory { .. }
            | Self::Exists { .. }
            | Self::CutOff { .. }
            | Self::NoSuchIndex { .. } => true,
            Self::Data(error) => error.is_call_wrong(),
            _ => false,
        }
    }
}

/// The remedy after an insert that inserted only a part of its rows. `given` has the first and the
/// last id that the index chose.
fn others(given: Option<(u64, u64)>, total: usize) -> String {
    match given {
        Some((first, last)) => format!(
            ", with ids {first} to {last}. Insert the others, whose ids are {} to {}",
            last.saturating_add(1),
            first.saturating_add(total as u64).saturating_sub(1)
        ),
        None => ". Insert the other rows, or upsert all rows again with their ids".into(),
    }
}

impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Self {
        match error {
            LayoutError::Attribute {
                what,
                found,
                reason,
                remedy,
            } => Self::Argument {
                what,
                found,
                reason,
                remedy,
            },
            error => Self::Layout(error),
        }
    }
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Interrupted => Self::Interrupted,
            DataError::Index(error) => *error,
            DataError::Memory(error) => Self::Tier(error),
            error => Self::Data(error),
        }
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Interrupted => Self::Interrupted,
            GraphError::Known(error) => *error,
            GraphError::Data(error) => error.into(),
            GraphError::Memory { given, least } => Self::Memory {
                budget: given,
                needs: least,
                part: "the build".into(),
            },
            error => Self::Graph(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn memory_that_the_system_refuses_is_told_apart() {
        let refused = || TierError::NoMemory {
            what: "a build".into(),
            bytes: 7,
            instead: "build less",
        };
        let rows = DataError::Room {
            name: "x.fbin".into(),
            rows: 3,
            row_bytes: 4,
        };
        for error in [
            Error::from(refused()),
            Error::from(DataError::Memory(refused())),
            Error::from(GraphError::Data(DataError::Memory(refused()))),
            Error::from(rows),
        ] {
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            assert!(!error.is_call_wrong(), "{error}");
            let text = error.to_string();
            assert!(text.contains("the system refused it"), "{text}");
            assert!(text.contains("ulimit -v"), "{text}");
        }
    }

    #[test]
    fn callers_can_tell_what_caused_an_error() {
        let os = |code| {
            Error::from(TierError::io(
                "write",
                "x",
                0,
                1,
                io::Error::from_raw_os_error(code),
            ))
        };
        for (code, kind) in [
            (28, ErrorKind::NoSpace),
            (122, ErrorKind::NoSpace),
            (13, ErrorKind::Denied),
            (2, ErrorKind::NotFound),
            (24, ErrorKind::TooManyFiles),
            (11, ErrorKind::Exhausted),
            (5, ErrorKind::Io),
        ] {
            assert_eq!(os(code).kind(), kind, "{code}");
            let partly = Error::Partly {
                done: 1,
                total: 2,
                given: None,
                source: Box::new(os(code)),
            };
            assert_eq!(partly.kind(), kind, "{code}");
        }
        let given = Error::Partly {
            done: 2,
            total: 5,
            given: Some((7, 8)),
            source: Box::new(Error::Stopped),
        };
        let said = "interrupted; the first 2 of 5 rows are in the index, with ids 7 to 8. Insert the others, whose ids are 9 to 11";
        assert_eq!(given.to_string(), said);
        let set = Error::PartlySet {
            done: 2,
            total: 3,
            source: Box::new(Error::Stopped),
        };
        assert_eq!(set.kind(), ErrorKind::Interrupted);
        let said = "interrupted; the first 2 of 3 rows are set, and stay so. Set the others, or all of them again";
        assert_eq!(set.to_string(), said);
        let short = TierError::Short {
            place: "x".into(),
            offset: 0,
            wanted: 2,
            got: 1,
        };
        assert_eq!(Error::from(short).kind(), ErrorKind::Damaged);
        let log = Error::DamagedLog {
            file: "log-000001".into(),
            offset: 64,
            sequence: 1,
            reason: "its checksum".into(),
            evidence: "there was more".into(),
            missing: 1,
            whole: 0,
            more: false,
        };
        assert_eq!(log.kind(), ErrorKind::Damaged);
        let refused = TierError::NoThread {
            what: "x".into(),
            source: io::Error::from_raw_os_error(11),
        };
        assert!(refused.to_string().contains("ulimit -u"), "{refused}");
        assert_eq!(Error::from(refused).kind(), ErrorKind::Exhausted);
        let undurable = Error::Undurable {
            path: "x".into(),
            source: Box::new(TierError::io(
                "sync",
                "x",
                0,
                0,
                io::Error::from_raw_os_error(5),
            )),
        };
        assert_eq!(undurable.kind(), ErrorKind::Undurable);
        assert_eq!(Error::Interrupted.kind(), ErrorKind::Interrupted);
        let late = Error::DeadlineExceeded;
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
        let argument = Error::call(
            "k",
            0,
            "a search returns at least one result",
            "Pass 1 or more",
        );
        assert_eq!(argument.kind(), ErrorKind::Call);
        let said = "k is 0; a search returns at least one result. Pass 1 or more";
        assert_eq!(argument.to_string(), said);
        let said = format!("row 3: {said}");
        assert_eq!(argument.within("row 3").to_string(), said);
    }
}
