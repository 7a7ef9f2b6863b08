//! UCX as a way to a memory server, and between the servers of DistVS: RDMA where the machines have
//! it, shared memory on one machine, and for trials TCP (feature `ucx`). Files are read
//! one-sidedly:
//!
//! ```text
//!   client                                             server
//!   Link ── TCP: greeting, secret, reach(file) ──> Session: where the file is, its key, the server's worker
//!    └ Lane ── ucp_get(address, key) ─────────────> memory of the file             no thread of the server, over RDMA and shared memory
//!                                                    Target: a thread that answers where the transport cannot (TCP)
//! ```
//!
//! Greetings, opening and putting files go over TCP as ever, and so do bytes that are read in turn;
//! what searches read comes through UCX. The TCP connection stays open beside it: the server keeps
//! the files for as long, and when it ends all reads fail at once, even where UCX has not noticed
//! that nobody will answer them. `target.rs` is the server's side, `lane.rs` the client's,
//! `endpoint.rs` a way to another process, and `api.rs` what is used of the library. What servers
//! of DistVS say to each other are messages, to which the other side has to answer: for them
//! `stream.rs` carries bytes to and fro.
//!
//! **UCX asks nobody for a secret.** Where a network card does the reading, whoever has a key (32
//! bits) reads what it is for. So it is for machines that trust each other, as RDMA is. With a
//! server on loopback both sides use the loopback device alone, unless `UCX_NET_DEVICES` says
//! otherwise. The address and the keys that a server of files sends are handed to UCX as they are,
//! of a server alone that has shown the client's secret; how much a file has is checked here, and
//! pages have checksums. Between servers of DistVS both addresses are sealed with the secret
//! (`stream.rs`).
//!
//! **Over TCP only who says so.** There UCX encrypts nothing, takes bytes from whoever reaches the
//! port that it chose, and emulates one-sided reads, which are not for a server: it answers reads
//! of *any* of the process' memory, to whoever reaches the port that it chose; and where a client
//! is killed while an answer is on its way, UCX 1.13 ends the *server* (`ucs_fatal` in
//! `ucp_request_send`: "unexpected error: Endpoint timeout"; the setting `PROTO_ENABLE` changes
//! nothing). So TCP is left out of what UCX chooses from, unless `UCX_TLS` in the environment names
//! transports: for trials without a card.

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

/// Whether there is the library.
///
/// # Errors
/// Why not, and what to do.
pub fn available() -> Result<(), String> {
    functions().map(|_| ())
}

/// What UCX is to do: it chooses its devices by that.
#[derive(Clone, Copy)]
enum Use {
    /// One-sided reads.
    Reads,
    /// Bytes to and fro.
    Streams,
}

/// Says in the log that UCX was told to use TCP, and what that means.
fn warn_of_tcp(what: &str) {
    // Where it is not set TCP is left out (`Context::new`).
    let transports = std::env::var_os("UCX_TLS").unwrap_or_default();
    let transports = transports.to_string_lossy();
    if lets_tcp_in(&transports) {
        tracing::warn!("UCX_TLS={transports}: {what}: for trials only");
    }
}

/// Whether UCX uses TCP by such a list of transports. Its functions do not tell (1.13).
fn lets_tcp_in(transports: &str) -> bool {
    let has = |list: &str, names: &[&str]| {
        // One that begins with `\` stands for itself, and for no group.
        let mut all = list.split(',').map(|name| name.trim_start_matches('\\'));
        all.any(|name| names.contains(&name))
    };
    match transports.strip_prefix('^') {
        Some(left_out) => !has(left_out, &["tcp"]),
        None => has(transports, &["tcp", "all"]),
    }
}

/// The library with its settings, which those of `UCX_..` in the environment are.
struct Context {
    functions: &'static Functions,
    raw: api::Context,
}

// SAFETY: it was made for workers of several threads (`mt_workers_shared`), so the library locks
// it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// One that uses the devices of the network, or of the machine alone.
    fn new(of: Use, loopback: bool) -> Result<Arc<Context>, String> {
        let functions = functions()?;
        let mut config = null_mut();
        // SAFETY: it takes no names where it is given none, and a pointer to write to.
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
            // SAFETY: the settings were read above; two strings that end with zero.
            let set =
                unsafe { (functions.ucp_config_modify)(config, name.as_ptr(), value.as_ptr()) };
            if let Err(error) = functions.check("take a setting", set) {
                // SAFETY: they were read above, and are not used any more.
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
        // SAFETY: the parameters are those of this version; the settings were read above.
        let made = unsafe { (functions.ucp_init_version)(major, minor, &params, config, &mut raw) };
        // SAFETY: they were read above, and are not used any more.
        unsafe { (functions.ucp_config_release)(config) };
        functions.check("be started", made)?;
        Ok(Arc::new(Context { functions, raw }))
    }

    /// The one of all clients of servers on this machine, or elsewhere; of streams, of all their
    /// servers, too. Where it does not start the next who wants it tries again: a card may have
    /// come up.
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
        // SAFETY: workers and regions hold the context, so there are none any more.
        unsafe { (self.functions.ucp_cleanup)(self.raw) };
    }
}

/// A worker of UCX: endpoints and requests belong to one, and go on when its thread calls
/// `progress`.
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
        // SAFETY: the context lives; the parameters are those of this version.
        let made = unsafe { (functions.ucp_worker_create)(context.raw, &params, &mut raw) };
        functions.check("make a worker", made)?;
        let mut worker = Worker {
            context: context.clone(),
            raw,
            fd: -1,
        };
        // SAFETY: the worker was made above, for wakeups.
        let got = unsafe { (functions.ucp_worker_get_efd)(raw, &mut worker.fd) };
        functions.check("tell of events", got)?;
        Ok(worker)
    }

    fn functions(&self) -> &'static Functions {
        self.context.functions
    }

    /// Does what can be done; false if there was nothing.
    fn progress(&self) -> bool {
        // SAFETY: the worker lives; it is not `Send`, and a stream, which is, locks it, so no other
        // thread uses it now; its one callback notes a number (`endpoint.rs`).
        unsafe { (self.functions().ucp_worker_progress)(self.raw) != 0 }
    }

    /// Makes its descriptor readable at the next event; false if one is there already, which
    /// `progress` has to take first.
    fn arm(&self) -> Result<bool, String> {
        // SAFETY: as in `progress`.
        match unsafe { (self.functions().ucp_worker_arm)(self.raw) } {
            api::BUSY => Ok(false),
            status => (self.functions().check("wait", status)).map(|()| true),
        }
    }

    /// The descriptor that becomes readable once it is armed.
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the worker's, which lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// How others reach it.
    fn address(&self) -> Result<Vec<u8>, String> {
        let (mut start, mut len) = (null_mut(), 0);
        // SAFETY: the worker lives; two places to write to.
        let got =
            unsafe { (self.functions().ucp_worker_get_address)(self.raw, &mut start, &mut len) };
        self.functions().check("tell its address", got)?;
        // SAFETY: it gave so many bytes there, which stay until they are released.
        let address = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }.to_vec();
        // SAFETY: it was got above, of this worker.
        unsafe { (self.functions().ucp_worker_release_address)(self.raw, start) };
        Ok(address)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: nobody else has it. Endpoints and requests of it that are left end with it:
        // behind this nothing of them writes to memory.
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
    #[ignore = "a process whose environment changes, which another test starts"]
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
