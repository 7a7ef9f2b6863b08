//! The common part of tests of servers, for any way to read their files.

use std::time::{Duration, Instant};

use stratann_tier::remote::{Client, Fault, RemoteFile, Server};
use stratann_tier::{ReadQueue, Request, Thread, TierError, next};

pub const MIB: u64 = 1 << 20;

/// Puts a file on a server.
pub fn put(server: &Server, name: &str, bytes: &[u8]) -> RemoteFile {
    let read = |offset: u64, piece: &mut [u8]| {
        piece.copy_from_slice(&bytes[offset as usize..offset as usize + piece.len()]);
        Ok(())
    };
    Client::new(server)
        .put(name, bytes.len() as u64, read)
        .unwrap()
}

/// One read of 4 KiB, and its duration.
pub fn read(
    queue: &mut dyn ReadQueue,
    thread: &Thread,
    offset: u64,
) -> (Result<Vec<u8>, TierError>, Duration) {
    let began = Instant::now();
    let (tag, len) = (7, 4096);
    queue.submit(Request { tag, offset, len }).unwrap();
    let completion = thread.block_on(next(queue));
    assert_eq!(completion.tag, tag);
    (
        completion.result.map(|block| block.to_vec()),
        began.elapsed(),
    )
}

/// The fault of a server on this machine. The error names the server as it was given.
pub fn fault(error: TierError) -> Fault {
    match error {
        TierError::Server { fault, place, .. } => {
            // Some listen at 127.x.y.z, where no other test takes their port while they are away.
            assert!(place.contains("127."), "{place}");
            fault
        }
        error => panic!("{error}"),
    }
}
