//! Tests of every tier and volume of this crate against the rules of their traits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stratann_tier::testing::conformance::{conformance, conformance_volume};
use stratann_tier::testing::{Fault, Faults, Faulty, Meter, SimVolume, Slow, SplitVolume};
use stratann_tier::{
    BLOCK, Device, DeviceKind, Directory, DramTier, FileTier, IoMode, MappedTier, MemoryVolume,
    ModelledTier, ModelledVolume, Tier, Volume, bytewise,
};
use tempfile::TempDir;

/// A folder outside of /tmp. Direct reads are not possible in memory, where /tmp often is.
fn disk() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn file(directory: &Path, bytes: &[u8]) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let path = directory.join(format!("file-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_file_through_the_ring() {
    let directory = disk();
    conformance(
        &|bytes| Arc::new(FileTier::open(file(directory.path(), bytes)).unwrap()),
        IoMode::Auto,
    );
}

#[test]
fn a_file_through_the_pool() {
    let directory = disk();
    conformance(
        &|bytes| Arc::new(FileTier::open(file(directory.path(), bytes)).unwrap()),
        IoMode::Pread,
    );
}

#[test]
fn a_file_to_the_byte() {
    let directory = disk();
    for io in [IoMode::Auto, IoMode::Pread] {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            let tier = bytewise(Arc::new(
                FileTier::open(file(directory.path(), bytes)).unwrap(),
            ));
            assert_eq!(tier.alignment(), 1);
            tier
        };
        conformance(&make, io);
    }
    let dram: Arc<dyn Tier> = Arc::new(DramTier::new(vec![1; 10]));
    assert!(Arc::ptr_eq(&bytewise(dram.clone()), &dram));
}

#[test]
fn a_file_in_memory_that_refuses_direct_reads() {
    let Ok(directory) = TempDir::new_in("/dev/shm") else {
        return; // Not every machine has /dev/shm.
    };
    for io in [IoMode::Auto, IoMode::Pread] {
        conformance(
            &|bytes| Arc::new(FileTier::open(file(directory.path(), bytes)).unwrap()),
            io,
        );
    }
}

#[test]
fn dram() {
    conformance(
        &|bytes| Arc::new(DramTier::new(bytes.to_vec())),
        IoMode::Auto,
    );
}

#[test]
fn a_mapped_file() {
    let directory = disk();
    conformance(
        &|bytes| Arc::new(MappedTier::open(file(directory.path(), bytes)).unwrap()),
        IoMode::Auto,
    );
}

#[test]
fn memory_that_answers_as_a_device_does() {
    for kind in DeviceKind::ALL {
        let device = Device::new(kind.name(), kind.model());
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            let memory = Arc::new(DramTier::new(bytes.to_vec()));
            Arc::new(ModelledTier::new(memory, device.clone()))
        };
        conformance(&make, IoMode::Auto);
    }
}

#[test]
fn a_file_that_answers_as_a_device_does_is_read_in_any_order_and_answers_in_one() {
    let directory = disk();
    let device = Device::new("nvm", DeviceKind::Nvm.model());
    for io in [IoMode::Auto, IoMode::Pread] {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            let tier = Arc::new(FileTier::open(file(directory.path(), bytes)).unwrap());
            Arc::new(ModelledTier::new(tier, device.clone()))
        };
        conformance(&make, io);
    }
}

#[test]
fn a_metered_file() {
    let directory = disk();
    for wrap in [Meter::new, Meter::timed] {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            Arc::new(wrap(Arc::new(
                FileTier::open(file(directory.path(), bytes)).unwrap(),
            )))
        };
        conformance(&make, IoMode::Auto);
    }
}

#[test]
fn any_order() {
    let slow = Faults::none().randomly(0.2, 1, Fault::Delay(5));
    let orders = [
        Faults::none(),
        slow.clone(),
        Faults::none().random_order(1),
        slow.random_order(2),
        Faults::none().scripted_order(&[3, 0, 7, 1]),
        Faults::none().scripted_order(&[usize::MAX]),
    ];
    for faults in orders {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            Arc::new(Faulty::new(Arc::new(DramTier::new(bytes)), faults.clone()))
        };
        conformance(&make, IoMode::Pread);
    }
}

#[test]
fn any_order_of_a_file() {
    let directory = disk();
    let make = |bytes: &[u8]| -> Arc<dyn Tier> {
        let tier = FileTier::open(file(directory.path(), bytes)).unwrap();
        Arc::new(Faulty::new(Arc::new(tier), Faults::none().random_order(3)))
    };
    conformance(&make, IoMode::Auto);
}

#[test]
fn a_simulated_file() {
    let make = |bytes: &[u8]| {
        let volume = SimVolume::new();
        volume.create("x").unwrap().write_at(0, bytes).unwrap();
        volume.open_tier("x").unwrap()
    };
    conformance(&make, IoMode::Auto);
}

#[test]
fn a_directory() {
    let root = disk();
    let number = AtomicUsize::new(0);
    conformance_volume(&|| {
        let path = root.path().join(format!(
            "deep/down-{}",
            number.fetch_add(1, Ordering::Relaxed)
        ));
        Arc::new(Directory::create(path).unwrap())
    });
}

#[test]
fn a_directory_in_memory() {
    let Ok(root) = TempDir::new_in("/dev/shm") else {
        return; // Not every machine has /dev/shm.
    };
    let number = AtomicUsize::new(0);
    conformance_volume(&|| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        Arc::new(Directory::create(root.path().join(number.to_string())).unwrap())
    });
}

#[test]
fn a_simulated_volume() {
    conformance_volume(&|| Arc::new(SimVolume::new()));
}

fn directories(root: &TempDir) -> impl Fn() -> Directory {
    let number = AtomicUsize::new(0);
    move || {
        let number = number.fetch_add(1, Ordering::Relaxed).to_string();
        Directory::create(root.path().join(number)).unwrap()
    }
}

#[test]
fn a_directory_whose_files_are_mapped_or_copied() {
    let root = disk();
    let new = directories(&root);
    let volumes: [&dyn Fn() -> Arc<dyn Volume>; 3] = [
        &|| Arc::new(MemoryVolume::mapped(new())),
        &|| Arc::new(MemoryVolume::copied(Arc::new(new()))),
        &|| Arc::new(MemoryVolume::copied(Arc::new(SimVolume::new()))),
    ];
    for make in volumes {
        conformance_volume(make);
        let tier = |bytes: &[u8]| {
            let volume = make();
            volume.create("x").unwrap().append(bytes).unwrap();
            volume.open_tier("x").unwrap()
        };
        conformance(&tier, IoMode::Auto);
    }
}

#[test]
fn a_volume_on_a_modelled_device() {
    let root = disk();
    let new = directories(&root);
    let device = Device::new("cxl", DeviceKind::Cxl.model());
    conformance_volume(&|| {
        let memory = MemoryVolume::copied(Arc::new(new()));
        Arc::new(ModelledVolume::new(Arc::new(memory), device.clone()))
    });
}

fn split(home: Arc<dyn Volume>, others: [Arc<dyn Volume>; 2]) -> Arc<dyn Volume> {
    let route = |name: &str| match name {
        "a" | "blocks" => Some(0),
        "pages" | "other" => Some(1),
        "b" => Some(2), // There is no volume of this number.
        _ => None,
    };
    Arc::new(SplitVolume::new(home, others.into(), Box::new(route)))
}

#[test]
fn several_volumes_as_one() {
    let root = disk();
    let new = directories(&root);
    conformance_volume(&|| {
        let memory = MemoryVolume::copied(Arc::new(new()));
        let mapped = MemoryVolume::mapped(new());
        let volume = split(Arc::new(new()), [Arc::new(memory), Arc::new(mapped)]);
        drop(volume.lock().unwrap());
        volume
    });
    conformance_volume(&|| {
        let join = |disks: &[SimVolume]| {
            let [home, one, other] = [0, 1, 2].map(|n| Arc::new(disks[n].clone()));
            split(home, [one, other])
        };
        let volume = SimVolume::joined(3, join);
        drop(volume.lock().unwrap());
        Arc::new(volume)
    });
}

/// If the suite accepted such a tier, a passed suite would prove nothing.
#[test]
fn the_suite_finds_a_bad_tier() {
    let wrong = [
        Faults::none().at_read(100, Fault::Flip(12345)),
        Faults::none().at_read(100, Fault::Error(5)),
        Faults::none().in_range(0..BLOCK as u64, Fault::Short(100)),
    ];
    for faults in wrong {
        let make = |bytes: &[u8]| -> Arc<dyn Tier> {
            Arc::new(Faulty::new(Arc::new(DramTier::new(bytes)), faults.clone()))
        };
        let outcome = std::panic::catch_unwind(|| conformance(&make, IoMode::Pread));
        let message = *outcome.unwrap_err().downcast::<String>().unwrap();
        assert!(message.starts_with("rule: every block"), "{message}");
    }
}

#[test]
fn a_slow_tier() {
    let latency = Duration::from_micros(200);
    conformance(
        &|bytes| Arc::new(Slow::new(Arc::new(DramTier::new(bytes.to_vec())), latency)),
        IoMode::Auto,
    );
}
