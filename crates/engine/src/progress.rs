//! Progress of long work. The work reports its steps, and asks whether it must stop.
//!
//! The command line implements [`Progress`] with a bar, Python with a callback, and tests with
//! counters. Stages do not nest.

/// Receives the progress of long work. Several threads call it often, so implementations must be
/// cheap and never block.
pub trait Progress: Sync {
    /// A stage of `total` steps begins. If the number of steps is not known, `total` is 0.
    fn begin(&self, stage: &str, total: u64);
    /// The work has done `steps` more steps of the stage.
    fn advance(&self, steps: u64);
    /// The stage is over, also after a failure or an interruption.
    fn end(&self);
    /// Whether the user wants the work to stop (Ctrl-C). If true, it must stay true until the work
    /// has stopped.
    fn interrupted(&self) -> bool;
    /// Receives a warning for the user. The work continues.
    fn warn(&self, message: &str);
}

/// Ignores all reports, and never interrupts the work.
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

/// Reports no stages. An interruption of the outer work interrupts the inner work.
pub struct WithinStage<'a>(pub &'a dyn Progress);

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

/// A stage of work. A drop ends the stage.
pub struct Stage<'a> {
    progress: &'a dyn Progress,
}

impl<'a> Stage<'a> {
    /// Begins a stage of `total` steps.
    pub fn begin(progress: &'a dyn Progress, stage: &str, total: u64) -> Stage<'a> {
        progress.begin(stage, total);
        Stage { progress }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.progress.end();
    }
}
