//! The strategy in which changes of lists wait in memory until their page is written, so that
//! records stay on the same page as their neighbours.
//!
//! ```text
//!   insert of p:   for each neighbour n:   pending[page of n] += (n: + p - the node that leaves)
//!                  pending[page of the nearest neighbour] += record of p
//!                  this page, and pages with enough changes ──> composed from the bytes that
//!                                                               the search has in memory
//!                  a page that is too full: its records are divided over it and another page
//! ```
//!
//! OdinANN §3.2 writes changed records together on any page with free slots. If m of n slots are
//! filled, each insert writes about R / (n - m) pages. This strategy scatters records that an order
//! by locality had put side by side. Then one read no longer serves several hops of a walk.
//!
//! Here, an insert writes the page of the new record, with all its pending changes. Any other page
//! is written by the insert that adds the last of `threshold` changes, since its search has the
//! page in memory. The threshold falls when the memory for changes is full, and rises when it is
//! not.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stratann_vector::{Element, to_f32};

use super::Direct;
use super::compose::{Vectors, divide};
use super::insert::{Inserter, Neighbour, NewNode, Work};
use super::prune::Decision;
use super::store::Use;
use crate::Error;
use crate::stores::topology::pending::{Change, NONE, NewRecord, Waiting, apply};
use crate::stores::topology::placement::{NOWHERE, PageBytes, Placement};
use crate::stores::{Composable, Composer, PageView};
use crate::update::health::Concern;

/// The maximum threshold, since searches take time to apply pending changes.
const MOST: usize = 64;

/// The number of pending changes at which a page is written.
pub(super) struct Threshold {
    changes: AtomicUsize,
    budget: u64,
}

impl Threshold {
    /// With a budget of 0, each change is written at once.
    pub(super) fn new(budget: u64) -> Self {
        Self {
            changes: AtomicUsize::new(if budget == 0 { 1 } else { MOST }),
            budget,
        }
    }

    fn at(&self, bytes: u64) -> usize {
        let now = self.changes.load(Ordering::Relaxed);
        let next = if bytes > self.budget {
            now.saturating_sub(1).max(1)
        } else if bytes < self.budget / 8 * 7 {
            (now + 1).min(MOST)
        } else {
            now
        };
        if next != now {
            self.changes.store(next, Ordering::Relaxed);
        }
        next
    }
}

/// Returns the number of the new node. `None` if the node has no neighbour, or if memory is short.
pub(super) fn link<N: Composable>(
    inserter: &mut Inserter<'_, N>,
    work: &mut Work<N>,
    new_node: &NewNode<'_>,
) -> Result<Option<u32>, Error> {
    let direct = inserter.direct;
    let placement = direct.placement();
    let list: Box<[u32]> = inserter
        .chosen
        .iter()
        .map(|neighbour| neighbour.node)
        .collect();
    let Some(nearest) = inserter.chosen.first().map(|neighbour| neighbour.node) else {
        return Ok(None);
    };
    let vector: Box<[u8]> = match N::VECTORS {
        true => inserter.walker.traversal.ranking.query[..].into(),
        false => Box::default(),
    };
    let Some((node, home)) = direct.number(new_node, |node| {
        let record = Arc::new(NewRecord {
            node,
            id: new_node.id,
            vector,
            list,
        });
        // While another insert rewrites the page of the neighbour, the neighbour has no page, and
        // the loop waits for the next one.
        loop {
            let page = placement.page_of(nearest);
            if page == NOWHERE {
                std::hint::spin_loop();
                continue;
            }
            let weight = placement.pending.append(
                page,
                record.clone(),
                || placement.page_of(nearest) == page,
                || {
                    direct.store.join(page);
                    placement.push(node, page);
                },
            );
            if weight.is_some() {
                return Ok(page);
            }
        }
    })?
    else {
        return Ok(None);
    };
    inserter.born();
    let mut touched = std::mem::take(&mut work.touched);
    touched.clear();
    touched.push(home);
    let mut linked = false;
    for at in inserter.asked() {
        let neighbour = inserter.chosen[at];
        let remove = match decide(inserter, &neighbour, node) {
            Decision::Keep if at > 0 || linked => continue,
            Decision::Keep => inserter.make_room().unwrap_or(NONE),
            Decision::Add => NONE,
            Decision::Replace(leaves) => leaves,
        };
        linked = true;
        let change = Change {
            node: neighbour.node,
            add: node,
            remove,
        };
        inserter.joined(node);
        if let Some(page) = change_soon(placement, change)
            && !touched.contains(&page)
        {
            touched.push(page);
        }
    }
    let threshold = direct.threshold.at(placement.pending.bytes());
    work.composed.clear();
    for &page in &touched {
        let at_once = direct.choices.write_home && page == home;
        if at_once || placement.pending.weight(page) >= threshold {
            // After an error, the changes of the page continue to wait. If the page is damaged,
            // searches report the damage.
            if let Err(error) = write_page(inserter, work, page) {
                direct.health.trouble(Concern::Pages, &error);
            }
        }
    }
    work.touched = touched;
    direct.wait_for(&work.composed);
    Ok(Some(node))
}

/// Whether the new node joins the list of a neighbour. This list includes pending changes.
fn decide<N: Composable>(
    inserter: &mut Inserter<'_, N>,
    neighbour: &Neighbour,
    node: u32,
) -> Decision {
    match inserter.read_list(neighbour) {
        Ok(true) => inserter.decide(neighbour, node, None),
        _ => {
            inserter.list.clear();
            Decision::Keep
        }
    }
}

type Taken = (u32, Waiting);

fn write_page<N: Composable>(
    inserter: &Inserter<'_, N>,
    work: &mut Work<N>,
    page: u32,
) -> Result<(), Error> {
    let placement = inserter.direct.placement();
    let Some(waiting) = placement.pending.take(page) else {
        return Ok(());
    };
    let mut taken = vec![(page, waiting)];
    let written = rewrite(inserter, work, &mut taken);
    if written.is_err() {
        for (page, _) in taken {
            placement.pending.give_back(page);
        }
    }
    written
}

/// Rewrites the pages of `taken`. If the records no longer fit onto the first page, they are
/// divided over this page and another page in memory.
fn rewrite<N: Composable>(
    inserter: &Inserter<'_, N>,
    work: &mut Work<N>,
    taken: &mut Vec<Taken>,
) -> Result<(), Error> {
    work.records.clear();
    work.vectors.clear();
    let index = &inserter.direct.index;
    work.vector.resize(index.dim() * index.element().size(), 0);
    for page in &*taken {
        collect(inserter, work, page)?;
    }
    let capacity = inserter.direct.store.capacity();
    let bytes = work.records.bytes();
    if bytes > capacity
        && let Some(beside) = beside(inserter, work, taken[0].0, bytes)?
    {
        taken.push(beside);
        collect(inserter, work, &taken[1])?;
    }
    let composed = compose(inserter, work)?;
    let direct = inserter.direct;
    let placement = direct.placement();
    for composed in &composed {
        let bytes = composed.bytes.clone();
        direct
            .store
            .publish(placement, composed.number, bytes, composed.used);
    }
    for (page, waiting) in &*taken {
        // For each new page: the nodes that move from the old page to this page.
        let mut moving: Vec<(u32, Vec<u32>)> = Vec::with_capacity(composed.len());
        let mut rest = placement.pending.settle(*page, waiting, |rest| {
            let here = |&node: &u32| placement.page_of(node) == *page;
            for Composed { number, nodes, .. } in &composed {
                moving.push((*number, nodes.iter().copied().filter(here).collect()));
            }
            let moved = moving.iter().flat_map(|(_, nodes)| nodes).copied();
            // Records added during the rewrite have no page, until `settle` adds them to another
            // page.
            let strays = rest.records.iter().map(|record| record.node);
            let leave: Vec<u32> = moved.chain(strays).collect();
            direct
                .store
                .relocate(placement, &leave, NOWHERE, Use::Empty);
        });
        for (number, nodes) in &moving {
            // Changes that were added during the rewrite move before the nodes, so that no search
            // sees a list without these changes.
            rest.changes.retain(|&change| {
                let moves = nodes.contains(&change.node);
                if moves {
                    placement.pending.change(*number, change, || true);
                }
                !moves
            });
            direct.store.relocate(placement, nodes, *number, Use::Empty);
        }
        settle(inserter, rest);
    }
    for composed in &composed {
        direct.store.release(placement, composed.number);
        direct.store.enqueue(composed.number);
        work.composed.push(composed.number);
    }
    Ok(())
}

/// Chooses the page that takes a part of the records of `page`. With pending changes, these records
/// have `bytes` bytes. Candidates are the pages in memory to which most links lead. If no candidate
/// has enough space, the first candidate is chosen, so that two full pages become three and not
/// four.
fn beside<N: Composable>(
    inserter: &Inserter<'_, N>,
    work: &mut Work<N>,
    page: u32,
    bytes: usize,
) -> Result<Option<Taken>, Error> {
    let direct = inserter.direct;
    let (placement, pages) = (direct.placement(), inserter.pages);
    let held = inserter.page_bytes(page)?;
    let view = pages.view(&held, page.into(), false)?;
    let mut links: HashMap<u32, usize> = HashMap::new();
    for slot in 0..view.len() {
        let node = view.node(slot)?;
        pages.list(node, &view.record(slot)?, &mut work.list)?;
        for &link in &work.list {
            *links.entry(placement.page_of(link)).or_default() += 1;
        }
    }
    let here = |near: u32| {
        inserter.walker.traversal.held(near.into()).is_some()
            || direct.index.graph().in_memory(near.into()).is_some()
    };
    let mut links: Vec<(usize, u32)> = links
        .into_iter()
        .map(|(near, count)| (count, near))
        .collect();
    links.sort_unstable_by(|a, b| b.cmp(a));
    let near = links.into_iter().map(|(_, near)| near);
    let near = near.filter(|&near| near != page && near != NOWHERE && here(near));
    let near: Vec<u32> = near.take(NEAR).collect();
    let two = 2 * direct.store.capacity();
    let room = |&&near: &&u32| bytes + direct.store.used(near) + RESERVE <= two;
    let first = near.iter().find(room).or(near.first());
    Ok(first.and_then(|&near| Some((near, placement.pending.take_any(near)?))))
}

const NEAR: usize = 8;

/// Bytes that must stay free in a division over two pages, since the parts differ in size, and the
/// other page has pending changes too.
const RESERVE: usize = 700;

fn collect<N: Composable>(
    inserter: &Inserter<'_, N>,
    work: &mut Work<N>,
    (page, waiting): &Taken,
) -> Result<(), Error> {
    let (page, direct) = (*page, inserter.direct);
    let (placement, pages) = (direct.placement(), inserter.pages);
    let bytes = inserter.page_bytes(page)?;
    let view = pages.view(&bytes, page.into(), false)?;
    for slot in 0..view.len() {
        let node = view.node(slot)?;
        if placement.page_of(node) != page {
            continue;
        }
        let record = view.record(slot)?;
        let changes = waiting.changes.iter().any(|change| change.node == node);
        work.records.push(
            node,
            record.id,
            |out| {
                if !changes {
                    out.extend_from_slice(record.list);
                    return Ok(());
                }
                pages.list(node, &record, &mut work.list)?;
                amended(&mut work.list, waiting, node, direct);
                pages.encode_list(node, &work.list, out)
            },
            |out| {
                out.extend_from_slice(record.vector);
                Ok(())
            },
        )?;
        if N::VECTORS {
            let vector = pages.vector(node, &record, &mut work.vector)?;
            work.vectors.extend_from_slice(vector);
        }
    }
    for record in &waiting.records {
        work.records.push(
            record.node,
            record.id,
            |out| {
                work.list.clear();
                work.list.extend_from_slice(&record.list);
                amended(&mut work.list, waiting, record.node, direct);
                pages.encode_list(record.node, &work.list, out)
            },
            |out| pages.encode_vector(record.node, &record.vector, out),
        )?;
        work.vectors.extend_from_slice(&record.vector);
    }
    Ok(())
}

fn amended(list: &mut Vec<u32>, waiting: &Waiting, node: u32, direct: &Direct) {
    apply(&waiting.changes, node, list);
    // Two concurrent inserts may make a list too long. Then older nodes leave. A node stays if no
    // other list links to the node.
    let lists = &direct.placement().lists;
    for _ in direct.degree..list.len() {
        let leaves = list.iter().position(|&link| lists.leave(link));
        list.remove(leaves.unwrap_or(0));
    }
    list.sort_unstable();
}

struct Composed {
    number: u32,
    bytes: PageBytes,
    nodes: Vec<u32>,
    used: usize,
}

fn compose<N: Composable>(
    inserter: &Inserter<'_, N>,
    work: &mut Work<N>,
) -> Result<Vec<Composed>, Error> {
    let direct = inserter.direct;
    let (placement, pages) = (direct.placement(), inserter.pages);
    let mut places: Vec<usize> = (0..work.records.len()).collect();
    let mut composed = Vec::new();
    let index = &direct.index;
    let (mut element, dim) = (index.element(), index.dim());
    if !N::VECTORS {
        let nodes: Vec<u32> = places.iter().map(|&at| work.records.node(at)).collect();
        let quantizer = index.graph_codebook().quantizer();
        quantizer.decode_rows(index.codes(), &nodes, &mut work.vectors);
        element = Element::F32;
    }
    work.floats.resize(work.records.len() * dim, 0.0);
    to_f32(element, &work.vectors, &mut work.floats);
    let vectors = Vectors {
        dim,
        floats: &work.floats,
    };
    let records = &work.records;
    let divided = divide(
        records,
        &vectors,
        &mut places,
        direct.store.capacity(),
        work.composer.get_or_insert_with(|| pages.composer()),
        &direct.index.graph().file,
        &mut |places, composer: &mut N::Composer| {
            let number = direct.store.take_any(placement);
            composed.push(Composed {
                number,
                bytes: PageBytes::from(composer.finish(number)),
                nodes: places.iter().map(|&at| records.node(at)).collect(),
                used: records.bytes_of(places),
            });
        },
    );
    if let Err(error) = divided {
        for composed in composed {
            direct.store.give_back(composed.number);
        }
        return Err(error);
    }
    Ok(composed)
}

/// Moves the records and changes that came during a rewrite to the present pages of their nodes.
fn settle<N: Composable>(inserter: &Inserter<'_, N>, rest: Waiting) {
    let direct = inserter.direct;
    let placement = direct.placement();
    // Some of the changes belong to lists of the records. A change may be the only edge to a node,
    // so no change may be lost.
    for record in rest.records {
        // The record joins the page of its nearest neighbour, an older node, so no two records wait
        // for each other.
        let Some(&nearest) = record.list.first() else {
            continue;
        };
        loop {
            let page = placement.page_of(nearest);
            let node = record.node;
            let still = || page != NOWHERE && placement.page_of(nearest) == page;
            let then = || direct.store.relocate(placement, &[node], page, Use::Empty);
            if placement
                .pending
                .append(page, record.clone(), still, then)
                .is_some()
            {
                break;
            }
            std::hint::spin_loop();
        }
    }
    for change in rest.changes {
        change_soon(placement, change);
    }
}

/// Adds a change to the present page of its node, and returns this page. `None` if the insert of
/// the node was given up.
fn change_soon(placement: &Placement, change: Change) -> Option<u32> {
    loop {
        let page = match placement.page_of(change.node) {
            NOWHERE => placement.page_soon(change.node),
            page => page,
        };
        if page == NOWHERE {
            return None;
        }
        let still = || placement.page_of(change.node) == page;
        if placement.pending.change(page, change, still).is_some() {
            return Some(page);
        }
    }
}
