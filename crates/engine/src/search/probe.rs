//! Probes clusters: finds the heads nearest to a query in memory, then reads the posting lists of
//! their clusters all at once.
//!
//! ```text
//!   graph over heads ──> nearest clusters ──> their posting lists, ──┬─> vectors: ranked
//!                                             in flight together     └─> numbers of other members
//!                                                                               │
//!             members in no group that is read, near ones in one read <─────────┘
//!               └──> in flight together ──> vectors: ranked
//! ```
//!
//! A cluster is not probed if its head is much farther from the query than the nearest head (SPANN
//! §3.3). In the layout `replicated`, a query may read a vector twice. Members that are stored near
//! each other share one read.
//!
//! **Filters.** A query with a filter begins with more clusters ([`Growth`](super::ways::Growth)).
//! If the share of matches in these clusters is far below the filter's selectivity, the query
//! probes further clusters. A search without a filter would probe `p` clusters. The *margin* is the
//! distance of the `p`-th head minus the distance of the nearest head. The query ends when every
//! remaining head is farther than the k-th match's distance plus the margin.
//!
//! **Far matches.** If single reads of all matches cost less than further probes, the query reads
//! all matches singly. In the layout `grouped`, both costs are known before the first read, and in
//! other layouts after each round.

use std::collections::VecDeque;
use std::ops::Range;

use stratann_tier::{Block, ReadQueue, Request, Thread, next_of};
use stratann_vector::{Kernel, Metric};

use super::Counters;
use super::parts::{Part, Timer};
use super::ranking::Ranking;
use super::scan::let_others;
use super::source::{CandidateSource, Guided, LeftOut};
use super::walker::{Plan, Within};
use super::ways::reads_of_probe;
use crate::Error;
use crate::filter::NodeSet;
use crate::index::Index;
use crate::navigation::NavigationScratch;
use crate::overlay::Admission;
use crate::progress::Progress;
use crate::stores::ClusterStores;
use crate::stores::clusters::{ByteFile, MemberAt, Run, Vectors};

/// A cluster is probed only if its head is at most (1 + this number) times as far as the nearest
/// head, or as the mean distance of vectors to their heads if that is larger. SPANN §4.1 also uses
/// 7 for ten neighbours.
const FARTHEST: f32 = 7.0;
const BEYOND: usize = 16;
/// The approximate bytes of vectors in one read of a scan, and the number of such reads in flight.
const SCAN_BYTES: usize = 64 << 10;
const SCAN_READS: usize = 4;
/// The spread counts as even if the share of matches among probed vectors is at least this part of
/// the selectivity. In a simulation of photo-sift-100k with 1 % to 10 % of matches, a value of .9
/// took 1.3 times the probes for evenly spread matches, and found .936 of far matches in place of
/// .931.
const EVEN: f64 = 0.8;
/// Evenly spread matches may be fewer than expected by this many standard deviations.
const BY_CHANCE: f64 = 2.0;
/// The factor by which a further round may multiply the number of probed clusters.
const WIDER: usize = 4;
/// The number of vectors of a given set that are requested at once.
const ASKED: usize = 1 << 12;
/// Marks the read of single vectors, as opposed to a posting list.
const STRAY: u64 = 1 << 63;

pub(super) struct Prober<'a> {
    index: &'a Index,
    clusters: &'a ClusterStores,
    plan: Plan,
    timer: &'a Timer,
    kernel: Kernel,
    ranking: Ranking<'a>,
    counters: Counters,
    /// The number of vectors that the query has read, and the number of matches among them, both
    /// including deleted vectors.
    seen: u64,
    matched: u64,
    /// Flags: the query probed more clusters than planned, ended too early, or has read every
    /// match.
    is_wider: bool,
    is_dry: bool,
    has_all: bool,
    heads: NavigationScratch,
    /// The clusters to probe next, nearest first, and all probed clusters.
    nearest: Vec<u32>,
    probed: Met,
    /// The ranges of nodes in the groups of the probed clusters, ascending.
    groups: Vec<Range<u32>>,
    met: Met,
    waiting: VecDeque<Read>,
    /// Members whose groups this query does not read, their positions, and the runs that share a
    /// read.
    strays: Vec<u32>,
    places: Vec<MemberAt>,
    runs: Vec<(usize, usize)>,
    others: Vec<u32>,
    queues: Vec<Box<dyn ReadQueue>>,
}

#[derive(Clone, Copy)]
struct Read {
    request: Request,
    file: usize,
}

impl<'a> Prober<'a> {
    pub(super) fn new(
        index: &'a Index,
        clusters: &'a ClusterStores,
        plan: Plan,
        within: &Within<'a>,
    ) -> Result<Self, Error> {
        let kernel = Kernel::new(index.metric(), index.element(), index.dim());
        let files = clusters.files.iter();
        let queues = files.map(|file| file.tier.queue(within.thread));
        Ok(Self {
            index,
            clusters,
            plan,
            timer: within.timer,
            kernel,
            ranking: Ranking::new(kernel, within.timer, kernel.row_bytes(), within.admission),
            counters: Counters::default(),
            seen: 0,
            matched: 0,
            is_wider: false,
            is_dry: false,
            has_all: false,
            heads: NavigationScratch::default(),
            nearest: Vec::new(),
            probed: Met::default(),
            groups: Vec::new(),
            met: Met::default(),
            waiting: VecDeque::new(),
            strays: Vec::new(),
            places: Vec::new(),
            runs: Vec::new(),
            others: Vec::new(),
            queues: queues.collect::<Result<_, _>>()?,
        })
    }

    fn look(&mut self, probes: usize) {
        let Self {
            clusters,
            kernel,
            ranking,
            heads,
            ..
        } = self;
        let list = probes + BEYOND.max(probes / 4);
        self.counters.distance_computations += self.timer.time(Part::Exact, || {
            clusters.heads.look(kernel, &ranking.query, list, heads)
        });
    }

    /// Returns the [margin](self) of the query.
    fn choose(&mut self, probes: usize) -> f32 {
        // Only the first search follows the recall target. A wider search begins because the first
        // found too few results.
        let depth = self.plan.probe_depth.filter(|_| probes <= self.plan.list);
        let probes = probes.min(self.clusters.clusters() as usize);
        let most = match self.plan.growth.list {
            0 => probes,
            list => list,
        };
        self.look(probes);
        let Self {
            clusters,
            kernel,
            plan,
            heads,
            ..
        } = self;
        let first = heads.found().next().map_or(0.0, |(distance, _)| distance);
        let without_filter = depth.map_or(most, |depth| depth.of(first).clamp(1, most.max(1)));
        let probes = (plan.growth.of(without_filter as f64).ceil() as usize).min(probes);
        let last = heads.found().take(without_filter).last();
        let margin = last.map_or(0.0, |(distance, _)| distance - first);
        let most = match kernel.metric() {
            Metric::L2 | Metric::Cosine => first.max(clusters.radius) * (1.0 + FARTHEST),
            // Inner products cannot be compared by ratio, so no head is too far.
            Metric::InnerProduct => f32::INFINITY,
        };
        let near = heads.found().take(probes);
        let near = near.take_while(|&(distance, _)| distance <= most || distance <= first);
        self.nearest.clear();
        self.nearest.extend(near.map(|(_, cluster)| cluster));
        for &cluster in &self.nearest {
            self.probed.insert(cluster);
        }
        margin
    }

    async fn probe(&mut self, probes: usize) -> Result<(), Error> {
        self.ranking.begin(self.plan.k, &[], &[]);
        (self.seen, self.matched) = (0, 0);
        (self.is_wider, self.is_dry, self.has_all) = (false, false, false);
        self.met.clear();
        self.probed.clear();
        self.groups.clear();
        let read_before = self.counters.graph_reads + self.counters.vector_reads;
        let margin = self.choose(probes);
        let Some(nodes) = self.ranking.admission().nodes() else {
            return self.probe_chosen().await;
        };
        let matches = nodes.len();
        let share = matches as f64 / self.clusters.nodes().max(1) as f64;
        let wanted = matches.min(self.plan.k as u64);
        if self.are_far(nodes, share, wanted, margin) {
            self.is_dry = true;
            return Ok(());
        }
        self.probe_chosen().await?;
        let is_even = is_even(self.matched, share * self.seen as f64);
        loop {
            let all = self.clusters.clusters() as usize;
            self.has_all = self.matched >= matches || self.probed.count >= all;
            let found = self.ranking.nearest.found().len() as u64;
            if self.has_all || is_even && found >= wanted {
                return Ok(());
            }
            let probed = self.probed.count;
            self.choose_wider(margin, found, wanted);
            let reads = self.counters.graph_reads + self.counters.vector_reads - read_before;
            let more = self.nearest.len() as f64 * reads as f64 / probed.max(1) as f64;
            if more > self.plan.before {
                self.is_dry = true;
                return Ok(());
            }
            if self.nearest.is_empty() {
                return Ok(());
            }
            self.is_wider = true;
            self.probe_chosen().await?;
        }
    }

    /// Whether probes would cost more than reads of all matches. Always false in layouts without
    /// groups.
    fn are_far(&mut self, nodes: &NodeSet, share: f64, wanted: u64, margin: f32) -> bool {
        let (clusters, before) = (self.clusters, self.plan.before);
        if !matches!(clusters.vectors, Vectors::Grouped(_)) || before == f64::INFINITY {
            return false;
        }
        let mut spread = Spread::default();
        for &cluster in &self.nearest {
            spread.add(clusters, cluster, nodes);
        }
        // If the nearest groups have enough matches, the query needs no further probes.
        if spread.matched >= wanted || is_even(spread.matched, share * spread.vectors as f64) {
            return false;
        }
        let beyond = margin
            + match self.kernel.metric() {
                Metric::L2 | Metric::Cosine => clusters.radius,
                Metric::InnerProduct => 0.0,
            };
        let all = clusters.clusters() as usize;
        let mut most = self.nearest.len();
        while most < all {
            most = (most * WIDER).min(all);
            self.look(most);
            let (mut spread, mut within) = (Spread::default(), f32::INFINITY);
            for (distance, cluster) in self.heads.found().take(most) {
                if distance > within {
                    return false;
                }
                spread.add(clusters, cluster, nodes);
                if spread.reads(clusters) > before {
                    return true;
                }
                if spread.matched >= wanted && within == f32::INFINITY {
                    within = distance + beyond;
                }
            }
        }
        false
    }

    /// Chooses the clusters whose heads are at most `margin` farther than the k-th match. If the
    /// query has too few matches, chooses about as many clusters as the missing matches need.
    fn choose_wider(&mut self, margin: f32, found: u64, wanted: u64) {
        let probed = self.probed.count;
        let most = match found < wanted {
            // The aim is all wanted matches, and about a standard deviation more.
            true => {
                let aim = wanted as f64 + (wanted as f64).sqrt();
                (probed as f64 * (aim / found.max(1) as f64).min(WIDER as f64)).ceil() as usize
            }
            false => probed * WIDER,
        };
        let most = most.min(self.plan.widest);
        self.look(most);
        let kth = self.ranking.nearest.bound();
        let within = kth.map_or(f32::INFINITY, |kth| kth + margin);
        self.nearest.clear();
        let mut is_left = true;
        for (distance, cluster) in self.heads.found().take(most) {
            if distance > within {
                is_left = false;
                break;
            }
            if self.probed.insert(cluster) {
                self.nearest.push(cluster);
            }
        }
        self.is_dry = is_left && self.nearest.is_empty();
    }

    async fn probe_chosen(&mut self) -> Result<(), Error> {
        // A cluster that was rewritten since the build has no group.
        let clusters = self.clusters;
        let built = self.nearest.iter();
        let built = built.filter(|&&cluster| clusters.is_as_built(cluster));
        let groups = built.map(|&cluster| clusters.group(cluster));
        self.groups.extend(groups.filter(|group| !group.is_empty()));
        self.groups.sort_unstable_by_key(|group| group.start);
        self.strays.clear();
        self.runs.clear();
        self.waiting.clear();
        for &cluster in &self.nearest {
            let at = clusters.place(cluster);
            let file = &clusters.files[at.file];
            self.waiting.push_back(Read {
                request: request(file, cluster.into(), at.offset, at.bytes),
                file: at.file,
            });
        }
        match clusters.vectors {
            Vectors::Grouped(_) => self.counters.group_reads += self.nearest.len() as u64,
            Vectors::Replicated | Vectors::Addressed => {
                self.counters.posting_reads += self.nearest.len() as u64;
            }
        }
        self.counters.hops += self.nearest.len() as u64;
        self.counters.graph_reads += self.nearest.len() as u64;
        let mut extents = self.nearest.len();
        loop {
            self.submit()?;
            let start = self.timer.start();
            // Reads are taken as they complete, so that a slow tier delays no other file.
            let Some(done) = next_of(&mut self.queues).await else {
                break;
            };
            self.timer.stop(Part::Reads, start);
            let (tag, block) = (done.tag, done.result?);
            match tag & STRAY {
                0 => {
                    self.meet_extent(tag as u32, &block)?;
                    extents -= 1;
                    if extents == 0 {
                        self.ask_for_strays();
                    }
                }
                _ => self.meet_strays((tag & !STRAY) as usize, &block)?,
            }
        }
        self.counters.distance_computations += std::mem::take(&mut self.ranking.computations);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Error> {
        let queues = self.queues.iter();
        let mut in_flight: usize = queues.map(|queue| queue.in_flight()).sum();
        while in_flight < self.plan.beam
            && let Some(read) = self.waiting.pop_front()
        {
            self.queues[read.file].submit(read.request)?;
            self.counters.bytes_read += u64::from(read.request.len);
            in_flight += 1;
        }
        Ok(())
    }

    fn meet_extent(&mut self, cluster: u32, block: &Block) -> Result<(), Error> {
        let (clusters, check) = (self.clusters, self.index.checks_pages());
        let place = clusters.place(cluster);
        let (_, _, at) = clusters.files[place.file].reach(place.offset, place.bytes);
        let view = clusters.view(cluster, &block[at..at + place.bytes], check)?;
        let Self {
            ranking,
            met,
            seen,
            matched,
            ..
        } = self;
        // In other layouts, a query finds a vector twice only if further probes read its group
        // after its single read.
        let repeats = matches!(clusters.vectors, Vectors::Replicated) || self.is_wider;
        clusters.each_in(
            cluster,
            &view,
            0..view.records(),
            check,
            &mut |node, id, vector| {
                if repeats && !met.insert(node) {
                    return;
                }
                *seen += 1;
                *matched += u64::from(!ranking.admission().filters_out(node));
                if !ranking.admission().rules_out(node) {
                    ranking.rank_exactly(node, id, vector);
                }
            },
        )?;
        let mut others = std::mem::take(&mut self.others);
        let decoded = self
            .timer
            .time(Part::Lists, || clusters.others(cluster, &view, &mut others));
        if decoded.is_ok() {
            self.note(&others);
        }
        self.others = others;
        decoded
    }

    fn note(&mut self, others: &[u32]) {
        for &node in others {
            let group = self.groups.partition_point(|group| group.end <= node);
            let comes = self
                .groups
                .get(group)
                .is_some_and(|group| group.contains(&node));
            if !comes && self.met.insert(node) {
                let admission = self.ranking.admission();
                self.seen += 1;
                self.matched += u64::from(!admission.filters_out(node));
                if !admission.rules_out(node) {
                    self.strays.push(node);
                }
            }
        }
    }

    fn ask_for_strays(&mut self) {
        self.strays.sort_unstable();
        self.clusters.member_places(&self.strays, &mut self.places);
        let mut first = 0;
        while let Some(run) = Run::of(&self.places[first..]) {
            let tag = STRAY | self.runs.len() as u64;
            self.runs.push((first, first + run.vectors));
            self.counters.stray_reads += 1;
            self.counters.vector_reads += 1;
            let file = &self.clusters.files[run.file];
            self.waiting.push_back(Read {
                request: request(file, tag, run.offset, run.bytes),
                file: run.file,
            });
            first += run.vectors;
        }
    }

    fn meet_strays(&mut self, run: usize, block: &Block) -> Result<(), Error> {
        let (clusters, check) = (self.clusters, self.index.checks_pages());
        let (first, end) = self.runs[run];
        let places = &self.places[first..end];
        let begin = places[0];
        let (start, ..) = clusters.files[begin.file].reach(begin.offset, begin.bytes);
        for (&node, place) in self.strays[first..end].iter().zip(places) {
            let at = (place.offset - start) as usize;
            let (id, vector) = clusters.member(node, &block[at..at + place.bytes], check)?;
            self.ranking.rank_exactly(node, id, vector);
        }
        Ok(())
    }

    fn reset(&mut self) {
        for queue in &mut self.queues {
            queue.reset();
        }
    }
}

#[derive(Default)]
struct Spread {
    clusters: usize,
    vectors: usize,
    matched: u64,
}

impl Spread {
    fn add(&mut self, clusters: &ClusterStores, cluster: u32, matches: &NodeSet) {
        self.clusters += 1;
        if clusters.is_as_built(cluster) {
            let group = clusters.group(cluster);
            self.vectors += group.len();
            self.matched += matches.len_in(group);
        }
    }

    fn reads(&self, clusters: &ClusterStores) -> f64 {
        let share = self.matched as f64 / self.vectors.max(1) as f64;
        self.clusters as f64 * reads_of_probe(clusters, share)
    }
}

fn is_even(matched: u64, expected: f64) -> bool {
    let matched = matched as f64;
    matched >= EVEN * expected || matched >= expected - BY_CHANCE * expected.sqrt()
}

fn request(file: &ByteFile, tag: u64, offset: u64, bytes: usize) -> Request {
    let (offset, len, _) = file.reach(offset, bytes);
    Request {
        tag,
        offset,
        len: len as u32,
    }
}

impl<'a> CandidateSource<'a> for Prober<'a> {
    fn ranking(&mut self) -> &mut Ranking<'a> {
        &mut self.ranking
    }

    /// A probe walks only through heads, so only the ranking leaves out the node.
    fn leave_out(&mut self, left_out: Option<LeftOut>) {
        let node = left_out.map(|left_out| left_out.node);
        self.ranking.leave_out(node);
    }

    /// In a cluster index, `list` is the number of clusters to probe.
    async fn find(&mut self, list: usize) -> Result<(), Error> {
        let outcome = self.probe(list).await;
        if outcome.is_err() {
            self.reset();
        }
        outcome
    }

    fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }
}

impl<'a> Guided<'a> for Prober<'a> {
    type Scan<'s>
        = EveryMember<'s, 'a>
    where
        Self: 's;

    /// A cluster index has no codes, so a further search is the same as the first.
    async fn find_further(&mut self, list: usize) -> Result<(), Error> {
        self.find(list).await
    }

    fn is_dry(&self) -> bool {
        self.is_dry
    }

    fn is_wider(&self) -> bool {
        self.is_wider
    }

    fn has_all(&self) -> bool {
        self.has_all
    }

    fn begin_at_none(&mut self) {
        self.ranking.begin(self.plan.k, &[], &[]);
    }

    fn scan<'s>(&'s mut self, thread: &'s Thread, progress: &'s dyn Progress) -> Self::Scan<'s> {
        EveryMember {
            admission: *self.ranking.admission(),
            clusters: self.clusters,
            check: self.index.checks_pages(),
            ranking: &mut self.ranking,
            counters: Counters::default(),
            thread,
            progress,
        }
    }
}

pub(super) struct Piece {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

/// Calls `meet` with pieces in any order, and returns the number of bytes read.
pub(super) async fn each_piece(
    clusters: &ClusterStores,
    thread: &Thread,
    progress: &dyn Progress,
    pieces: &[Piece],
    mut meet: impl FnMut(usize, &[u8]) -> Result<(), Error>,
) -> Result<u64, Error> {
    let files = &clusters.files;
    let queues = files.iter().map(|file| file.tier.queue(thread));
    let mut queues = queues.collect::<Result<Vec<_>, _>>()?;
    let (mut asked, mut in_flight, mut read) = (0, 0, 0);
    loop {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        while in_flight < SCAN_READS
            && let Some(piece) = pieces.get(asked)
        {
            let request = request(&files[piece.file], asked as u64, piece.offset, piece.bytes);
            queues[piece.file].submit(request)?;
            read += u64::from(request.len);
            (asked, in_flight) = (asked + 1, in_flight + 1);
        }
        if in_flight == 0 {
            return Ok(read);
        }
        // If all pages are in memory, other queries of the thread run only during this call.
        let_others().await;
        let Some(done) = next_of(&mut queues).await else {
            return Ok(read);
        };
        let (tag, block) = (done.tag, done.result?);
        in_flight -= 1;
        let piece = &pieces[tag as usize];
        let (_, _, at) = files[piece.file].reach(piece.offset, piece.bytes);
        meet(tag as usize, &block[at..at + piece.bytes])?;
    }
}

pub(super) struct EveryMember<'s, 'a> {
    clusters: &'s ClusterStores,
    check: bool,
    admission: Admission<'a>,
    ranking: &'s mut Ranking<'a>,
    counters: Counters,
    thread: &'s Thread,
    progress: &'s dyn Progress,
}

impl EveryMember<'_, '_> {
    async fn each_piece(
        &mut self,
        pieces: &[Piece],
        mut meet: impl FnMut(&mut Self, usize, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (clusters, thread, progress) = (self.clusters, self.thread, self.progress);
        let meet = |piece, bytes: &[u8]| meet(self, piece, bytes);
        let read = each_piece(clusters, thread, progress, pieces, meet).await?;
        self.counters.bytes_read += read;
        Ok(())
    }

    /// Works only in layouts that store each vector once.
    async fn find_among(&mut self, nodes: &NodeSet) -> Result<(), Error> {
        let (clusters, check) = (self.clusters, self.check);
        let mut nodes = nodes
            .iter()
            .filter(|&node| u64::from(node) < clusters.nodes());
        let (mut asked, mut places) = (Vec::with_capacity(ASKED), Vec::new());
        loop {
            asked.clear();
            asked.extend(nodes.by_ref().take(ASKED));
            if asked.is_empty() {
                return Ok(());
            }
            clusters.member_places(&asked, &mut places);
            let (mut pieces, mut firsts) = (Vec::new(), Vec::new());
            let mut first = 0;
            while let Some(run) = Run::of(&places[first..]) {
                pieces.push(Piece {
                    file: run.file,
                    offset: run.offset,
                    bytes: run.bytes,
                });
                firsts.push(first..first + run.vectors);
                first += run.vectors;
            }
            self.counters.vector_reads += pieces.len() as u64;
            self.counters.stray_reads += pieces.len() as u64;
            self.each_piece(&pieces, |scan, piece, bytes| {
                let members = firsts[piece].clone();
                for (&node, place) in asked[members.clone()].iter().zip(&places[members]) {
                    let at = (place.offset - pieces[piece].offset) as usize;
                    let (id, vector) =
                        clusters.member(node, &bytes[at..at + place.bytes], check)?;
                    scan.rank(node, id, vector);
                }
                Ok(())
            })
            .await?;
        }
    }

    fn rank(&mut self, node: u32, id: u64, vector: &[u8]) {
        if !self.admission.rules_out(node) {
            self.ranking.rank_exactly(node, id, vector);
        }
    }
}

impl<'a> CandidateSource<'a> for EveryMember<'_, 'a> {
    fn ranking(&mut self) -> &mut Ranking<'a> {
        self.ranking
    }

    async fn find(&mut self, _: usize) -> Result<(), Error> {
        let (clusters, check) = (self.clusters, self.check);
        let scanned = match (&clusters.vectors, self.admission.nodes()) {
            (Vectors::Replicated, _) => {
                let all = 0..clusters.clusters();
                let pieces: Vec<_> = all
                    .map(|cluster| {
                        let at = clusters.place(cluster);
                        Piece {
                            file: at.file,
                            offset: at.offset,
                            bytes: at.bytes,
                        }
                    })
                    .collect();
                self.counters.graph_reads += pieces.len() as u64;
                self.each_piece(&pieces, |scan, cluster, bytes| {
                    let cluster = cluster as u32;
                    let view = clusters.view(cluster, bytes, check)?;
                    let mut each = |node, id, vector: &[u8]| scan.rank(node, id, vector);
                    clusters.each_in(cluster, &view, 0..view.own(), check, &mut each)
                })
                .await
            }
            (Vectors::Grouped(_) | Vectors::Addressed, Some(nodes)) => self.find_among(nodes).await,
            (Vectors::Grouped(_) | Vectors::Addressed, None) => {
                let runs = clusters.member_runs(SCAN_BYTES);
                let pieces: Vec<_> = runs
                    .iter()
                    .map(|(numbers, at)| Piece {
                        file: at.file,
                        offset: at.offset,
                        bytes: numbers.len() * at.bytes,
                    })
                    .collect();
                self.counters.vector_reads += pieces.len() as u64;
                self.each_piece(&pieces, |scan, piece, bytes| {
                    let (numbers, at) = &runs[piece];
                    for (node, member) in numbers.clone().zip(bytes.chunks_exact(at.bytes)) {
                        let (id, vector) = clusters.member(node, member, check)?;
                        scan.rank(node, id, vector);
                    }
                    Ok(())
                })
                .await
            }
        };
        self.counters.distance_computations += std::mem::take(&mut self.ranking.computations);
        scanned
    }

    fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }
}

/// An exact set of vectors, which can be emptied in constant time.
#[derive(Debug, Default)]
struct Met {
    /// Vectors, each with the number of the query that added it.
    slots: Vec<(u32, u32)>,
    query: u32,
    count: usize,
}

impl Met {
    const LEAST: usize = 1 << 10;

    fn clear(&mut self) {
        self.count = 0;
        self.query = self.query.wrapping_add(1);
        if self.query == 0 {
            // The counter wrapped, so slots of the first queries would count again.
            self.slots.fill((0, 0));
            self.query = 1;
        }
    }

    /// Returns false if the set already has the vector.
    fn insert(&mut self, node: u32) -> bool {
        if 2 * self.count >= self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = hash(node) & mask;
        loop {
            match self.slots[at] {
                (_, query) if query != self.query => {
                    self.slots[at] = (node, self.query);
                    self.count += 1;
                    return true;
                }
                (known, _) if known == node => return false,
                _ => at = (at + 1) & mask,
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let size = (2 * self.slots.len()).max(Self::LEAST);
        let slots = std::mem::replace(&mut self.slots, vec![(0, 0); size]);
        let query = self.query;
        // New slots have the query number 0, so the current query must have another number.
        self.query = self.query.max(1);
        self.count = 0;
        for (node, _) in slots
            .into_iter()
            .filter(|slot| slot.1 == query && query != 0)
        {
            self.insert(node);
        }
    }
}

fn hash(node: u32) -> usize {
    (u64::from(node).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_was_met_is_known_until_the_next_query() {
        let mut met = Met::default();
        for query in 0..3 {
            met.clear();
            let mut expected = HashSet::new();
            for i in 0..5_000u32 {
                let node = i.wrapping_mul(2_654_435_761) % 3_001 + query;
                assert_eq!(met.insert(node), expected.insert(node), "{query}: {node}");
            }
        }
        met.query = u32::MAX;
        met.clear();
        assert!(met.insert(7) && !met.insert(7));
    }
}
