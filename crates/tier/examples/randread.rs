//! Random reads of 4 KiB in the pattern of searches: throughput, and processor time of a read.
//!
//! `randread FILE [--threads N] [--tasks N] [--width N] [--reads N] [--compute NANOSECONDS] [--io
//! MODE] [--pipelined]`
//!
//! Each thread runs `tasks` queries at once, each with `width` reads in flight. A query waits for
//! all of its reads before the next batch (best-first), or replaces each read as it completes
//! (`--pipelined`). With `--compute`, a query spins for the given time after each read. FILE must
//! exist.

use std::error::Error;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use stratann_tier::{
    BLOCK, FileTier, IoMode, ReadQueue, Request, Task, Thread, Tier, WorkerPool, next,
    thread_cpu_time,
};

#[derive(Clone)]
struct Options {
    file: String,
    threads: usize,
    tasks: usize,
    width: usize,
    reads: u64,
    compute: Duration,
    io: IoMode,
    pipelined: bool,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        file: String::new(),
        threads: 1,
        tasks: 8,
        width: 4,
        reads: 200_000,
        compute: Duration::ZERO,
        io: IoMode::Auto,
        pipelined: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--threads" => options.threads = value()?.parse()?,
            "--tasks" => options.tasks = value()?.parse()?,
            "--width" => options.width = value()?.parse()?,
            "--reads" => options.reads = value()?.parse()?,
            "--compute" => options.compute = Duration::from_nanos(value()?.parse()?),
            "--io" => options.io = value()?.parse()?,
            "--pipelined" => options.pipelined = true,
            _ if options.file.is_empty() && !arg.starts_with("--") => options.file = arg,
            _ => return Err(format!("unknown argument {arg}").into()),
        }
    }
    if options.file.is_empty() {
        return Err("no file given".into());
    }
    Ok(options)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn times() -> (Duration, Duration) {
    // SAFETY: rusage consists of numbers, and zeros are valid numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage that outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    let duration =
        |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    (duration(usage.ru_utime), duration(usage.ru_stime))
}

async fn query(
    queue: &mut dyn ReadQueue,
    options: &Options,
    blocks: u64,
    reads: u64,
    seed: u64,
) -> u64 {
    let mut random = Random(seed);
    let (mut submitted, mut done, mut sum) = (0, 0, 0u64);
    while done < reads {
        while submitted < reads && queue.in_flight() < options.width {
            let offset = random.below(blocks) * BLOCK as u64;
            queue
                .submit(Request {
                    tag: submitted,
                    offset,
                    len: BLOCK as u32,
                })
                .expect("in range");
            submitted += 1;
        }
        queue.flush();
        let batch = if options.pipelined {
            1
        } else {
            queue.in_flight()
        };
        for _ in 0..batch {
            let completion = match queue.try_next() {
                Some(completion) => completion,
                None => next(queue).await,
            };
            sum += u64::from(completion.result.expect("a read failed")[0]);
            done += 1;
            let start = Instant::now();
            while !options.compute.is_zero() && start.elapsed() < options.compute {
                std::hint::spin_loop();
            }
        }
    }
    sum
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let tier = FileTier::open(&options.file)?;
    let blocks = tier.len() / BLOCK as u64;
    let workers = WorkerPool::new(options.threads, options.io)?;
    let spent = Mutex::new((Duration::ZERO, Duration::ZERO, Duration::ZERO));
    let each = options.reads / (options.threads * options.tasks) as u64;
    let start = Instant::now();
    workers.run(options.threads, &|thread: &Thread, index| {
        let (cpu, (user, system)) = (thread_cpu_time(), times());
        let tasks: Vec<Task> = (0..options.tasks)
            .map(|task| {
                let (tier, options) = (&tier, &options);
                Box::pin(async move {
                    let mut queue = tier.queue(thread).expect("a queue");
                    let seed = 0x9E37_79B9_7F4A_7C15 ^ ((index * 1000 + task + 1) as u64) << 20;
                    std::hint::black_box(query(queue.as_mut(), options, blocks, each, seed).await);
                }) as Pin<Box<dyn Future<Output = ()>>>
            })
            .collect();
        thread.run_all(tasks);
        let (user, system) = (times().0 - user, times().1 - system);
        let mut spent = spent.lock().expect("no thread panicked");
        spent.0 += thread_cpu_time() - cpu;
        spent.1 += user;
        spent.2 += system;
    });
    let wall = start.elapsed().as_secs_f64();
    let reads = (each * (options.threads * options.tasks) as u64) as f64;
    let (cpu, user, system) = spent.into_inner()?;
    println!(
        "{} direct={} threads={} tasks={} width={} pipelined={} compute={:?}: {:.1} K reads/s, latency of a read {:.1} us, cpu {:.2} us a read (user {:.2}, system {:.2})",
        workers.backend(),
        tier.is_direct(),
        options.threads,
        options.tasks,
        options.width,
        options.pipelined,
        options.compute,
        reads / wall / 1e3,
        wall * 1e6 * (options.threads * options.tasks * options.width) as f64 / reads,
        cpu.as_secs_f64() * 1e6 / reads,
        user.as_secs_f64() * 1e6 / reads,
        system.as_secs_f64() * 1e6 / reads,
    );
    Ok(())
}
