//! Tests that open an index for reading, while another process opens the same index for changes and
//! closes it.

use std::sync::atomic::{AtomicUsize, Ordering};

use stratann_tier::{LockGuard, Tier, TierError, VolumeFile, VolumeReader};

use super::*;
use crate::Index;
use crate::progress::Silent;

/// A volume that lists a log which a writer removes before the log is read. This happens `times`
/// times.
#[derive(Debug)]
struct Fleeting {
    volume: SimVolume,
    name: &'static str,
    times: AtomicUsize,
}

impl Volume for Fleeting {
    fn name(&self) -> String {
        self.volume.name()
    }
    fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.volume.create(name)
    }
    fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> {
        self.volume.open(name)
    }
    fn read(&self, name: &str) -> Result<Vec<u8>, TierError> {
        self.volume.read(name)
    }
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        self.volume.read_at(name, offset, out)
    }
    fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> {
        self.volume.open_reader(name)
    }
    fn len(&self, name: &str) -> Result<u64, TierError> {
        self.volume.len(name)
    }
    fn open_tier(&self, name: &str) -> Result<Arc<dyn Tier>, TierError> {
        self.volume.open_tier(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), TierError> {
        self.volume.rename(from, to)
    }
    fn remove(&self, name: &str) -> Result<(), TierError> {
        self.volume.remove(name)
    }
    fn list(&self) -> Result<Vec<String>, TierError> {
        let mut names = self.volume.list()?;
        let one_less = |times: usize| times.checked_sub(1);
        let order = Ordering::Relaxed;
        if self.times.fetch_update(order, order, one_less).is_ok() {
            names.push(self.name.to_owned());
            names.sort_unstable();
        }
        Ok(names)
    }
    fn sync(&self) -> Result<(), TierError> {
        Volume::sync(&self.volume)
    }
    fn lock(&self) -> Result<LockGuard, TierError> {
        self.volume.lock()
    }
}

#[test]
fn a_log_that_goes_and_comes_again_meanwhile_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    for times in [1, 2, 5, 9] {
        let home: Arc<dyn Volume> = Arc::new(Fleeting {
            volume: base(PACKED, folder.path()),
            name: "log-000001",
            times: AtomicUsize::new(times),
        });
        let opened = Index::open_from(home, folder.path(), &OpenOptions::default(), &Silent);
        assert_eq!(opened.unwrap().len() as u64, BASE, "{times}");
    }
}

#[test]
fn another_file_that_is_missing_is_an_error_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let volume = base(PACKED, folder.path());
    let gone = volume.list().unwrap();
    let gone = gone.iter().find(|name| name.starts_with("packed"));
    volume.remove(gone.unwrap()).unwrap();
    let opened = Index::open_from(
        Arc::new(volume),
        folder.path(),
        &OpenOptions::default(),
        &Silent,
    );
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Damaged);
}
