//! The build of a graph under a memory cap, from overlapping parts, one in memory at a time.
//!
//! ```text
//!   sample ──> k centres (balanced bisection, so parts that follow each other are near each other)
//!
//!   source ──> each row goes to the nearest centre with space  ──> home-0 home-1 ...     (rows)
//!                   and to the second nearest with space       ──> guest-0 guest-1 ...
//!
//!   for each part:   its home rows in locality order   ──> rows   (all, in the order of the nodes)
//!   for each part:   home + guest rows, built in memory at 2R/3
//!                        lists of home nodes   ──> lists-p
//!                        lists of guest nodes  ──> visits-(their home part)
//!   for each part:   lists-p and visits-p, interleaved and cut to R ──> graph
//! ```
//!
//! A node number is `first node of its home part + position in the part`. Lists are merged, because
//! each row is in two parts. A tree of fixed edges connects the parts' entry nodes.
//!
//! | file | record |
//! |---|---|
//! | `home-p`, `guest-p`, `rows` | a row as in the source |
//! | `lists-p` | u32 degree, u32 * 2R/3 neighbours |
//! | `visits-p` | u32 node, u32 degree, u32 * 2R/3 neighbours |
//! | `graph` | u32 degree, u32 * R neighbours |

use super::adjacency::Slots;
use super::budget::{Plan, part_degree};
use super::construct::{
    Clock, Constructed, GraphStats, Lists, ListsAt, Order, ScratchLists, Task, for_each_block,
    words,
};
use super::entry::medoid;
use super::joined::{fixed_edges, interleave, list};
use super::kept::{self, KeptLists};
use super::order::{centres, order_rows};
use super::random::Random;
use super::rows::{Rows, ScratchRows};
use super::scratch::{Scratch, Spool};
use super::space::Space;
use super::vamana::{build_in, slots_for};
use super::{GraphError, Parameters, reach};
use crate::data::VectorSource;
use crate::progress::{Progress, Stage};
use stratann_vector::{Element, Kernel, Metric};

const NOWHERE: u16 = u16::MAX;

/// Builds in `free` bytes beyond the present memory of the process. `divided` has the plan of a
/// resumed build's first run.
pub(super) fn construct(
    source: &dyn VectorSource,
    task: &Task<'_>,
    space: Space,
    free: u64,
    divided: Option<(usize, usize)>,
    progress: &dyn Progress,
) -> Result<Constructed, GraphError> {
    let plan = Plan::new(
        source.rows(),
        space.point_bytes(),
        source.row_bytes(),
        space.build_dim(),
        task.parameters,
        free,
        divided,
    )
    .map_err(|least| GraphError::Memory { given: free, least })?;
    let made = (plan.parts, plan.sample);
    if let Some(savepoints) = task.savepoints.filter(|_| divided != Some(made)) {
        kept::keep_plan(savepoints, made, progress);
    }
    let mut clock = Clock::new();
    let scratch = Scratch::new(task.scratch)?;
    let page = match task.order {
        Order::Input => 0,
        Order::Locality { page } => page.max(1),
    };

    let dealt = deal(source, task, &space, &plan, &scratch, progress)?;
    clock.lap("parts");

    let mut work = Work {
        source,
        task,
        space,
        plan: &plan,
        scratch: &scratch,
        dealt,
        order: vec![0; source.rows()],
        points: Vec::new(),
    };
    work.lay_out(page, progress)?;
    clock.lap("order");
    let mut starts = work.build_parts(progress)?;
    clock.lap("graph");
    work.points = Vec::new();
    let entry_node = {
        let entry_row = work.dealt.nearest_to_mean;
        work.order
            .iter()
            .position(|&row| row == entry_row)
            .unwrap_or(0) as u32
    };
    let (edges, degree_max) = work.merge(entry_node, &starts, progress)?;
    clock.lap("merge");

    let rows = source.rows();
    let order = std::mem::take(&mut work.order);
    let rounded = work.space.is_rounded();
    drop(work);
    let mut stats = GraphStats {
        parts: plan.parts,
        rounded,
        degree_mean: 0.0,
        degree_max,
        edges,
        seconds: clock.seconds,
    };
    let degree = task.parameters.degree;
    let mut lists = ScratchLists {
        file: scratch.open("graph")?,
        nodes: rows,
        degree,
        places: None,
        names: None,
        window: Vec::new(),
        window_start: 0,
        _scratch: scratch,
    };
    let mut entry = entry_node;
    if task.order == Order::Input {
        // The lists have row numbers. The list at position `i` belongs to row `order[i]`.
        entry = order[entry_node as usize];
        starts
            .iter_mut()
            .for_each(|start| *start = order[*start as usize]);
        lists.places = Some(inverse(&order));
    }
    let stage = Stage::begin(progress, "final links", 0);
    stats.edges +=
        reach::link_unreachable(&mut lists, (rows, 0..rows as u32), entry, degree, |_| {
            starts.clone()
        })?;
    drop(stage);
    stats.degree_mean = stats.edges as f64 / rows as f64;
    let (order, rows) = match task.order {
        Order::Input => ((0..rows as u32).collect(), Rows::Source),
        Order::Locality { .. } => (order, spooled_rows(source, &lists._scratch)?),
    };
    Ok(Constructed {
        order,
        rows,
        lists: Lists(ListsAt::Scratch(lists)),
        entry,
        stats,
    })
}

fn spooled_rows(source: &dyn VectorSource, scratch: &Scratch) -> Result<Rows, GraphError> {
    Ok(Rows::Scratch(ScratchRows {
        file: scratch.open("rows")?,
        name: source.name().to_owned(),
        rows: source.rows(),
        dim: source.dim(),
        element: source.element(),
        places: None,
    }))
}

fn inverse(order: &[u32]) -> Vec<u32> {
    let mut inverse = vec![0; order.len()];
    for (place, &row) in order.iter().enumerate() {
        inverse[row as usize] = place as u32;
    }
    inverse
}

struct Dealt {
    home: Vec<u16>,
    guest: Vec<u16>,
    /// The first node of each part, and the end of the last part.
    first: Vec<usize>,
    nearest_to_mean: u32,
}

impl Dealt {
    fn rows_in(table: &[u16], part: usize) -> impl Iterator<Item = u32> {
        table
            .iter()
            .enumerate()
            .filter(move |&(_, &at)| at as usize == part)
            .map(|(row, _)| row as u32)
    }
}

fn centres_of_sample(
    source: &dyn VectorSource,
    task: &Task<'_>,
    space: &Space,
    plan: &Plan,
) -> Result<(Vec<f32>, Vec<f32>), GraphError> {
    let dim = space.build_dim();
    let mut random = Random::derived(task.parameters.seed, 0x7061_7274_7301);
    let rows: Vec<u32> = random
        .sample(source.rows(), plan.sample)
        .into_iter()
        .map(|row| row as u32)
        .collect();
    let mut floats = Vec::with_capacity(rows.len() * dim);
    let mut bytes = Vec::new();
    let mut points = Vec::new();
    let mut row_floats = vec![0.0; dim];
    for some in rows.chunks(64) {
        bytes.resize(some.len() * source.row_bytes(), 0);
        source.gather(some, &mut bytes)?;
        points.clear();
        space.append(&bytes, &mut points);
        for point in 0..some.len() as u32 {
            space.points(&points).floats(point, &mut row_floats);
            floats.extend_from_slice(&row_floats);
        }
    }
    let mut mean = vec![0.0f64; dim];
    for row in floats.chunks_exact(dim) {
        for (sum, value) in mean.iter_mut().zip(row) {
            *sum += f64::from(*value) / rows.len() as f64;
        }
    }
    let mean: Vec<f32> = mean.into_iter().map(|value| value as f32).collect();
    let centres = centres(&floats, dim, plan.parts, task.parameters.seed);
    Ok((centres, mean))
}

fn deal(
    source: &dyn VectorSource,
    task: &Task<'_>,
    space: &Space,
    plan: &Plan,
    scratch: &Scratch,
    progress: &dyn Progress,
) -> Result<Dealt, GraphError> {
    let dim = space.build_dim();
    let (centres, mean) = centres_of_sample(source, task, space, plan)?;
    let to_bytes = |floats: &[f32]| -> Vec<u8> {
        floats
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let (centres, mean) = (to_bytes(&centres), to_bytes(&mean));
    let kernel = Kernel::new(Metric::L2, Element::F32, dim);

    let mut homes = Vec::with_capacity(plan.parts);
    let mut guests = Vec::with_capacity(plan.parts);
    for part in 0..plan.parts {
        homes.push(scratch.create(&format!("home-{part}"), plan.buffer)?);
        guests.push(scratch.create(&format!("guest-{part}"), plan.buffer)?);
    }
    let mut home = vec![NOWHERE; source.rows()];
    let mut guest = vec![NOWHERE; source.rows()];
    let mut taken = vec![0usize; plan.parts];
    let mut sizes = vec![0usize; plan.parts];
    let mut best = (f32::INFINITY, 0u32);
    let mut distances = vec![0.0; plan.parts];
    let (mut point, mut floats) = (Vec::new(), vec![0.0; dim]);
    let stage = "dealing vectors out to parts";
    for_each_block(source, task, plan.block, stage, progress, |first, rows| {
        for (at, row) in rows.chunks_exact(source.row_bytes()).enumerate() {
            let id = first + at;
            point.clear();
            space.append(row, &mut point);
            space.points(&point).floats(0, &mut floats);
            if space.build_element() != Element::F32 {
                point.clear();
                point.extend(floats.iter().flat_map(|value| value.to_le_bytes()));
            }
            let query = &point[..];
            let from_mean = kernel.distance(query, &mean);
            if from_mean < best.0 {
                best = (from_mean, id as u32);
            }
            kernel.distances_dense(query, &centres, &mut distances);
            let mut nearest = |except: usize| {
                let open =
                    (0..plan.parts).filter(|&part| part != except && taken[part] < plan.capacity);
                let part = open.min_by(|&a, &b| distances[a].total_cmp(&distances[b]));
                if let Some(part) = part {
                    taken[part] += 1;
                }
                part
            };
            // All parts together have more capacity than there are rows.
            let Some(at_home) = nearest(usize::MAX) else {
                continue;
            };
            home[id] = at_home as u16;
            sizes[at_home] += 1;
            homes[at_home].write(row)?;
            if let Some(visiting) = nearest(at_home) {
                guest[id] = visiting as u16;
                guests[visiting].write(row)?;
            }
        }
        Ok(())
    })?;
    homes
        .into_iter()
        .chain(guests)
        .try_for_each(Spool::finish)?;
    let mut first = vec![0; plan.parts + 1];
    for part in 0..plan.parts {
        first[part + 1] = first[part] + sizes[part];
    }
    Ok(Dealt {
        home,
        guest,
        first,
        nearest_to_mean: best.1,
    })
}

struct Work<'a> {
    source: &'a dyn VectorSource,
    task: &'a Task<'a>,
    space: Space,
    plan: &'a Plan,
    scratch: &'a Scratch,
    dealt: Dealt,
    order: Vec<u32>,
    /// The points of one part. The next part uses the same buffer.
    points: Vec<u8>,
}

impl Work<'_> {
    fn load(&mut self, name: &str, first: usize, count: usize) -> Result<(), GraphError> {
        let file = self.scratch.open(name)?;
        let row_bytes = self.source.row_bytes();
        let block = (self.plan.block / row_bytes).max(1);
        let mut bytes = Vec::new();
        for start in (0..count).step_by(block) {
            let rows = block.min(count - start);
            bytes.resize(rows * row_bytes, 0);
            file.read((first + start) as u64 * row_bytes as u64, &mut bytes)?;
            self.space.append(&bytes, &mut self.points);
        }
        Ok(())
    }

    /// Assigns node numbers, part after part, and writes the rows. Home rows are in locality order,
    /// or in input order if `page` is 0.
    fn lay_out(&mut self, page: usize, progress: &dyn Progress) -> Result<(), GraphError> {
        let _stage = Stage::begin(progress, "locality order", self.source.rows() as u64);
        self.points
            .reserve_exact(self.plan.capacity * self.space.point_bytes());
        let row_bytes = self.source.row_bytes();
        let mut out = self.scratch.create("rows", self.plan.buffer)?;
        let mut row = vec![0; row_bytes];
        for part in 0..self.plan.parts {
            let name = format!("home-{part}");
            let first = self.dealt.first[part];
            let count = self.dealt.first[part + 1] - first;
            let mut local: Vec<u32> = (0..count as u32).collect();
            if page > 0 {
                self.points.clear();
                self.load(&name, 0, count)?;
                let points = self.space.points(&self.points);
                let Parameters { threads, seed, .. } = *self.task.parameters;
                order_rows(&points, &mut local, first, page, threads, seed);
            }
            let rows: Vec<u32> = Dealt::rows_in(&self.dealt.home, part).collect();
            let file = self.scratch.open(&name)?;
            for (place, &at) in local.iter().enumerate() {
                self.order[first + place] = rows[at as usize];
                // If points equal the rows, the rows are in memory already.
                if page > 0 && self.space.is_identity() {
                    let start = at as usize * row_bytes;
                    out.write(&self.points[start..start + row_bytes])?;
                } else {
                    file.read(u64::from(at) * row_bytes as u64, &mut row)?;
                    out.write(&row)?;
                }
            }
            drop(file);
            self.scratch.remove(&name)?;
            progress.advance(count as u64);
            if progress.interrupted() {
                return Err(GraphError::Interrupted);
            }
        }
        out.finish()
    }

    /// Returns the entry node of each part.
    fn build_parts(&mut self, progress: &dyn Progress) -> Result<Vec<u32>, GraphError> {
        let parts = self.plan.parts;
        let degree = part_degree(self.task.parameters.degree);
        let nodes_of = inverse(&self.order);
        let parameters = Parameters {
            degree,
            ..self.task.parameters.clone()
        };
        let mut visits = Vec::with_capacity(parts);
        for part in 0..parts {
            visits.push(
                self.scratch
                    .create(&format!("visits-{part}"), self.plan.buffer.min(64 << 10))?,
            );
        }
        let kept = self.task.savepoints.map(|savepoints| {
            let divided = [parts as u32, self.plan.sample as u32];
            (savepoints, savepoints.input_of(&divided, &self.order))
        });
        let mut starts = Vec::with_capacity(parts);
        let mut slots = Slots::new(0, slots_for(degree));
        slots.reserve(self.plan.capacity);
        for part in 0..parts {
            let (first, end) = (self.dealt.first[part], self.dealt.first[part + 1]);
            let guests: Vec<u32> = Dealt::rows_in(&self.dealt.guest, part)
                .map(|row| nodes_of[row as usize])
                .collect();
            self.points.clear();
            self.load("rows", first, end - first)?;
            self.load(&format!("guest-{part}"), 0, guests.len())?;
            self.scratch.remove(&format!("guest-{part}"))?;
            let points = self.space.points(&self.points);
            let homes = end - first;
            let node_of = |local: u32| match (local as usize).checked_sub(homes) {
                None => first as u32 + local,
                Some(guest) => guests[guest],
            };
            slots.clear(points.rows());
            let mut out = self
                .scratch
                .create(&format!("lists-{part}"), self.plan.buffer)?;
            if points.rows() > 0 {
                let start = medoid(&points, parameters.threads, parameters.seed);
                starts.push(node_of(start));
                let stage = format!("part {} of {parts}: ", part + 1);
                let kept = kept.map(|(savepoints, input)| KeptLists {
                    savepoints,
                    input,
                    degree: parameters.degree,
                    part: part as u32 + 1,
                });
                build_in(&points, &slots, start, &parameters, &stage, kept, progress)?;
            }
            for local in 0..points.rows() as u32 {
                let node = node_of(local);
                let list = || slots.neighbours(local).map(node_of);
                let count = list().count();
                let padded = list().chain(std::iter::repeat_n(0, degree - count));
                if (local as usize) < homes {
                    out.write_words(std::iter::once(count as u32).chain(padded))?;
                } else {
                    let home = self.dealt.home[self.order[node as usize] as usize] as usize;
                    visits[home].write_words([node, count as u32].into_iter().chain(padded))?;
                }
            }
            out.finish()?;
        }
        visits.into_iter().try_for_each(Spool::finish)?;
        if self.task.order == Order::Input {
            self.scratch.remove("rows")?;
        }
        Ok(starts)
    }

    /// Merges the lists into `graph`. Returns the number of edges and the largest degree.
    fn merge(
        &self,
        entry: u32,
        starts: &[u32],
        progress: &dyn Progress,
    ) -> Result<(u64, usize), GraphError> {
        let _stage = Stage::begin(progress, "merging the parts", self.source.rows() as u64);
        let degree = self.task.parameters.degree;
        let record = part_degree(degree) + 1;
        let mut out = self.scratch.create("graph", self.plan.buffer)?;
        let (mut edges, mut degree_max) = (0, 0);
        let mut own = vec![0; record * 4];
        let mut merged: Vec<u32> = Vec::new();
        for part in 0..self.plan.parts {
            let first = self.dealt.first[part];
            let count = self.dealt.first[part + 1] - first;
            let visits = self.visits(part, first, count, record)?;
            let file = self.scratch.open(&format!("lists-{part}"))?;
            let mut window = Vec::new();
            let ahead = (self.plan.buffer / (record * 4)).max(1);
            for local in 0..count {
                let node = (first + local) as u32;
                if local % ahead == 0 {
                    window.resize(ahead.min(count - local) * record * 4, 0);
                    file.read((local * record * 4) as u64, &mut window)?;
                }
                own.copy_from_slice(&window[local % ahead * record * 4..][..record * 4]);
                merged.clear();
                merged.extend(fixed_edges(node, entry, starts));
                let home = list(&own);
                let visit = &visits[local * record..(local + 1) * record];
                let visit = &visit[1..=visit[0] as usize];
                interleave(&home, visit, degree, &mut merged);
                merged.retain(|&neighbour| neighbour != node);
                edges += merged.len() as u64;
                degree_max = degree_max.max(merged.len());
                let written = merged.iter().map(|&node| match self.task.order {
                    Order::Input => self.order[node as usize],
                    Order::Locality { .. } => node,
                });
                let padding = std::iter::repeat_n(0, degree - merged.len());
                out.write_words(
                    std::iter::once(merged.len() as u32)
                        .chain(written)
                        .chain(padding),
                )?;
            }
            drop(file);
            self.scratch.remove(&format!("lists-{part}"))?;
            self.scratch.remove(&format!("visits-{part}"))?;
            progress.advance(count as u64);
            if progress.interrupted() {
                return Err(GraphError::Interrupted);
            }
        }
        out.finish()?;
        Ok((edges, degree_max))
    }

    /// The other parts' lists for this part's nodes, as records of `lists-p`.
    fn visits(
        &self,
        part: usize,
        first: usize,
        count: usize,
        record: usize,
    ) -> Result<Vec<u32>, GraphError> {
        let mut visits = vec![0; count * record];
        let file = self.scratch.open(&format!("visits-{part}"))?;
        let visit_bytes = (record + 1) * 4;
        let present = Dealt::rows_in(&self.dealt.home, part)
            .filter(|&row| self.dealt.guest[row as usize] != NOWHERE)
            .count();
        let ahead = (self.plan.buffer / visit_bytes).max(1);
        let mut window = Vec::new();
        for start in (0..present).step_by(ahead) {
            window.resize(ahead.min(present - start) * visit_bytes, 0);
            file.read((start * visit_bytes) as u64, &mut window)?;
            for visit in window.chunks_exact(visit_bytes) {
                let mut words = words(visit);
                let local = words.next().unwrap_or(0) as usize - first;
                for (place, word) in visits[local * record..(local + 1) * record]
                    .iter_mut()
                    .zip(words)
                {
                    *place = word;
                }
            }
        }
        Ok(visits)
    }
}
