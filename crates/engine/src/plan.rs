//! The memory planner: how a budget is divided when an index is opened (DESIGN §2.7).
//!
//! What a byte buys, most first: the codes (without them nothing can be scored), then the navigation graph. A budget
//! below what is needed is refused with the number that would do, never exceeded.

use stratann_layout::{FileKind, Manifest};

use crate::Error;

/// What a process with an open index needs besides the index's own tables: the program, its threads' stacks and rings,
/// page buffers and per-query state. On photo-sift-1m it is 9 MB with one query in flight and 22 MB with 32 of them at a
/// list size of 100.
const FIXED: u64 = 24 << 20;

/// What of an index goes into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Bytes of codes and codebook.
    pub(crate) codes: u64,
    /// Whether the navigation graph fits, if there is one.
    pub(crate) navigation: bool,
}

/// Divides a budget in bytes; `None` is no limit.
pub(crate) fn divide(budget: Option<u64>, manifest: &Manifest) -> Result<Division, Error> {
    let codes =
        manifest.vectors * u64::from(manifest.code_bytes) + 4 * 256 * u64::from(manifest.dimension);
    let navigation = manifest
        .file(FileKind::Navigation.name())
        .map_or(0, |entry| entry.length);
    let Some(budget) = budget else {
        return Ok(Division {
            codes,
            navigation: true,
        });
    };
    let needs = FIXED + codes;
    if budget < needs {
        return Err(Error::Memory {
            budget,
            needs,
            part: format!("the codes of {} vectors and the program", manifest.vectors),
        });
    }
    Ok(Division {
        codes,
        navigation: budget - needs >= navigation,
    })
}
