//! Tests of a forked process. This program has a single test, so no other thread runs at the fork:
//! a child inherits locks, but no threads.

use std::fs;

use stratann_tier::testing::forked;
use stratann_tier::{
    BLOCK, Block, Directory, FileTier, IoMode, Request, Thread, Tier, TierError, Volume, next,
};

#[test]
fn a_forked_process_has_what_it_may_have() {
    it_does_not_share_what_a_device_writes_to();
    it_has_no_lock_and_writes_nothing();
    too_many_open_files_raise_the_limit_or_name_it();
}

fn it_does_not_share_what_a_device_writes_to() {
    let root = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = root.path().join("file");
    fs::write(&path, vec![7; 100 * BLOCK]).unwrap();
    let thread = Thread::local(IoMode::Auto).unwrap();
    let tier = FileTier::open(&path).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    for len in [BLOCK, 5 * BLOCK, 65 * BLOCK] {
        let (tag, offset, bytes) = (0, 0, len as u32);
        let request = Request {
            tag,
            offset,
            len: bytes,
        };
        queue.submit(request).unwrap();
        let block = thread.block_on(next(queue.as_mut())).result.unwrap();
        // A device that is still writing must write to the parent's page, so the child sees zeros
        // in a page of its own.
        assert!(forked(300, || block.iter().all(|&byte| byte == 0)), "{len}");
        assert!(block.iter().all(|&byte| byte == 7));
    }
    let own = Block::copy_of(&[7; BLOCK]);
    assert!(
        forked(300, || own.iter().all(|&byte| byte == 7)),
        "the child cannot read the block, although no device writes to it"
    );
}

fn it_has_no_lock_and_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let volume = Directory::open(root.path()).unwrap();
    let guard = volume.lock().unwrap();
    let mut file = volume.create("log-000001").unwrap();
    file.append(b"a").unwrap();
    assert!(forked(300, || {
        let is_forked = |done: Result<(), TierError>| matches!(done, Err(TierError::Forked { .. }));
        is_forked(volume.check_held())
            && is_forked(volume.create("b").map(drop))
            && is_forked(volume.remove("log-000001"))
            && is_forked(file.append(b"b").map(drop))
            && is_forked(file.sync())
            && is_forked(volume.open_pages("log-000001").map(drop))
    }));
    // A child that continues to run, such as a worker of a server, must not keep the lock.
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors that the kernel writes.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child only waits and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: the byte is a local variable; the process ends right after the read.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut byte).cast(), 1);
            libc::_exit(0)
        }
    }
    let has_lock = || {
        let open = fs::read_dir(format!("/proc/{child}/fd")).unwrap();
        open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
            .any(|file| file.ends_with("LOCK"))
    };
    let begun = std::time::Instant::now();
    while has_lock() {
        assert!(
            begun.elapsed().as_secs() < 120,
            "the child has not closed the lock file"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(
        matches!(volume.lock(), Err(TierError::InUse { .. })),
        "the parent has lost the lock"
    );
    volume.check_held().unwrap();
    drop(guard);
    drop(Directory::open(root.path()).unwrap().lock().unwrap());
    // SAFETY: the descriptors and the child belong to this test. The child ends when its pipe is
    // closed.
    unsafe {
        libc::close(ends[1]);
        libc::close(ends[0]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

fn too_many_open_files_raise_the_limit_or_name_it() {
    let root = tempfile::tempdir().unwrap();
    let limit = |soft: u64, hard: Option<u64>| {
        let mut now = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `now` is a local variable. The limit applies to this process, which ends soon.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut now);
            now.rlim_cur = soft;
            now.rlim_max = hard.unwrap_or(now.rlim_max);
            libc::setrlimit(libc::RLIMIT_NOFILE, &now) == 0
        }
    };
    assert!(forked(300, || limit(3, None)
        && Directory::open(root.path()).is_ok()));
    assert!(forked(300, || {
        limit(3, Some(3))
            && Directory::open(root.path()).is_err_and(|error| {
                let text = error.to_string();
                text.contains("ulimit -n") && text.contains("of this process: 3")
            })
    }));
}
