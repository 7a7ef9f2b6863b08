//! Checks whether searches find vectors that were inserted after the last build or merge. Drift is
//! no damage, so it causes only a warning.

use std::path::Path;
use std::sync::Arc;

use stratann_tier::Volume;

use super::VerifyReport;
use crate::index::{Index, OpenOptions};
use crate::places::Places;
use crate::progress::Progress;
use crate::stores::codes::Codes;
use crate::{Error, stored};

/// The most bytes of codes for which the check runs. More codes need too much memory.
const MOST_CODES: u64 = 64 << 20;

/// Warns if searches miss inserted vectors. `report` must be about the same index.
pub(super) fn warn(
    home: &Arc<dyn Volume>,
    path: &Path,
    places: &Places,
    report: &VerifyReport,
    progress: &dyn Progress,
) -> Result<(), Error> {
    if !report.clean() {
        return Ok(());
    }
    let path_shown = path.display();
    match trouble(home, path, places, report, progress) {
        Ok(None) => {}
        Ok(Some(trouble)) => progress.warn(&format!("{path_shown}: {trouble}")),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => progress.warn(&format!(
            "{path_shown}: no damage, but the check whether searches find its vectors failed: {error}"
        )),
    }
    Ok(())
}

fn trouble(
    home: &Arc<dyn Volume>,
    path: &Path,
    places: &Places,
    report: &VerifyReport,
    progress: &dyn Progress,
) -> Result<Option<String>, Error> {
    let manifest = stored::manifest(&**home)?;
    if manifest.nodes() <= manifest.vectors && report.log_records == 0 {
        return Ok(None);
    }
    let composition = stored::layout(&**home, &manifest)?.composition();
    let codes = Codes::memory_bytes(&**home, &manifest, composition)?;
    if codes > MOST_CODES {
        return Ok(None);
    }
    let open = OpenOptions {
        places: places.clone(),
        ..OpenOptions::default()
    };
    let index = Index::open_from(home.clone(), path, &open, progress)?;
    let (stats, looked) = index.stats_and_health(progress);
    looked?;
    Ok(stats.trouble)
}
