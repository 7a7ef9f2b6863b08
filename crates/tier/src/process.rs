//! What this process has used: resident memory and processor time.

use std::fs;
use std::time::Duration;

/// The largest resident set since the process began, or since [`reset_peak_rss`], in bytes; 0 where `/proc` is not
/// mounted.
pub fn peak_rss_bytes() -> u64 {
    status_kib("VmHWM:") * 1024
}

/// The resident set now, in bytes; 0 where `/proc` is not mounted.
pub fn rss_bytes() -> u64 {
    status_kib("VmRSS:") * 1024
}

/// Makes [`peak_rss_bytes`] begin anew. Returns whether the kernel permitted it.
pub fn reset_peak_rss() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn status_kib(key: &str) -> u64 {
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return 0;
    };
    status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Processor time that the calling thread has used, user and system.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time that all threads of the process have used, user and system.
pub fn process_cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that outlives the call; the kernel writes nothing else.
    let status = unsafe { libc::clock_gettime(id, &mut time) };
    if status != 0 {
        return Duration::ZERO;
    }
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_counted() {
        let before = thread_cpu_time();
        let bytes = vec![1u8; 64 << 20];
        let sum: u64 = bytes
            .iter()
            .map(|&b| u64::from(std::hint::black_box(b)))
            .sum();
        assert_eq!(sum, 64 << 20);
        assert!(thread_cpu_time() > before);
        assert!(process_cpu_time() >= thread_cpu_time() / 2);
        assert!(peak_rss_bytes() >= 64 << 20);
        assert!(rss_bytes() >= 64 << 20);
    }
}
