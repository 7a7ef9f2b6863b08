//! Tests scans of nodes that move during the scan.

use std::cell::{Cell, RefCell};
use std::sync::OnceLock;

use stratann_tier::{IoMode, Thread};

use super::*;
use crate::index::OpenOptions;
use crate::progress::Silent;
use crate::search::tests::{COUPLED, path};

struct Moving<'a> {
    index: &'a Index,
    /// The state of the node at each look-up, in order. All later look-ups return the last state.
    standings: RefCell<Vec<Standing>>,
    asked: Cell<usize>,
}

impl Source for Moving<'_> {
    fn tier(&self) -> &dyn Tier {
        &*self.index.graph().tier
    }

    fn file(&self) -> &str {
        "pages"
    }

    fn standing(&self, _: u32) -> Standing {
        self.asked.set(self.asked.get() + 1);
        let mut standings = self.standings.borrow_mut();
        match standings.len() {
            1 => standings[0],
            _ => standings.remove(0),
        }
    }

    fn page_bytes(&self) -> usize {
        BLOCK
    }

    fn place(&self, _: u64) -> (u64, usize) {
        (BLOCK as u64, BLOCK)
    }

    fn waits(
        &self,
        page: u64,
        node: u32,
        _: &mut Scratch,
        each: &mut Each<'_>,
    ) -> Result<bool, Error> {
        let is_here = page == 7;
        if is_here {
            each(node, 0, &[], &[]);
        }
        Ok(is_here)
    }

    fn in_memory(&self, _: u64, _: bool) -> Option<Bytes<'_>> {
        None
    }

    fn meet(
        &self,
        _: (&[u8], u64, bool),
        _: u32,
        _: &mut Scratch,
        _: &mut Each<'_>,
    ) -> Result<bool, Error> {
        Ok(false)
    }
}

/// The number of times that the scan met node 3, and the number of look-ups.
fn met(standings: Vec<Standing>) -> (Result<usize, Error>, usize) {
    static INDEX: OnceLock<Index> = OnceLock::new();
    let index = INDEX.get_or_init(|| Index::open(path(COUPLED), &OpenOptions::default()).unwrap());
    let source = Moving {
        index,
        standings: RefCell::new(standings),
        asked: Cell::new(0),
    };
    let thread = Thread::local(IoMode::Auto).unwrap();
    let scan = Scan {
        index,
        thread: &thread,
        progress: &Silent,
        admission: Admission::default(),
        among: None,
    };
    let (mut met, mut outcome) = (0, Ok(()));
    let scanned = Box::pin(async {
        let mut sought = Sought::of(index);
        let mut each = |_, _, _: &[u8], _: &[u8]| met += 1;
        let nodes = std::iter::once(3);
        outcome = scan.each_of(&source, nodes, &mut sought, &mut each).await;
    });
    thread.run_all(vec![scanned]);
    (outcome.map(|()| met), source.asked.get())
}

fn moves(often: usize) -> Vec<Standing> {
    vec![Standing::Moves; often]
}

#[test]
fn a_node_that_comes_to_its_page_at_any_moment_is_met_once() {
    for often in 0..5 * TRIES as usize {
        let standings = [moves(often), vec![Standing::On(7)]].concat();
        let (met, _) = met(standings);
        assert_eq!(met.unwrap(), 1, "after {often} looks");
    }
}

#[test]
fn a_node_that_moves_from_page_to_page_is_met_where_it_is_at_last() {
    let standings =
        (0..TRIES as usize - 2).flat_map(|page| [Standing::On(page as u64 % 5), Standing::Moves]);
    let standings = standings.chain([Standing::On(7)]).collect();
    assert_eq!(met(standings).0.unwrap(), 1);
}

#[test]
fn a_node_without_a_page_is_left_out_and_one_that_is_not_on_its_page_is_an_error() {
    let (none, asked) = met(vec![Standing::NotYet]);
    assert_eq!((none.unwrap(), asked), (0, 2));
    let (none, asked) = met(vec![Standing::NotYet, Standing::NotYet, Standing::On(7)]);
    assert_eq!(
        (none.unwrap(), asked),
        (0, 2),
        "the scan requested a node whose insert is not complete"
    );
    let (lost, asked) = met(vec![Standing::On(2)]);
    let error = lost.unwrap_err().to_string();
    assert!(error.contains("node 3 is not on page 2"), "{error}");
    assert_eq!(asked, 2 * TRIES as usize);
}
