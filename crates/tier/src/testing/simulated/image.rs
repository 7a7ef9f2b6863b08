//! The possible contents of a disk after a crash.

use std::sync::Arc;

use super::{Change, Disk, Inode, SECTOR, SimVolume, State, apply, apply_name};
use crate::BLOCK;
use crate::testing::random::Random;

/// The part of unsynced changes that survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// No unsynced bytes survive. Of the changes of names, the first few survive, as with a
    /// journal.
    Dropped,
    /// All changes survive, except the end of the last write, from some multiple of 512 bytes on.
    Torn,
    /// Any part survives: some writes, or some of their 4 KiB pages, and some names.
    Reordered,
}

impl Crash {
    /// All modes.
    pub const ALL: [Crash; 3] = [Crash::Dropped, Crash::Torn, Crash::Reordered];
}

impl SimVolume {
    /// The contents of the disk after a crash, as a healthy volume without locks. The seed chooses
    /// the surviving part, and for all disks except the first also the mode.
    pub fn crash_image(&self, seed: u64, mode: Crash) -> SimVolume {
        let state = self.lock_state();
        let mut disks = Vec::with_capacity(state.disks.len());
        let mut inodes = state.inodes.clone();
        for (number, disk) in state.disks.iter().enumerate() {
            let own = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut random = Random::new(seed ^ own ^ 0x5EED_0FC4_A54E_D001);
            let mode = match number {
                0 => mode,
                _ => Crash::ALL[random.below(Crash::ALL.len())],
            };
            disks.push(disk.crashed(mode, &mut random));
            crash(&mut inodes, number, mode, &mut random);
        }
        let state = State {
            inodes,
            disks,
            keeps_room: state.keeps_room,
            ..State::default()
        };
        Self::with(state, self.join())
    }
}

impl Disk {
    fn crashed(&self, mode: Crash, random: &mut Random) -> Disk {
        let mut names = self.durable_names.clone();
        let pending = &self.unsynced_names;
        let subset = mode == Crash::Reordered && random.coin();
        let first = if mode == Crash::Torn {
            pending.len()
        } else {
            random.below(pending.len() + 1)
        };
        for (number, change) in pending.iter().enumerate() {
            if if subset {
                random.coin()
            } else {
                number < first
            } {
                apply_name(&mut names, change);
            }
        }
        Disk {
            names: names.clone(),
            durable_names: names,
            ..Disk::default()
        }
    }
}

fn crash(inodes: &mut [Arc<Inode>], disk: usize, mode: Crash, random: &mut Random) {
    let of_disk = |inode: &&mut Arc<Inode>| inode.disk == disk;
    let last_write = inodes
        .iter()
        .filter(|inode| inode.disk == disk)
        .flat_map(|inode| &inode.unsynced)
        .filter(|(_, change)| matches!(change, Change::Write { .. }))
        .map(|(number, _)| *number)
        .max();
    for inode in inodes.iter_mut().filter(of_disk) {
        let mut bytes = inode.durable.clone();
        let whole = random.coin();
        let by_page = random.coin();
        for (number, change) in &inode.unsynced {
            match mode {
                Crash::Dropped => {}
                Crash::Torn if Some(*number) == last_write => {
                    tear(Arc::make_mut(&mut bytes), change, random)
                }
                Crash::Torn => apply(Arc::make_mut(&mut bytes), change),
                Crash::Reordered if whole => apply(Arc::make_mut(&mut bytes), change),
                Crash::Reordered => {
                    scatter(Arc::make_mut(&mut bytes), change, by_page, random);
                }
            }
        }
        *inode = Arc::new(Inode {
            disk,
            durable: bytes.clone(),
            current: bytes,
            unsynced: Vec::new(),
            kept: inode.kept,
        });
    }
}

/// Applies a write up to some sector. The new length may survive although the bytes do not.
fn tear(bytes: &mut Vec<u8>, change: &Change, random: &mut Random) {
    let Change::Write { offset, bytes: new } = change else {
        return;
    };
    let end = offset + new.len() as u64;
    let first = offset / SECTOR;
    // The write may end at any boundary of sectors. At the first boundary, no byte of the write
    // survives.
    let sectors = end.div_ceil(SECTOR) - first;
    let boundary = (first + random.below(sectors as usize) as u64) * SECTOR;
    let kept = boundary.saturating_sub(*offset) as usize;
    if kept > 0 {
        apply(
            bytes,
            &Change::Write {
                offset: *offset,
                bytes: new[..kept].into(),
            },
        );
    }
    if random.coin() && (bytes.len() as u64) < end {
        bytes.resize(end as usize, 0);
    }
}

fn scatter(bytes: &mut Vec<u8>, change: &Change, by_page: bool, random: &mut Random) {
    match change {
        Change::Write { offset, bytes: new } => {
            let end = offset + new.len() as u64;
            let mut at = *offset;
            while at < end {
                let page_end = (at / BLOCK as u64 + 1) * BLOCK as u64;
                let next = if by_page { page_end.min(end) } else { end };
                if random.coin() {
                    let part = &new[(at - offset) as usize..(next - offset) as usize];
                    apply(
                        bytes,
                        &Change::Write {
                            offset: at,
                            bytes: part.into(),
                        },
                    );
                } else if (bytes.len() as u64) < next && random.coin() {
                    bytes.resize(next as usize, 0);
                }
                at = next;
            }
        }
        Change::Resize { .. } => {
            if random.coin() {
                apply(bytes, change);
            }
        }
    }
}
