//! One query after the other through the graph: what a search and an insert have in common.

use stratann_tier::Thread;
use stratann_vector::{Kernel, Reduction, normalize, to_f32};

use super::Counters;
use super::admission::Admission;
use super::before::ByCode;
use super::further::Uses;
use super::parts::{Part, Timer};
use super::promise::{Ends, Promise};
use super::ranking::Ranking;
use super::reader::{NodeReader, Page};
use super::rerank::Reranker;
use super::scan::{Everything, Scan};
use super::source::{CandidateSource, Guided, LeftOut};
use super::spare::Spare;
use super::strategy::{self, Strategy};
use super::traversal::{Setting, Traversal};
use super::ways::Way;
use crate::index::Index;
use crate::measure::Heat;
use crate::navigation::NavigationScratch;
use crate::press::{LowList, far, is_rounded, round};
use crate::progress::Progress;
use crate::recall::Depth;
use crate::stores::NodePages;
use crate::update::LooksAt;
use crate::{Error, Press, Rerank};

/// How a walk goes, with nothing left open.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) k: usize,
    pub(crate) list: usize,
    /// The same where vectors are that wait for a merge: of clusters `list` is how many are probed, which says nothing of a graph.
    pub(crate) fresh_list: usize,
    /// How many clusters are probed where a recall is asked for, by the distance of the nearest head; up to `list`.
    pub(crate) probe_depth: Option<Depth>,
    /// Candidates beyond the list that a query may have for the sake of those that are deleted, beside twice the list.
    pub(crate) candidates: usize,
    pub(crate) beam: usize,
    pub(crate) strategy: Strategy,
    pub(crate) press: Press,
    pub(crate) navigation: bool,
    pub(crate) whole_page: bool,
    pub(crate) rerank: Rerank,
    /// Whether the answers' distances are wanted to the last bit, where leading parts of vectors give others.
    pub(crate) exact: bool,
    /// What ends a walk.
    pub(crate) ends: Ends,
    /// Which vectors are looked at beyond those that codes or heads lead to.
    pub(crate) looks_at: LooksAt,
    /// The first of the nodes that came since the last build or merge, where codes say little of these ([`drifted_from`](Index::drifted_from)).
    pub(crate) drifted_from: Option<u32>,
    /// The list of the walk that looks further where answers are among those ([`further`](mod@super::further)); 0 if none does.
    pub(crate) further: usize,
    /// What that walk makes of what it reads.
    pub(crate) further_uses: Uses,
    /// Whether pages stay readable until the next walk, which ranks no vectors that are apart from lists.
    pub(crate) hold: bool,
    pub(crate) parts: bool,
    /// How what matches a filter is found, if there is one.
    pub(crate) way: Way,
    /// Nodes that a walk is expected to go through: its list, and with it what does not match.
    pub(crate) walked: usize,
    /// The longest list with which a walk begins again that found too few.
    pub(crate) longest: usize,
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
    /// What a rounded query would be sent as; scratch.
    sent: Vec<u8>,
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
            code_parts: index.code_parts(),
            entries: index.entries(),
            // An insert wants the pages themselves.
            cache: index.cache().map(|cache| &**cache).filter(|_| !plan.hold),
            whole_page: plan.whole_page,
            hold: plan.hold,
            candidates: plan.candidates,
            walked: plan.walked,
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
            // What low codes say is known of every node that is looked at by its high one.
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
        // How far codes err was learned from those that are not off.
        let promise = std::mem::take(&mut self.traversal.ranking.promise);
        let uses = self.traversal.use_reads(self.plan.further_uses);
        let outcome = self.find(list).await;
        self.traversal.use_reads(uses);
        self.traversal.ranking.promise = promise;
        outcome
    }

    /// A walk that ended with its list, and with less in it than there is, was cut off, or came to nothing else.
    fn is_dry(&self) -> bool {
        let frontier = &self.traversal.frontier;
        let Some(nodes) = self.traversal.ranking.admission().nodes() else {
            return false;
        };
        let is_full = frontier.live() as u64 >= nodes.len().min(self.plan.list as u64);
        !is_full && (frontier.is_cut_off() || self.plan.ends == Ends::WithItsList)
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
        // Where codes are beside lists, none are at hand.
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
