//! An index whose roles are on separate volumes has the same guarantees as an index on one volume.

use stratann_tier::testing::{Mishap, Operation};

use super::once::{What, each_of};
use super::*;
use crate::stores::roles::tests::{four_disks, tiers};

#[test]
fn an_index_on_several_tiers_under_changes_is_what_the_model_is() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let (volume, home) = (tiers(folder.path()), folder.path().join("home"));
        build_base(case, BASE, volume.clone(), &home);
        let model = under_changes(case, &volume, &home);
        repaired(case, &volume, &home, &model);
    }
}

/// By default, two cases: one that moves records and has every role, and one that writes pages in
/// place.
fn cases() -> impl Iterator<Item = Case> {
    let merged = Case(Layout::Decoupled, Update::Merge);
    let cases = [DECOUPLED, INLINE, PACKED, merged];
    cases.into_iter().take(if slow() { 4 } else { 2 })
}

#[test]
fn a_crash_that_takes_from_each_disk_what_it_likes_loses_nothing_that_was_acknowledged() {
    let seeds = if slow() { 0..40 } else { 0..1 };
    for case in cases() {
        let (folder, before) = (tempfile::tempdir().unwrap(), four_disks());
        build_base(case, BASE, Arc::new(before.clone()), folder.path());
        let crashed = crash_everywhere(case, &before, folder.path(), seeds.clone());
        assert!(crashed > 66, "{case:?}: {crashed} crashes");
    }
}

#[test]
fn any_sync_of_any_disk_may_fail_and_discard_what_it_was_to_keep() {
    let met = |operation, step| {
        let step = if slow() { 1 } else { step };
        let kind = |at| What::Nth(operation, at);
        let met = cases().map(|case| each_of(case, four_disks(), kind, &[Mishap::Undone], step));
        met.sum::<usize>()
    };
    let files = met(Operation::Sync, 7);
    assert!(files > 8, "{files}");
    let names = met(Operation::SyncNames, 5);
    assert!(names > 18, "{names}");
}
