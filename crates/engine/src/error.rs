//! What can go wrong, as one contextual type over the small errors of the parts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stratann_codec::CodecError;
use stratann_layout::LayoutError;
use stratann_tier::TierError;
use stratann_tier::remote::Fault;
use stratann_vector::QuantizerError;

use crate::data::DataError;
use crate::graph::GraphError;

/// Any failure of the engine. Its text names what was wrong, with which value, and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that cannot be served.
    #[error("{what} is {found}: expected {expected}")]
    Call {
        /// The argument's name.
        what: String,
        /// The value that was given.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// An argument that does not go with another one.
    #[error("{what} is {found}; {reason}. {remedy}")]
    Unfit {
        /// The argument's name.
        what: String,
        /// The value that was given.
        found: String,
        /// Why it does not.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A filter that cannot be read, or that asks what the index's columns cannot answer.
    #[error("filter{}: {reason}", position.map(|at| format!(", at character {at}")).unwrap_or_default())]
    Filter {
        /// The character of its text at which that is, from 1 on; none of one that was put together of objects.
        position: Option<usize>,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The directory holds no index that opens.
    #[error("{}: not an index: {reason}", path.display())]
    NotAnIndex {
        /// The directory.
        path: PathBuf,
        /// Why, and the remedy.
        reason: String,
    },
    /// A catalog has no index of this name.
    #[error("{}: no index {name:?}: {remedy}", catalog.display())]
    NoSuchIndex {
        /// The catalog's directory.
        catalog: PathBuf,
        /// The name that was asked for.
        name: String,
        /// Which names there are.
        remedy: String,
    },
    /// A build would replace what is there.
    #[error("{}: {reason}", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// What is there, and the remedy.
        reason: String,
    },
    /// The memory budget is below what the work needs.
    #[error(
        "memory budget of {budget} bytes is too small: {needs} bytes are needed for {part}; give at least that much"
    )]
    Memory {
        /// The bytes given.
        budget: u64,
        /// The bytes needed.
        needs: u64,
        /// What needs them.
        part: String,
    },
    /// A catalog whose memory budget has no room for changes of an index beside the indexes that are in use.
    #[error(
        "memory budget of {budget} bytes: no room for {what} beside {others} that are in use, for {} s. Close those that are done with \
         (`index.close()`, or the end of its `with` block; in Rust drop the `LiveIndex`), or open the catalog with {needs} bytes",
        waited.as_secs()
    )]
    Crowded {
        /// The catalog's budget, in bytes.
        budget: u64,
        /// One that has room for all of them, in bytes.
        needs: u64,
        /// What there is no room for.
        what: String,
        /// How many indexes are in use.
        others: usize,
        /// How long others had time to give something back.
        waited: Duration,
    },
    /// Something in an index contradicts itself.
    #[error(
        "{file}: damaged: {what}; run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Damaged {
        /// The file.
        file: String,
        /// What contradicts what.
        what: String,
    },
    /// A log of which records are gone that had been durable.
    #[error(
        "{file}: damaged: its records end at offset {offset} ({reason}) with sequence number {sequence}, and {evidence}: \
         of {missing} records that were there {}{whole} are whole; restore a copy, or run `stratann repair`, which keeps \
         what is whole",
        if *more { "at least " } else { "" }
    )]
    DamagedLog {
        /// The file.
        file: String,
        /// Where the first of them stood, in bytes.
        offset: u64,
        /// Its sequence number.
        sequence: u64,
        /// What is wrong with what stands there.
        reason: String,
        /// How one knows that there was more.
        evidence: String,
        /// How many records from there on were there.
        missing: u64,
        /// How many of these can still be read.
        whole: u64,
        /// Whether there may be more of them: counting was given up.
        more: bool,
    },
    /// An index that another process has changed since it was opened for reading, so that pages are gone that it needs.
    #[error("{}: another process has changed it since it was opened here; open it again (in Python index.refresh())", path.display())]
    Outdated {
        /// The directory.
        path: PathBuf,
    },
    /// An index that changed so fast that nothing of one moment could be copied, exported or measured.
    #[error("{}: {what}. {remedy}", path.display())]
    Restless {
        /// The directory of the index.
        path: PathBuf,
        /// What came in between.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// What was committed, but might not survive a crash of the machine.
    #[error(
        "{}: what was written counts, but nobody knows whether it is durable: {source}; a crash of the machine may bring back what was there before. See to the disk, then open it for changes once, or build it again",
        path.display()
    )]
    Undurable {
        /// The directory.
        path: PathBuf,
        /// The sync that failed.
        source: Box<TierError>,
    },
    /// An index that was built, and of which copies could not be made where they were wanted.
    #[error(
        "{}: built, and whole; but it could not be placed on {places}: {source}; open it with places that it can be on, or with none",
        path.display()
    )]
    NotPlaced {
        /// The directory.
        path: PathBuf,
        /// The places that were asked for.
        places: String,
        /// Why.
        source: Box<Error>,
    },
    /// An index that takes no more changes through this handle. Searches through it go on.
    #[error("{}: takes no more changes through this handle: {reason}; close this handle, then open the index again", path.display())]
    Halted {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A damaged index of which too little can be read.
    #[error(
        "{}: cannot be repaired: {reason}; nothing was changed: restore a copy, or build the index again from its source",
        path.display()
    )]
    Unrepairable {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The caller asked to stop.
    #[error("interrupted; nothing was changed")]
    Interrupted,
    /// A search that was not done by its deadline.
    #[error(
        "the deadline passed before the search was done: give it more time, or ask for less (a shorter list, fewer queries a search)"
    )]
    DeadlineExceeded,
    /// The caller asked to stop work of which a part was done.
    #[error("interrupted")]
    Stopped,
    /// An insert of several batches that ended in the middle.
    #[error("{source}; the first {done} of {total} rows are in{}", others(*given, *total))]
    Partly {
        /// Rows that are in.
        done: usize,
        /// Rows of the call.
        total: usize,
        /// The ids of the first and the last row that are in, where the index gave them.
        given: Option<(u64, u64)>,
        /// What ended it.
        source: Box<Error>,
    },
    /// An insert whose rows are those of one that was cut off, and would be in twice.
    #[error(
        "{file}: an insert of these rows was cut off: the first {done} of {total} are in, with ids {first_id} to {}; go on with it (`--resume`), or forget it and insert all \
         rows (`--no-resume`)",
        first_id.saturating_add(*done as u64).saturating_sub(1)
    )]
    CutOff {
        /// What its rows are called: the path of a file.
        file: String,
        /// Rows that are in, the first ones: 1 or more.
        done: usize,
        /// Its rows.
        total: usize,
        /// The id of the first row; they count on.
        first_id: u64,
    },
    /// A change of attributes that ended in the middle.
    #[error(
        "{source}; the first {done} of {total} rows are set, and stay so: set the others, or all of them again"
    )]
    PartlySet {
        /// Vectors that have what was given for them, the first ones.
        done: usize,
        /// Rows of the call.
        total: usize,
        /// What ended it.
        source: Box<Error>,
    },
    /// A deletion by filter that ended in the middle.
    #[error(
        "{source}; {deleted} of the {matched} vectors that matched are deleted, and stay so: delete by the filter again for the others"
    )]
    PartlyDeleted {
        /// Vectors that this call deleted.
        deleted: u64,
        /// Vectors that matched when it began.
        matched: u64,
        /// What ended it.
        source: Box<Error>,
    },
    /// A vector or ground-truth file.
    #[error(transparent)]
    Data(DataError),
    /// Bytes of an index.
    #[error(transparent)]
    Layout(LayoutError),
    /// The code of a list or a vector, or what it was to be made of.
    #[error("{place}: {source}")]
    Codec {
        /// The file or the node.
        place: String,
        /// What is wrong, and the remedy.
        source: CodecError,
    },
    /// Reading or writing.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// Quantiser training.
    #[error(transparent)]
    Quantizer(#[from] QuantizerError),
    /// Graph construction.
    #[error(transparent)]
    Graph(GraphError),
}

/// What caused an error, for callers that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument that cannot be served.
    Call,
    /// A memory budget that is too small.
    Memory,
    /// There is no index, no file, or none of that name.
    NotFound,
    /// Something is there already.
    Exists,
    /// This user may not.
    Denied,
    /// Another process, or another handle of this one, changes it.
    InUse,
    /// The device, or what this user may have of it, is full.
    NoSpace,
    /// The process has as many files open as it may.
    TooManyFiles,
    /// The system has no thread or no memory left.
    Exhausted,
    /// The caller asked to stop; a part may be done.
    Interrupted,
    /// A search was not done by its deadline.
    DeadlineExceeded,
    /// What was opened is not what is there now: open it again.
    Outdated,
    /// This handle takes no more changes: close it, then open the index again.
    Halted,
    /// What was written counts, but nobody knows whether it survives a crash of the machine.
    Undurable,
    /// Bytes that contradict themselves or each other, or are of a later version.
    Damaged,
    /// A file of vectors that is not what it should be.
    Data,
    /// The device or the system reported anything else.
    Io,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// Of what the operating system said.
    fn of_io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        // Of Linux and the BSDs alike.
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

    /// Of what a tier said.
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
    /// What caused it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Call { .. } | Self::Unfit { .. } | Self::Filter { .. } => ErrorKind::Call,
            Self::NotAnIndex { .. } | Self::NoSuchIndex { .. } => ErrorKind::NotFound,
            Self::Exists { .. } | Self::CutOff { .. } => ErrorKind::Exists,
            Self::Memory { .. } => ErrorKind::Memory,
            Self::Damaged { .. } | Self::DamagedLog { .. } | Self::Unrepairable { .. } => {
                ErrorKind::Damaged
            }
            Self::Layout(_) | Self::Codec { .. } => ErrorKind::Damaged,
            Self::Outdated { .. } => ErrorKind::Outdated,
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

    /// Of what the operating system or a tier said below it, if one did.
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
        expected: impl Into<String>,
    ) -> Self {
        Self::Call {
            what: what.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// What a codec refused, and where.
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

    /// Whether the call itself was wrong (a bad argument), rather than the work having failed.
    pub fn is_call_wrong(&self) -> bool {
        match self {
            Self::Call { .. }
            | Self::Unfit { .. }
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

/// How an insert goes on of which a part is in. Where ids count on, those of the other rows follow.
fn others(given: Option<(u64, u64)>, total: usize) -> String {
    match given {
        Some((first, last)) => format!(
            ", with ids {first} to {last}: insert the others, whose ids are {} to {}",
            last.saturating_add(1),
            first.saturating_add(total as u64).saturating_sub(1)
        ),
        None => ": insert the others, or all of them again with their ids as an upsert".into(),
    }
}

impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Self {
        match error {
            // No file is at fault: somebody gave it.
            LayoutError::Attribute {
                what,
                found,
                expected,
            } => Self::Call {
                what,
                found,
                expected,
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
        let said = "interrupted; the first 2 of 5 rows are in, with ids 7 to 8: insert the others, whose ids are 9 to 11";
        assert_eq!(given.to_string(), said);
        let set = Error::PartlySet {
            done: 2,
            total: 3,
            source: Box::new(Error::Stopped),
        };
        assert_eq!(set.kind(), ErrorKind::Interrupted);
        let said = "interrupted; the first 2 of 3 rows are set, and stay so: set the others, or all of them again";
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
        assert_eq!(Error::call("k", 0, "1").kind(), ErrorKind::Call);
    }
}
