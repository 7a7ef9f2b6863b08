//! A connection to another worker with a known address.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::{Duration, Instant};

use super::{Worker, api};

const CLOSING: Duration = Duration::from_millis(500);

/// A connection of a worker to another worker. The connection is [closed](Self::close) before its
/// worker is dropped. This value is dropped after the worker, because the library may write to
/// `failed`.
pub(super) struct Endpoint {
    raw: api::Endpoint,
    notices: bool,
    /// The status of a failure, or [`api::OK`]. While the worker lives, the library may write here.
    failed: Arc<AtomicI8>,
}

/// An address or a key, followed by zeros. UCX relies on lengths inside these bytes. If a length is
/// wrong, UCX reads the zeros, and no other memory.
pub(super) fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len() + (256 << 10), 0);
    padded
}

extern "C" fn note(of: *mut c_void, _: api::Endpoint, status: api::Status) {
    // SAFETY: `of` points to the status of an endpoint, an atomic that lives as long as the worker.
    // Only the library calls this function, and passes the pointer that it got with the endpoint.
    let failed = unsafe { &*of.cast::<AtomicI8>() };
    failed.store(status, Ordering::SeqCst);
}

impl Endpoint {
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
            // SAFETY: the worker lives. The address is as the other side's UCX packed it, with as
            // many zeros after it as any lengths in it could require, and is copied. The handler's
            // status (`failed`) is atomic, and outlives the worker.
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
            "UCX finds no path to the server ({}); it needs an RDMA card on both machines, or a server on this machine. Check UCX_TLS and UCX_NET_DEVICES",
            functions.text(status)
        ))
    }

    pub(super) fn raw(&self) -> api::Endpoint {
        self.raw
    }

    pub(super) fn check(&self, worker: &Worker) -> Result<(), String> {
        let failed = self.failed.load(Ordering::SeqCst);
        worker.functions().check("reach the other side", failed)
    }

    /// Closes the connection without waiting for the other side. Afterwards it must not be used.
    pub(super) fn close(&self, worker: &Worker) {
        // If UCX does not notice the end of the other side, it cannot force a close.
        if !self.notices {
            return;
        }
        let functions = worker.functions();
        let params = api::RequestParams::new(api::CLOSE_FORCE);
        // SAFETY: the endpoint belongs to this worker, and is not used any more.
        let closing = unsafe { (functions.ucp_ep_close_nbx)(self.raw, &params) };
        if !closing.is_null() && api::error_of(closing).is_none() {
            let until = Instant::now() + CLOSING;
            // SAFETY: the library owns the request until it is freed below.
            while unsafe { (functions.ucp_request_check_status)(closing) } == api::IN_PROGRESS
                && Instant::now() < until
            {
                worker.progress();
            }
            // SAFETY: no other code refers to the request. If it is in progress, the library frees
            // it when it is done.
            unsafe { (functions.ucp_request_free)(closing) };
        }
    }
}
