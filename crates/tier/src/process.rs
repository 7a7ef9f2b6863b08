//! Resources that this process uses: resident memory and processor time.

use std::fs;
use std::ops::Range;
use std::time::Duration;

/// The largest resident set in bytes, since [`reset_peak_rss`] or the start; 0 without `/proc`.
pub fn peak_rss_bytes() -> u64 {
    status_kib("VmHWM:") * 1024
}

/// The current resident set in bytes; 0 without `/proc`.
pub fn rss_bytes() -> u64 {
    status_kib("VmRSS:") * 1024
}

/// Restarts the measurement of [`peak_rss_bytes`], if the kernel permits it.
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

/// Releases the memory of code and constants, which the kernel maps again when they are used.
///
/// The kernel maps sixteen pages around each page of code, and they stay in memory. So code that no
/// longer runs takes two megabytes, a fifth of a memory budget of ten megabytes.
pub fn release_code_pages() {
    let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else {
        return;
    };
    let program = release_code_pages as fn() as usize;
    let library = libc::malloc as *const () as usize;
    for constant in constants(&smaps, [program, library]) {
        // SAFETY: `constant` is part of a program or library that is running now, so it is loaded
        // and stays loaded. Its pages are private, of a file, and not writable. `constants` has
        // just checked that this process modified none of its pages, so they equal the file. After
        // the advice, the kernel maps the pages again, with the same bytes, when they are next
        // used. Code is position independent, and pages that the loader relocated count as
        // modified. A thread that patches code at this very moment would lose the patch; no part of
        // this project does that. If the program is locked in memory, the kernel refuses the
        // advice, and no memory is saved.
        unsafe {
            libc::madvise(
                constant.start as *mut _,
                constant.len(),
                libc::MADV_DONTNEED,
            )
        };
    }
}

struct Mapping<'a> {
    at: Range<usize>,
    inode: &'a str,
    is_constant: bool,
    /// Whether the loader relocated pages, or a debugger wrote to them.
    has_own: bool,
}

/// The ranges, in the programs and libraries with `addresses`, whose bytes equal their files. Dirty
/// pages in the page cache do not matter.
fn constants(smaps: &str, addresses: [usize; 2]) -> Vec<Range<usize>> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = Mapping::begins(line) {
            mappings.push(mapping);
            continue;
        }
        let own = (["Anonymous:", "Swap:"].iter()).find_map(|key| line.strip_prefix(key));
        if let (Some(own), Some(mapping)) = (own, mappings.last_mut()) {
            mapping.has_own |= own.trim() != "0 kB";
        }
    }
    // The parts of a library are adjacent. Another mapping of its file may be unmapped at any time.
    mappings
        .chunk_by(|one, next| one.inode == next.inode && one.at.end == next.at.start)
        .filter(|library| {
            (addresses.iter()).any(|at| library.iter().any(|part| part.at.contains(at)))
        })
        .flatten()
        .filter(|part| part.is_constant && !part.has_own)
        .map(|part| part.at.clone())
        .collect()
}

impl<'a> Mapping<'a> {
    fn begins(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let at = address(start)?..address(end)?;
        let [permissions, _, _, inode] =
            [words.next()?, words.next()?, words.next()?, words.next()?];
        Some(Self {
            at,
            inode,
            is_constant: matches!(permissions, "r-xp" | "r--p") && inode != "0",
            has_own: false,
        })
    }
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

    fn code() -> (Range<usize>, u64) {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let here = code as fn() -> (Range<usize>, u64) as usize;
        let is_here =
            |line: &&str| Mapping::begins(line).is_some_and(|code| code.at.contains(&here));
        let mut lines = smaps.lines().skip_while(|line| !is_here(line));
        let code = Mapping::begins(lines.next().unwrap()).unwrap().at;
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kib = rss.trim().trim_end_matches(" kB").parse().unwrap();
        (code, kib)
    }

    #[test]
    fn code_is_mapped_again_when_it_runs() {
        let (code_at, _) = code();
        let read = |page: usize| {
            // SAFETY: an address of this program's code, which can be read as long as the program
            // runs.
            unsafe { std::ptr::read_volatile(page as *const u8) }
        };
        let mut sum = 0u64;
        for page in code_at.clone().step_by(4096) {
            sum += u64::from(read(page));
        }
        let full = code().1;
        release_code_pages();
        let after = code().1;
        std::hint::black_box(sum);
        assert!(
            full >= code_at.len() as u64 / 2048,
            "{full} kB of {code_at:?}"
        );
        // Code that reads the figure, or that other tests run, may be mapped again already.
        assert!(after < full, "{full} kB, then {after}");
    }

    #[test]
    fn only_what_a_file_holds_is_given_back() {
        let entries = [
            ("1000-2000 r--p", "12", "Anonymous: 0 kB\nSwap: 0 kB"),
            ("2000-4000 r-xp", "12", "Anonymous: 0 kB\nSwap: 0 kB"),
            // One page was changed, and the next one was swapped out.
            ("4000-5000 r--p", "12", "Anonymous: 4 kB\nSwap: 0 kB"),
            ("5000-6000 r-xp", "12", "Anonymous: 0 kB\nSwap: 4 kB"),
            ("6000-7000 rw-p", "12", "Anonymous: 0 kB\nSwap: 0 kB"),
            ("7000-8000 r--s", "12", "Anonymous: 0 kB\nSwap: 0 kB"),
            ("8000-9000 r-xp", "0", "Anonymous: 0 kB\nSwap: 0 kB"),
            // These are another mapping of the same file, another library without any of the
            // addresses, and a library with one of them.
            ("a000-b000 r--p", "12", "Anonymous: 0 kB\nSwap: 0 kB"),
            ("b000-c000 r-xp", "13", "Anonymous: 0 kB\nSwap: 0 kB"),
            ("c000-d000 r-xp", "14", "Anonymous: 0 kB\nSwap: 0 kB"),
        ];
        let text = |(begin, inode, facts): &(&str, &str, &str)| {
            format!("{begin} 00000000 fe:01 {inode} /lib/x\nRss: 4 kB\n{facts}\nVmFlags: rd mr\n")
        };
        let smaps: String = entries.iter().map(text).collect();
        let given_back = constants(&smaps, [0x2100, 0xc000]);
        assert_eq!(given_back, [0x1000..0x2000, 0x2000..0x4000, 0xc000..0xd000]);
        assert_eq!(constants("no mappings at all", [0x2100, 0]), []);
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
