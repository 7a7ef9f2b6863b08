//! Progress of long work: the work reports its steps, and learns whether it must stop.
//!
//! The engine does not write to a terminal. The command line implements [`Progress`] with a bar,
//! Python with a callback, and tests with counters. Stages do not nest: each `begin` is followed by
//! its `end` before the next.

/// Receives the progress of long work. Several threads call it often and at once, so
/// implementations must be cheap and must never block.
pub trait Progress: Sync {
    /// A stage of `total` steps begins. `total` is 0 if it is not known. Each stage defines its own
    /// step.
    fn begin(&self, stage: &str, total: u64);
    /// `steps` more steps of the stage are done.
    fn advance(&self, steps: u64);
    /// The stage is over. This is also called after a failure or an interruption.
    fn end(&self);
    /// Whether the user wants the work to stop (Ctrl-C). This is called often. Once it has returned
    /// true, it must return true until the work has stopped.
    fn interrupted(&self) -> bool;
    /// A warning for the user. The work continues.
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

/// The progress of work within a stage that has already begun. It reports no stages, but is
/// interrupted with the outer work.
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
