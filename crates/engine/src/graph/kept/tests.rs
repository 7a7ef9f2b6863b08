//! Restored lists equal the saved lists, and a build in parts resumes from its parts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use stratann_tier::testing::SimVolume;
use stratann_vector::{Element, Metric};

use super::*;
use crate::data::{Matrix, VectorSource, check_rows};
use crate::graph::construct::{Constructed, OVERHEAD, Order, Task, construct_within};
use crate::graph::{GraphError, Parameters};
use crate::progress::Silent;

fn savepoints(volume: &SimVolume) -> Savepoints<'_> {
    Savepoints::of_hash(volume, Hash::from_bytes([3; 32]), Duration::ZERO)
}

fn kept<'a>(savepoints: &'a Savepoints<'a>) -> KeptLists<'a> {
    KeptLists {
        savepoints,
        input: savepoints.input(&[]),
        degree: 5,
        part: 0,
    }
}

fn lists_of(slots: &Slots) -> Vec<Vec<u32>> {
    let lists = (0..slots.nodes() as u32).map(|node| slots.neighbours(node).collect());
    lists.collect()
}

#[test]
fn an_order_that_is_no_permutation_is_refused() {
    let volume = SimVolume::new();
    let savepoints = savepoints(&volume);
    let input = savepoints.input(&[]);
    for (order, good) in [
        (&[2, 0, 1][..], true),
        (&[0, 1], false),
        (&[0, 1, 2, 3], false),
        (&[0, 1, 1], false),
        (&[0, 1, 3], false),
        (&[0, 1, u32::MAX], false),
    ] {
        keep_order(&savepoints, &input, order, &Silent);
        let found = super::order(&savepoints, &input, 3);
        assert_eq!(found.as_deref(), good.then_some(order));
    }
}

proptest! {
    #[test]
    fn lists_come_back_with_how_far_they_are(
        lists in prop::collection::vec(prop::collection::vec(0u32..1, 0..5), 1..40),
        seed: u32,
        pass in 0u32..2,
    ) {
        let nodes = lists.len() as u32;
        let slots = Slots::new(lists.len(), 5);
        for (node, list) in lists.iter().enumerate() {
            let node = node as u32;
            let most = (list.len() as u32).min(nodes - 1);
            let list: Vec<u32> = (0..most).map(|i| (node + 1 + (i + seed % 7) % (nodes - 1)) % nodes).collect();
            slots.replace(node, &list, &slots.lock(node));
        }
        let volume = SimVolume::new();
        let savepoints = savepoints(&volume);
        for reached in [Reached { pass, nodes: (seed % (nodes + 1)) as usize }, Reached::END] {
            kept(&savepoints).keep(&slots, reached, &Silent);
            let again = Slots::new(lists.len(), 5);
            prop_assert_eq!(kept(&savepoints).take_up(&again), reached);
            prop_assert_eq!(lists_of(&again), lists_of(&slots));
            // A build with another number of nodes, or with fewer slots, refuses the savepoint.
            for (nodes, slots) in [(lists.len() + 1, 5), (lists.len(), 0)] {
                let other = Slots::new(nodes, slots);
                if kept(&savepoints).take_up(&other) != Reached::default() {
                    prop_assert!(lists_of(&other).iter().all(Vec::is_empty));
                    prop_assert_eq!(slots, 0);
                }
            }
        }
    }

    /// The files have correct checksums, but arbitrary words after the header.
    #[test]
    fn words_that_are_no_lists_leave_them_empty(words in prop::collection::vec(0u32..6, 0..40)) {
        let volume = SimVolume::new();
        let savepoints = savepoints(&volume);
        let lists = kept(&savepoints);
        savepoints.keep((What::Lists, 0), &lists.input, 4 * words.len() as u64, &Silent, |sink| {
            sink.words(words.iter().copied())
        });
        let slots = Slots::new(4, 3);
        let reached = lists.take_up(&slots);
        if reached == Reached::default() && words.get(..3) != Some(&[0, 0, 4]) {
            prop_assert!(lists_of(&slots).iter().all(Vec::is_empty));
        } else if reached != Reached::default() {
            prop_assert!(lists_of(&slots).iter().flatten().all(|&id| id < 4));
            let used: usize = lists_of(&slots).iter().map(|list| 1 + list.len()).sum();
            prop_assert_eq!(used + 3, words.len());
        }
    }
}

/// Reports an interruption after this many checks.
struct Impatient(AtomicU64);

impl Progress for Impatient {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn warn(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) <= 1
    }
}

type Built = (Vec<u32>, Vec<Vec<u32>>, u32);

/// Rows whose build needs more than 900 KiB of memory as a whole, and less in parts.
fn collection() -> Matrix {
    let rows = 6_000;
    let bytes = (0..rows * 64).map(|i: usize| (i * i % 251) as u8).collect();
    Matrix::new(bytes, rows, 64, Element::U8).unwrap()
}

fn parts_of(
    source: &Matrix,
    order: Order,
    free: u64,
    savepoints: Option<&Savepoints<'_>>,
    progress: &dyn Progress,
) -> Result<Built, GraphError> {
    let scratch = tempfile::tempdir().unwrap();
    let parameters = Parameters {
        degree: 12,
        build_list: 20,
        ..Parameters::default()
    };
    let task = Task {
        metric: Metric::L2,
        order,
        parameters: &parameters,
        memory: None,
        scratch: scratch.path(),
        known: None,
        check: check_rows,
        savepoints,
        afterwards: None,
    };
    let built = construct_within(source, &task, Some(free), progress)?;
    assert!(built.stats.parts > 1);
    let Constructed {
        order,
        mut lists,
        entry,
        ..
    } = built;
    let mut list = Vec::new();
    let lists = (0..source.rows() as u32).map(|node| {
        lists.read(node, &mut list).unwrap();
        list.clone()
    });
    Ok((order, lists.collect(), entry))
}

#[test]
fn a_build_in_parts_that_is_interrupted_anywhere_goes_on_to_the_same_graph() {
    let (source, free) = (collection(), OVERHEAD + (820 << 10));
    for order in [Order::Input, Order::Locality { page: 8 }] {
        let whole = parts_of(&source, order, free, None, &Silent).unwrap();
        let (mut taken, mut parts) = (0, 0);
        for patience in (1..).step_by(59) {
            let volume = SimVolume::new();
            let first = savepoints(&volume);
            let patient = Impatient(AtomicU64::new(patience));
            match parts_of(&source, order, free, Some(&first), &patient) {
                Ok(built) => {
                    assert!(built == whole, "uninterrupted, with savepoints");
                    break;
                }
                Err(GraphError::Interrupted) => {}
                Err(error) => panic!("{error}"),
            }
            let second = savepoints(&volume);
            let free = free + 1024 * (patience % 10);
            let built = parts_of(&source, order, free, Some(&second), &Silent).unwrap();
            assert!(
                built == whole,
                "{order:?}, after {patience} checks for an interruption"
            );
            let resumed = second.facts().resumed;
            taken += usize::from(!resumed.is_empty());
            parts = parts.max(resumed.len());
        }
        assert!(taken >= 3 && parts >= 3, "{taken} {parts}");
    }
}

#[test]
fn a_plan_for_which_there_is_no_room_any_more_is_made_anew() {
    let source = collection();
    let volume = SimVolume::new();
    let first = savepoints(&volume);
    let (much, little) = (OVERHEAD + (820 << 10), OVERHEAD + (660 << 10));
    let order = Order::Locality { page: 8 };
    parts_of(&source, order, much, Some(&first), &Silent).unwrap();
    let before = plan(&first).unwrap();
    let fresh = parts_of(&source, order, little, None, &Silent).unwrap();
    let second = savepoints(&volume);
    let built = parts_of(&source, order, little, Some(&second), &Silent).unwrap();
    assert!(built == fresh);
    assert!(plan(&second).unwrap().0 > before.0);
    for strange in [(0, 0), (2, 9), (usize::from(u16::MAX), 1)] {
        keep_plan(&second, strange, &Silent);
        let built = parts_of(&source, order, little, Some(&savepoints(&volume)), &Silent);
        assert!(built.unwrap() == fresh);
    }
}
