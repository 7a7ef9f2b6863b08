//! The walk of a graph for one query after another. Searches and inserts both use it.

use stratann_tier::Thread;
use stratann_vector::{Kernel, Reduction, normalize, to_f32};

use super::Counters;
use super::before::ByCode;
use super::depth::Depth;
use super::further::Uses;
use super::parts::{Part, Timer};
use super::promise::{Ends, Promise};
use super::ranking::Ranking;
use super::reader::{NodeReader, Page};
use super::rerank::Reranker;
use super::scan::{Everything, Scan};
use super::source::{CandidateSource, Guided, LeftOut};
use super::spare::Spare;
use super::strategy;
use super::traversal::{Setting, Traversal};
use super::ways::Growth;
use super::{LowList, far, is_rounded, round};
use crate::index::Index;
use crate::index::growth::LooksAt;
use crate::navigation::NavigationScratch;
use crate::overlay::Admission;
use crate::progress::Progress;
use crate::stores::NodePages;
use crate::stores::heat::Heat;
use crate::{Error, Press, Rerank, Strategy, Way};

#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) k: usize,
    pub(crate) list: usize,
    /// The list size for vectors that wait for a merge. In a cluster index, `list` is the number of
    /// probes.
    pub(crate) fresh_list: usize,
    /// With a recall target: the number of clusters to probe, by the distance of the nearest head.
    pub(crate) probe_depth: Option<Depth>,
    /// The growth of the number of probes with a filter, and the most clusters of such a query.
    pub(crate) growth: Growth,
    pub(crate) widest: usize,
    /// The reads of [`Way::Before`], or infinite if the caller requested the strategy.
    pub(crate) before: f64,
    /// The most candidates in a list that may have deleted nodes. Numbers below twice the list size
    /// have no effect.
    pub(crate) candidates: usize,
    pub(crate) beam: usize,
    pub(crate) strategy: Strategy,
    pub(crate) press: Press,
    pub(crate) navigation: bool,
    pub(crate) whole_page: bool,
    pub(crate) rerank: Rerank,
    pub(crate) exact: bool,
    pub(crate) ends: Ends,
    /// The vectors to rank in addition to the vectors to which codes or heads lead.
    pub(crate) looks_at: LooksAt,
    /// The first node inserted since the last build or merge, if codes hardly distinguish such
    /// nodes.
    pub(crate) drifted_from: Option<u32>,
    /// The list size of a [further](mod@super::further) walk, or 0.
    pub(crate) further: usize,
    pub(crate) further_uses: Uses,
    /// Whether pages stay readable until the next walk. If they do, vectors apart from lists are
    /// not ranked.
    pub(crate) hold: bool,
    pub(crate) parts: bool,
    pub(crate) way: Way,
    /// About the most nodes that are nearer than the last match of the longest list. Without a
    /// filter, this is the list size.
    pub(crate) walked: usize,
    /// The share of the list's positions at which a walk also expands nodes that do not match
    /// ([`THROUGH`](super::ways)).
    pub(crate) through: f64,
    /// The longest list for a walk that begins again because it found too few results.
    pub(crate) longest: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Within<'a> {
    pub(crate) thread: &'a Thread,
    pub(crate) timer: &'a Timer,
    pub(crate) heat: Option<&'a Heat>,
    pub(crate) admission: Admission<'a>,
}

pub(crate) struct Walker<'a, N> {
    index: &'a Index,
    pages: &'a N,
    plan: Plan,
    timer: &'a Timer,
    kernel: Kernel,
    pub(crate) traversal: Traversal<'a, N>,
    pub(crate) reader: NodeReader<'a, N>,
    scratch: NavigationScratch,
    /// The query as numbers. Under cosine, the query has the length 1.
    pub(crate) floats: Vec<f32>,
    /// The query, rounded as if it were sent to another process.
    sent: Vec<u8>,
    beam: Vec<Page<'a>>,
}

impl<'a, N: NodePages> Walker<'a, N> {
    pub(crate) fn new(
        index: &'a Index,
        pages: &'a N,
        plan: Plan,
        within: &Within<'a>,
    ) -> Result<Self, Error> {
        let Within {
            thread,
            timer,
            heat,
            admission,
        } = *within;
        let graph = index.search_stores();
        let kernel = Kernel::new(index.metric(), index.element(), index.dim());
        let row_bytes = index.dim() * index.element().size();
        // If another process rewrites a page in place, a read may mix old and new bytes.
        let check = index.checks_pages() || (!N::MOVES && graph.placement.get().is_some());
        let queue = graph.tier.queue(thread)?;
        let setting = Setting {
            graph,
            pages,
            codes: index.codes(),
            code_parts: index.code_parts(),
            entries: index.entries(),
            // An insert needs pages, not cached records.
            cache: index.cache().map(|cache| &**cache).filter(|_| !plan.hold),
            whole_page: plan.whole_page,
            hold: plan.hold,
            candidates: plan.candidates,
            walked: plan.walked,
            through: plan.through,
            timer,
        };
        // A walk that holds its pages needs only their lists.
        let vectors = graph.segments.as_ref().filter(|_| !plan.hold);
        let reranker = vectors.map(|segments| {
            let rerank = (plan.rerank, plan.exact);
            Reranker::new(segments, thread, row_bytes, rerank, check, timer, heat)
        });
        let mut spare = Spare::take();
        let mut ranking = Ranking::new(kernel, timer, row_bytes, admission);
        ranking.promise = Promise::new(plan.ends);
        ranking.trust(plan.looks_at == LooksAt::Chosen, plan.drifted_from);
        Ok(Self {
            index,
            pages,
            plan,
            timer,
            kernel,
            traversal: Traversal::new(setting, ranking, reranker, &mut spare),
            reader: NodeReader::new(queue, graph, pages, check, timer, heat),
            scratch: spare.navigation,
            floats: vec![0.0; index.dim()],
            sent: Vec::new(),
            beam: Vec::new(),
        })
    }

    async fn answer(&mut self) -> Result<(), Error> {
        self.walk().await?;
        loop {
            // If vectors are apart from lists, deleted candidates are found only now, and other
            // candidates replace them.
            let refused = self.traversal.finish(&self.reader).await?;
            if !refused || !self.traversal.frontier.has_unread() {
                return Ok(());
            }
            self.go_on().await?;
        }
    }

    pub(crate) fn reset(&mut self) {
        self.reader.reset();
        self.traversal.reset();
    }

    pub(crate) async fn walk(&mut self) -> Result<(), Error> {
        let Self {
            index,
            plan,
            timer,
            traversal,
            floats,
            sent,
            ..
        } = self;
        to_f32(index.element(), &traversal.ranking.query, floats);
        if index.metric().reduction() == Reduction::Normalised {
            normalize(floats);
        }
        let (codebook, metric) = (index.graph_codebook(), index.metric());
        let seeds = plan.strategy != Strategy::Press && plan.press.seeds > 0 && !plan.navigation;
        if let (Strategy::Press, Some(paired)) = (plan.strategy, codebook.paired())
            && is_rounded(index.element())
            && !round(paired.rounding(), floats, sent)
        {
            return Err(far());
        }
        timer.time(Part::Codes, || {
            if seeds {
                let low = traversal.seeding.get_or_insert_default();
                low.fill(codebook.quantizer(), metric, floats);
                low.begin(1, plan.press);
            }
            let (Strategy::Press, Some(paired)) = (plan.strategy, codebook.paired()) else {
                return codebook.table(metric, floats, &mut traversal.table);
            };
            // A node is scored by its high code only when its low score is known.
            paired.rest_table(metric, floats, &mut traversal.table);
            let low = traversal.low.get_or_insert_default();
            low.fill(paired.low(), metric, floats);
            let most = plan.list.max(plan.walked);
            low.begin(LowList::size(plan.press, most), plan.press);
        });
        traversal.counters = Counters::default();
        if plan.navigation {
            let navigation = index.navigation()?;
            let query = &traversal.ranking.query;
            let seeds = timer.time(Part::Exact, || {
                navigation.nearest(&self.kernel, query, &mut self.scratch)
            });
            traversal.counters.distance_computations += seeds.distance_computations;
            traversal.begin_at(plan.k, plan.list, &seeds);
        } else {
            traversal.begin(plan.k, plan.list);
        }
        self.go_on().await
    }

    async fn go_on(&mut self) -> Result<(), Error> {
        let Self {
            plan,
            traversal,
            reader,
            ..
        } = self;
        strategy::run(plan.strategy, traversal, reader, plan.beam, &mut self.beam).await
    }
}

impl<'a, N: NodePages> CandidateSource<'a> for Walker<'a, N> {
    fn ranking(&mut self) -> &mut Ranking<'a> {
        &mut self.traversal.ranking
    }

    fn leave_out(&mut self, node: Option<LeftOut>) {
        self.traversal.leave_out(node);
    }

    async fn find(&mut self, list: usize) -> Result<(), Error> {
        self.plan.list = list;
        let outcome = self.answer().await;
        if outcome.is_err() {
            self.reset();
        }
        outcome
    }

    fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.traversal.counters)
    }
}

impl<'a, N: NodePages> Guided<'a> for Walker<'a, N> {
    type Scan<'s>
        = Everything<'s, 'a, N>
    where
        Self: 's;

    async fn find_further(&mut self, list: usize) -> Result<(), Error> {
        // The further walk ignores the known error of codes, which comes from vectors that did not
        // drift.
        let promise = std::mem::take(&mut self.traversal.ranking.promise);
        let uses = self.traversal.use_reads(self.plan.further_uses);
        let outcome = self.find(list).await;
        self.traversal.use_reads(uses);
        self.traversal.ranking.promise = promise;
        outcome
    }

    /// A walk whose list still has space was cut off, or could reach no more matches.
    fn is_dry(&self) -> bool {
        let frontier = &self.traversal.frontier;
        let Some(nodes) = self.traversal.ranking.admission().nodes() else {
            return false;
        };
        let depth = self.traversal.depth();
        let wanted = depth.unwrap_or(self.plan.list) as u64;
        let is_full = frontier.live() as u64 >= nodes.len().min(wanted);
        !is_full && (frontier.is_cut_off() || self.plan.ends != Ends::WithoutPromise)
    }

    fn begin_at_none(&mut self) {
        self.traversal.ranking.begin(self.plan.k, &[], &[]);
    }

    fn scan<'s>(&'s mut self, thread: &'s Thread, progress: &'s dyn Progress) -> Self::Scan<'s> {
        self.traversal.let_go();
        let Traversal { ranking, table, .. } = &mut self.traversal;
        let (index, admission) = (self.index, *ranking.admission());
        let scan = Scan {
            index,
            thread,
            progress,
            admission,
            among: admission.nodes(),
        };
        // If codes are beside lists, they are not in memory.
        let by_code = self.plan.looks_at != LooksAt::All && !N::CODES;
        let has_codes = admission.nodes().is_some() && by_code;
        let by_code = has_codes.then(|| ByCode {
            table,
            codebook: index.graph_codebook(),
            metric: index.metric(),
            codes: index.codes(),
            code_parts: index.code_parts(),
        });
        Everything {
            scan,
            pages: self.pages,
            ranking,
            by_code,
            counters: Counters::default(),
        }
    }
}

impl<N> Drop for Walker<'_, N> {
    fn drop(&mut self) {
        let spare = Spare {
            navigation: std::mem::take(&mut self.scratch),
            ..self.traversal.spare()
        };
        spare.leave(self.index.memory().budget);
    }
}
