//! Puts the roles of an index on several volumes, for tests of crashes.
//!
//! The name of a file gives its kind, and the kind gives its role ([`FileKind::role`]). The engine
//! sees a single volume, which passes each operation to the volume of the file's role.

use std::sync::Arc;

use stratann_layout::{FileKind, Role};
use stratann_tier::Volume;
use stratann_tier::testing::SplitVolume;

/// Joins the index folder and the volumes of some roles. The log is always in the folder.
pub(crate) fn on_volumes(
    home: Arc<dyn Volume>,
    places: &[(Role, Arc<dyn Volume>)],
) -> Arc<dyn Volume> {
    let mut others: Vec<Arc<dyn Volume>> = Vec::new();
    let mut numbers = Vec::new();
    for (role, volume) in places {
        if *role == Role::Log || Arc::ptr_eq(volume, &home) {
            continue;
        }
        let known = others.iter().position(|other| Arc::ptr_eq(other, volume));
        let number = known.unwrap_or_else(|| {
            others.push(volume.clone());
            others.len() - 1
        });
        numbers.push((*role, number));
    }
    let route = move |name: &str| {
        let role = FileKind::of_name(name)?.role();
        let place = numbers.iter().find(|place| place.0 == role);
        place.map(|place| place.1)
    };
    Arc::new(SplitVolume::new(home, others, Box::new(route)))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use stratann_tier::testing::SimVolume;
    use stratann_tier::{Directory, MemoryVolume};

    use super::*;
    use crate::build::{BuildOptions, build_rows_on};
    use crate::data::Matrix;
    use crate::progress::Silent;
    use crate::verify::verify_in;
    use crate::{Compression, Index, Layout, OpenOptions, SearchOptions, Strategy, stored};

    /// A volume of four disks. The topology is read from a copy in memory.
    pub(crate) fn four_disks() -> SimVolume {
        SimVolume::joined(4, |disks| {
            let disk = |n: usize| -> Arc<dyn Volume> { Arc::new(disks[n].clone()) };
            let topology: Arc<dyn Volume> = Arc::new(MemoryVolume::copied(disk(1)));
            let codes = disk(3);
            let places = [
                (Role::Topology, topology),
                (Role::Vectors, disk(2)),
                (Role::Codes, codes.clone()),
                (Role::Ids, codes),
            ];
            on_volumes(disk(0), &places)
        })
    }

    /// A volume with the topology mapped, vectors in memory, ids in another folder, and other files
    /// in the index folder.
    pub(crate) fn tiers(folder: &Path) -> Arc<dyn Volume> {
        let directory = |name: &str| Directory::create(folder.join(name)).unwrap();
        let mapped: Arc<dyn Volume> = Arc::new(MemoryVolume::mapped(directory("topology")));
        let copied = MemoryVolume::copied(Arc::new(directory("vectors")));
        let places: [(Role, Arc<dyn Volume>); 3] = [
            (Role::Topology, mapped),
            (Role::Vectors, Arc::new(copied)),
            (Role::Ids, Arc::new(directory("ids"))),
        ];
        on_volumes(Arc::new(directory("home")), &places)
    }

    #[test]
    fn every_file_has_a_volume_and_those_of_one_role_the_same() {
        let volume = four_disks();
        for kind in FileKind::ALL {
            for name in [format!("{kind}-000001"), format!("{kind}-000001-0003")] {
                assert_eq!(FileKind::of_name(&name), Some(kind));
                volume.create(&name).unwrap();
            }
        }
        for name in ["MANIFEST", "MANIFEST.new", "log.new", "graph", "notes-1"] {
            assert_eq!(FileKind::of_name(name), None);
            volume.create(name).unwrap();
        }
        let of = |role| {
            let kinds = FileKind::ALL.into_iter().filter(move |k| k.role() == role);
            2 * kinds.count()
        };
        let on = |disk: usize| volume.disk(disk).list().unwrap().len();
        assert_eq!(on(0), of(Role::Log) + of(Role::Columns) + 5);
        assert_eq!(on(1), of(Role::Topology));
        assert_eq!(on(2), of(Role::Vectors));
        assert_eq!(on(3), of(Role::Codes) + of(Role::Ids));
        assert_eq!(volume.list().unwrap().len(), 2 * FileKind::ALL.len() + 5);
    }

    fn rows(n: usize, from: usize) -> Matrix {
        let bytes = (from * 48..(from + n) * 48).map(|i| (i * i % 251) as u8);
        Matrix::new(bytes.collect(), n, 48, stratann_vector::Element::U8).unwrap()
    }

    #[test]
    fn an_index_on_several_tiers_is_and_answers_what_it_does_on_one() {
        let folder = tempfile::tempdir().unwrap();
        for layout in Layout::ALL {
            let path = folder.path().join(layout.name());
            let plain: Arc<dyn Volume> = Arc::new(Directory::create(path.join("plain")).unwrap());
            let volumes = [plain, tiers(&path)];
            let options = BuildOptions {
                degree: Some(12),
                build_list: 24,
                navigation: 0.1,
                threads: 1,
                ids: Some((0..600).map(|row| 7 * row + 3).collect()),
                layout: Some(layout),
                compression: (layout == Layout::Decoupled).then_some(Compression::Paper),
                chunk_bytes: 4096,
                segment_bytes: 8192,
                ..BuildOptions::default()
            }
            .in_any_layout();
            let [one, several] = volumes.map(|volume| {
                build_rows_on(&volume, &rows(600, 0), &options, &path);
                let report = verify_in(&*volume, &Silent).unwrap();
                assert!(report.clean(), "{layout}: {:?}", report.problems);
                Index::open_in(volume, &path, &OpenOptions::default()).unwrap()
            });
            let manifest = |index: &Index| {
                let mut manifest = stored::manifest(&**index.volume()).unwrap();
                // Each build draws a random number for its checkpoint.
                assert!(manifest.state.take().is_some());
                manifest
            };
            assert_eq!(manifest(&one), manifest(&several));
            let at_home = Directory::open(path.join("home")).unwrap().list().unwrap();
            assert!(at_home.len() < manifest(&one).files.len(), "{at_home:?}");
            let queries = rows(40, 300);
            for strategy in [Strategy::BestFirst, Strategy::Pipelined] {
                for navigation in [false, true] {
                    let options = SearchOptions {
                        list: 30,
                        strategy: (!layout.has_clusters()).then_some(strategy),
                        navigation: (!layout.has_clusters()).then_some(navigation),
                        ..SearchOptions::default()
                    };
                    let search = |index: &Index| index.search(&queries, &options).unwrap();
                    let [one, several] = [search(&one), search(&several)];
                    if strategy == Strategy::BestFirst {
                        assert_eq!(one.ids, several.ids, "{layout}");
                        assert_eq!(one.distances, several.distances, "{layout}");
                        let mut counters = [one.counters, several.counters];
                        if layout == Layout::Csr || layout.has_clusters() {
                            // Reads from memory return exactly the needed bytes. Reads from a disk
                            // return whole blocks.
                            assert!(counters[0].bytes_read > counters[1].bytes_read);
                            counters.iter_mut().for_each(|c| c.bytes_read = 0);
                        }
                        assert_eq!(counters[0], counters[1], "{layout}");
                        continue;
                    }
                    // The reads of a pipelined search depend on the timing, and so do some of its
                    // results.
                    let pairs = one.distances.iter().zip(&several.distances);
                    let same = pairs.filter(|(one, several)| one == several).count();
                    let all = one.distances.len();
                    assert!(same * 10 >= all * 8, "{layout}: {same} of {all}");
                }
            }
            // This candidate list is long enough for all vectors, so the search scans.
            let options = SearchOptions {
                k: 600,
                list: 600,
                ..SearchOptions::default()
            };
            let search = |index: &Index| index.search(&queries, &options).unwrap();
            let [one, several] = [search(&one), search(&several)];
            assert_eq!((one.ids, one.distances), (several.ids, several.distances));
        }
    }
}
