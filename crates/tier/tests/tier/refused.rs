//! Tests of system calls that a sandbox, a file system or an old kernel refuses. Only the system
//! calls of the test's own thread are refused.

use std::process::Command;

use stratann_tier::{
    Backend, Directory, FileTier, IoMode, Request, Thread, Tier, TierError, Volume, next, random,
};

fn without<T: Send>(call: libc::c_long, errno: i32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            refuse(call, errno);
            work()
        });
        thread.join().unwrap()
    })
}

fn refuse(call: libc::c_long, errno: i32) {
    // `over`: the number of statements to skip if a comparison fails.
    let statement = |code: u32, over: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: over,
        k,
    };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            u32::try_from(call).unwrap(),
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the first call takes numbers alone; the second copies the program, which outlives it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn where_a_ring_may_be_made_and_not_entered_the_pool_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![5u8; 8192]).unwrap();
    let tier = FileTier::open(&path).unwrap();
    for errno in [libc::EPERM, libc::ENOSYS] {
        without(libc::SYS_io_uring_enter, errno, || {
            let thread = Thread::local(IoMode::Auto).unwrap();
            assert!(matches!(thread.backend(), Backend::Pread { .. }));
            let mut queue = tier.queue(&thread).unwrap();
            let (tag, offset, len) = (0, 4096, 4096);
            queue.submit(Request { tag, offset, len }).unwrap();
            let block = thread.block_on(next(queue.as_mut())).result.unwrap();
            assert_eq!(block[..], [5u8; 4096]);
            let error = Thread::local(IoMode::Uring).unwrap_err();
            assert!(error.to_string().contains("pread"), "{error}");
        });
    }
}

#[test]
fn where_the_kernel_has_no_call_for_random_numbers_its_device_gives_them() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        let (one, other) = without(libc::SYS_getrandom, errno, || {
            (random::<16>().unwrap(), random::<16>().unwrap())
        });
        assert_ne!(one, other);
    }
}

#[test]
fn a_directory_that_cannot_be_synced_is_used_as_it_is_and_one_whose_sync_fails_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    for (errno, goes_on) in [
        (libc::EINVAL, true),
        (libc::EOPNOTSUPP, true),
        (libc::EIO, false),
        (libc::ENOSPC, false),
    ] {
        let synced = without(libc::SYS_fsync, errno, || directory.sync());
        assert_eq!(synced.is_ok(), goes_on, "{errno}");
    }
}

/// The test runs in a child process, because a process with threads cannot safely change its
/// environment.
#[test]
fn without_locks_it_is_said_what_to_do_and_one_process_may_go_on() {
    const NAME: &str = "refused::without_locks_it_is_said_what_to_do_and_one_process_may_go_on";
    let folder = tempfile::tempdir().unwrap();
    let errors = [libc::ENOLCK, libc::ENOSYS, libc::EOPNOTSUPP];
    if std::env::var("STRATANN_TEST_CHILD").is_ok() {
        for errno in errors {
            let (one, other) = (
                Directory::open(folder.path()).unwrap(),
                Directory::open(folder.path()).unwrap(),
            );
            without(libc::SYS_flock, errno, || {
                let guard = one.lock().unwrap();
                one.check_held().unwrap();
                assert!(matches!(other.lock(), Err(TierError::InUse { .. })));
                drop(guard);
                drop(other.lock().unwrap());
            });
        }
        return;
    }
    for errno in errors {
        let directory = Directory::open(folder.path()).unwrap();
        let error = without(libc::SYS_flock, errno, || directory.lock().map(drop)).unwrap_err();
        let says = error.to_string();
        for part in ["LOCK", "NFS", "STRATANN_LOCK=none"] {
            assert!(says.contains(part), "{says}");
        }
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact"])
        .env("STRATANN_TEST_CHILD", "1")
        .env("STRATANN_LOCK", "none")
        .output()
        .unwrap();
    let says = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && says.contains("1 passed"),
        "{says}"
    );
}
