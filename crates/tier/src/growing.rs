//! Bytes that grow at the end while other threads read them.
//!
//! ```text
//!   0             len               capacity
//!   ├ published ──┼ not yet touched ──┤  len grows (release) after the bytes below it are written;
//!   └ never written again             ┘  readers load it (acquire), and see the bytes below it
//! ```

use std::fmt;
use std::ops::Deref;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::buffer::HugeBytes;
use crate::error::TierError;

/// Bytes that grow at the end while any number of threads read them; on huge pages if possible.
/// Address space is reserved for a capacity, and the system allocates memory at its first write.
/// Published bytes neither change nor move:
///
/// ```
/// use stratann_tier::{GrowingBytes, TierError};
/// let codes = GrowingBytes::filled::<TierError>(2, 5, |bytes| Ok(bytes.fill(7)))?;
/// let before: &[u8] = &codes;
/// assert_eq!(codes.append(&[8, 9]), Some(2));
/// assert_eq!(codes.append(&[1, 2]), None);
/// assert_eq!((before, &codes[..]), (&[7, 7][..], &[7, 7, 8, 9][..]));
/// # Ok::<(), TierError>(())
/// ```
pub struct GrowingBytes {
    /// After readers exist, no code dereferences this region: a dereference would access bytes that
    /// an append writes.
    room: HugeBytes,
    /// The published length. It grows only under the lock `appending`, up to the capacity.
    len: AtomicUsize,
    appending: Mutex<()>,
}

impl GrowingBytes {
    /// Creates `len` bytes, which are zero before `fill`. The capacity is at least `len`.
    pub fn filled<E: From<TierError>>(
        len: usize,
        capacity: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<GrowingBytes, E> {
        let mut room = HugeBytes::with_room(len, capacity.max(len))?;
        fill(&mut room[..len])?;
        Ok(GrowingBytes {
            room,
            len: AtomicUsize::new(len),
            appending: Mutex::new(()),
        })
    }

    /// Appends bytes, and returns their offset. A reader sees all of these bytes or none. If the
    /// capacity is too small, returns `None` and changes nothing. An append never waits for
    /// readers.
    pub fn append(&self, bytes: &[u8]) -> Option<usize> {
        // If a thread panicked under the lock, it had published all of its bytes or none.
        let _turn = self
            .appending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // The length changes only under the lock, which orders this load after the last change.
        let offset = self.len.load(Ordering::Relaxed);
        let end = offset
            .checked_add(bytes.len())
            .filter(|&end| end <= self.capacity())?;
        // SAFETY: offset <= end <= capacity, so [offset, end) lies within the mapping, which is
        // writable and alive as long as self. The pointer belongs to the mapping, not to a shared
        // slice. No other code accesses these bytes: readers get slices up to a published length,
        // which is at most `offset` until the store below; other appends wait for the lock; `room`
        // is not dereferenced any more. So `bytes`, which can be read, does not overlap them, even
        // if it is a slice of self.
        unsafe {
            self.room
                .raw()
                .cast::<u8>()
                .add(offset)
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        // Release: a reader that sees this length sees the bytes.
        self.len.store(end, Ordering::Release);
        Some(offset)
    }

    /// The largest possible length.
    pub fn capacity(&self) -> usize {
        self.room.raw().len()
    }
}

impl Deref for GrowingBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let len = self.len.load(Ordering::Acquire);
        // SAFETY: `len` is at most the capacity, so these bytes lie within the mapping, which is
        // alive as long as self. They are initialised: mapped as zeros, filled or appended. All of
        // them were written before `len` was published (this load acquires the store; `filled` had
        // exclusive access), and none is written again: appends begin at the published length,
        // which never shrinks. The mapping is no larger than isize::MAX, as every mapping.
        unsafe { slice::from_raw_parts(self.room.raw().cast::<u8>().as_ptr(), len) }
    }
}

impl AsRef<[u8]> for GrowingBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for GrowingBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GrowingBytes({} of {} bytes)",
            self.len(),
            self.capacity()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn zeros(len: usize, capacity: usize) -> GrowingBytes {
        GrowingBytes::filled::<TierError>(len, capacity, |_| Ok(())).unwrap()
    }

    /// The bytes in memory. `/proc/self/pagemap` has 64 bits for each page, and the highest bit is
    /// set if the page is in memory.
    fn resident(first: *const u8, bytes: usize) -> usize {
        use std::os::unix::fs::FileExt;
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut said = vec![0; bytes / 4096 * 8];
        pages
            .read_exact_at(&mut said, (first as u64) / 4096 * 8)
            .unwrap();
        4096 * said.chunks(8).filter(|page| page[7] & 0x80 != 0).count()
    }

    #[test]
    fn what_is_not_written_takes_no_memory() {
        let (len, capacity) = ((2 << 20) + 5_000, 16 << 20);
        let bytes = GrowingBytes::filled::<TierError>(len, capacity, |bytes| {
            bytes.fill(1);
            Ok(())
        })
        .unwrap();
        let taken = resident(bytes.as_ptr(), capacity);
        assert!(taken >= len, "{taken} bytes in memory for {len}");
        assert!(taken < len + 8192, "{taken} bytes in memory for {len}");
    }

    #[test]
    fn appends_go_to_the_end_until_there_is_no_room() {
        let bytes = GrowingBytes::filled::<TierError>(3, 10, |bytes| {
            assert_eq!(bytes, [0; 3]);
            bytes.copy_from_slice(b"abc");
            Ok(())
        })
        .unwrap();
        assert_eq!((bytes.len(), bytes.capacity()), (3, 10));
        let before: &[u8] = &bytes;
        assert_eq!(bytes.append(b"defg"), Some(3));
        assert_eq!(bytes.append(b"hijk"), None);
        assert_eq!(&bytes[..], b"abcdefg", "a refused append changed the bytes");
        assert_eq!(
            bytes.append(&bytes[1..4]),
            Some(7),
            "an append of a part of itself failed"
        );
        assert_eq!(bytes.append(b"x"), None);
        assert_eq!(bytes.append(b""), Some(10));
        assert_eq!(bytes.as_ref(), b"abcdefgbcd");
        assert_eq!(before, b"abc");
        assert_eq!(before.as_ptr(), bytes.as_ptr(), "the bytes were moved");
        assert_eq!(format!("{bytes:?}"), "GrowingBytes(10 of 10 bytes)");
    }

    #[test]
    fn any_capacity_and_errors() {
        for (len, capacity) in [(0, 0), (0, 1), (5, 5), (5, 0), (4097, 3 << 20)] {
            let bytes = zeros(len, capacity);
            assert_eq!((bytes.len(), bytes.capacity()), (len, capacity.max(len)));
            let room = bytes.capacity() - len;
            assert_eq!(bytes.append(&vec![1; room + 1]), None);
            assert_eq!(bytes.append(&vec![1; room]), Some(len));
            assert!(bytes[..len].iter().all(|&b| b == 0) && bytes[len..].iter().all(|&b| b == 1));
        }
        let refused = GrowingBytes::filled::<TierError>(0, 1 << 60, |_| panic!("has no room"));
        assert!(matches!(refused, Err(TierError::NoMemory { bytes, .. }) if bytes == 1 << 60));

        #[derive(Debug)]
        struct Mine;
        impl From<TierError> for Mine {
            fn from(error: TierError) -> Mine {
                panic!("{error}")
            }
        }
        assert!(matches!(
            GrowingBytes::filled(1, 2, |_| Err(Mine)),
            Err(Mine)
        ));
    }

    /// Every record repeats one number, so that the test notices a partly written record.
    #[test]
    fn threads_that_read_see_whole_records_while_one_appends() {
        const RECORD: usize = 37;
        const RECORDS: usize = if cfg!(miri) { 60 } else { 60_000 };
        let value = |record: usize| (record % 251 + 1) as u8;
        let check = |bytes: &[u8], from: usize| {
            assert!(
                bytes.len().is_multiple_of(RECORD),
                "a reader sees a part of an append"
            );
            for (i, record) in bytes.chunks(RECORD).enumerate().skip(from) {
                assert!(record.iter().all(|&b| b == value(i)), "record {i}");
            }
            bytes.len() / RECORD
        };
        let bytes = zeros(0, RECORDS * RECORD);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !done.load(Ordering::Acquire) {
                        let now = check(&bytes, seen);
                        assert!(now >= seen, "the length became smaller");
                        seen = now;
                    }
                    assert_eq!(check(&bytes, 0), RECORDS);
                });
            }
            for record in 0..RECORDS {
                assert_eq!(
                    bytes.append(&[value(record); RECORD]),
                    Some(record * RECORD)
                );
            }
            done.store(true, Ordering::Release);
        });
    }

    #[test]
    fn threads_that_append_exclude_one_another() {
        const THREADS: usize = 4;
        const EACH: usize = if cfg!(miri) { 20 } else { 5_000 };
        const RECORD: usize = 5;
        let bytes = zeros(0, (THREADS * EACH - 1) * RECORD);
        let (shared, refused) = (&bytes, &AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..THREADS {
                scope.spawn(move || {
                    let mine = [number as u8; RECORD];
                    for _ in 0..EACH {
                        match shared.append(&mine) {
                            Some(at) => assert_eq!(shared[at..at + RECORD], mine),
                            None => _ = refused.fetch_add(1, Ordering::Relaxed),
                        }
                    }
                });
            }
        });
        assert_eq!(refused.load(Ordering::Relaxed), 1);
        assert_eq!(bytes.len(), bytes.capacity());
        for record in bytes.chunks(RECORD) {
            assert!(record.iter().all(|&b| b == record[0]));
        }
    }

    #[test]
    fn it_can_be_sent_and_shared() {
        fn shared<T: Send + Sync + 'static>(_: &T) {}
        shared(&zeros(1, 2));
    }
}
