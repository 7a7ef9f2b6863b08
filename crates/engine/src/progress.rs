//! Progress of long work: the work reports its steps, and learns whether it must stop.
//!
//! The engine knows no terminal. The command line draws a bar, Python runs a callback, and a test
//! counts. Stages do not nest: each `begin` is followed by its `end` before the next.

/// Receives the progress of long work. Several threads call it often and at once, so
/// implementations must be cheap and must never block.
pub trait Progress: Sync {
    /// A stage of `total` steps begins; 0 if the total is not known. Each stage defines its steps.
    fn begin(&self, stage: &str, total: u64);
    /// `steps` more steps of the stage are done.
    fn advance(&self, steps: u64);
    /// The stage is over. Also called after a failure or an interruption.
    fn end(&self);
    /// Whether the user wants the work to stop (Ctrl-C). Called often. Once true, it must stay true
    /// until the work has stopped.
    fn interrupted(&self) -> bool;
    /// A warning for the user. The work goes on.
    fn warn(&self, message: &str);
}

/// Reports nothing and never interrupts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _stage: &str, _total: u64) {}
    fn advance(&self, _steps: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        false
    }
    fn warn(&self, _message: &str) {}
}

/// For work within a stage that has begun. It has no stages of its own, and is interrupted with the
/// outer work.
pub(crate) struct WithinStage<'a>(pub(crate) &'a dyn Progress);

impl Progress for WithinStage<'_> {
    fn begin(&self, _stage: &str, _total: u64) {}
    fn advance(&self, _steps: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
    fn warn(&self, message: &str) {
        self.0.warn(message);
    }
}

/// Begins a stage, and ends it on drop.
pub(crate) struct Stage<'a> {
    progress: &'a dyn Progress,
}

impl<'a> Stage<'a> {
    /// Begins a stage of `total` steps.
    pub(crate) fn begin(progress: &'a dyn Progress, stage: &str, total: u64) -> Stage<'a> {
        progress.begin(stage, total);
        Stage { progress }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.progress.end();
    }
}
