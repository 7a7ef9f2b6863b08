//! The common code of tests of servers.

use std::time::{Duration, Instant};

use stratann_tier::remote::{Client, Fault, RemoteFile, Server};
use stratann_tier::{ReadQueue, Request, Thread, TierError, next};

pub const MIB: u64 = 1 << 20;

pub fn put(server: &Server, name: &str, bytes: &[u8]) -> RemoteFile {
    let read = |offset: u64, piece: &mut [u8]| {
        piece.copy_from_slice(&bytes[offset as usize..offset as usize + piece.len()]);
        Ok(())
    };
    Client::new(server)
        .put(name, bytes.len() as u64, read)
        .unwrap()
}

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

/// Checks that the error has the server's name as the client knows it.
pub fn fault(error: TierError) -> Fault {
    match error {
        TierError::Server { fault, place, .. } => {
            // Some servers listen at 127.x.y.z.
            assert!(place.contains("127."), "{place}");
            fault
        }
        error => panic!("{error}"),
    }
}
