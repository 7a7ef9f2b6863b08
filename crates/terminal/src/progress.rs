//! Shows the progress of long work, and catches the signals that stop it. On a terminal, progress
//! is a bar with the time left; elsewhere, log lines.

use std::ffi::c_int;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use stratann::Progress;

use crate::logger::say;
use crate::size;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// The signal that ends the program once its work has stopped, or 0.
static ENDS: AtomicI32 = AtomicI32::new(0);
/// Whether the work looks at [`interrupted`], so that a signal only asks it to stop.
static HEEDED: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();

/// After this call, Ctrl-C, `kill` or a hang-up ends the program with an error, by the signal. Work
/// that has to clean up calls [`catch_interrupts`].
pub fn end_at_interrupts() {
    install();
}

/// After this call, the first Ctrl-C, `kill` or hang-up only asks the work to stop, so that it can
/// clean up. Then [`report`](crate::failure::report) ends the program by the signal. A second
/// signal ends it immediately.
pub fn catch_interrupts() {
    HEEDED.store(true, Ordering::SeqCst);
    install();
}

fn install() {
    HANDLER.call_once(|| {
        let without = |error: std::io::Error| {
            log::warn!(
                "cannot handle signals ({error}); Ctrl-C and kill will end the program without removing its temporary files"
            );
        };
        // The new thread itself installs the handlers. If this thread did, and the new thread
        // failed to start, no signal would end the program. The work waits for the handlers,
        // because an earlier signal would leave temporary files.
        let (installed, until_installed) = std::sync::mpsc::channel();
        let serve = move || match Signals::new(heeded()) {
            Ok(mut signals) => {
                let _ = installed.send(());
                signals.forever().for_each(stop);
            }
            Err(error) => without(error),
        };
        let named = std::thread::Builder::new().name("signals".into());
        match stratann::start_thread(named, serve) {
            // A receive error means that the thread has logged its error and ended.
            Ok(_) => until_installed.recv().unwrap_or_default(),
            Err(error) => without(error),
        }
    });
}

/// Turns a write beyond the file size limit (`ulimit -f`) into an error.
pub fn outlive_limits() {
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        log::warn!(
            "the handler of the signal SIGXFSZ could not be registered ({error}), so a file that reaches the file size limit (`ulimit -f`) will end the program"
        );
    }
}

/// If no work checks for interrupts, the first signal ends the program.
fn stop(signal: c_int) {
    if !HEEDED.load(Ordering::SeqCst) {
        say_soon("error: interrupted");
        end_by(signal);
    }
    if INTERRUPTED.load(Ordering::SeqCst) {
        end_by(signal);
    }
    // This line comes before the error with which the work ends, so that the error is the last
    // line.
    say_soon("stopping; a second Ctrl-C or kill ends the program immediately");
    ENDS.store(signal, Ordering::SeqCst);
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// The signal that asked the work to stop, and that ends the program once it has.
pub(crate) fn interrupted_by() -> Option<c_int> {
    Some(ENDS.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// After this call, the signal that asked the work to stop does not end the program: for a server,
/// a signal is the usual end.
pub fn end_without_signal() {
    ENDS.store(0, Ordering::SeqCst);
}

/// Ends the program by a signal. A shell ends a loop only if the signal ends the command, whatever
/// its exit status.
pub(crate) fn end_by(signal: c_int) -> ! {
    // The first process of a container ignores a signal without a handler. It gets the status that
    // a shell reports for a program that a signal ended.
    if std::process::id() != 1 {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    std::process::exit(128 + signal)
}

/// Writes a line to standard error, and waits for at most a second. If no program reads standard
/// error, a write of this thread would never return, and later signals would have no effect.
fn say_soon(line: &'static str) {
    let (said, until_said) = std::sync::mpsc::channel();
    let write = move || {
        say(line);
        let _ = said.send(());
    };
    let named = std::thread::Builder::new().name("last words".into());
    if stratann::start_thread(named, write).is_ok() {
        let _ = until_said.recv_timeout(std::time::Duration::from_secs(1));
    }
}

/// Signals that were ignored at the start, as with `nohup`, stay ignored.
fn heeded() -> Vec<c_int> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
    signals
        .filter(|signal| ignored >> (signal - 1) & 1 == 0)
        .collect()
}

/// Signal 1 is the lowest bit of the mask. Without a mask, the result is 0.
fn ignored(status: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap_or_default();
    u64::from_str_radix(line.trim(), 16).unwrap_or(0)
}

/// Whether the program was asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

enum Face {
    Bar,
    Lines,
    Quiet,
}

struct Stage {
    name: String,
    total: u64,
    begun: Instant,
    said: Instant,
    said_percent: u64,
    bar: Option<ProgressBar>,
}

/// Shows an engine's progress on standard error.
pub struct Shown {
    face: Face,
    started: Instant,
    stage: Mutex<Option<Stage>>,
    done: AtomicU64,
    /// The time of the next display, in milliseconds. Threads call `advance` thousands of times a
    /// second, and must rarely take the lock.
    next_ms: AtomicU64,
    /// Whether a line says that a stage is done.
    says_done: bool,
}

const BAR_EVERY_MS: u64 = 100;
const LINES_LOOK_EVERY_MS: u64 = 500;
const LINE_EVERY: Duration = Duration::from_secs(5);
/// A line is written at most once in this time, even if a stage has advanced by 10 %.
const LINE_AT_LEAST: Duration = Duration::from_secs(1);

impl Shown {
    /// Shows a bar on a terminal, and lines elsewhere; with `quiet`, only warnings.
    pub fn new(quiet: bool) -> Shown {
        catch_interrupts();
        Shown {
            says_done: true,
            ..Shown::of_reader(quiet)
        }
    }

    /// Like [`new`](Self::new), for work without files, which Ctrl-C ends at once.
    pub fn of_reader(quiet: bool) -> Shown {
        let face = if quiet {
            Face::Quiet
        } else if std::io::stderr().is_terminal() {
            Face::Bar
        } else {
            Face::Lines
        };
        Shown {
            face,
            started: Instant::now(),
            stage: Mutex::new(None),
            done: AtomicU64::new(0),
            next_ms: AtomicU64::new(0),
            says_done: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Stage>> {
        // A poisoned lock is usable: a panic while drawing leaves no inconsistent data.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, stage: &mut Stage, done: u64) {
        match (&self.face, &stage.bar) {
            (Face::Bar, Some(bar)) => bar.set_position(done),
            (Face::Lines, _) if stage.total > 0 => {
                let percent = done.min(stage.total) * 100 / stage.total;
                let since = stage.said.elapsed();
                let step = percent / 10 > stage.said_percent / 10;
                if since >= LINE_EVERY || (step && since >= LINE_AT_LEAST) {
                    let spent = stage.begun.elapsed().as_secs_f64();
                    let left = match done {
                        0 => "time left unknown".to_string(),
                        done => {
                            let left =
                                spent * (stage.total.saturating_sub(done)) as f64 / done as f64;
                            format!("{} left", size::seconds(left))
                        }
                    };
                    say(&format!(
                        "{}: {percent} % ({} of {}), {left}",
                        stage.name,
                        size::count(done),
                        size::count(stage.total)
                    ));
                    stage.said = Instant::now();
                    stage.said_percent = percent;
                }
            }
            _ => {}
        }
    }
}

impl Progress for Shown {
    fn begin(&self, stage: &str, total: u64) {
        let mut current = self.lock();
        self.done.store(0, Ordering::Relaxed);
        let bar = matches!(self.face, Face::Bar).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = if total > 0 {
                "{msg:<24} {wide_bar} {percent:>3} %  {human_pos} of {human_len}  {eta} left"
            } else {
                "{msg:<24} {spinner} {elapsed}"
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(stage.to_string());
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let now = Instant::now();
        *current = Some(Stage {
            name: stage.to_string(),
            total,
            begun: now,
            said: now,
            said_percent: 0,
            bar,
        });
    }

    fn advance(&self, n: u64) {
        let done = self.done.fetch_add(n, Ordering::Relaxed) + n;
        let now = self.started.elapsed().as_millis() as u64;
        let next = self.next_ms.load(Ordering::Relaxed);
        let every = match self.face {
            Face::Bar => BAR_EVERY_MS,
            Face::Lines => LINES_LOOK_EVERY_MS,
            Face::Quiet => return,
        };
        let mine = now >= next
            && self
                .next_ms
                .compare_exchange(next, now + every, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine && let Some(stage) = self.lock().as_mut() {
            self.show(stage, done);
        }
    }

    fn end(&self) {
        let Some(stage) = self.lock().take() else {
            return;
        };
        if let Some(bar) = &stage.bar {
            bar.finish_and_clear();
        }
        if self.says_done && !matches!(self.face, Face::Quiet) && !interrupted() {
            say(&format!(
                "{}: done in {}",
                stage.name,
                size::seconds(stage.begun.elapsed().as_secs_f64())
            ));
        }
    }

    fn interrupted(&self) -> bool {
        interrupted()
    }

    fn warn(&self, message: &str) {
        match self.lock().as_ref().and_then(|stage| stage.bar.as_ref()) {
            Some(bar) => bar.suspend(|| say(&format!("warning: {message}"))),
            None => say(&format!("warning: {message}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_to_be_ignored_are() {
        let status =
            "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000003\nSigCgt:\t00\n";
        let ignored = super::ignored(status);
        let heeded = |signal: c_int| ignored >> (signal - 1) & 1 == 0;
        assert!(!heeded(SIGHUP) && !heeded(SIGINT) && heeded(SIGTERM));
        assert_eq!(super::ignored("no such line"), 0);
        assert_eq!(super::ignored("SigIgn: x"), 0);
    }

    #[test]
    fn counts_over_threads_and_stages() {
        let shown = Shown {
            face: Face::Lines,
            started: Instant::now(),
            stage: Mutex::new(None),
            done: AtomicU64::new(0),
            next_ms: AtomicU64::new(0),
            says_done: true,
        };
        shown.begin("stage", 4000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| shown.advance(1)));
            }
        });
        assert_eq!(shown.done.load(Ordering::Relaxed), 4000);
        shown.end();
        shown.begin("next", 0);
        assert_eq!(shown.done.load(Ordering::Relaxed), 0);
        shown.advance(5);
        shown.end();
        shown.end();
        shown.advance(1);
        assert!(!shown.interrupted());
    }
}
