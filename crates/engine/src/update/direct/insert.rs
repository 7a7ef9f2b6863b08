//! One direct insert: search, prune, link (OdinANN §3.3 and Figure 5).
//!
//! ```text
//!   1  search for the vector itself; the pages that it reads stay in memory   no lock
//!   2  choose the neighbours among the candidates, by exact distance          no lock
//!   3  the vector gets its code and its number                                a short lock
//!   4  the new node joins the present lists of neighbours                     by strategy
//! ```
//!
//! The neighbours are an approximate snapshot, without edges that other inserts add between steps 1
//! and 4. Lists come from the pages of the search, so almost no page is read twice.
//!
//! If vectors are stored apart from lists, step 2 compares candidates by their codes, since their
//! vectors would take a hundred reads. In all layouts, codes decide which node leaves a full list.

use stratann_vector::{Element, to_f32};

use super::Direct;
use super::compose::Records;
use super::prune::{Codes, Decision, ListPruner, New, scale};
use crate::Error;
use crate::frontier::node_of;
use crate::graph::{Candidate, Pruner, Rule, Space};
use crate::search::{Page, Walker, Within};
use crate::stores::topology::placement::PageBytes;
use crate::stores::{Composable, NodePages, PageView};

#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    pub(super) node: u32,
    /// The distance from the new node, on the scale of distances between codes.
    pub(super) distance: f32,
    /// Whether no nearer neighbour makes this neighbour redundant.
    pub(super) diverse: bool,
    /// The row of the neighbour's vector in [`Inserter::rows`].
    row: u32,
}

pub(super) struct NewNode<'a> {
    pub(super) id: u64,
    pub(super) code: &'a [u8],
    /// The vector as stored in a segment, empty if vectors are stored beside lists.
    pub(super) apart: &'a [u8],
    pub(super) row: Option<&'a [u8]>,
}

/// The number of nearest neighbours that may link to a new node, in addition to diverse neighbours.
const BACK: usize = 16;

const WALKS: usize = 3;

/// Links a new node and its neighbours by a strategy, and returns the number of the node. `None` if
/// the vector must wait in memory. `W` is the type of the buffers.
pub(super) type Link<N, W> =
    fn(&mut Inserter<'_, N>, &mut W, &NewNode<'_>) -> Result<Option<u32>, Error>;

pub(super) struct Work<N: Composable> {
    pub(super) records: Records,
    pub(super) vectors: Vec<u8>,
    pub(super) vector: Vec<u8>,
    pub(super) list: Vec<u32>,
    pub(super) floats: Vec<f32>,
    /// The pages to which the current insert has added changes.
    pub(super) touched: Vec<u32>,
    pub(super) composed: Vec<u32>,
    pub(super) composer: Option<N::Composer>,
}

impl<N: Composable> Default for Work<N> {
    fn default() -> Self {
        Self {
            records: Records::default(),
            vectors: Vec::new(),
            vector: Vec::new(),
            list: Vec::new(),
            floats: Vec::new(),
            touched: Vec::new(),
            composed: Vec::new(),
            composer: None,
        }
    }
}

pub(super) struct Inserter<'a, N: NodePages> {
    pub(super) direct: &'a Direct,
    pub(super) pages: &'a N,
    pub(super) walker: Walker<'a, N>,
    /// The neighbours of the current vector, the nearest first.
    pub(super) chosen: Vec<Neighbour>,
    lists: ListPruner<'a>,
    pruner: Pruner,
    space: Space,
    /// The nodes of the candidates. Row 0 of `rows` is the current vector, and the next rows belong
    /// to the candidates. If vectors are stored apart from lists, rows are floats decoded from
    /// codes.
    nodes: Vec<u32>,
    rows: Vec<u8>,
    row_element: Element,
    points: Vec<u8>,
    distances: Vec<f32>,
    /// The list of the current neighbour, which may link to the new node.
    pub(super) list: Vec<u32>,
    owner: Vec<f32>,
    vector: Vec<u8>,
    code: Vec<u8>,
    apart: Vec<u8>,
}

impl<'a, N: NodePages> Inserter<'a, N> {
    pub(super) fn new(
        direct: &'a Direct,
        pages: &'a N,
        within: &Within<'a>,
    ) -> Result<Self, Error> {
        let index = &*direct.index;
        let row_bytes = index.dim() * index.element().size();
        let lists = ListPruner::new(
            index.graph_codebook(),
            index.metric(),
            direct.degree,
            direct.alpha,
            direct.choices.pruning,
        );
        let row_element = match N::VECTORS {
            true => index.element(),
            false => Element::F32,
        };
        Ok(Self {
            direct,
            pages,
            walker: Walker::new(index, pages, direct.plan, within)?,
            chosen: Vec::new(),
            lists,
            pruner: Pruner::new(),
            space: Space::new(index.metric(), row_element, index.dim()),
            nodes: Vec::new(),
            rows: Vec::new(),
            row_element,
            points: Vec::new(),
            distances: Vec::new(),
            list: Vec::new(),
            owner: vec![0.0; index.dim()],
            vector: vec![0; row_bytes],
            code: vec![0; index.graph_codebook().code_bytes()],
            apart: Vec::new(),
        })
    }

    /// Returns the node, or `None` if the vector must wait in memory.
    pub(super) async fn insert<W>(
        &mut self,
        (id, vector, row): (u64, &[u8], Option<&[u8]>),
        link: Link<N, W>,
        work: &mut W,
    ) -> Result<Option<u32>, Error> {
        let direct = self.direct;
        let _pin = direct.placement().pins.pin();
        let query = &mut self.walker.traversal.ranking.query;
        query.clear();
        query.extend_from_slice(vector);
        for walk in 1..=WALKS {
            if let Err(error) = self.walker.walk().await {
                self.walker.reset();
                return Err(error);
            }
            // The last search also accepts deleted nodes as neighbours, so that the vector need not
            // wait until a merge.
            self.gather(vector, walk == WALKS)?;
            self.choose();
            // If no neighbour was chosen, all near nodes are deleted, or other inserts are moving
            // them. Then the search is repeated.
            if !self.chosen.is_empty() {
                break;
            }
        }
        let quantizer = direct.index.graph_codebook().quantizer();
        quantizer.encode(&self.walker.floats, &mut self.code, 1);
        self.apart.clear();
        if let Some(segments) = &direct.index.graph().segments {
            segments.last().encode(vector, &mut self.apart)?;
        }
        let code = std::mem::take(&mut self.code);
        let apart = std::mem::take(&mut self.apart);
        let new_node = NewNode {
            id,
            code: &code,
            apart: &apart,
            row,
        };
        let node = link(self, work, &new_node);
        (self.code, self.apart) = (code, apart);
        direct.add_fallbacks(std::mem::take(&mut self.lists.fallbacks));
        node
    }

    fn gather_codes(&mut self) {
        self.nodes.clear();
        let frontier = &self.walker.traversal.frontier;
        self.nodes.extend(frontier.keys().map(node_of));
        self.rows.clear();
        let floats = self.walker.floats.iter();
        self.rows
            .extend(floats.flat_map(|value| value.to_le_bytes()));
        let index = &self.direct.index;
        let quantizer = index.graph_codebook().quantizer();
        quantizer.decode_rows(index.codes(), &self.nodes, &mut self.rows);
    }

    /// Fills `nodes` and `rows` from the pages in memory. Deleted candidates are included only if
    /// `with_dead` is set.
    fn gather(&mut self, vector: &[u8], with_dead: bool) -> Result<(), Error> {
        if !N::VECTORS {
            self.gather_codes();
            return Ok(());
        }
        self.nodes.clear();
        self.rows.clear();
        self.rows.extend_from_slice(vector);
        let traversal = &self.walker.traversal;
        let placement = self.direct.placement();
        for key in traversal.frontier.keys() {
            let node = node_of(key);
            let page = placement.page_of(node);
            let deleted = |id: u64| !with_dead && self.direct.deleted.contains(id, node);
            // If the node has moved since the read, another page in memory has an old record of the
            // node. The vector in this record is right, since a vector never changes.
            let here = traversal.held(page.into());
            let on = |held: &&Page<'_>| {
                let view = self.walker.reader.view(held);
                view.is_ok_and(|view| view.slot_of(node).is_some())
            };
            if let Some(held) = here.filter(on).or_else(|| traversal.held_pages().find(on)) {
                let view = self.walker.reader.view(held)?;
                let Some(slot) = view.slot_of(node) else {
                    continue;
                };
                let record = view.record(slot)?;
                if deleted(record.id) {
                    continue;
                }
                let found = self.pages.vector(node, &record, &mut self.vector)?;
                self.rows.extend_from_slice(found);
            } else {
                match placement.pending.record(page, node) {
                    Some(record) if !deleted(record.id) => {
                        self.rows.extend_from_slice(&record.vector);
                    }
                    _ => continue,
                }
            }
            self.nodes.push(node);
        }
        Ok(())
    }

    fn choose(&mut self) {
        if self.space.needs_longest() {
            self.space.measure(&self.rows);
        }
        self.points.clear();
        self.space.append(&self.rows, &mut self.points);
        let points = self.space.points(&self.points);
        let rows: Vec<u32> = (1..=self.nodes.len() as u32).collect();
        self.distances.resize(rows.len(), 0.0);
        points.distances(points.row(0), &rows, &mut self.distances);
        let pool = rows.iter().zip(&self.distances);
        self.pruner.pool.clear();
        self.pruner
            .pool
            .extend(pool.map(|(&id, &distance)| Candidate { distance, id }));
        let rule = Rule {
            degree: self.direct.degree,
            alpha: self.direct.alpha,
            saturate: true,
        };
        let kept = self.pruner.prune(&points, 0, &rule);
        let scale = scale(self.direct.index.metric());
        self.chosen.clear();
        self.chosen.extend(kept.iter().map(|&row| Neighbour {
            node: self.nodes[row as usize - 1],
            distance: scale * self.distances[row as usize - 1],
            row,
            diverse: false,
        }));
        let diverse = self.pruner.diverse;
        for neighbour in &mut self.chosen[..diverse] {
            neighbour.diverse = true;
        }

        self.chosen
            .sort_unstable_by(|a, b| a.distance.total_cmp(&b.distance));
    }

    /// Reads the current list of a neighbour into `list`. `false` if the page of the neighbour is
    /// not in memory.
    pub(super) fn read_list(&mut self, neighbour: &Neighbour) -> Result<bool, Error> {
        let (node, placement) = (neighbour.node, self.direct.placement());
        let page = placement.page_of(node);
        let bytes;
        let view = match self.walker.traversal.held(page.into()) {
            Some(held) => self.walker.reader.view(held)?,
            None => match self.direct.index.graph().in_memory(page.into()) {
                Some(found) => {
                    bytes = found;
                    self.pages.view(&bytes, page.into(), false)?
                }
                None => return Ok(false),
            },
        };
        match view.slot_of(node) {
            Some(slot) => {
                let record = view.record(slot)?;
                self.pages.list(node, &record, &mut self.list)?;
            }
            None => match placement.pending.record(page, node) {
                Some(record) => {
                    self.list.clear();
                    self.list.extend_from_slice(&record.list);
                }
                None => return Ok(false),
            },
        }
        placement.pending.amend(page, node, &mut self.list);
        Ok(true)
    }

    /// The positions of the neighbours that may link to the new node, the farthest first: diverse
    /// neighbours, and the nearest [`BACK`]. Nearer nodes connect the other neighbours with the new
    /// node. If all neighbours could link back, twice as many lists would change, with equal recall
    /// and more reads (photo-sift, 80,000 rows and 20,000 inserted rows).
    ///
    /// The nearest neighbour comes last. If no other neighbour has linked back, the nearest
    /// neighbour must link back.
    pub(super) fn asked(&self) -> impl Iterator<Item = usize> + use<N> {
        let asked = |(at, neighbour): &(usize, &Neighbour)| neighbour.diverse || *at < BACK;
        let asked = self.chosen.iter().enumerate().filter(asked);
        let mut asked: Vec<usize> = asked.map(|(at, _)| at).collect();
        asked.reverse();
        asked.into_iter()
    }

    /// Puts the vector of a neighbour into `owner`, as floats in the space of the codes.
    fn own(&mut self, neighbour: &Neighbour) {
        let index = &self.direct.index;
        let row_bytes = index.dim() * self.row_element.size();
        let row = &self.rows[neighbour.row as usize * row_bytes..][..row_bytes];
        to_f32(self.row_element, row, &mut self.owner);
        if index.metric().reduction() == stratann_vector::Reduction::Normalised {
            stratann_vector::normalize(&mut self.owner);
        }
    }

    /// The node that leaves a full list for the new node. `None` if the list has a free slot, or no
    /// node may leave.
    pub(super) fn make_room(&self) -> Option<u32> {
        let lists = &self.direct.placement().lists;
        let full = self.list.len() >= self.direct.degree;
        let mut leave = self.list.iter().rev().filter(|_| full);
        leave.find(|&&node| lists.leave(node)).copied()
    }

    pub(super) fn joined(&self, node: u32) {
        self.direct.count(|counts| &counts.changes);
        self.direct.placement().lists.join(node);
    }

    pub(super) fn born(&self) {
        let built = self.direct.index.manifest().vectors;
        for neighbour in &self.chosen {
            if u64::from(neighbour.node) >= built {
                self.direct.placement().lists.join(neighbour.node);
            }
        }
    }

    /// Appends the code of a neighbour to `out`. The code is computed from the vector, and equals
    /// the stored code.
    pub(super) fn code_of(&mut self, neighbour: &Neighbour, out: &mut Vec<u8>) {
        self.own(neighbour);
        let codebook = self.direct.index.graph_codebook();
        let from = out.len();
        out.resize(from + codebook.code_bytes(), 0);
        codebook
            .quantizer()
            .encode(&self.owner, &mut out[from..], 1);
    }

    /// Whether `node` joins the list of `neighbour` in `list`. `beside` has the codes that are
    /// stored beside the list.
    pub(super) fn decide(
        &mut self,
        neighbour: &Neighbour,
        node: u32,
        beside: Option<&[u8]>,
    ) -> Decision {
        self.own(neighbour);
        let new = New {
            node,
            table: &self.walker.traversal.table,
            floats: &self.walker.floats,
            distance: neighbour.distance,
        };
        let codes = match beside {
            Some(codes) => Codes::Beside(codes),
            None => Codes::All(self.direct.index.codes()),
        };
        let lists = &self.direct.placement().lists;
        let keeps = |node: u32| lists.get(node) == 1;
        match self
            .lists
            .decide(&self.owner, &self.list, &new, codes, &keeps)
        {
            // Another insert has just removed the other edges to the leaving node, so the leaving
            // node stays.
            Decision::Replace(leaves) if !lists.leave(leaves) => Decision::Keep,
            decision => decision,
        }
    }

    /// The bytes of a page without its pending changes. If pages are rewritten in place, the caller
    /// holds the lock of the page.
    pub(super) fn page_bytes(&self, page: u32) -> Result<PageBytes, Error> {
        let Walker {
            traversal, reader, ..
        } = &self.walker;
        match traversal.held(page.into()) {
            Some(held) if reader.is_current(held) => Ok(PageBytes::from(held.bytes())),
            _ => self.direct.page_bytes(self.pages, page),
        }
    }
}
