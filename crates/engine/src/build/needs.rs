//! Estimates the memory and storage of a build from the sizes of the vectors and from samples.

use serde::Serialize;

use super::facts::Facts;
use super::rows::Rows;
use super::space::Expectation;
use super::{BuildOptions, Made, with_rows};
use crate::data::{RowSource, VectorSource};
use crate::graph::{self, Parameters};
use crate::progress::Progress;
use crate::stores::VectorsAt;
use crate::stores::writing::coding::Coding;
use crate::{Compression, Error, Order, plan};

/// The estimated costs of a build.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BuildPlan {
    /// The number of vectors in the source.
    pub vectors: u64,
    /// The dimension of the vectors.
    pub dimension: usize,
    /// The element type of the vectors.
    pub element: String,
    /// The bytes of the uncompressed vectors.
    pub raw_bytes: u64,
    /// The layout that the build would choose.
    pub layout: String,
    /// R, the largest number of neighbours of a node. It is 0 for clusters.
    pub degree: usize,
    /// The bytes of a vector's code. It is 0 for clusters.
    pub code_bytes: usize,
    /// The peak memory of the whole process in bytes, if there is no memory cap.
    pub memory: u64,
    /// The least memory cap with which the build works, in bytes.
    pub least_memory: u64,
    /// Whether the memory cap is so low that the graph would be built in parts, which takes longer.
    pub in_parts: bool,
    /// The bytes of all files of the index; for clusters, an upper bound.
    pub storage: u64,
    /// The bytes of `storage` that attributes and payloads take.
    pub attributes: u64,
    /// The bytes of scratch files during the build, in addition to `storage`.
    pub scratch: u64,
    /// The least memory for searches, in bytes.
    pub search_memory: u64,
}

/// Estimates the costs of a build of `source`.
///
/// # Errors
/// The call fails with the errors that [`build`](crate::build) would find before its work begins,
/// or if a vector of the samples cannot be read.
pub fn plan_build(source: &dyn VectorSource, options: &BuildOptions) -> Result<BuildPlan, Error> {
    plan_all(source, None, options)
}

/// Estimates the costs for vectors with attributes. The call reads all rows, and writes a sample of
/// them to a temporary folder ([`std::env::temp_dir`]).
///
/// # Errors
/// The call fails for the reasons of [`plan_build`], if [`build_with_rows`](crate::build_with_rows)
/// would refuse the rows, if the folder cannot be written, or if `progress` interrupts.
pub fn plan_build_with_rows(
    source: &dyn VectorSource,
    rows: &dyn RowSource,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<BuildPlan, Error> {
    let rows = Rows::of(rows, source.rows(), progress)?;
    plan_all(source, Some(&rows), options)
}

fn plan_all(
    source: &dyn VectorSource,
    attributes: Option<&Rows<'_>>,
    options: &BuildOptions,
) -> Result<BuildPlan, Error> {
    with_rows(source, options, |rows, options, placeholder| {
        let plan = plan_of(rows, options)?;
        let attributes = attributes.filter(|_| !placeholder);
        let expected = attributes.map(|attributes| attributes.expected(source.rows()));
        let expected = expected.transpose()?.unwrap_or_default();
        Ok(BuildPlan {
            vectors: source.rows() as u64,
            raw_bytes: source.rows() as u64 * source.row_bytes() as u64,
            memory: plan.memory + expected.build,
            scratch: plan.scratch.max(expected.scratch(options.memory)),
            storage: plan.storage + expected.storage,
            attributes: expected.storage,
            search_memory: plan.search_memory + expected.search,
            ..plan
        })
    })
}

fn plan_of(source: &dyn VectorSource, options: &BuildOptions) -> Result<BuildPlan, Error> {
    let uncapped = BuildOptions {
        memory: None,
        ..options.clone()
    };
    let made = Made::of(source, &uncapped)?;
    let (rows, dim) = (source.rows(), source.dim());
    let plan = BuildPlan {
        vectors: rows as u64,
        dimension: dim,
        element: source.element().to_string(),
        raw_bytes: rows as u64 * source.row_bytes() as u64,
        layout: made.layout().to_string(),
        degree: 0,
        code_bytes: 0,
        memory: 0,
        least_memory: 0,
        in_parts: false,
        storage: 0,
        attributes: 0,
        scratch: 0,
        search_memory: 0,
    };
    match made {
        Made::Graph(facts) => of_graph(source, options, &facts, plan),
        Made::Clusters(clusters) => {
            let needs = clusters.memory(source);
            Ok(BuildPlan {
                memory: needs,
                least_memory: needs,
                storage: clusters.most_bytes(source),
                // If the source has no random access, a build first copies its rows.
                scratch: match source.has_random_access() {
                    true => 0,
                    false => plan.raw_bytes,
                },
                search_memory: plan::least(dim, clusters.table_bytes(source)),
                ..plan
            })
        }
    }
}

fn of_graph(
    source: &dyn VectorSource,
    options: &BuildOptions,
    facts: &Facts,
    plan: BuildPlan,
) -> Result<BuildPlan, Error> {
    let order = match facts.order {
        Order::Input => graph::Order::Input,
        Order::Locality => graph::Order::Locality {
            page: facts.nodes_per_page,
        },
    };
    let parameters = Parameters {
        degree: facts.degree,
        build_list: facts.build_list,
        alpha: options.alpha,
        threads: options.threads,
        seed: options.seed,
    };
    let needs = graph::needs(source, options.metric, order, &parameters)?;
    let compression = match facts.layout.composition().vectors {
        VectorsAt::Parts => Compression::Best,
        VectorsAt::Records | VectorsAt::Segments => {
            options.compression.unwrap_or(options.preset.compression)
        }
    };
    let coding = Coding::new(source, facts.degree, compression)?;
    let expected = Expectation::of(source, &coding, facts.layout, facts.code_bytes, options)?;
    let in_parts = options.memory.is_some_and(|cap| cap < needs.whole);
    let codes = match facts.layout.has_codes_in_records() {
        true => options.preset.entry_points.min(source.rows()),
        false => source.rows(),
    };
    Ok(BuildPlan {
        degree: facts.degree,
        code_bytes: facts.code_bytes,
        memory: needs.whole,
        least_memory: needs.least,
        in_parts,
        storage: expected.bytes(facts.degree),
        scratch: if in_parts { needs.scratch } else { 0 },
        search_memory: plan::least(source.dim(), codes as u64 * facts.code_bytes as u64),
        ..plan
    })
}
