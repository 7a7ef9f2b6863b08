//! The storage server's part of PRESS (DistVS §4.3): it ranks the nearest candidates by exact
//! vectors.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stratann_tier::{IoMode, Panic, Task, Thread, Work, WorkerPool};
use stratann_vector::Kernel;

use super::states::{self, States, View};
use super::{Collection, check, no_node};
use crate::bounds;
use crate::data::MatrixRef;
use crate::frontier::{Frontier, key};
use crate::overlay::Seen;
use crate::overlay::fresh::FreshScratch;
use crate::progress::Silent;
use crate::search::{Counters, Ranking, Reranker, Timer};
use crate::{Error, Index, LiveIndex, MergeWhen, Merger, OpenOptions, Rerank, WriteOptions};

const READ_AGAIN: &str = "Read the index again, then repeat the request";

/// The exact vectors of an index on storage, and the changes since its last merge.
pub struct Full {
    states: Arc<States>,
    workers: WorkerPool,
}

/// The result of a ranking, and its cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranked {
    /// The ids of the results, nearest first.
    pub ids: Vec<u64>,
    /// The exact distances of the results.
    pub distances: Vec<f32>,
    /// The number of reads of storage.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// The number of computed distances, excluding distances to vectors that wait for a merge.
    pub computations: u64,
    /// The number of nodes whose vectors were deleted or replaced.
    pub refused: u32,
}

impl Full {
    /// The time for which the checkpoint before the last merge stays available after its last use.
    pub const KEPT: Duration = states::KEPT;

    /// Opens the vectors of the index at `path` for reading. `threads` threads rank candidates.
    ///
    /// # Errors
    /// There is no index, servers cannot share it, a file is damaged, no thread starts, or another
    /// checkpoint is committed during the call ([`Error::Outdated`]).
    pub fn open(path: impl AsRef<Path>, threads: usize, io: IoMode) -> Result<Full, Error> {
        let path = path.as_ref();
        let index = Index::open(path, &OpenOptions::default())?;
        check(path, &index)?;
        Full::of(States::still(path, index)?, threads, io)
    }

    /// Opens the vectors for reading and for changes ([`index`](Self::index)).
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does, and if another process has the index open for changes.
    pub fn open_for_changes(
        path: impl AsRef<Path>,
        threads: usize,
        io: IoMode,
        options: &WriteOptions,
    ) -> Result<Full, Error> {
        let path = path.as_ref();
        let live = LiveIndex::open(path, &OpenOptions::default(), options)?;
        let index = live.index();
        check(path, &index)?;
        index.volume().held_as(
            "the storage of servers",
            "Change it through these servers (stratann cluster upsert, stratann cluster delete; in Python stratann.connect), or stop them",
        );
        drop(index);
        Full::of(States::live(Arc::new(live)), threads, io)
    }

    fn of(states: States, threads: usize, io: IoMode) -> Result<Full, Error> {
        Ok(Full {
            states: Arc::new(states),
            workers: WorkerPool::new(threads.max(1), io)?,
        })
    }

    /// The collection of the last checkpoint.
    pub fn collection(&self) -> Collection {
        self.states.newest()
    }

    /// The number of vectors that a search can find now.
    pub fn vectors(&self) -> usize {
        self.states.vectors()
    }

    /// The index, if it was opened for changes.
    pub fn index(&self) -> Option<&Arc<LiveIndex>> {
        self.states.index()
    }

    /// Merges in the background until the returned value is dropped. `None` if the index is open
    /// only for reading. A merge waits while a query may use the checkpoint before the last merge.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn merge_when_due(&self, when: MergeWhen) -> Result<Option<Merger>, Error> {
        let states = Arc::downgrade(&self.states);
        let may = move |_: &LiveIndex| states.upgrade().is_some_and(|states| !states.has_before());
        let live = self.index();
        live.map(|live| live.merge_when_due_and(when, may))
            .transpose()
    }

    /// The collection of the checkpoint `state`: the last one, or the one before until its
    /// [release](Self::forget_before).
    pub fn collection_of(&self, state: u64) -> Option<Collection> {
        self.states.collection(state)
    }

    /// Releases the checkpoint before the last merge if it was unused for [`KEPT`](Self::KEPT), or
    /// if all servers have the last checkpoint. `all_by` is the checkpoint that all servers have.
    /// The program must call this function regularly.
    pub fn tidy(&self, all_by: Option<u64>) {
        self.states.tidy(all_by);
    }

    /// Whether a query may still use the checkpoint before the last merge.
    pub fn has_before(&self) -> bool {
        self.states.has_before()
    }

    /// Releases the checkpoint before the last merge.
    pub fn forget_before(&self) {
        self.states.forget_before();
    }

    /// Inserts or replaces vectors, which are one after another in `rows`. After the call, the
    /// vectors are durable according to [`WriteOptions::durability`], and later rankings see these
    /// vectors.
    ///
    /// # Errors
    /// Fails as [`LiveIndex::upsert`] does, and if the index was opened only for reading.
    pub fn upsert(&self, ids: &[u64], rows: &[u8]) -> Result<(), Error> {
        let index = self.changing()?;
        let collection = index.index();
        let (dim, element) = (collection.dim(), collection.element());
        let row_bytes = dim * element.size();
        if rows.len() != ids.len() * row_bytes {
            let reason = format!(
                "each of the {} ids has a vector of {row_bytes} bytes",
                ids.len()
            );
            let remedy = "Give one vector of this collection for each id";
            let what = "number of bytes of the vectors";
            return Err(Error::call(what, rows.len(), reason, remedy));
        }
        let rows = MatrixRef::new(rows, ids.len(), dim, element)?;
        index.upsert(&rows, ids, &Silent)
    }

    /// Deletes the vectors with these ids, and returns the number of ids that were in the index.
    ///
    /// # Errors
    /// The index was opened only for reading, or the log cannot be written.
    pub fn delete(&self, ids: &[u64]) -> Result<usize, Error> {
        let index = self.changing()?;
        let mut there = Vec::with_capacity(ids.len());
        for &id in ids {
            if index.contains(id)? {
                there.push(id);
            }
        }
        there.sort_unstable();
        there.dedup();
        if !there.is_empty() {
            index.delete(&there)?;
        }
        Ok(there.len())
    }

    fn changing(&self) -> Result<&Arc<LiveIndex>, Error> {
        self.index().ok_or_else(|| {
            Error::call(
                "the storage of an index",
                "open for reading",
                "it takes no changes",
                "Open it for changes",
            )
        })
    }

    /// Ranks nodes of a checkpoint, and vectors that wait for a merge. A thread of this server
    /// later calls `done` with the `k` nearest, or an error.
    ///
    /// # Errors
    /// The checkpoint `state` is unknown or was released, the query does not fit, a node does not
    /// exist, or `k` is 0. Then `done` is not called.
    pub fn rank(
        &self,
        state: u64,
        query: &[u8],
        nodes: &[u32],
        k: usize,
        done: impl FnOnce(Result<Ranked, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.rank_while((state, query), nodes, k, || true, done)
    }

    /// Ranks as [`rank`](Self::rank) does, unless `wanted` returns false before the first read.
    /// `done` then gets [`Error::Interrupted`].
    ///
    /// # Errors
    /// Fails as [`rank`](Self::rank) does.
    pub fn rank_while(
        &self,
        (state, query): (u64, &[u8]),
        nodes: &[u32],
        k: usize,
        wanted: impl Fn() -> bool + Send + Sync + 'static,
        done: impl FnOnce(Result<Ranked, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let Some(collection) = self.states.collection(state) else {
            return Err(Error::call(
                "the checkpoint of a request",
                format!("{state:016x}"),
                "this server has only the last checkpoint, and perhaps the one before it",
                READ_AGAIN,
            ));
        };
        let Collection { nodes: count, .. } = collection;
        collection.floats(query, &mut Vec::new())?;
        if k == 0 {
            return Err(bounds::no_results());
        }
        if let Some(node) = nodes.iter().find(|&&node| node >= count) {
            return Err(no_node(*node, count));
        }
        let job = Job {
            states: self.states.clone(),
            state,
            query: query.to_vec(),
            nodes: nodes.to_vec(),
            k,
            wanted: Box::new(wanted),
            found: Mutex::new(Err(Error::Interrupted)),
            done: Mutex::new(Some(Box::new(done))),
        };
        self.workers.submit(1, Arc::new(job));
        Ok(())
    }
}

type Near = (f32, u64);

struct Nodes {
    found: Vec<Near>,
    counters: Counters,
    refused: usize,
}

impl View {
    async fn rank(
        &self,
        thread: &Thread,
        query: &[u8],
        nodes: &[u32],
        k: usize,
    ) -> Result<Ranked, Error> {
        let Nodes {
            mut found,
            counters,
            mut refused,
        } = self.rank_nodes(thread, query, nodes, k).await?;
        let (sizes, mut scratch) = ((k, (2 * nodes.len()).max(k)), FreshScratch::default());
        match &self.since_merge {
            None => waiting(&self.changes.seen(), query, sizes, &mut scratch, &mut found),
            Some(since) => {
                let since = since.seen();
                let dead = since.dead();
                let ranked = found.len();
                found.retain(|&(_, id)| !dead.counts_not(id));
                refused += ranked - found.len();
                self.merged_since(query, sizes, &since, &mut scratch, &mut found);
                waiting(&since, query, sizes, &mut scratch, &mut found);
            }
        }
        found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        found.truncate(k);
        Ok(Ranked {
            ids: found.iter().map(|&(_, id)| id).collect(),
            distances: found.iter().map(|&(distance, _)| distance).collect(),
            reads: counters.vector_reads,
            bytes: counters.bytes_read,
            computations: counters.reranked,
            refused: refused as u32,
        })
    }

    async fn rank_nodes(
        &self,
        thread: &Thread,
        query: &[u8],
        nodes: &[u32],
        k: usize,
    ) -> Result<Nodes, Error> {
        let (timer, mut counters) = (Timer::new(false), Counters::default());
        let Collection {
            metric,
            element,
            dim,
            ..
        } = self.collection;
        let row_bytes = self.collection.row_bytes();
        let kernel = Kernel::new(metric, element, dim as usize);
        let seen = self.changes.seen();
        let mut ranking = Ranking::new(kernel, &timer, row_bytes, seen.admission());
        ranking.query.copy_from_slice(query);
        // Nodes of an older checkpoint may have changed since the merge, so all of them are ranked.
        let most = if self.since_merge.is_some() {
            k.saturating_add(nodes.len())
        } else {
            k
        };
        ranking.begin(most, &[], &[]);
        let mut candidates = Frontier::default();
        candidates.clear(nodes.len().max(1), 1, nodes.len());
        for (place, &node) in nodes.iter().enumerate() {
            candidates.insert(key(place as f32, node));
        }
        let all = Rerank {
            ratio: 1.0,
            ..Rerank::HALF
        };
        let mut refused = 0;
        if let Some(segments) = self.segments() {
            let mut reranker = Reranker::new(
                segments,
                thread,
                row_bytes,
                (all, false),
                true,
                &timer,
                None,
            );
            reranker.begin(most, nodes.len());
            let finished = reranker.finish(&candidates, &mut ranking, &mut counters);
            let finished = finished.await;
            if finished.is_err() {
                reranker.reset();
            }
            finished?;
            refused = reranker.take_refused().len();
        }
        let found = (ranking.nearest.found().iter())
            .map(|neighbour| (neighbour.distance, neighbour.id))
            .collect();
        Ok(Nodes {
            found,
            counters,
            refused,
        })
    }

    /// Appends vectors that the merge wrote and `since` does not change: `k` or more, or all if
    /// there are fewer.
    fn merged_since(
        &self,
        query: &[u8],
        (k, list): (usize, usize),
        since: &Seen<'_>,
        scratch: &mut FreshScratch,
        found: &mut Vec<Near>,
    ) {
        let (seen, dead) = (self.changes.seen(), since.dead());
        let Some((fresh, moment)) = seen.fresh().next() else {
            return;
        };
        let (mut wanted, mut frozen) = (k, Vec::new());
        loop {
            frozen.clear();
            let list = list.max(wanted);
            fresh.search(query, wanted, list, moment, scratch, |id, distance| {
                frozen.push((distance, id));
            });
            let all = frozen.len() < wanted;
            frozen.retain(|&(_, id)| !dead.counts_not(id));
            if all || frozen.len() >= k {
                break;
            }
            wanted = wanted.saturating_mul(4);
        }
        found.append(&mut frozen);
    }
}

fn waiting(
    seen: &Seen<'_>,
    query: &[u8],
    (k, list): (usize, usize),
    scratch: &mut FreshScratch,
    found: &mut Vec<Near>,
) {
    for (fresh, moment) in seen.fresh() {
        fresh.search(query, k, list, moment, scratch, |id, distance| {
            found.push((distance, id));
        });
    }
}

type Done = Box<dyn FnOnce(Result<Ranked, Error>) + Send>;

struct Job {
    states: Arc<States>,
    state: u64,
    query: Vec<u8>,
    nodes: Vec<u32>,
    k: usize,
    wanted: Box<dyn Fn() -> bool + Send + Sync>,
    found: Mutex<Result<Ranked, Error>>,
    done: Mutex<Option<Done>>,
}

impl Work for Job {
    fn tasks<'t>(self: Arc<Self>, thread: &'t Thread, _: usize) -> Vec<Task<'t>> {
        vec![Box::pin(async move {
            // A job whose caller has given up must not delay other jobs.
            if !(self.wanted)() {
                return;
            }
            // The view is created now, to include changes that were acknowledged since the request.
            let found = match self.states.view(self.state) {
                Some(view) => {
                    let found = view.rank(thread, &self.query, &self.nodes, self.k);
                    found.await
                }
                None => Err(Error::call(
                    "the checkpoint of a request",
                    format!("{:016x}", self.state),
                    "it was dropped while the query waited",
                    READ_AGAIN,
                )),
            };
            *self.found.lock() = found;
        })]
    }

    fn ended(self: Arc<Self>, panic: Option<Panic>) {
        let done = self.done.lock().take();
        let found = std::mem::replace(&mut *self.found.lock(), Err(Error::Interrupted));
        if let Some(done) = done {
            done(found);
        }
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }
}
