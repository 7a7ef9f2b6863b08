//! A way to another worker, of which the address is known.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::{Duration, Instant};

use super::{Worker, api};

/// How long the end of a connection may take that is closed without asking the other side.
const CLOSING: Duration = Duration::from_millis(500);

/// Where a worker sends to. Its worker is to be dropped before it is, and to [close](Self::close)
/// it before that.
pub(super) struct Endpoint {
    raw: api::Endpoint,
    /// Whether UCX notices that the other side is gone.
    notices: bool,
    /// Why it has failed; [`api::OK`]: it has not. The library writes to it as long as the worker
    /// lives.
    failed: Arc<AtomicI8>,
}

/// The bytes of another side's address or of a key, with zeros behind them. UCX is not told how
/// many there are: it goes by lengths that stand in the bytes, each of one or two bytes. Where
/// these are wrong, it reads on beyond the end, and meets the zeros there and not other memory.
/// What the bytes say is believed otherwise; see the module.
pub(super) fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() + (256 << 10), 0);
    padded
}

/// Called by UCX when an endpoint fails: its requests fail as well.
extern "C" fn note(of: *mut c_void, _: api::Endpoint, status: api::Status) {
    // SAFETY: it is the number of an endpoint, which lives as long as its worker: nothing else
    // calls this.
    let failed = unsafe { &*of.cast::<AtomicI8>() };
    failed.store(status, Ordering::SeqCst);
}

impl Endpoint {
    /// Connects to another worker: so that its end is noticed, if a transport that notices it leads
    /// there.
    pub(super) fn new(worker: &Worker, address: &[u8]) -> Result<Endpoint, String> {
        let functions = worker.functions();
        let (address, failed) = (padded(address), Arc::new(AtomicI8::new(api::OK)));
        let mut status = api::OK;
        for errors in [api::ERRORS_PEER, api::ERRORS_NONE] {
            failed.store(api::OK, Ordering::SeqCst);
            let params = api::EndpointParams {
                fields: api::EP_ADDRESS | api::EP_ERROR_MODE | api::EP_ERROR_HANDLER,
                address: address.as_ptr().cast(),
                errors,
                on_error: Some(note),
                on_error_of: Arc::as_ptr(&failed).cast_mut().cast(),
                user_data: null_mut(),
                flags: 0,
                socket: api::SocketAddress {
                    address: null(),
                    len: 0,
                },
                request: null_mut(),
                name: null(),
                local: api::SocketAddress {
                    address: null(),
                    len: 0,
                },
            };
            let mut raw = null_mut();
            // SAFETY: the worker lives; the address is as the other side's UCX packed it, with as
            // much behind it as any bytes could be taken to say, and is copied; the number of the
            // handler is an atomic one, and outlives the worker.
            status = unsafe { (functions.ucp_ep_create)(worker.raw, &params, &mut raw) };
            if status == api::OK {
                let notices = errors == api::ERRORS_PEER;
                return Ok(Endpoint {
                    raw,
                    notices,
                    failed,
                });
            }
        }
        Err(format!(
            "UCX finds no way there: {}: it takes an RDMA card on both machines, or a server on this one; see UCX_TLS and UCX_NET_DEVICES",
            functions.text(status)
        ))
    }

    /// What the library calls it.
    pub(super) fn raw(&self) -> api::Endpoint {
        self.raw
    }

    /// Whether it can be used: otherwise why not.
    pub(super) fn check(&self, worker: &Worker) -> Result<(), String> {
        let failed = self.failed.load(Ordering::SeqCst);
        worker.functions().check("reach the other side", failed)
    }

    /// Ends it, without an answer of the other side, which may be gone. It is not used behind this.
    pub(super) fn close(&self, worker: &Worker) {
        // Without notice there is no closing by force, and the other side may be gone: the endpoint
        // ends with the worker.
        if !self.notices {
            return;
        }
        let functions = worker.functions();
        let params = api::RequestParams::new(api::CLOSE_FORCE);
        // SAFETY: the endpoint is this worker's, and not used any more.
        let closing = unsafe { (functions.ucp_ep_close_nbx)(self.raw, &params) };
        if !closing.is_null() && api::error_of(closing).is_none() {
            let until = Instant::now() + CLOSING;
            // SAFETY: the request is the library's until it is freed below.
            while unsafe { (functions.ucp_request_check_status)(closing) } == api::IN_PROGRESS
                && Instant::now() < until
            {
                worker.progress();
            }
            // SAFETY: nobody else has it; one in progress is freed when it is done.
            unsafe { (functions.ucp_request_free)(closing) };
        }
    }
}
