//! Servers in separate processes that are killed or stopped under load.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stratann_node::Options;
use stratann_node::role::{Failure, MemoryOptions};
use stratann_node::serve::{
    Client, ComputeServer, ComputeServerOptions, MemoryServer, StorageServer,
};

use crate::halves::{Full, Low, Random};
use crate::servers::{
    Over, PATIENCE, check, options, own_address, patient, remote, started, until, world,
};

const SILENCE: Duration = Duration::from_millis(700);

const ROLE: &str = "STRATANN_TEST_ROLE";
const LISTEN: &str = "STRATANN_TEST_LISTEN";

/// This function is no test, but the program of the child processes.
#[test]
fn serve() {
    let (Ok(role), Ok(listen)) = (std::env::var(ROLE), std::env::var(LISTEN)) else {
        return;
    };
    let options = Options {
        listen,
        ..Options::default()
    };
    let _memory;
    let _storage;
    match role.as_str() {
        "memory" => {
            let walks = MemoryOptions::default();
            _memory = started(|| MemoryServer::start(world(), walks, true, options.clone()));
        }
        _ => {
            let full = || Arc::new(Full(world()));
            _storage = started(|| StorageServer::start(full(), 64, options.clone()));
        }
    }
    loop {
        std::thread::park();
    }
}

/// The drop ends the process.
struct Process(Child);

impl Process {
    fn start(role: &str, listen: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "processes::serve"])
            .env(ROLE, role)
            .env(LISTEN, listen)
            .stdout(Stdio::null());
        Process(command.spawn().unwrap())
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits until all threads have stopped. Right after the signal, a thread on another core may
    /// still answer.
    fn stop(&self) {
        self.signal("-STOP");
        until(|| {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
            let mut stats =
                tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
            // In `stat`, the state follows the name in parentheses. The state of a stopped thread
            // is T.
            stats.all(|stat| {
                stat.is_ok_and(|stat| {
                    stat.rsplit(") ")
                        .next()
                        .is_some_and(|rest| rest.starts_with('T'))
                })
            })
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn free() -> String {
    let listener = TcpListener::bind(own_address().listen).unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn processes_that_are_killed_or_stopped_cost_time_and_no_wrong_answer() {
    let (at, behind, world) = (free(), free(), world());
    let mut memory = Some(Process::start("memory", &at));
    let storage = Process::start("storage", &behind);
    let compute = ComputeServer::<Low>::start(
        remote(&at),
        remote(&behind),
        ComputeServerOptions {
            silence: SILENCE,
            ..options()
        },
    )
    .unwrap();
    let place = vec![remote(compute.address())];
    let patient = Client::connect(place, patient()).unwrap();
    patient.collection().unwrap();
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = |seed: u64| {
        let mut random = Random(seed);
        // If this thread fails, the other threads end too.
        let _over = Over(&over);
        while !over.load(Ordering::SeqCst) {
            let row = random.row();
            check(&world, &row, 4, &patient.search(&row, 4, 0, 0).unwrap());
            answers.fetch_add(1, Ordering::SeqCst);
        }
    };
    let goes_on = || {
        let (before, began) = (answers.load(Ordering::SeqCst), Instant::now());
        until(|| answers.load(Ordering::SeqCst) >= before + 20 || over.load(Ordering::SeqCst));
        began.elapsed()
    };
    thread::scope(|scope| {
        // After a panic here, the drop ends the loads, because the scope waits for them.
        let _over = Over(&over);
        let load = &load;
        let loads: Vec<_> = (0..3).map(|seed| scope.spawn(move || load(seed))).collect();
        goes_on();
        for _ in 0..2 {
            drop(memory.take());
            memory = Some(Process::start("memory", &at));
            println!("after a kill, the next results took {:?}", goes_on());
        }
        over.store(true, Ordering::SeqCst);
        loads.into_iter().for_each(|load| load.join().unwrap());
    });
    // A stopped process keeps its connections, but receives no bytes.
    let hasty = patient.within(Duration::from_millis(150));
    let row = Random(9).row();
    let memory = memory.unwrap();
    for (process, role, address) in [(&storage, "storage", &behind), (&memory, "memory", &at)] {
        process.stop();
        // After the silence limit, the client connects again.
        let (began, mut named) = (Instant::now(), false);
        while !named || began.elapsed() < 2 * SILENCE {
            match hasty.search(&row, 4, 0, 0) {
                Err(Failure::Refused { text, .. }) => {
                    named |= text.contains(&format!("the {role} server at {address}"));
                }
                // On a busy machine, the client's deadline may pass before the server's refusal
                // arrives.
                Err(Failure::Deadline { waited, .. }) => {
                    assert!(waited < PATIENCE / 2, "{waited:?}");
                }
                Ok(_) => panic!("the stopped {role} server answered"),
            }
            assert!(
                began.elapsed() < PATIENCE,
                "no error names the {role} server"
            );
        }
        process.signal("-CONT");
        check(&world, &row, 4, &patient.search(&row, 4, 0, 0).unwrap());
    }
}
