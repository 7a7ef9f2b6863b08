//! Tests of copies of files in a folder.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_tier::testing::conformance::{conformance, conformance_volume};
use stratann_tier::{
    CopyFolder, Directory, IoMode, Kept, LoadedVolume, MirrorVolume, ReadBy, Request, RoutedVolume,
    Thread, Tier, TierError, Volume, next,
};
use tempfile::TempDir;

fn root() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn home(root: &TempDir) -> Directory {
    Directory::create(root.path().join("home")).unwrap()
}

fn mirror(
    home: &Directory,
    place: &Path,
    content: &str,
    kept: Kept,
    read_by: ReadBy,
) -> MirrorVolume {
    let folder = CopyFolder::open(place, "me", content, kept).unwrap();
    MirrorVolume::new(Arc::new(home.clone()), folder, read_by)
}

fn first_block(tier: &dyn Tier) -> Vec<u8> {
    let thread = Thread::local(IoMode::Auto).unwrap();
    let mut queue = tier.queue(&thread).unwrap();
    let (tag, offset, len) = (0, 0, 4096);
    queue.submit(Request { tag, offset, len }).unwrap();
    thread
        .block_on(next(queue.as_mut()))
        .result
        .unwrap()
        .to_vec()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| !path.ends_with("IN-USE")).collect();
    files.sort();
    files
}

#[test]
fn what_is_read_is_the_copy() {
    for read_by in [ReadBy::Mapping, ReadBy::Device] {
        let root = root();
        let home = home(&root);
        home.create("pages-1").unwrap().append(&[1; 8192]).unwrap();
        let place = root.path().join("place");
        let volume = mirror(&home, &place, "1", Kept::ForOthers, read_by);
        let tier = volume.open_tier("pages-1").unwrap();
        assert_eq!(first_block(&*tier), [1; 4096]);
        let folder = place.join("stratann-me-1");
        assert_eq!(files(&folder), [folder.join("pages-1")]);
        let there = folder.join("pages-1");
        assert!(tier.name().starts_with(there.to_str().unwrap()));
        home.open("pages-1")
            .unwrap()
            .write_at(0, &[9; 4096])
            .unwrap();
        drop(volume);
        let again = mirror(&home, &place, "1", Kept::ForOthers, read_by);
        fs::write(folder.join("pages-1"), [3; 8192]).unwrap();
        let tier = again.open_tier("pages-1").unwrap();
        assert_eq!(
            first_block(&*tier),
            [3; 4096],
            "a complete copy was made again"
        );
        assert_eq!(again.read("pages-1").unwrap(), [3; 8192]);
        let error = again.open("pages-1").unwrap_err();
        assert!(
            error.to_string().contains("kept for other processes"),
            "{error}"
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&place), 0o700);
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join("pages-1")), 0o600);
        assert_eq!(mode(&folder.join("IN-USE")), 0o600);
    }
}

#[test]
fn a_copy_that_was_made_half_way_is_not_believed() {
    let root = root();
    let home = home(&root);
    home.create("pages-1").unwrap().append(&[1; 8192]).unwrap();
    let place = root.path().join("place");
    drop(mirror(&home, &place, "1", Kept::ForOthers, ReadBy::Mapping));
    let folder = place.join("stratann-me-1");
    fs::write(folder.join("pages-1.copy-1-0"), [5; 8192]).unwrap();
    fs::write(folder.join("pages-1"), [5; 4096]).unwrap();
    let volume = mirror(&home, &place, "1", Kept::ForOthers, ReadBy::Mapping);
    assert_eq!(
        files(&folder),
        [folder.join("pages-1")],
        "an unfinished copy was not removed"
    );
    let tier = volume.open_tier("pages-1").unwrap();
    assert_eq!(first_block(&*tier), [1; 4096]);
    assert_eq!(fs::read(folder.join("pages-1")).unwrap(), [1; 8192]);
}

#[test]
fn others_copies_stay_while_they_are_used_and_go_when_nobody_does() {
    let root = root();
    let home = home(&root);
    home.create("pages-1").unwrap().append(&[1; 8192]).unwrap();
    let place = root.path().join("place");
    let old = mirror(&home, &place, "1", Kept::ForOthers, ReadBy::Device);
    old.open_tier("pages-1").unwrap();
    let (first, second) = (place.join("stratann-me-1"), place.join("stratann-me-2"));
    let other = CopyFolder::open(&place, "you", "1", Kept::ForOthers).unwrap();
    drop(other);
    // Two handles to one folder. Neither removes an unfinished copy of the other.
    fs::write(first.join("pages-2.copy-1-0"), [5; 8192]).unwrap();
    let twice = mirror(&home, &place, "1", Kept::ForOthers, ReadBy::Device);
    assert!(first.join("pages-2.copy-1-0").exists());
    drop(twice);
    let new = mirror(&home, &place, "2", Kept::ForOthers, ReadBy::Device);
    assert!(
        first.join("pages-1").exists(),
        "a copy that is in use was removed"
    );
    drop((old, new));
    drop(mirror(&home, &place, "2", Kept::ForOthers, ReadBy::Device));
    assert!(!first.exists() && second.exists());
    assert!(
        place.join("stratann-you-1").exists(),
        "the copy of another owner was removed"
    );
    let live = mirror(&home, &place, "live1", Kept::ForNow, ReadBy::Mapping);
    live.open_tier("pages-1").unwrap();
    assert!(place.join("stratann-me-live1/pages-1").exists());
    drop(live);
    assert!(!place.join("stratann-me-live1").exists());
    fs::create_dir(place.join("stratann-me-live2")).unwrap();
    fs::set_permissions(
        place.join("stratann-me-live2"),
        Permissions::from_mode(0o700),
    )
    .unwrap();
    for name in ["IN-USE", "pages-1"] {
        fs::write(place.join("stratann-me-live2").join(name), "x").unwrap();
    }
    drop(mirror(&home, &place, "2", Kept::ForOthers, ReadBy::Device));
    assert!(!place.join("stratann-me-live2").exists());
}

#[test]
fn a_device_is_no_place_and_no_folder_is_made_among_devices() {
    for place in ["/dev/null", "/dev/stratann-dax0.0"] {
        let error = CopyFolder::prepare(Path::new(place)).unwrap_err();
        assert!(matches!(&error, TierError::Unsupported { .. }), "{error}");
        for word in [place, "mpol=bind", "folder"] {
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(!error.to_string().contains("  "), "{error}");
    }
    assert!(!Path::new("/dev/stratann-dax0.0").exists());
}

#[test]
fn a_place_that_others_can_write_to_is_refused() {
    let root = root();
    let place = root.path().join("place");
    fs::create_dir(&place).unwrap();
    let open = || CopyFolder::open(&place, "me", "1", Kept::ForOthers);
    for (mode, good) in [(0o777, false), (0o770, false), (0o755, true), (0o700, true)] {
        fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
        let opened = open();
        assert_eq!(opened.is_ok(), good, "{mode:o}: {opened:?}");
        if let Err(error) = opened {
            assert!(matches!(&error, TierError::NotPrivate { .. }), "{error}");
            assert!(
                error.to_string().contains(place.to_str().unwrap()),
                "{error}"
            );
        }
    }
    // The inner folder is readable for all users; then a file is at the path of the outer folder.
    let folder = place.join("stratann-me-1");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(open(), Err(TierError::NotPrivate { .. })));
    fs::remove_dir_all(&folder).unwrap();
    fs::remove_dir_all(&place).unwrap();
    fs::write(&place, "x").unwrap();
    let error = open().unwrap_err();
    assert!(error.to_string().contains("not a directory"), "{error}");
    let missing = CopyFolder::open(&root.path().join("a/b/c"), "me", "1", Kept::ForOthers);
    assert!(matches!(missing, Err(TierError::Missing { .. })));
}

#[test]
fn a_place_without_room_says_so_before_anything_is_written() {
    let root = root();
    let home = home(&root);
    home.create("pages-1").unwrap().set_len(8 << 40).unwrap();
    let place = root.path().join("place");
    let volume = mirror(&home, &place, "1", Kept::ForOthers, ReadBy::Mapping);
    let error = volume.open_tier("pages-1").unwrap_err();
    assert!(
        matches!(error, TierError::NoRoom { len, .. } if len == 8 << 40),
        "{error}"
    );
    assert!(files(&place.join("stratann-me-1")).is_empty());
}

#[test]
fn copies_of_files_that_are_changed_are_a_volume_like_any_other() {
    for read_by in [ReadBy::Mapping, ReadBy::Device] {
        let root = root();
        let number = std::sync::atomic::AtomicU64::new(0);
        let make = || -> Arc<dyn Volume> {
            let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let home = Directory::create(root.path().join(format!("home-{number}"))).unwrap();
            let content = format!("live{number}");
            let place = root.path().join("place");
            Arc::new(mirror(&home, &place, &content, Kept::ForNow, read_by))
        };
        conformance_volume(&make);
        let tier = |bytes: &[u8]| {
            let volume = make();
            let (old, new) = bytes.split_at(bytes.len() / 2);
            volume.create("x").unwrap().append(old).unwrap();
            let tier = volume.open_tier("x").unwrap();
            volume.open_pages("x").unwrap().append(new).unwrap();
            // The drop of the volume removes its folder. The open tier remains valid.
            tier
        };
        if read_by == ReadBy::Mapping {
            conformance(&tier, IoMode::Auto);
        }
    }
}

#[test]
fn what_is_loaded_into_memory_is_a_tier_and_stays_as_it_was() {
    let root = root();
    let home = home(&root);
    let volume = LoadedVolume::new(Arc::new(home.clone()));
    let tier = |bytes: &[u8]| {
        home.create("x").unwrap().append(bytes).unwrap();
        volume.open_tier("x").unwrap()
    };
    conformance(&tier, IoMode::Auto);
    home.create("y").unwrap().append(&[1; 4096]).unwrap();
    let tier = volume.open_tier("y").unwrap();
    home.remove("y").unwrap();
    assert_eq!(first_block(&*tier), [1; 4096]);
}

#[test]
fn each_file_is_gone_at_by_its_own_way_and_all_are_of_one_volume() {
    let root = root();
    let home = home(&root);
    let place = root.path().join("place");
    let way: Arc<dyn Volume> =
        Arc::new(mirror(&home, &place, "live", Kept::ForNow, ReadBy::Mapping));
    let route = |name: &str| name.starts_with("pages-").then_some(0);
    let volume = RoutedVolume::new(Arc::new(home.clone()), vec![way], Box::new(route));
    volume.create("pages-1").unwrap().append(b"pages").unwrap();
    volume
        .create("MANIFEST")
        .unwrap()
        .append(b"manifest")
        .unwrap();
    let folder = place.join("stratann-me-live");
    assert_eq!(files(&folder), [folder.join("pages-1")]);
    let (copy, original) = (folder.join("pages-1"), home.place("pages-1"));
    assert_eq!(
        volume.place("pages-1"),
        format!("{} (a copy of {original})", copy.display())
    );
    assert!(
        volume
            .place("MANIFEST")
            .starts_with(home.path().to_str().unwrap())
    );
    assert_eq!(
        home.list().unwrap(),
        ["MANIFEST", "pages-1"],
        "a file of the index folder was removed"
    );
    assert_eq!(volume.list().unwrap(), home.list().unwrap());
    assert_eq!(home.read("pages-1").unwrap(), b"pages");
    volume.rename("pages-1", "pages-2").unwrap();
    assert_eq!(volume.read("pages-2").unwrap(), b"pages");
    volume.remove("pages-2").unwrap();
    assert!(files(&folder).is_empty() && home.list().unwrap() == ["MANIFEST"]);
}
