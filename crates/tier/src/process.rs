//! What this process has used: resident memory and processor time.

use std::fs;
use std::ops::Range;
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

/// Gives back the memory that this program's code takes; what runs next is mapped again from the page cache as it is run.
///
/// The kernel maps sixteen pages around each one that is run, and never takes them away by itself while there is memory. So the code that
/// read arguments and opened an index goes on counting as this process' memory, about a megabyte of it, beside the code that searches.
/// Where a budget of ten megabytes bounds the whole process, that is a tenth. Does nothing where `/proc` is not mounted.
pub fn release_code_pages() {
    let Ok(maps) = fs::read_to_string("/proc/self/smaps") else {
        return;
    };
    let here = release_code_pages as fn() as usize;
    let mut lines = maps.lines();
    let Some(code) = (lines.by_ref().filter_map(mapping)).find(|code| code.contains(&here)) else {
        return;
    };
    // A debugger's breakpoints, and whatever else was written over code, are pages of this process' own, which would be lost. (Dirty pages are not:
    // those of a program that was compiled just now are, in the page cache.)
    let mut facts = lines.take_while(|line| mapping_of_any(line).is_none());
    let is_own = |line: &str| {
        let keys = ["Anonymous:", "Swap:"];
        let value = keys.iter().find_map(|key| line.strip_prefix(key));
        value.is_some_and(|value| value.trim() != "0 kB")
    };
    if facts.any(is_own) {
        return;
    }
    // SAFETY: `code` is a mapping of this process, private, of a file and not writable (`mapping` sees to it), none of whose pages had been
    // written to just now, so that they hold what the file holds: dropped, they are mapped again, with the same bytes, when they are next run.
    // Code is position independent, and nothing relocates it; who patches it at this very moment loses the patch, which no part of this
    // project does. It stays mapped: a program that runs is never unmapped, nor is a library one of whose functions is running.
    // Refused where the program is locked in memory, which whoever locked it wanted: nothing is lost but the memory.
    unsafe { libc::madvise(code.start as *mut _, code.len(), libc::MADV_DONTNEED) };
}

/// The addresses of a line of `/proc/self/smaps` that begins a mapping.
fn mapping_of_any(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

/// The same, if it is of code: private, not writable, and of a file.
fn mapping(line: &str) -> Option<Range<usize>> {
    let addresses = mapping_of_any(line)?;
    let mut words = line.split_ascii_whitespace().skip(1);
    let [permissions, _, _, inode] = [words.next()?, words.next()?, words.next()?, words.next()?];
    (permissions == "r-xp" && inode != "0").then_some(addresses)
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

    /// How much of this program's code is in memory.
    fn code_kib() -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let here = code_kib as fn() -> u64 as usize;
        let of_code = smaps
            .lines()
            .skip_while(|line| !mapping(line).is_some_and(|code| code.contains(&here)));
        let rss = of_code.filter_map(|line| line.strip_prefix("Rss:")).next();
        rss.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn code_is_mapped_again_when_it_runs() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let here = release_code_pages as fn() as usize;
        let code = maps
            .lines()
            .filter_map(mapping)
            .find(|code| code.contains(&here))
            .unwrap();
        // All code that there is, as a program that did everything would have it.
        let read = |page: usize| {
            // SAFETY: an address of this program's code, which can be read as long as it runs.
            unsafe { std::ptr::read_volatile(page as *const u8) }
        };
        let mut sum = 0u64;
        for page in code.clone().step_by(4096) {
            sum += u64::from(read(page));
        }
        let full = code_kib();
        release_code_pages();
        let after = code_kib();
        std::hint::black_box(sum);
        assert!(full >= code.len() as u64 / 2048, "{full} kB of {code:?}");
        // What reads the figure, and the tests beside this one, are mapped again by then.
        assert!(after < full, "{full} kB, then {after}");
        assert_eq!(mapping("7f00-7f10 rw-p 00000000 fe:01 12 /lib/x"), None);
        assert_eq!(mapping("7f00-7f10 r-xp 00000000 00:00 0 [vdso]"), None);
        assert_eq!(
            mapping("7f00-7f10 r-xp 00000000 fe:01 12 /lib/x"),
            Some(0x7f00..0x7f10)
        );
    }

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
