//! Creates an index if none exists. Several processes may try this at the same time.

use std::path::Path;
use std::time::Duration;

use stratann_vector::{Element, Metric};

use super::{BuildOptions, BuildReport, create_with_columns};
use crate::filter::Schema;
use crate::progress::Progress;
use crate::{Error, ErrorKind, stored};

/// The largest number of checks for an index that another process creates. They take ten seconds.
const LOOKS: usize = 500;
const BETWEEN: Duration = Duration::from_millis(20);

/// Whether the directory `path` has an index. Such an index must fit these vectors and this metric.
///
/// # Errors
/// The call fails with [`Error::Argument`] if the index has another dimension, element type or
/// metric, or if its manifest is damaged.
pub fn is_there_for(
    path: impl AsRef<Path>,
    element: Element,
    dim: usize,
    metric: Metric,
) -> Result<bool, Error> {
    let path = path.as_ref();
    if !stored::is_index(path)? {
        return Ok(false);
    }
    let manifest = stored::manifest(&stored::existing(path)?)?;
    let differs = |what: &str, found: String, there: String| {
        let reason = format!("the existing index {} has {there}", path.display());
        let remedy = format!("Give {there}, or another path");
        Err(Error::call(what, found, reason, remedy))
    };
    if manifest.dimension as usize != dim {
        let there = manifest.dimension.to_string();
        return differs("dimension", dim.to_string(), there);
    }
    if manifest.element != element {
        let there = manifest.element.to_string();
        return differs("element type", element.to_string(), there);
    }
    if manifest.metric != metric {
        let there = manifest.metric.to_string();
        return differs("metric", metric.to_string(), there);
    }
    Ok(true)
}

/// Creates an index as [`create_with_columns`] does. If the directory already has an index, it
/// stays unchanged, and the result is `None`. If several processes call this function, one process
/// creates the index, and the others wait.
///
/// # Errors
/// The call fails for the reasons of [`create_with_columns`] and [`is_there_for`], or if `options`
/// would overwrite an index.
pub fn create_if_absent(
    path: impl AsRef<Path>,
    element: Element,
    dim: usize,
    columns: &Schema,
    options: &BuildOptions,
    progress: &dyn Progress,
) -> Result<Option<BuildReport>, Error> {
    if options.overwrite {
        let reason = "this call leaves an existing index unchanged";
        return Err(Error::call("overwrite", "given", reason, "Leave it out"));
    }
    let path = path.as_ref();
    let mut looks = 0;
    loop {
        if is_there_for(path, element, dim, options.metric)? {
            return Ok(None);
        }
        let error = match create_with_columns(path, element, dim, columns, options, progress) {
            Ok(report) => return Ok(Some(report)),
            Err(error) => error,
        };
        looks += 1;
        match error.kind() {
            ErrorKind::Exists if stored::is_index(path)? && looks < LOOKS => {}
            ErrorKind::InUse if looks < LOOKS && !progress.interrupted() => {
                std::thread::sleep(BETWEEN);
            }
            _ => return Err(error),
        }
    }
}
