//! The errors of places, which are files, folders, regions of memory and servers. [`TierError::io`]
//! maps an error of the operating system to the variant that names its remedy.

use std::io;

use crate::holder::Holder;
use crate::limits::open_files;
use crate::remote::Fault;
use crate::remote::wire::Protocol;

/// A failed operation on a place: a file, a folder, a region of memory or a server.
///
/// ```
/// use stratann_tier::TierError;
/// let full = std::io::Error::from_raw_os_error(28);
/// let error = TierError::io("write", "/data/x.idx/graph", 4096, 8192, full);
/// assert!(error.to_string().contains("no space left"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// An error of the operating system that has no variant of its own.
    #[error("{place}: cannot {action} at byte {offset}: {source}")]
    Io {
        /// The operation: `read`, `write`, `sync`, `open`...
        action: &'static str,
        /// The file's path, or the region's name.
        place: String,
        /// The byte offset in the place; 0 if the operation has no offset.
        offset: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// The device is full.
    #[error("{place}: no space left on the device, or in this user's quota{}. Free space there, for more than this one write", while_writing(*offset, *len))]
    NoSpace {
        /// The file's path.
        place: String,
        /// The byte offset of the write.
        offset: u64,
        /// The number of bytes of the write; 0 if it is unknown.
        len: u64,
    },
    /// A file with several hard links must be copied before a write, but there is no space for the
    /// copy.
    #[error(
        "{place}: no space left for a copy of its {len} bytes, on the device or in this user's quota; the file has other names (hard links, as after a backup by `cp -al`), so inserts write to a copy. Free {len} bytes there, or remove the backup, and then insert again. Meanwhile searches work, and so do deletes while some kB are free for the log"
    )]
    NoSpaceForCopy {
        /// The file's path.
        place: String,
        /// The size of the file in bytes.
        len: u64,
    },
    /// The process has no permission for the operation.
    #[error(
        "{place}: permission denied to {action}. Give this user access to it (chmod, chown, or a volume mounted with write access)"
    )]
    Denied {
        /// The operation.
        action: &'static str,
        /// The file's path.
        place: String,
    },
    /// There is no such file or directory.
    #[error("{place}: cannot {action}; no such file or directory. Check the path")]
    Missing {
        /// The operation.
        action: &'static str,
        /// The file's path.
        place: String,
    },
    /// A read returned fewer bytes than the place had when it was opened.
    #[error(
        "{place}: a read of {wanted} bytes at byte {offset} returned {got}; the file was truncated after it was opened, or the device failed. Run `stratann verify`, then `stratann repair`, or restore a copy"
    )]
    Short {
        /// The file's path, or the region's name.
        place: String,
        /// Byte offset of the read.
        offset: u64,
        /// The number of requested bytes.
        wanted: u64,
        /// The number of bytes that were read.
        got: u64,
    },
    /// A read reaches beyond the end of the place.
    #[error("{place}: bytes {offset}..{} were requested, but {place} has {size} bytes. It is truncated, or the reference to these bytes is damaged. Run `stratann verify`, then `stratann repair`, or restore a copy", u128::from(*offset) + u128::from(*len))]
    OutOfRange {
        /// The file's path, or the region's name.
        place: String,
        /// The offset of the first requested byte.
        offset: u64,
        /// The number of requested bytes.
        len: u64,
        /// The size of the place in bytes.
        size: u64,
    },
    /// A read needs more bytes than one read of the place can return.
    #[error(
        "{place}: {len} bytes at byte {offset} are to be read with the blocks around them; one read has at most {most} bytes. Read them in parts"
    )]
    TooLong {
        /// The file's path, or the region's name.
        place: String,
        /// The offset of the first requested byte.
        offset: u64,
        /// The number of requested bytes.
        len: u64,
        /// The maximum number of bytes of whole blocks.
        most: u64,
    },
    /// The offset or length of a read violates the alignment of the place.
    #[error(
        "{place}: {len} bytes at byte {offset} were requested; offset and length must be multiples of {alignment}, and the length above zero. Read whole blocks"
    )]
    Misaligned {
        /// The file's path, or the region's name.
        place: String,
        /// The offset of the first requested byte.
        offset: u64,
        /// The number of requested bytes.
        len: u64,
        /// Offset and length must be multiples of this number.
        alignment: u32,
    },
    /// The process has reached its limit of open files.
    #[error(
        "{place}: cannot {action}; too many open files (the limit of this process: {limit}). Raise the limit (`ulimit -n 65536` in the shell that starts it, LimitNOFILE in systemd, --ulimit nofile in docker), or open fewer indexes at once"
    )]
    TooManyFiles {
        /// The operation.
        action: &'static str,
        /// The file's path.
        place: String,
        /// The limit.
        limit: String,
    },
    /// The file is not of a kind that may be read or written here.
    #[error(
        "{place}: cannot {action} {found}; each file of an index must be a regular file of its own in the directory of the index. Put such a file there, or copy the index with `cp -rL`"
    )]
    NotPlain {
        /// The operation.
        action: &'static str,
        /// The file's path.
        place: String,
        /// The kind of the file.
        found: String,
    },
    /// The place is no longer the directory or file that was opened.
    #[error("{place}: {what}; nothing more is written to it. Close it, then open the index again")]
    Replaced {
        /// The directory's path.
        place: String,
        /// The difference from the directory or file that was opened.
        what: String,
    },
    /// This process was forked from the process that had opened the place for changes.
    #[error(
        "{place}: opened for changes in process {opener}; process {here} was forked from process {opener}, so its handle writes nothing. When process {opener} has closed the index, open the index again in process {here}, or use spawn instead of fork"
    )]
    Forked {
        /// The path of the file or directory.
        place: String,
        /// The process that opened it.
        opener: u32,
        /// The process that used it.
        here: u32,
    },
    /// Another lock owner uses the index.
    #[error(
        "{place} is in use; {holder}. {}. The lock ends with that handle or process, so do not remove {lock}. Searches need no lock",
        holder.remedy()
    )]
    InUse {
        /// The directory's path.
        place: String,
        /// The lock file's path.
        lock: String,
        /// The lock owner.
        holder: Holder,
    },
    /// Waiting for a socket failed.
    #[error("{place}: cannot wait until it is {what}; {source}")]
    Socket {
        /// The descriptor of the socket.
        place: String,
        /// The event that was waited for: `readable` or `writable`.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A volume belongs to something other than this index.
    #[error(
        "{place}: {what}; an index needs volumes of its own. Pass the volumes on which the index was built, or empty volumes"
    )]
    Taken {
        /// The volume's path.
        place: String,
        /// The owner of the volume.
        what: String,
    },
    /// The place has less free space than the new files need.
    #[error(
        "{place}: {len} bytes are needed there; {free} are free. Free space there, or choose another place"
    )]
    NoRoom {
        /// The folder's path, or the server's name.
        place: String,
        /// The size of the new files in bytes.
        len: u64,
        /// The free space in bytes.
        free: u64,
    },
    /// Other users can read or change the folder, or another user owns the folder.
    #[error(
        "{place}: {what}; copies of an index are stored in a folder that only this user can access. Name a folder of your own, for instance one below it"
    )]
    NotPrivate {
        /// The folder's path.
        place: String,
        /// The fault of the folder.
        what: String,
    },
    /// A copy differs from its original.
    #[error(
        "{copy}: differs from {original} at byte {offset}, after each of {tries} attempts to copy; the original is being changed, or a device is broken. Try again while no process inserts, and run `stratann verify`"
    )]
    Differs {
        /// The copy's path.
        copy: String,
        /// The original's path.
        original: String,
        /// The first byte that differs.
        offset: u64,
        /// The number of copies that were made.
        tries: u32,
    },
    /// A server did not perform the requested operation.
    #[error("{}", server_said(.place, *.protocol, .fault))]
    Server {
        /// The server as `host:port`, or one of its files as `host:port/name`.
        place: String,
        /// The role of the server; `None` if it is not known yet.
        protocol: Option<Protocol>,
        /// The reason.
        fault: Fault,
    },
    /// The system refused memory to this process.
    #[error(
        "{what}: memory of {bytes} bytes; the system refused it. Raise the limit of this process (`ulimit -v`, or the memory of its cgroup), or {instead}"
    )]
    NoMemory {
        /// The purpose of the memory.
        what: String,
        /// The number of bytes that were requested in one piece.
        bytes: u64,
        /// An alternative remedy, as an imperative.
        instead: &'static str,
    },
    /// The system refused to start another thread.
    #[error(
        "cannot start a thread for {what}; {source}. Use fewer threads, or raise the limit of this user (`ulimit -u`) or of the container (pids.max of its cgroup, --pids-limit in docker)"
    )]
    NoThread {
        /// The purpose of the thread.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The machine, the kernel or this build does not support the request.
    #[error("{what} is not available here; {reason}")]
    Unsupported {
        /// The request.
        what: String,
        /// The reason, and an alternative.
        reason: String,
    },
    /// A simulated machine has lost power (see `SimVolume`, feature `testing`).
    #[error("{place}: the simulated machine has crashed")]
    Crashed {
        /// The file's name.
        place: String,
    },
}

fn server_said(place: &str, protocol: Option<Protocol>, fault: &Fault) -> String {
    match (fault, protocol) {
        (Fault::Protocol(_), _) => format!("{place} {fault}"),
        (_, Some(protocol)) => format!("{place}: {} {fault}", protocol.role()),
        (_, None) => format!("{place}: the server {fault}"),
    }
}

impl TierError {
    /// Maps an error of the operating system to the variant that names its remedy.
    pub fn io(
        action: &'static str,
        place: impl Into<String>,
        offset: u64,
        len: u64,
        source: io::Error,
    ) -> Self {
        let place = place.into();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace { place, offset, len },
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Self::Denied { action, place },
            Some(libc::ENOENT) => Self::Missing { action, place },
            Some(libc::EMFILE) => Self::TooManyFiles {
                action,
                place,
                limit: open_files(),
            },
            _ => Self::Io {
                action,
                place,
                offset,
                source,
            },
        }
    }

    /// The place that the error is about: a path, or the name of a region of memory.
    pub fn place(&self) -> &str {
        match self {
            Self::Io { place, .. }
            | Self::NoSpace { place, .. }
            | Self::NoSpaceForCopy { place, .. }
            | Self::Denied { place, .. }
            | Self::Missing { place, .. }
            | Self::Short { place, .. }
            | Self::OutOfRange { place, .. }
            | Self::TooLong { place, .. }
            | Self::Misaligned { place, .. }
            | Self::InUse { place, .. }
            | Self::Taken { place, .. }
            | Self::TooManyFiles { place, .. }
            | Self::NotPlain { place, .. }
            | Self::Replaced { place, .. }
            | Self::Forked { place, .. }
            | Self::Socket { place, .. }
            | Self::NoRoom { place, .. }
            | Self::NotPrivate { place, .. }
            | Self::Server { place, .. }
            | Self::Crashed { place } => place,
            Self::Differs { copy, .. } => copy,
            Self::NoMemory { what, .. }
            | Self::NoThread { what, .. }
            | Self::Unsupported { what, .. } => what,
        }
    }
}

fn while_writing(offset: u64, len: u64) -> String {
    match len {
        0 => String::new(),
        len => format!(", while writing {len} bytes at byte {offset}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_says_how_much_only_where_that_is_known() {
        let full =
            |len| TierError::io("write", "x", 8, len, io::Error::from_raw_os_error(28)).to_string();
        assert!(full(4096).contains("no space left"), "{}", full(4096));
        assert!(full(4096).contains("while writing 4096 bytes at byte 8"));
        assert!(full(0).contains("no space left") && !full(0).contains("bytes"));
        for len in [0, 4096] {
            assert!(full(len).contains("Free space there") && !full(len).contains("at least"));
        }
    }
}
