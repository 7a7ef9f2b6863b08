//! The functions of UCX that this crate uses, as declared in `ucp/api/ucp.h` of version 1.13. The
//! library is loaded at its first use, so a program also runs without UCX. Structures begin with a
//! mask of the fields that are set, and later versions only append fields. A test compares them
//! with the header, if installed.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// 0: success; 1: in progress; negative: an error.
pub(super) type Status = i8;
pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;
pub(super) const BUSY: Status = -15;
/// An address above this value, read as a signed number, is an error (`UCS_PTR_IS_ERR`).
const LAST_ERROR: isize = -100;

pub(super) type Context = *mut c_void;
pub(super) type Worker = *mut c_void;
pub(super) type Endpoint = *mut c_void;
pub(super) type Memory = *mut c_void;
pub(super) type Key = *mut c_void;
pub(super) type Config = *mut c_void;
/// Null means that the operation is complete. Otherwise an error ([`error_of`]), or a request that
/// the caller must free.
pub(super) type StatusPointer = *mut c_void;

pub(super) const API: (c_uint, c_uint) = (1, 13);
const LIBRARY: &str = "libucp.so.0";

pub(super) const FEATURE_RMA: u64 = 1 << 1;
pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(super) const FEATURE_STREAM: u64 = 1 << 5;

pub(super) const PARAM_FEATURES: u64 = 1;
pub(super) const PARAM_SHARED: u64 = 1 << 5;

/// `ucp_params_t`
#[repr(C)]
pub(super) struct Params {
    pub(super) fields: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: *const c_void,
    pub(super) request_cleanup: *const c_void,
    pub(super) tag_sender_mask: u64,
    pub(super) workers_shared: c_int,
    pub(super) endpoints: usize,
    pub(super) processes: usize,
    pub(super) name: *const c_char,
}

pub(super) const WORKER_THREADS: u64 = 1;
pub(super) const SERIALIZED: c_int = 1;

/// `ucp_worker_params_t`
#[repr(C)]
pub(super) struct WorkerParams {
    pub(super) fields: u64,
    pub(super) threads: c_int,
    pub(super) cpus: [u64; 16],
    pub(super) events: c_uint,
    pub(super) user_data: *const c_void,
    pub(super) event_fd: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) alignment: usize,
    pub(super) client: u64,
}

pub(super) const EP_ADDRESS: u64 = 1;
pub(super) const EP_ERROR_MODE: u64 = 1 << 1;
pub(super) const EP_ERROR_HANDLER: u64 = 1 << 2;

/// Pending operations do not fail if the other side ends. Transports through shared memory, which
/// do not notice that end, need this mode (1.13).
pub(super) const ERRORS_NONE: c_int = 0;
pub(super) const ERRORS_PEER: c_int = 1;

/// `ucs_sock_addr_t`
#[repr(C)]
pub(super) struct SocketAddress {
    pub(super) address: *const c_void,
    pub(super) len: u32,
}

/// `ucp_ep_params_t`
#[repr(C)]
pub(super) struct EndpointParams {
    pub(super) fields: u64,
    pub(super) address: *const c_void,
    pub(super) errors: c_int,
    pub(super) on_error: Option<extern "C" fn(*mut c_void, Endpoint, Status)>,
    pub(super) on_error_of: *mut c_void,
    pub(super) user_data: *mut c_void,
    pub(super) flags: c_uint,
    pub(super) socket: SocketAddress,
    pub(super) request: *mut c_void,
    pub(super) name: *const c_char,
    pub(super) local: SocketAddress,
}

pub(super) const MAP_LENGTH: u64 = 1 << 1;
pub(super) const MAP_FLAGS: u64 = 1 << 2;
pub(super) const MAP_PROTECTION: u64 = 1 << 3;
/// This process reads and writes. Other processes only read, if the transport can enforce that.
pub(super) const PROTECTION_OTHERS_READ: c_uint = 1 | 1 << 1 | 1 << 8;
/// The library allocates the memory. If possible, other processes can read this memory and no
/// other.
pub(super) const MAP_ALLOCATE: c_uint = 1 << 1;

/// `ucp_mem_map_params_t`
#[repr(C)]
pub(super) struct MapParams {
    pub(super) fields: u64,
    pub(super) address: *mut c_void,
    pub(super) len: usize,
    pub(super) flags: c_uint,
    pub(super) protection: c_uint,
    pub(super) kind: c_int,
}

pub(super) const MEMORY_ADDRESS: u64 = 1;
pub(super) const MEMORY_LENGTH: u64 = 1 << 1;

/// `ucp_mem_attr_t`
#[repr(C)]
pub(super) struct MemoryFacts {
    pub(super) fields: u64,
    pub(super) address: *mut c_void,
    pub(super) len: usize,
    pub(super) kind: c_int,
}

pub(super) const OP_FLAGS: u32 = 1 << 4;
pub(super) const CLOSE_FORCE: u32 = 1;

/// `ucp_request_param_t`
#[repr(C)]
pub(super) struct RequestParams {
    pub(super) fields: u32,
    pub(super) flags: u32,
    pub(super) request: *mut c_void,
    pub(super) callback: *const c_void,
    pub(super) datatype: usize,
    pub(super) user_data: *mut c_void,
    pub(super) reply_buffer: *mut c_void,
    pub(super) memory_kind: c_int,
    pub(super) received: *mut c_void,
    pub(super) memory: Memory,
}

impl RequestParams {
    pub(super) fn new(flags: u32) -> RequestParams {
        RequestParams {
            fields: if flags == 0 { 0 } else { OP_FLAGS },
            flags,
            request: std::ptr::null_mut(),
            callback: std::ptr::null(),
            datatype: 0,
            user_data: std::ptr::null_mut(),
            reply_buffer: std::ptr::null_mut(),
            memory_kind: 0,
            received: std::ptr::null_mut(),
            memory: std::ptr::null_mut(),
        }
    }
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, libloading::Error> {
                Ok(Functions {
                    // SAFETY: the type is the one declared in the header of API version 1.13. Later
                    // versions keep this type: a library with another binary interface would have
                    // another file name. The library is never unloaded.
                    $($name: unsafe { *library.get(stringify!($name))? },)*
                })
            }
        }
    };
}

functions! {
    ucp_get_version: fn(*mut c_uint, *mut c_uint, *mut c_uint);
    ucp_config_read: fn(*const c_char, *const c_char, *mut Config) -> Status;
    ucp_config_modify: fn(Config, *const c_char, *const c_char) -> Status;
    ucp_config_release: fn(Config);
    ucp_init_version: fn(c_uint, c_uint, *const Params, Config, *mut Context) -> Status;
    ucp_cleanup: fn(Context);
    ucp_worker_create: fn(Context, *const WorkerParams, *mut Worker) -> Status;
    ucp_worker_destroy: fn(Worker);
    ucp_worker_get_address: fn(Worker, *mut *mut c_void, *mut usize) -> Status;
    ucp_worker_release_address: fn(Worker, *mut c_void);
    ucp_worker_get_efd: fn(Worker, *mut c_int) -> Status;
    ucp_worker_arm: fn(Worker) -> Status;
    ucp_worker_progress: fn(Worker) -> c_uint;
    ucp_ep_create: fn(Worker, *const EndpointParams, *mut Endpoint) -> Status;
    ucp_ep_close_nbx: fn(Endpoint, *const RequestParams) -> StatusPointer;
    ucp_ep_rkey_unpack: fn(Endpoint, *const c_void, *mut Key) -> Status;
    ucp_rkey_destroy: fn(Key);
    ucp_get_nbx: fn(Endpoint, *mut c_void, usize, u64, Key, *const RequestParams) -> StatusPointer;
    ucp_stream_send_nbx: fn(Endpoint, *const c_void, usize, *const RequestParams) -> StatusPointer;
    ucp_stream_recv_data_nb: fn(Endpoint, *mut usize) -> StatusPointer;
    ucp_stream_data_release: fn(Endpoint, *mut c_void);
    ucp_request_check_status: fn(*mut c_void) -> Status;
    ucp_request_free: fn(*mut c_void);
    ucp_mem_map: fn(Context, *const MapParams, *mut Memory) -> Status;
    ucp_mem_unmap: fn(Context, Memory) -> Status;
    ucp_mem_query: fn(Memory, *mut MemoryFacts) -> Status;
    ucp_rkey_pack: fn(Context, Memory, *mut *mut c_void, *mut usize) -> Status;
    ucp_rkey_buffer_release: fn(*mut c_void);
    ucs_status_string: fn(Status) -> *const c_char;
    ucs_global_opts_set_value: fn(*const c_char, *const c_char) -> Status;
}

/// The first call loads the library; if it is not installed or too old, the next call tries again.
pub(super) fn functions() -> Result<&'static Functions, String> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    match LOADED.get() {
        Some(functions) => Ok(functions),
        // If two threads load it at the same time, both get the same library.
        None => load().map(|functions| LOADED.get_or_init(|| functions)),
    }
}

fn load() -> Result<Functions, String> {
    let failed = |error: libloading::Error| {
        let why = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        format!("{LIBRARY} cannot be loaded ({why}). Install it (Debian: apt-get install libucx0)")
    };
    // SAFETY: loading runs only the library's own initialisers. They read its settings, and start
    // no work that waits for this thread.
    let library = unsafe { Library::new(LIBRARY) }.map_err(failed)?;
    let functions = Functions::of(&library).map_err(failed)?;
    // The library installs threads and hooks that cannot be undone, so it is never unloaded.
    std::mem::forget(library);
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: the function writes to the three numbers passed.
    unsafe { (functions.ucp_get_version)(&mut major, &mut minor, &mut release) };
    if (major, minor) < API {
        return Err(format!(
            "{LIBRARY} has version {major}.{minor}.{release}. Install 1.13 or later"
        ));
    }
    if std::env::var_os("UCX_LOG_LEVEL").is_none() {
        // By default the library logs to standard output, which is for the results of this program.
        // SAFETY: both strings are terminated by zero.
        let _ = unsafe {
            (functions.ucs_global_opts_set_value)(c"LOG_LEVEL".as_ptr(), c"fatal".as_ptr())
        };
    }
    Ok(functions)
}

impl Functions {
    pub(super) fn text(&self, status: Status) -> String {
        // SAFETY: for any number, the result is a zero-terminated string as long as the library
        // lives.
        let text = unsafe { CStr::from_ptr((self.ucs_status_string)(status)) };
        text.to_string_lossy().into_owned()
    }

    pub(super) fn check(&self, what: &str, status: Status) -> Result<(), String> {
        match status {
            OK => Ok(()),
            status => Err(format!("UCX cannot {what}: {}", self.text(status))),
        }
    }
}

pub(super) fn error_of(pointer: StatusPointer) -> Option<Status> {
    let address = pointer as isize;
    // A status fits a byte, so the cast is lossless.
    (LAST_ERROR..0)
        .contains(&address)
        .then_some(address as Status)
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    use super::*;

    /// Prints the sizes, offsets and constants of the header.
    const PROGRAM: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <ucp/api/ucp.h>
int main(void) {
    printf("%zu %zu %zu %zu %zu ", sizeof(ucp_params_t), offsetof(ucp_params_t, mt_workers_shared),
           sizeof(ucp_worker_params_t), offsetof(ucp_worker_params_t, events), offsetof(ucp_worker_params_t, client_id));
    printf("%zu %zu %zu %zu ", sizeof(ucp_ep_params_t), offsetof(ucp_ep_params_t, err_mode), offsetof(ucp_ep_params_t, err_handler),
           offsetof(ucp_ep_params_t, local_sockaddr));
    printf("%zu %zu %zu %zu ", offsetof(ucp_mem_map_params_t, length), offsetof(ucp_mem_map_params_t, flags), offsetof(ucp_mem_attr_t, address),
           offsetof(ucp_mem_attr_t, length));
    printf("%zu %zu %zu %zu ", sizeof(ucp_request_param_t), offsetof(ucp_request_param_t, cb), offsetof(ucp_request_param_t, reply_buffer), sizeof(ucs_status_t));
    printf("%d %d %d %d %d %d %d ", UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP, UCP_FEATURE_STREAM, UCS_THREAD_MODE_SERIALIZED, UCP_ERR_HANDLING_MODE_PEER, UCP_MEM_MAP_ALLOCATE, UCP_OP_ATTR_FIELD_FLAGS);
    printf("%d %d %d %d ", UCP_PARAM_FIELD_FEATURES, UCP_PARAM_FIELD_MT_WORKERS_SHARED, UCP_WORKER_PARAM_FIELD_THREAD_MODE, UCP_EP_CLOSE_FLAG_FORCE);
    printf("%d %d %d ", UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLER);
    printf("%d %d %d %d %d %d %d %d\n", UCP_MEM_MAP_PARAM_FIELD_LENGTH, UCP_MEM_MAP_PARAM_FIELD_FLAGS, UCP_MEM_MAP_PARAM_FIELD_PROT,
           UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_READ, UCP_MEM_ATTR_FIELD_ADDRESS, UCP_MEM_ATTR_FIELD_LENGTH, UCS_ERR_BUSY, UCS_ERR_LAST);
}
"#;

    #[test]
    fn the_declarations_are_those_of_the_header() {
        let root = tempfile::tempdir().unwrap();
        let (source, program) = (root.path().join("facts.c"), root.path().join("facts"));
        std::fs::write(&source, PROGRAM).unwrap();
        let compiled = Command::new("cc")
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .output();
        if !compiled.is_ok_and(|output| output.status.success()) {
            println!(
                "skipped: no C compiler, or no header of UCX (Debian: apt-get install libucx-dev)"
            );
            return;
        }
        let output = Command::new(&program).output().unwrap();
        let header = String::from_utf8(output.stdout).unwrap();
        #[rustfmt::skip]
        let here = [
            size_of::<Params>(), offset_of!(Params, workers_shared),
            size_of::<WorkerParams>(), offset_of!(WorkerParams, events), offset_of!(WorkerParams, client),
            size_of::<EndpointParams>(), offset_of!(EndpointParams, errors), offset_of!(EndpointParams, on_error), offset_of!(EndpointParams, local),
            offset_of!(MapParams, len), offset_of!(MapParams, flags), offset_of!(MemoryFacts, address), offset_of!(MemoryFacts, len),
            size_of::<RequestParams>(), offset_of!(RequestParams, callback), offset_of!(RequestParams, reply_buffer), size_of::<Status>(),
        ];
        let mut here: Vec<i64> = here.into_iter().map(|number| number as i64).collect();
        #[rustfmt::skip]
        here.extend([
            FEATURE_RMA as i64, FEATURE_WAKEUP as i64, FEATURE_STREAM as i64, SERIALIZED.into(), ERRORS_PEER.into(), MAP_ALLOCATE.into(), OP_FLAGS.into(),
            PARAM_FEATURES as i64, PARAM_SHARED as i64, WORKER_THREADS as i64, CLOSE_FORCE.into(),
            EP_ADDRESS as i64, EP_ERROR_MODE as i64, EP_ERROR_HANDLER as i64,
            MAP_LENGTH as i64, MAP_FLAGS as i64, MAP_PROTECTION as i64, PROTECTION_OTHERS_READ.into(), MEMORY_ADDRESS as i64, MEMORY_LENGTH as i64, BUSY.into(), LAST_ERROR as i64,
        ]);
        let header: Vec<i64> = header
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        assert_eq!(here, header);
    }
}
