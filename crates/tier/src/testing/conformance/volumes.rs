//! The rules for volumes.

use std::sync::Arc;

use super::pattern;
use crate::BLOCK;
use crate::backend::IoMode;
use crate::error::TierError;
use crate::executor::Thread;
use crate::tier::{Request, next};
use crate::volume::Volume;

/// Checks a volume. `make` returns a new, empty volume.
///
/// # Panics
/// Panics with the name of a broken rule.
pub fn conformance_volume(make: &dyn Fn() -> Arc<dyn Volume>) {
    let volume = make();
    files(volume.as_ref());
    names(volume.as_ref());
    tiers(volume.as_ref());
    locks(volume.as_ref());
    pages(volume.as_ref());
}

fn files(volume: &dyn Volume) {
    let rule = "rule: reads return the written bytes";
    let fail = |error: TierError| -> ! { panic!("{rule}: {error}") };
    let mut file = volume.create("a").unwrap_or_else(|e| fail(e));
    assert!(file.is_empty(), "{rule}: a new file is not empty");
    file.write_at(10, b"world").unwrap_or_else(|e| fail(e));
    file.write_at(2, b"hello").unwrap_or_else(|e| fail(e));
    let end = file.append(b"!").unwrap_or_else(|e| fail(e));
    assert!(
        end == 15 && file.len() == 16,
        "{rule}: an append did not write at the end"
    );
    let right = b"\0\0hello\0\0\0world!".to_vec();
    assert!(
        volume.read("a").unwrap_or_else(|e| fail(e)) == right,
        "{rule}: a gap between writes is not zero"
    );
    file.sync().unwrap_or_else(|e| fail(e));
    file.set_len(4).unwrap_or_else(|e| fail(e));
    file.set_len(6).unwrap_or_else(|e| fail(e));
    assert!(
        volume.read("a").unwrap_or_else(|e| fail(e)) == b"\0\0he\0\0",
        "{rule}: a truncated file does not end at its new length"
    );
    assert!(
        volume.len("a").unwrap_or_else(|e| fail(e)) == 6
            && volume.exists("a").is_ok_and(|there| there)
            && volume.exists("none").is_ok_and(|there| !there),
        "{rule}: len() or exists() is wrong"
    );
    drop(file);
    let mut file = volume.open("a").unwrap_or_else(|e| fail(e));
    assert!(
        file.len() == 6,
        "{rule}: a file changed its length when it was opened"
    );
    file.append(b"x").unwrap_or_else(|e| fail(e));
    assert!(
        volume.read("a").unwrap_or_else(|e| fail(e)) == b"\0\0he\0\0x",
        "{rule}: an opened file cannot be appended to"
    );
    drop(volume.create("a").unwrap_or_else(|e| fail(e)));
    assert!(
        volume.read("a").unwrap_or_else(|e| fail(e)).is_empty(),
        "{rule}: a new file with the name of an older file is not empty"
    );
}

fn names(volume: &dyn Volume) {
    let rule =
        "rule: names are flat, a rename replaces an older file, and a missing file is Missing";
    let fail = |error: TierError| -> ! { panic!("{rule}: {error}") };
    for name in ["", ".", "..", "x/y", "/etc/passwd", "a\0b"] {
        assert!(
            volume.create(name).is_err() && volume.read(name).is_err(),
            "{rule}: the name {name:?} was accepted"
        );
    }
    for name in ["c", "b"] {
        let mut file = volume.create(name).unwrap_or_else(|e| fail(e));
        file.append(name.as_bytes()).unwrap_or_else(|e| fail(e));
        file.sync().unwrap_or_else(|e| fail(e));
    }
    volume.sync().unwrap_or_else(|e| fail(e));
    let list = || volume.list().unwrap_or_else(|e| fail(e));
    assert!(
        list() == ["a", "b", "c"],
        "{rule}: the list of files is not sorted and complete: {:?}",
        list()
    );
    volume.rename("b", "c").unwrap_or_else(|e| fail(e));
    assert!(
        volume.read("c").unwrap_or_else(|e| fail(e)) == b"b",
        "{rule}: the renamed file has other bytes than before"
    );
    assert!(
        list() == ["a", "c"],
        "{rule}: after the rename the list of files is {:?}",
        list()
    );
    volume.remove("c").unwrap_or_else(|e| fail(e));
    let answers = [
        volume.read("c").err(),
        volume.len("c").err(),
        volume.open("c").err(),
        volume.open_tier("c").err(),
        volume.rename("c", "d").err(),
        volume.remove("c").err(),
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        assert!(
            matches!(&answer, Some(TierError::Missing { place, .. }) if place.ends_with("/c")),
            "{rule}: operation {number} on a missing file returned {answer:?}"
        );
    }
}

fn tiers(volume: &dyn Volume) {
    let rule = "rule: a tier reads the file on which it was opened, even if the file is renamed or removed";
    let fail = |error: TierError| -> ! { panic!("{rule}: {error}") };
    let bytes = pattern(4 * BLOCK);
    let mut file = volume.create("pages").unwrap_or_else(|e| fail(e));
    file.append(&bytes).unwrap_or_else(|e| fail(e));
    let tier = volume.open_tier("pages").unwrap_or_else(|e| fail(e));
    assert!(
        tier.len() == bytes.len() as u64,
        "{rule}: the tier does not have the length of the file"
    );
    drop(volume.create("other").unwrap_or_else(|e| fail(e)));
    volume.rename("other", "pages").unwrap_or_else(|e| fail(e));
    let thread = Thread::local(IoMode::Auto).unwrap_or_else(|e| fail(e));
    let mut queue = tier.queue(&thread).unwrap_or_else(|e| fail(e));
    queue
        .submit(Request {
            tag: 0,
            offset: BLOCK as u64,
            len: 2 * BLOCK as u32,
        })
        .unwrap_or_else(|e| fail(e));
    let block = thread
        .block_on(next(queue.as_mut()))
        .result
        .unwrap_or_else(|e| fail(e));
    assert!(
        block[..] == bytes[BLOCK..3 * BLOCK],
        "{rule}: the read returned other bytes"
    );
    file.set_len(BLOCK as u64).unwrap_or_else(|e| fail(e));
    queue
        .submit(Request {
            tag: 0,
            offset: 2 * BLOCK as u64,
            len: BLOCK as u32,
        })
        .unwrap_or_else(|e| fail(e));
    let answer = thread.block_on(next(queue.as_mut())).result;
    assert!(
        matches!(answer, Err(TierError::Short { .. })),
        "{rule}: a truncated file gave {answer:?} instead of Short"
    );
}

fn locks(volume: &dyn Volume) {
    let rule = "rule: a volume has one lock at a time, and dropping the lock releases it";
    let guard = volume
        .lock()
        .unwrap_or_else(|error| panic!("{rule}: {error}"));
    let second = volume.lock();
    assert!(
        matches!(second, Err(TierError::InUse { .. })),
        "{rule}: a second lock gave {second:?} instead of InUse"
    );
    assert!(
        volume
            .list()
            .is_ok_and(|list| !list.iter().any(|name| name == "LOCK")),
        "{rule}: the lock file is in the list of files"
    );
    drop(guard);
    drop(
        volume
            .lock()
            .unwrap_or_else(|error| panic!("{rule}: {error}")),
    );
}

fn pages(volume: &dyn Volume) {
    let rule = "rule: bytes written to the pages of a file are read back, through the pages and through a tier";
    let fail = |error: TierError| -> ! { panic!("{rule}: {error}") };
    let missing = volume.open_pages("none");
    assert!(
        matches!(missing, Err(TierError::Missing { .. })) && volume.open_pages("../x").is_err(),
        "rule: `open_pages` refuses a missing file (`Missing`) and a name outside the volume; a missing file gave {missing:?}"
    );
    let mut right = pattern(8 * BLOCK);
    let mut file = volume.create("blocks").unwrap_or_else(|e| fail(e));
    file.append(&right).unwrap_or_else(|e| fail(e));
    drop(file);
    let tier = volume.open_tier("blocks").unwrap_or_else(|e| fail(e));
    let thread = Thread::local(IoMode::Auto).unwrap_or_else(|e| fail(e));
    let mut queue = tier.queue(&thread).unwrap_or_else(|e| fail(e));
    let mut file = volume.open_pages("blocks").unwrap_or_else(|e| fail(e));
    assert!(
        file.len() == right.len() as u64,
        "{rule}: a file changed its length when it was opened"
    );
    let writes = [
        (2 * BLOCK, BLOCK),
        (5 * BLOCK, 2 * BLOCK),
        (3 * BLOCK - 7, 20),
        (6 * BLOCK + 1, 1),
        (3 * BLOCK, BLOCK),
        (0, 0),
    ];
    for (number, (offset, len)) in writes.into_iter().enumerate() {
        let bytes = vec![number as u8 + 1; len];
        file.write_at(offset as u64, &bytes)
            .unwrap_or_else(|e| fail(e));
        right[offset..offset + len].copy_from_slice(&bytes);
        let mut read = vec![0; right.len()];
        volume
            .read_at("blocks", 0, &mut read)
            .unwrap_or_else(|e| fail(e));
        assert!(read == right, "{rule}: write {number} was not read");
        queue
            .submit(Request {
                tag: 0,
                offset: 0,
                len: right.len() as u32,
            })
            .unwrap_or_else(|e| fail(e));
        let block = thread
            .block_on(next(queue.as_mut()))
            .result
            .unwrap_or_else(|e| fail(e));
        assert!(
            block[..] == right[..],
            "{rule}: write {number} did not reach a tier"
        );
    }
    file.write_at(10 * BLOCK as u64, &[9; BLOCK])
        .unwrap_or_else(|e| fail(e));
    right.resize(10 * BLOCK, 0);
    right.resize(11 * BLOCK, 9);
    let end = file.append(b"tail").unwrap_or_else(|e| fail(e));
    right.extend(b"tail");
    assert!(
        end == 11 * BLOCK as u64 && file.len() == right.len() as u64,
        "{rule}: an append did not write at the end"
    );
    file.sync().unwrap_or_else(|e| fail(e));
    assert!(
        volume.read("blocks").unwrap_or_else(|e| fail(e)) == right,
        "{rule}: a gap between writes is not zero"
    );
    file.set_len(BLOCK as u64 + 5).unwrap_or_else(|e| fail(e));
    file.set_len(3 * BLOCK as u64).unwrap_or_else(|e| fail(e));
    right.truncate(BLOCK + 5);
    right.resize(3 * BLOCK, 0);
    assert!(
        volume.read("blocks").unwrap_or_else(|e| fail(e)) == right
            && volume.len("blocks").unwrap_or_else(|e| fail(e)) == file.len(),
        "{rule}: a truncated file does not end at its new length"
    );
}
