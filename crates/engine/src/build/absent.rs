//! Creates an index if none exists, even if several processes try at the same time.

use std::path::Path;
use std::time::Duration;

use stratann_vector::{Element, Metric};

use super::{BuildOptions, BuildReport, create_with_columns};
use crate::filter::Schema;
use crate::progress::Progress;
use crate::{Error, ErrorKind, stored};

/// How often a process checks whether another process has finished creating the index, and the
/// pause between two checks: ten seconds in all.
const LOOKS: usize = 500;
const BETWEEN: Duration = Duration::from_millis(20);

/// Whether there is an index in the directory `path`. If there is one, it must be for vectors like
/// the given ones.
///
/// # Errors
/// It is for vectors of another dimension or element type, or has another metric
/// ([`Error::Argument`]); its manifest is damaged.
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

/// If there is no index, creates one without vectors, like [`create_with_columns`]. `None` if there
/// is an index, which stays unchanged. If several processes call this at the same time, one of them
/// creates the index, and the others wait for it.
///
/// # Errors
/// Fails as [`create_with_columns`] and [`is_there_for`] do. Other errors: `options` would
/// overwrite an index.
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
            // Another process has begun to create the index.
            ErrorKind::Exists if stored::is_index(path)? && looks < LOOKS => {}
            ErrorKind::InUse if looks < LOOKS && !progress.interrupted() => {
                std::thread::sleep(BETWEEN);
            }
            _ => return Err(error),
        }
    }
}
