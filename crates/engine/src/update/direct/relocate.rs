//! The strategy that writes changed records together on other pages (OdinANN §3.2: GC-free update
//! combining).
//!
//! ```text
//!   changed:  p, n1, n2 .. n60        each old record leaves its slot free for another insert
//!   rule 1    a page that is empty                            takes n records
//!   rule 2    a page of the path with k < m records           keeps these, takes n - k records
//!   rule 3    a new page                                      takes n records
//!   (while pages have fewer than m records on average, rule 2 comes before rule 1)
//! ```
//!
//! The path is the set of pages that the search has read. A page has n slots, and m = n/2 are
//! filled on average (§3.2.3), so space and writes are twice the minimum. Under rule 2, the kept
//! records go to a spare page, since the last checkpoint may name the old page (shadow pages,
//! `store.rs`). The old page becomes the next spare page.
//!
//! **Concurrency** (§3.3): an insert locks all records that it changes, and reads their lists
//! again. Background threads write the composed pages.

use std::collections::{HashMap, HashSet};

use super::compose::too_large;
use super::insert::{Inserter, NewNode, Work};
use super::prune::Decision;
use super::store::Use;
use crate::Error;
use crate::stores::topology::placement::{NOWHERE, PageBytes};
use crate::stores::{Composable, Composer, PageView};

/// Returns the number of the new node. `None` if the node has no neighbour, or if memory is short.
pub(super) fn link<N: Composable>(
    inserter: &mut Inserter<'_, N>,
    work: &mut Work<N>,
    new_node: &NewNode<'_>,
) -> Result<Option<u32>, Error> {
    let direct = inserter.direct;
    let placement = direct.placement();
    if inserter.chosen.is_empty() {
        // No list would link to the node, so the vector waits in memory.
        return Ok(None);
    }
    let push = |node| {
        placement.push(node, NOWHERE);
        Ok(())
    };
    let Some((node, ())) = direct.number(new_node, push)? else {
        return Ok(None);
    };
    let mut stripes: Vec<usize> = inserter
        .chosen
        .iter()
        .map(|n| direct.stripe(n.node))
        .collect();
    stripes.sort_unstable();
    stripes.dedup();
    let _locks: Vec<_> = stripes
        .iter()
        .map(|&stripe| direct.locks[stripe].lock())
        .collect();
    work.composed.clear();
    let linked = change(inserter, work, node, new_node.id).and_then(|()| allocate(inserter, work));
    direct.wait_for(&work.composed);
    if linked.is_err() {
        // The node has a number, but no page.
        direct.abandon(node);
    }
    linked.map(|()| Some(node))
}

/// Collects the records of the new node, and of the neighbours that will link to it.
fn change<N: Composable>(
    inserter: &mut Inserter<'_, N>,
    work: &mut Work<N>,
    node: u32,
    id: u64,
) -> Result<(), Error> {
    let direct = inserter.direct;
    let (placement, pages) = (direct.placement(), inserter.pages);
    work.records.clear();
    let mut list: Vec<u32> = inserter.chosen.iter().map(|n| n.node).collect();
    list.sort_unstable();
    let vector = &inserter.walker.traversal.ranking.query;
    work.records.push(
        node,
        id,
        |out| pages.encode_list(node, &list, out),
        |out| pages.encode_vector(node, vector, out),
    )?;
    inserter.born();
    // The nearest neighbour comes last. If no other neighbour links to the new node, the nearest
    // neighbour must.
    for at in (0..inserter.chosen.len()).rev() {
        let neighbour = inserter.chosen[at];
        let page = match placement.page_of(neighbour.node) {
            // Another insert is composing the page of the neighbour.
            NOWHERE => placement.page_soon(neighbour.node),
            page => page,
        };
        if page == NOWHERE {
            continue;
        }
        let bytes = inserter.page_bytes(page)?;
        let view = pages.view(&bytes, page.into(), false)?;
        let Some(slot) = view.slot_of(neighbour.node) else {
            continue;
        };
        let record = view.record(slot)?;
        pages.list(neighbour.node, &record, &mut inserter.list)?;
        match inserter.decide(&neighbour, node, None) {
            Decision::Keep if at == 0 && work.records.len() == 1 => {
                if let Some(leaves) = inserter.make_room() {
                    inserter.list.retain(|&link| link != leaves);
                }
                inserter.list.truncate(direct.degree - 1);
            }
            Decision::Keep => continue,
            Decision::Add => {}
            Decision::Replace(leaves) => inserter.list.retain(|&link| link != leaves),
        }
        inserter.joined(node);
        inserter.list.push(node);
        inserter.list.sort_unstable();
        let list = &inserter.list;
        work.records.push(
            neighbour.node,
            record.id,
            |out| pages.encode_list(neighbour.node, list, out),
            |out| {
                out.extend_from_slice(record.vector);
                Ok(())
            },
        )?;
    }
    Ok(())
}

fn allocate<N: Composable>(inserter: &Inserter<'_, N>, work: &mut Work<N>) -> Result<(), Error> {
    let direct = inserter.direct;
    let (placement, pages) = (direct.placement(), inserter.pages);
    let composer = work.composer.get_or_insert_with(|| pages.composer());
    let records = &work.records;
    let changed: HashSet<u32> = (0..records.len()).map(|at| records.node(at)).collect();
    // Under rule 2, an insert moves records that it has not locked. So only one insert at a time
    // chooses pages.
    let _allocating = direct.allocating.lock();
    let mut leave: HashMap<u32, usize> = HashMap::new();
    for &node in &changed {
        *leave.entry(placement.page_of(node)).or_default() += 1;
    }
    // The pages of the path that keep fewer than m records. The emptiest page comes last.
    let m = pages.records_a_page() / 2;
    let mut partial: Vec<(usize, u32)> = inserter
        .walker
        .traversal
        .held_pages()
        .map(|page| {
            let page = page.number() as u32;
            let leave = leave.get(&page).copied().unwrap_or(0);
            (direct.store.live(page).saturating_sub(leave), page)
        })
        .filter(|&(stay, _)| stay > 0 && stay < m)
        .collect();
    partial.sort_unstable_by(|a, b| b.cmp(a));
    partial.dedup();
    // Rule 1 comes first only if pages have m records or more on average. Each checkpoint releases
    // many free pages, so partly empty pages would otherwise never be refilled.
    let ample = placement.pages() as usize * m > placement.nodes() as usize;
    let mut next = 0;
    while next < records.len() {
        let mut moved = Vec::new();
        composer.start();
        let empty = || direct.store.take_empty(placement);
        let page = match (!ample).then(empty).flatten() {
            Some(page) => page,
            None if keep(inserter, &mut partial, &changed, composer, &mut moved)? => {
                direct.store.take_spare(placement)
            }
            None => empty().unwrap_or_else(|| direct.store.take_new(placement)),
        };
        let from = next;
        while next < records.len() && records.put(next, composer) {
            next += 1;
        }
        if next == from {
            direct.store.give_back(page);
            if moved.is_empty() {
                let file = &direct.index.graph().file;
                return Err(too_large(file, records.node(next)));
            }
            // The next record does not fit beside the kept records.
            continue;
        }
        let nodes: Vec<u32> = (from..next).map(|at| records.node(at)).collect();
        let bytes = PageBytes::from(composer.finish(page));
        direct.store.publish(placement, page, bytes, usize::MAX);
        direct.store.relocate(placement, &moved, page, Use::Spare);
        direct.store.relocate(placement, &nodes, page, Use::Empty);
        direct.store.release(placement, page);
        direct.store.enqueue(page);
        work.composed.push(page);
    }
    Ok(())
}

/// If there is a partly empty page of the path, puts its records onto the composed page.
fn keep<N: Composable>(
    inserter: &Inserter<'_, N>,
    partial: &mut Vec<(usize, u32)>,
    changed: &HashSet<u32>,
    composer: &mut N::Composer,
    moved: &mut Vec<u32>,
) -> Result<bool, Error> {
    let direct = inserter.direct;
    let (placement, pages) = (direct.placement(), inserter.pages);
    while let Some((_, page)) = partial.pop() {
        // Other inserts may have emptied the page meanwhile.
        let live = direct.store.live(page);
        if live == 0 {
            continue;
        }
        let bytes = inserter.page_bytes(page)?;
        let view = pages.view(&bytes, page.into(), false)?;
        for slot in 0..view.len() {
            let node = view.node(slot)?;
            if placement.page_of(node) != page || changed.contains(&node) {
                continue;
            }
            let record = view.record(slot)?;
            if !composer.push(node, record.id, record.list, record.vector) {
                break;
            }
            moved.push(node);
        }
        return Ok(true);
    }
    Ok(false)
}
