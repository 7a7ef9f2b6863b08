//! How long work tells what it is doing, and learns that it should stop.
//!
//! The engine knows no terminal: the command line draws a bar, Python calls back, a test counts. Stages do
//! not nest: each `begin` is followed by its `end` before the next.

/// Told of the progress of long work. Called from several threads at once, often: implementations should be
/// cheap and never block.
pub trait Progress: Sync {
    /// A stage of `total` steps begins (0: nobody knows how many). What a step is, is up to the stage.
    fn begin(&self, stage: &str, total: u64);
    /// `steps` more steps of the stage are done.
    fn advance(&self, steps: u64);
    /// The stage is over; also called when it failed or was interrupted.
    fn end(&self);
    /// Whether the user wants the work to stop (Ctrl-C). Asked often; once true, it stays true until the
    /// work has stopped.
    fn interrupted(&self) -> bool;
    /// Something that the user should know, although the work goes on.
    fn warn(&self, message: &str);
}

/// Tells nobody and is never interrupted.
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

/// Work within a stage that has begun: it has none of its own, and is interrupted with it.
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

/// Begins a stage and ends it when dropped, on whichever way out.
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
