//! The client's side: the reads of one thread from one server.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use super::endpoint::{Endpoint, padded};
use super::{Context, Use, Worker, api};
use crate::remote::Fault;
use crate::remote::state::Asked;
use crate::remote::wire::REACH;

struct Reached {
    key: api::Key,
    start: u64,
    len: u64,
}

/// The library writes to the block until the request is done, or the worker is destroyed.
struct Running {
    request: *mut c_void,
    asked: Asked,
}

pub(in crate::remote) struct Lane {
    /// Declared before the blocks: after the connection is dropped, nothing writes to them.
    connection: Connection,
    reaching: HashMap<u64, u64>,
    /// For each file, the reads that wait for its position, with their offsets.
    waiting: HashMap<u64, Vec<(u64, Asked)>>,
    running: Vec<Running>,
    done: Vec<Asked>,
    failed: Option<Fault>,
}

/// Dropping it closes the connection without waiting for the server, which may no longer exist.
struct Connection {
    /// Declared before the endpoint, to which the worker may report failures until it is dropped.
    worker: Worker,
    endpoint: Option<(Vec<u8>, Endpoint)>,
    files: HashMap<u64, Reached>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let functions = self.worker.functions();
        if let Some((_, endpoint)) = &self.endpoint {
            endpoint.close(&self.worker);
        }
        for reached in self.files.values() {
            // SAFETY: the key was unpacked for this worker, and no later read uses it.
            unsafe { (functions.ucp_rkey_destroy)(reached.key) };
        }
    }
}

fn nonsense(what: &str) -> Fault {
    Fault::Nonsense(what.to_owned())
}

impl Lane {
    pub(in crate::remote) fn new(loopback: bool) -> Result<Lane, String> {
        Ok(Lane {
            connection: Connection {
                worker: Worker::new(&Context::shared(Use::Reads, loopback)?)?,
                endpoint: None,
                files: HashMap::new(),
            },
            reaching: HashMap::new(),
            waiting: HashMap::new(),
            running: Vec::new(),
            done: Vec::new(),
            failed: None,
        })
    }

    pub(in crate::remote) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.done.is_empty()
    }

    /// Returns `true` if the caller must first request the position of the file.
    pub(in crate::remote) fn submit(&mut self, file: u64, offset: u64, asked: Asked) -> bool {
        if self.connection.files.contains_key(&file) {
            self.get(file, offset, asked);
            return false;
        }
        let waiting = self.waiting.entry(file).or_default();
        waiting.push((offset, asked));
        waiting.len() == 1
    }

    pub(in crate::remote) fn asks(&mut self, tag: u64, file: u64) {
        self.reaching.insert(tag, file);
    }

    pub(in crate::remote) fn is_asked(&self, tag: u64) -> bool {
        self.reaching.contains_key(&tag)
    }

    /// Returns the reads that wait for the refused position.
    pub(in crate::remote) fn refused(&mut self, tag: u64) -> Vec<Asked> {
        let file = self.reaching.remove(&tag);
        let waiting = file.and_then(|file| self.waiting.remove(&file));
        let waiting = waiting.into_iter().flatten();
        waiting.map(|(_, asked)| asked).collect()
    }

    pub(in crate::remote) fn reached(
        &mut self,
        tag: u64,
        len: u64,
        answer: &[u8],
    ) -> Result<(), Fault> {
        let Some(file) = self.reaching.remove(&tag) else {
            return Err(nonsense("the place of a file without a request"));
        };
        let number = |at: usize| -> [u8; 4] { std::array::from_fn(|i| answer[at + i]) };
        if answer.len() != REACH {
            return Err(nonsense("the place of a file has a wrong length"));
        }
        let start = u64::from_le_bytes(std::array::from_fn(|i| answer[i]));
        let [address, key] = [8, 12].map(|at| u32::from_le_bytes(number(at)) as usize);
        let ends = address.saturating_add(key) <= REACH - 16;
        if !ends || address == 0 || key == 0 || start.checked_add(len).is_none() {
            return Err(nonsense("the place of a file is not valid"));
        }
        let (address, key) = answer[16..16 + address + key].split_at(address);
        let endpoint = match &self.connection.endpoint {
            Some((known, endpoint)) if known == address => endpoint.raw(),
            Some(_) => return Err(nonsense("two UCX addresses of one server")),
            None => {
                let Connection {
                    worker, endpoint, ..
                } = &mut self.connection;
                let made = Endpoint::new(worker, address).map_err(Fault::Unreachable)?;
                endpoint.insert((address.to_vec(), made)).1.raw()
            }
        };
        let functions = self.connection.worker.functions();
        let mut unpacked = null_mut();
        let key = padded(key);
        // SAFETY: the endpoint belongs to this worker. The key is as the server packed it (the
        // frame's checksum proves it), and has as many zeros after it as any lengths in it could
        // require.
        let got =
            unsafe { (functions.ucp_ep_rkey_unpack)(endpoint, key.as_ptr().cast(), &mut unpacked) };
        functions
            .check("unpack the server's key", got)
            .map_err(Fault::Unreachable)?;
        let reached = Reached {
            key: unpacked,
            start,
            len,
        };
        self.connection.files.insert(file, reached);
        for (offset, asked) in self.waiting.remove(&file).unwrap_or_default() {
            self.get(file, offset, asked);
        }
        Ok(())
    }

    fn get(&mut self, file: u64, offset: u64, mut asked: Asked) {
        let len = asked.block.len();
        let (Some(reached), Some((_, endpoint))) =
            (self.connection.files.get(&file), &self.connection.endpoint)
        else {
            self.refuse(asked, "a file without a place");
            return;
        };
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > reached.len) {
            self.refuse(asked, "a file is shorter than before");
            return;
        }
        let params = api::RequestParams::new(0);
        // SAFETY: the endpoint and the key live as long as the lane. The block has `len` bytes at
        // its target, and no code reads them while the block is in `running`. The block leaves
        // `running` when the request is done, or after the worker is destroyed. The range was
        // checked against the file's length.
        let request = unsafe {
            (self.connection.worker.functions().ucp_get_nbx)(
                endpoint.raw(),
                asked.block.target().cast(),
                len,
                reached.start + offset,
                reached.key,
                &params,
            )
        };
        if request.is_null() {
            self.done.push(asked);
            return;
        }
        let error = api::error_of(request);
        if let Some(status) = error {
            self.fail(status);
        }
        let request = match error {
            Some(_) => null_mut(),
            None => request,
        };
        self.running.push(Running { request, asked });
    }

    fn refuse(&mut self, asked: Asked, what: &str) {
        self.failed.get_or_insert(nonsense(what));
        let request = null_mut();
        self.running.push(Running { request, asked });
    }

    fn fail(&mut self, status: api::Status) {
        let text = self.connection.worker.functions().text(status);
        self.failed
            .get_or_insert(Fault::Closed(format!("UCX: {text}")));
    }

    pub(in crate::remote) fn progress(&mut self) -> Result<Vec<Asked>, Fault> {
        if !self.running.is_empty() {
            while self.connection.worker.progress() {}
        }
        let functions = self.connection.worker.functions();
        let mut at = 0;
        while at < self.running.len() {
            let request = self.running[at].request;
            let status = match request.is_null() {
                true => api::IN_PROGRESS,
                // SAFETY: the library owns the request until it is freed, below or in `end`.
                false => unsafe { (functions.ucp_request_check_status)(request) },
            };
            match status {
                api::IN_PROGRESS => at += 1,
                api::OK => {
                    // SAFETY: the request is done, and leaves `running` here, so it is freed once.
                    unsafe { (functions.ucp_request_free)(request) };
                    self.done.push(self.running.swap_remove(at).asked);
                }
                status => {
                    self.fail(status);
                    at += 1;
                }
            }
        }
        match self.failed.take() {
            Some(fault) => Err(fault),
            None => Ok(std::mem::take(&mut self.done)),
        }
    }

    /// Makes the lane's descriptor readable at the next event; `false` if one is pending already.
    pub(in crate::remote) fn arm(&self) -> Result<bool, Fault> {
        self.connection.worker.arm().map_err(Fault::Closed)
    }

    pub(in crate::remote) fn fd(&self) -> BorrowedFd<'_> {
        self.connection.worker.fd()
    }

    pub(in crate::remote) fn end(self) -> Vec<Asked> {
        let Lane {
            connection,
            running,
            mut done,
            waiting,
            ..
        } = self;
        drop(connection);
        done.extend(running.into_iter().map(|running| running.asked));
        done.extend(waiting.into_values().flatten().map(|(_, asked)| asked));
        done
    }
}
