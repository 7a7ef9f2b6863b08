//! UCX as a transport to memory servers and between the servers of DistVS (feature `ucx`): over
//! RDMA, shared memory on one machine, or TCP for trials. Reads of files are one-sided:
//!
//! ```text
//!   client                                         server
//!   Link ── TCP: greeting, secret, reach(file) ──> Session: address and key of the file, worker
//!    └ Lane ── ucp_get(address, key) ────────────> memory of the file
//!
//!   RDMA, shared memory: no thread of the server takes part
//!   TCP: Target, a thread of the server, answers
//! ```
//!
//! Only the reads of searches go through UCX; greetings and all other requests use TCP. When the
//! TCP connection ends, the server closes the files, and all reads fail at once. Between servers of
//! DistVS, `stream.rs` carries bytes in both directions.
//!
//! **UCX has no authentication.** If a network card performs the reads, any process that knows the
//! 32-bit key of a piece of memory can read this memory. So UCX, like RDMA, is for machines that
//! trust each other. If the server is on loopback, both sides use only the loopback device, unless
//! `UCX_NET_DEVICES` names other devices. The client passes address and keys to UCX only after the
//! server has proved that it knows the secret.
//!
//! **TCP needs an explicit setting** (`UCX_TLS`), for trials without an RDMA card: any process that
//! reaches UCX's port can read *all* memory of the server, unencrypted. If a client is killed while
//! an answer is in transit, UCX 1.13 ends the *server* (`ucs_fatal` in `ucp_request_send`:
//! "unexpected error: Endpoint timeout"; `PROTO_ENABLE` changes nothing).

mod api;
mod endpoint;
mod lane;
mod stream;
mod target;

use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) use lane::Lane;
pub use stream::{Streams, UcxReader, UcxStream, UcxWriter};
pub use target::{Region, Target};

use api::{Functions, functions};

/// Whether the library is available.
///
/// # Errors
/// The error has the reason and the remedy.
pub fn available() -> Result<(), String> {
    functions().map(|_| ())
}

#[derive(Clone, Copy)]
enum Use {
    Reads,
    Streams,
}

fn warn_of_tcp(what: &str) {
    // Without the variable, TCP is excluded (`Context::new`).
    let transports = std::env::var_os("UCX_TLS").unwrap_or_default();
    let transports = transports.to_string_lossy();
    if lets_tcp_in(&transports) {
        tracing::warn!("UCX_TLS={transports} lets UCX use TCP. {what} Use it for trials only.");
    }
}

/// Whether a value of `UCX_TLS` allows TCP. UCX 1.13 has no function that reports this.
fn lets_tcp_in(transports: &str) -> bool {
    let has = |list: &str, names: &[&str]| {
        // A name that begins with `\` means one transport, not a group.
        let mut all = list.split(',').map(|name| name.trim_start_matches('\\'));
        all.any(|name| names.contains(&name))
    };
    match transports.strip_prefix('^') {
        Some(left_out) => !has(left_out, &["tcp"]),
        None => has(transports, &["tcp", "all"]),
    }
}

struct Context {
    functions: &'static Functions,
    raw: api::Context,
}

// SAFETY: the library locks a context for workers of several threads (`mt_workers_shared`).
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

impl Context {
    fn new(of: Use, loopback: bool) -> Result<Arc<Context>, String> {
        let functions = functions()?;
        let mut config = null_mut();
        // SAFETY: no names are given, which is allowed, and the last pointer is valid for writing.
        let read = unsafe { (functions.ucp_config_read)(null(), null(), &mut config) };
        functions.check("read its settings", read)?;
        let ours = [
            ("UCX_NET_DEVICES", c"NET_DEVICES", c"lo", loopback),
            ("UCX_TLS", c"TLS", c"^tcp", true),
        ];
        for (variable, name, value, wanted) in ours {
            if !wanted || std::env::var_os(variable).is_some() {
                continue;
            }
            // SAFETY: the settings were read above, and both strings end with zero.
            let set =
                unsafe { (functions.ucp_config_modify)(config, name.as_ptr(), value.as_ptr()) };
            if let Err(error) = functions.check("apply a setting", set) {
                // SAFETY: the settings were read above, and are not used any more.
                unsafe { (functions.ucp_config_release)(config) };
                return Err(error);
            }
        }
        let params = api::Params {
            fields: api::PARAM_FEATURES | api::PARAM_SHARED,
            features: api::FEATURE_WAKEUP
                | match of {
                    Use::Reads => api::FEATURE_RMA,
                    Use::Streams => api::FEATURE_STREAM,
                },
            request_size: 0,
            request_init: null(),
            request_cleanup: null(),
            tag_sender_mask: 0,
            workers_shared: 1,
            endpoints: 0,
            processes: 0,
            name: null(),
        };
        let mut raw = null_mut();
        let (major, minor) = api::API;
        // SAFETY: the parameters have the layout of this version, and the settings were read above.
        let made = unsafe { (functions.ucp_init_version)(major, minor, &params, config, &mut raw) };
        // SAFETY: the settings were read above, and are not used any more.
        unsafe { (functions.ucp_config_release)(config) };
        functions.check("be started", made)?;
        Ok(Arc::new(Context { functions, raw }))
    }

    /// After a failure, the next caller tries again, because a card may be available by then.
    fn shared(of: Use, loopback: bool) -> Result<Arc<Context>, String> {
        static SHARED: [Mutex<Option<Arc<Context>>>; 4] = [const { Mutex::new(None) }; 4];
        let shared = &SHARED[2 * of as usize + usize::from(loopback)];
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = &*shared {
            return Ok(context.clone());
        }
        Ok(shared.insert(Context::new(of, loopback)?).clone())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: workers and regions have a reference to the context, so none of them is left.
        unsafe { (self.functions.ucp_cleanup)(self.raw) };
    }
}

/// Endpoints and requests belong to a worker, and advance when its thread calls `progress`.
struct Worker {
    context: Arc<Context>,
    raw: api::Worker,
    fd: RawFd,
}

impl Worker {
    fn new(context: &Arc<Context>) -> Result<Worker, String> {
        let functions = context.functions;
        let params = api::WorkerParams {
            fields: api::WORKER_THREADS,
            threads: api::SERIALIZED,
            cpus: [0; 16],
            events: 0,
            user_data: null(),
            event_fd: 0,
            flags: 0,
            name: null(),
            alignment: 0,
            client: 0,
        };
        let mut raw = null_mut();
        // SAFETY: the context lives, and the parameters have the layout of this version.
        let made = unsafe { (functions.ucp_worker_create)(context.raw, &params, &mut raw) };
        functions.check("create a worker", made)?;
        let mut worker = Worker {
            context: context.clone(),
            raw,
            fd: -1,
        };
        // SAFETY: the worker was made above, for wakeups.
        let got = unsafe { (functions.ucp_worker_get_efd)(raw, &mut worker.fd) };
        functions.check("give a descriptor for events", got)?;
        Ok(worker)
    }

    fn functions(&self) -> &'static Functions {
        self.context.functions
    }

    /// Advances pending work; `false` if there was none.
    fn progress(&self) -> bool {
        // SAFETY: the worker lives, and no other thread uses it now: a worker is not `Send`, and a
        // stream, which is `Send`, locks its worker. The only callback of the worker stores a
        // number (`endpoint.rs`).
        unsafe { (self.functions().ucp_worker_progress)(self.raw) != 0 }
    }

    /// Makes the worker's descriptor readable at the next event. Returns false if `progress` must
    /// process a pending event first.
    fn arm(&self) -> Result<bool, String> {
        // SAFETY: as in `progress`.
        match unsafe { (self.functions().ucp_worker_arm)(self.raw) } {
            api::BUSY => Ok(false),
            status => (self.functions().check("wait", status)).map(|()| true),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the worker, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    fn address(&self) -> Result<Vec<u8>, String> {
        let (mut start, mut len) = (null_mut(), 0);
        // SAFETY: the worker lives, and `start` and `len` may be written to.
        let got =
            unsafe { (self.functions().ucp_worker_get_address)(self.raw, &mut start, &mut len) };
        self.functions().check("give its address", got)?;
        // SAFETY: the library put `len` bytes at `start`, valid until their release.
        let address = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }.to_vec();
        // SAFETY: `start` is from this worker (above), and is not used any more.
        unsafe { (self.functions().ucp_worker_release_address)(self.raw, start) };
        Ok(address)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: there is no other reference to the worker. Its remaining endpoints and requests
        // end with it; after this call, none of them writes to memory.
        unsafe { (self.functions().ucp_worker_destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn lists_that_let_tcp_in_are_told_from_those_that_do_not() {
        for list in [
            "tcp",
            "all",
            "shm,tcp",
            "\\tcp",
            "^x",
            "^shm,self",
            "^ib",
            "^all_of_it",
        ] {
            assert!(lets_tcp_in(list), "{list}");
        }
        for list in [
            "", "shm", "shm,self", "rc,ud", "tcpx", "^tcp", "^shm,tcp", "^\\tcp",
        ] {
            assert!(!lets_tcp_in(list), "{list}");
        }
    }

    #[test]
    #[ignore = "changes the environment of its process; another test starts it in a process of its own"]
    fn starts_with_what_there_is_by_now() {
        let error = Streams::new(true).unwrap_err().to_string();
        assert!(error.contains("No such device"), "{error}");
        // SAFETY: this process runs this test alone. Its other thread waits for the test, and
        // neither reads nor writes the environment.
        unsafe { std::env::set_var("UCX_TLS", "self") };
        Streams::new(true).unwrap();
    }

    #[test]
    fn what_could_not_start_is_tried_again() {
        if let Err(reason) = available() {
            println!("skipped: {reason}");
            return;
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture"])
            .arg("remote::ucx::tests::starts_with_what_there_is_by_now")
            .env("UCX_TLS", "nothing_of_the_kind")
            .output()
            .unwrap();
        let [text, errors] = [&output.stdout, &output.stderr].map(|of| String::from_utf8_lossy(of));
        let passed = output.status.success() && text.contains("1 passed");
        assert!(passed, "{text}{errors}");
    }
}
