//! Derives facts from the options and the vectors before a build begins, and refuses wrong options.

use stratann_layout::coupled::MAX_DEGREE;
use stratann_vector::LowCodes;

use super::BuildOptions;
use super::format::Choice;
use super::space::{SpaceChoice, list_for};
use crate::codebook::{self, check_code_bytes, check_dimension, usual_code_bytes};
use crate::data::VectorSource;
use crate::stores::writing::NodeWriter;
use crate::{Error, Layout, Order, bounds};

const MORE_THAN_MAX_DEGREE: usize = MAX_DEGREE + 1;

/// The longest time between two savepoints: a week.
const MOST_SECONDS: f64 = 604_800.0;

pub(super) struct Facts {
    pub(super) writer: Box<dyn NodeWriter>,
    pub(super) layout: Layout,
    pub(super) degree: usize,
    pub(super) space: Option<SpaceChoice>,
    pub(super) build_list: usize,
    pub(super) nodes_per_page: usize,
    pub(super) code_bytes: usize,
    pub(super) order: Order,
    pub(super) navigation_nodes: usize,
    pub(super) training_rows: usize,
}

impl Facts {
    pub(super) fn of(source: &dyn VectorSource, options: &BuildOptions) -> Result<Self, Error> {
        let (rows, dim) = (source.rows(), source.dim());
        if rows == 0 {
            return Err(no_rows(source));
        }
        if rows >= u32::MAX as usize {
            return Err(too_many_rows(rows));
        }
        if let Some(degree @ (0 | MORE_THAN_MAX_DEGREE..)) = options.degree {
            let reason = format!("a node has 1 to {MAX_DEGREE} neighbours");
            let remedy = format!("Pass 1 to {MAX_DEGREE}");
            return Err(Error::call("degree", degree, reason, remedy));
        }
        if let (Some(degree), Some(space)) = (options.degree, options.space) {
            return Err(Error::call(
                "degree",
                format!("{degree}, and space is {space} bytes"),
                "the degree follows from a space budget",
                "Give only one of the two",
            ));
        }
        check_dimension(source)?;
        bounds::number("build list size", options.build_list, bounds::MOST_LIST)?;
        if !(1.0..=10.0).contains(&options.alpha) {
            return Err(Error::call(
                "alpha",
                options.alpha,
                "the factor of pruning is from 1 to 10",
                "Pass a number in this range (1.2 is usual)",
            ));
        }
        bounds::threads(options.threads)?;
        if !(0.0..=1.0).contains(&options.navigation) {
            return Err(Error::call(
                "navigation",
                options.navigation,
                "it is a share of the nodes",
                "Pass a number from 0 to 1 (0.01 is usual)",
            ));
        }
        if !(0.0..=MOST_SECONDS).contains(&options.savepoint_seconds) {
            return Err(Error::call(
                "savepoint seconds",
                options.savepoint_seconds,
                format!("the time between savepoints is 0 to {MOST_SECONDS} s"),
                "Pass a number in this range (120 is usual)",
            ));
        }
        let code_bytes = code_bytes(dim, options)?;
        if let Some(ids) = &options.ids {
            check_ids(ids, rows)?;
        }
        let Choice {
            writer,
            layout,
            degree,
            nodes_per_page,
            space,
        } = Choice::of(source, options, code_bytes)?;
        let build_list = match options.space {
            Some(_) => list_for(degree, options.build_list),
            None => options.build_list,
        };
        Ok(Self {
            writer,
            layout,
            degree,
            space,
            build_list,
            nodes_per_page,
            code_bytes,
            order: options.order.unwrap_or(options.preset.order),
            training_rows: training_rows(options.memory, dim),
            navigation_nodes: match (options.navigation * rows as f64).ceil() as usize {
                // Over less than 16 nodes, a navigation graph saves no reads.
                0..16 => 0,
                nodes => nodes,
            },
        })
    }
}

pub(super) fn no_rows(source: &dyn VectorSource) -> Error {
    Error::call(
        source.name(),
        "empty",
        "a build needs at least one vector",
        "Give vectors, or create an index without any (`stratann create`, in Python `create`)",
    )
}

pub(super) fn too_many_rows(rows: usize) -> Error {
    let reason = format!("an index has fewer than {} vectors", u32::MAX);
    let remedy = "Divide the vectors among several indexes";
    Error::call("number of vectors", rows, reason, remedy)
}

pub(super) fn low_codes(options: &BuildOptions) -> Result<Option<LowCodes>, Error> {
    match (options.low_codes, options.preset.low_codes) {
        (Some(asked), None) => {
            let reason = format!("the preset {} has codes of one precision", options.preset);
            let remedy = "Leave it out, or choose the preset distvs, which has two";
            Err(Error::call("low codes", asked, reason, remedy))
        }
        (asked, usual) => Ok(asked.or(usual)),
    }
}

/// The bytes of the codes of a vector. A given codebook must fit the vectors.
fn code_bytes(dim: usize, options: &BuildOptions) -> Result<usize, Error> {
    let Some(codebook) = &options.codebook else {
        let low_codes = low_codes(options)?;
        let least = 1 + usize::from(low_codes.is_some());
        let usual = || usual_code_bytes(dim).max(least);
        let bytes = options.code_bytes.unwrap_or_else(usual);
        check_code_bytes(bytes, dim)?;
        if bytes < least {
            let reason = "a low code has half as many bytes, and at least one byte";
            let what = "number of code bytes";
            return Err(Error::call(what, bytes, reason, "Pass 2 or more"));
        }
        return Ok(low_codes.map_or(bytes, |low_codes| low_codes.stored_bytes(bytes)));
    };
    let wanted = low_codes(options)?;
    if codebook.low_codes() != wanted {
        let precisions = |low_codes| match low_codes {
            Some(LowCodes::Nested) => "two nested precisions",
            Some(LowCodes::Separate) => "two separate precisions",
            None => "one precision",
        };
        let found = format!("for codes of {}", precisions(codebook.low_codes()));
        let by = match options.low_codes {
            Some(_) => "this build".to_owned(),
            None => format!("the preset {}", options.preset),
        };
        let reason = format!("{by} has codes of {}", precisions(wanted));
        let remedy = "Train a codebook for such codes, or leave the codebook out";
        return Err(Error::call("the codebook", found, reason, remedy));
    }
    if codebook.dim() != dim {
        let found = format!("for vectors of {} dimensions", codebook.dim());
        return Err(Error::call(
            "the codebook",
            found,
            format!("the rows have {dim}"),
            "Train a codebook for such rows, or leave the codebook out",
        ));
    }
    let stored = codebook.code_bytes();
    let high = wanted.map_or(stored, |low_codes| low_codes.high_bytes(stored));
    match options.code_bytes {
        Some(asked) if asked != high => {
            let reason = format!("the codebook is for codes of {high} bytes");
            let remedy = format!("Pass {high}, or leave it out");
            Err(Error::call("number of code bytes", asked, reason, remedy))
        }
        _ => Ok(stored),
    }
}

/// The number of rows that train a codebook. Under a memory cap, their floats take an eighth of it.
pub(crate) fn training_rows(memory: Option<u64>, dim: usize) -> usize {
    let most = codebook::training_rows(dim);
    memory.map_or(most, |bytes| {
        // The buffers of the training threads need as many bytes again for each row.
        ((bytes / 8) as usize / (8 * dim)).clamp(1_000, most)
    })
}

pub(crate) fn twice(id: u64) -> Error {
    Error::call(
        format!("the id {id}"),
        "given twice",
        "ids are unique",
        "Give each id once",
    )
}

pub(super) fn check_ids(ids: &[u64], rows: usize) -> Result<(), Error> {
    if ids.len() != rows {
        return Err(Error::call(
            "number of ids",
            ids.len(),
            format!("there are {rows} rows, and each has one id"),
            "Give one id for each row",
        ));
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(twice(pair[0])),
        None => Ok(()),
    }
}
