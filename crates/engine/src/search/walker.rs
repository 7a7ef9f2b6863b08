//! One query after the other through the graph: what a search and an insert have in common.

use stratann_tier::Thread;
use stratann_vector::{Kernel, Reduction, normalize, to_f32};

use super::Counters;
use super::admission::Admission;
use super::parts::{Part, Timer};
use super::promise::Promise;
use super::ranking::Ranking;
use super::reader::{NodeReader, Page};
use super::rerank::Reranker;
use super::scan::{Everything, Scan};
use super::source::{CandidateSource, Guided};
use super::spare::Spare;
use super::strategy::{self, Strategy};
use super::traversal::{Setting, Traversal};
use crate::index::Index;
use crate::measure::Heat;
use crate::navigation::NavigationScratch;
use crate::progress::Progress;
use crate::stores::NodePages;
use crate::{Error, Rerank};

/// How a walk goes, with nothing left open.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) k: usize,
    pub(crate) list: usize,
    /// The same where vectors are that wait for a merge: of clusters `list` is how many are probed, which says nothing of a graph.
    pub(crate) fresh_list: usize,
    /// Candidates beyond the list that a query may have for the sake of those that are deleted, beside twice the list.
    pub(crate) candidates: usize,
    pub(crate) beam: usize,
    pub(crate) strategy: Strategy,
    pub(crate) navigation: bool,
    pub(crate) whole_page: bool,
    pub(crate) rerank: Rerank,
    /// Whether the answers' distances are wanted to the last bit, where leading parts of vectors give others.
    pub(crate) exact: bool,
    /// Whether a walk ends when no candidate that is left has promise.
    pub(crate) stop_early: bool,
    /// Whether pages stay readable until the next walk, which ranks no vectors that are apart from lists.
    pub(crate) hold: bool,
    pub(crate) parts: bool,
}

/// Where a walk takes place.
#[derive(Clone, Copy)]
pub(crate) struct Within<'a> {
    pub(crate) thread: &'a Thread,
    pub(crate) timer: &'a Timer,
    /// What is told which pages are read.
    pub(crate) heat: Option<&'a Heat>,
    pub(crate) admission: Admission<'a>,
}

/// A task's state, reused from query to query.
pub(crate) struct Walker<'a, N> {
    index: &'a Index,
    pages: &'a N,
    plan: Plan,
    timer: &'a Timer,
    kernel: Kernel,
    pub(crate) traversal: Traversal<'a, N>,
    pub(crate) reader: NodeReader<'a, N>,
    scratch: NavigationScratch,
    /// The query as numbers; of length 1 under cosine.
    pub(crate) floats: Vec<f32>,
    beam: Vec<Page<'a>>,
}

impl<'a, N: NodePages> Walker<'a, N> {
    /// For queries on an index whose pages are `pages`.
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
        let graph = index.graph();
        let kernel = Kernel::new(index.metric(), index.element(), index.dim());
        let row_bytes = index.dim() * index.element().size();
        // A page that another process writes in its place may be read half as it was.
        let check = index.checks_pages() || (!N::MOVES && graph.placement.get().is_some());
        let queue = graph.tier.queue(thread)?;
        let setting = Setting {
            graph,
            pages,
            codes: index.codes(),
            entries: index.entries(),
            // An insert wants the pages themselves.
            cache: index.cache().map(|cache| &**cache).filter(|_| !plan.hold),
            whole_page: plan.whole_page,
            hold: plan.hold,
            candidates: plan.candidates,
            timer,
        };
        // A walk whose pages are held is for the lists.
        let vectors = graph.segments.as_ref().filter(|_| !plan.hold);
        let reranker = vectors.map(|segments| {
            let rerank = (plan.rerank, plan.exact);
            Reranker::new(segments, thread, row_bytes, rerank, check, timer, heat)
        });
        let mut spare = Spare::take();
        let mut ranking = Ranking::new(kernel, timer, row_bytes, admission);
        ranking.promise = Promise::new(plan.stop_early);
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
            beam: Vec::new(),
        })
    }

    async fn answer(&mut self) -> Result<(), Error> {
        self.walk().await?;
        loop {
            // Where vectors are apart, they say only now which candidates are deleted: others count in their stead. Nothing else makes
            // a walk that has ended go on: not what exact distances say of candidates that had no promise without them.
            let refused = self.traversal.finish(&self.reader).await?;
            if !refused || !self.traversal.frontier.has_unread() {
                return Ok(());
            }
            self.go_on().await?;
        }
    }

    /// Forgets the reads in flight.
    pub(crate) fn reset(&mut self) {
        self.reader.reset();
        self.traversal.reset();
    }

    /// Walks the graph to the query that is in `traversal.ranking.query`.
    pub(crate) async fn walk(&mut self) -> Result<(), Error> {
        let Self {
            index,
            plan,
            timer,
            traversal,
            floats,
            ..
        } = self;
        to_f32(index.element(), &traversal.ranking.query, floats);
        if index.metric().reduction() == Reduction::Normalised {
            normalize(floats);
        }
        timer.time(Part::Codes, || {
            index
                .graph_codebook()
                .quantizer()
                .table(index.metric(), floats, &mut traversal.table);
        });
        traversal.counters = Counters::default();
        if plan.navigation {
            let navigation = index.navigation()?;
            let query = &traversal.ranking.query;
            let seeds = timer.time(Part::Exact, || {
                navigation.nearest(&self.kernel, query, &mut self.scratch)
            });
            traversal.counters.distance_computations += seeds.distance_computations;
            traversal.begin_at(plan.k, plan.list, seeds.nodes, seeds.distances);
        } else {
            traversal.begin(plan.k, plan.list);
        }
        self.go_on().await
    }

    /// Expands candidates until all that count are.
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

    fn begin_at_none(&mut self) {
        self.traversal.ranking.begin(self.plan.k, &[], &[]);
    }

    fn scan<'s>(&'s mut self, thread: &'s Thread, progress: &'s dyn Progress) -> Self::Scan<'s> {
        self.traversal.let_go();
        let scan = Scan {
            index: self.index,
            thread,
            progress,
            admission: *self.traversal.ranking.admission(),
        };
        Everything {
            scan,
            pages: self.pages,
            ranking: &mut self.traversal.ranking,
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
