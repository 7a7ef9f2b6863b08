//! Files with valid checksums and invalid contents. A reader must not panic, hang, or take much
//! more memory than the files have bytes.
//!
//! ```text
//! STRATANN_SLOW=1 cargo test -p stratann --test fuzz                    five minutes
//! cargo test --release -p stratann --test fuzz -- --seconds 3600        an hour
//! cargo test -p stratann --test fuzz -- --seed 7 --from 1234 --inputs 1 one input
//! ```
//!
//! An input is an index with one to three changes under valid checksums (`mutate.rs`), or a payload
//! for one decoder. The seed and the number of an input determine it.
#![forbid(unsafe_code)]

mod crafted;
mod mutate;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use peak_alloc::PeakAlloc;
use stratann::{
    BuildOptions, Durability, Error, Index, Layout, LiveIndex, Matrix, OpenOptions, Preset,
    RepairOptions, SearchOptions, Silent, Update, VectorFile, VectorSource, WriteOptions,
};
use stratann_codec::{ListModel, NestedModel, SegmentModel};
use stratann_layout::heat::HeatFile;
use stratann_layout::{
    BLOCK, ChunksFile, DirectoryFile, EntryPoints, FileHeader, FileKind, IdsFile, JournalFile,
    LogHeader, Manifest, NavigationFile, PendingFile, PlacementFile, SegmentSpan, stream,
};

use self::mutate::{Files, Random, mutate, payload_of, scramble_all};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The memory that reading an index may take: bytes for each byte of the index, and bytes in
/// addition.
const A_BYTE: usize = 24;
const BASE: usize = 96 << 20;
/// The same limits, for one decoder.
const DECODER_A_BYTE: usize = 64;
const DECODER_BASE: usize = 1 << 20;
/// An input that takes longer counts as hanging, even on a busy machine.
const HANGS: Duration = Duration::from_secs(120);

const USAGE: &str = "--seed N, --from N, --inputs N, --seconds N";

struct Options {
    seed: u64,
    from: u64,
    inputs: u64,
    time: Duration,
}

fn options() -> Option<Options> {
    if std::env::var_os("STRATANN_SLOW").is_none() && std::env::args().len() == 1 {
        eprintln!("skipped: takes minutes; set STRATANN_SLOW=1, or pass a limit ({USAGE})");
        return None;
    }
    let mut options = Options {
        seed: 12,
        from: 0,
        inputs: u64::MAX,
        time: Duration::from_secs(300),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let number = arguments.next().and_then(|text| text.parse().ok());
            number.unwrap_or_else(|| panic!("{argument} needs a number. Usage: {USAGE}"))
        };
        match argument.as_str() {
            "--seed" => options.seed = number(),
            "--from" => options.from = number(),
            "--inputs" => {
                options.inputs = number();
                options.time = Duration::MAX;
            }
            "--seconds" => {
                options.time = Duration::from_secs(number());
                options.inputs = u64::MAX;
            }
            // Cargo passes the name of a test to all programs of tests.
            other if !other.starts_with('-') && !"fuzz".contains(other) => return None,
            "--list" => return None,
            _ => {}
        }
    }
    Some(options)
}

#[derive(Default)]
struct Findings {
    /// By target and message: the number of the first input, and the count.
    panics: BTreeMap<String, (u64, usize)>,
    memory: BTreeMap<String, (u64, usize)>,
    inputs: BTreeMap<&'static str, u64>,
    read: BTreeMap<&'static str, u64>,
    most: BTreeMap<&'static str, usize>,
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn said() -> Vec<String> {
    SAID.lock()
        .map(|mut said| std::mem::take(&mut *said))
        .unwrap_or_default()
}

impl Findings {
    /// Records a panic or too much memory of `work`, which returns whether the input was read.
    fn note(&mut self, target: &'static str, input: u64, most: usize, work: impl FnOnce() -> bool) {
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let taken = MEMORY.peak_usage().saturating_sub(before);
        *self.inputs.entry(target).or_default() += 1;
        *self.read.entry(target).or_default() += u64::from(matches!(outcome, Ok(true)));
        let peak = self.most.entry(target).or_default();
        *peak = taken.max(*peak);
        let mut panics = said();
        if outcome.is_err() && panics.is_empty() {
            panics.push("a panic without a message".into());
        }
        for panic in panics {
            let panic = format!("{target}: {panic}");
            self.panics.entry(panic).or_insert((input, 0)).1 += 1;
        }
        if taken > most {
            let what = format!("{target}: more than {} MiB", most >> 20);
            self.memory.entry(what).or_insert((input, 0)).1 += 1;
        }
    }
}

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn rows_of(dim: usize, from: usize, count: usize) -> Matrix {
    let name = match dim {
        384 => "package-text-2k.base.fbin",
        _ => "photo-sift-20k.base.u8bin",
    };
    let file = VectorFile::open(fixtures().join(name));
    let all = file
        .and_then(|file| Matrix::read(&file))
        .expect("a fixture");
    let picked: Vec<u32> = (from..from + count).map(|row| row as u32).collect();
    let mut bytes = vec![0; count * all.row_bytes()];
    all.gather(&picked, &mut bytes)
        .expect("rows of the fixture");
    Matrix::new(bytes, count, all.dim(), all.element()).expect("rows of one length")
}

fn rows(from: usize, count: usize) -> Matrix {
    rows_of(128, from, count)
}

fn read(folder: &Path) -> Files {
    let entries = std::fs::read_dir(folder).expect("an index");
    let files = entries.map(|entry| entry.expect("an index").path());
    files
        .filter(|path| path.is_file() && !path.ends_with("LOCK"))
        .map(|path| {
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read(&path).expect("a file"))
        })
        .collect()
}

fn write(files: &Files, folder: &Path) {
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).expect("room for a copy");
    }
}

fn writing(update: Option<Update>) -> WriteOptions {
    WriteOptions {
        durability: Durability::OnFlush,
        threads: 1,
        update,
        ..WriteOptions::default()
    }
}

fn small(layout: Layout, update: Update) -> Result<Files, Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let index = folder.path().join("index");
    let options = BuildOptions {
        preset: match layout {
            Layout::Inline => Preset::AISAQ,
            Layout::Decoupled => Preset::DECOUPLEVS,
            _ => Preset::STRATANN,
        },
        layout: Some(layout),
        degree: Some(8),
        build_list: 20,
        code_bytes: Some(8),
        threads: 1,
        // Some indexes have ids that differ from row numbers.
        ids: (update == Update::Merge).then(|| (0..149).chain([1_000]).collect()),
        ..BuildOptions::default()
    };
    stratann::build(&rows(0, 150), &index, &options, &Silent)?;
    let live = LiveIndex::open(&index, &OpenOptions::default(), &writing(Some(update)))?;
    let ids: Vec<u64> = (150..180).collect();
    live.insert(&rows(150, 30), Some(&ids), &Silent)?;
    live.upsert(&rows(500, 2), &[3, 151], &Silent)?;
    live.delete(&[5, 160])?;
    live.flush()?;
    drop(live);
    Ok(read(&index))
}

fn frozen() -> Vec<(String, Files)> {
    let entries = std::fs::read_dir(fixtures()).expect("fixtures");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("a fixture")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.starts_with("index-"))
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|name| {
            let files = read(&fixtures().join(&name));
            (name, files)
        })
        .collect()
}

fn reads(folder: &Path) -> bool {
    let opened = Index::open(folder, &OpenOptions::default());
    let is_open = opened.is_ok();
    if let Ok(index) = &opened {
        let options = SearchOptions {
            k: 5,
            list: 10,
            threads: 1,
            in_flight: Some(2),
            ..SearchOptions::default()
        };
        let queries = rows_of(index.dim(), 1_900, 2);
        if index.search(&queries, &options).is_ok() {
            drop(index.stats());
        }
    }
    drop(opened);
    drop(stratann::verify(folder, &Silent));
    is_open
}

fn merges(folder: &Path) -> bool {
    let Ok(live) = LiveIndex::open(folder, &OpenOptions::default(), &writing(None)) else {
        return false;
    };
    let inserted = live.insert(&rows_of(live.index().dim(), 1_950, 2), None, &Silent);
    let deleted = live.delete(&[1]);
    let merged = live.compact(&Silent);
    inserted.is_ok() && deleted.is_ok() && merged.is_ok()
}

fn repairs(folder: &Path) -> bool {
    let options = RepairOptions {
        threads: 1,
        memory: None,
        force: true,
    };
    stratann::repair(folder, &options, &Silent).is_ok()
}

fn decodes(
    random: &mut Random,
    payloads: &[(FileKind, Vec<u8>)],
    findings: &mut Findings,
    input: u64,
) {
    let (kind, payload) = &payloads[random.below(payloads.len())];
    let mut payload = payload.clone();
    for _ in 0..1 + random.below(3) {
        scramble_all(random, &mut payload);
    }
    let mut number = |right: u64| match random.below(4) {
        0 => random.next() >> random.below(64),
        _ => right,
    };
    let (nodes, code) = (number(180), number(8) as usize);
    let (pages, page_bytes) = (number(40), number(4096) as usize);
    let most = DECODER_BASE + DECODER_A_BYTE * payload.len();
    findings.note("decoders", input, most, || match kind {
        FileKind::Navigation => NavigationFile::decode(payload, nodes, 128, Some(32), "f").is_ok(),
        FileKind::Chunks => {
            let span = SegmentSpan {
                nodes,
                pages,
                ..SegmentSpan::default()
            };
            let read = ChunksFile::decode(&payload, span, 128, "f");
            read.is_ok_and(|file| file.pages(0).nodes() == nodes)
        }
        FileKind::Directory => {
            let read = DirectoryFile::decode(&payload, nodes, pages, "f");
            read.is_ok_and(|file| {
                let models = file.vector_models.iter();
                let whole = models.filter(|model| SegmentModel::from_bytes(model).is_ok());
                ListModel::from_bytes(&file.list_model).is_ok() && whole.count() > 0
            })
        }
        FileKind::Heat => HeatFile::decode(&payload, pages, 0, "f").is_ok(),
        FileKind::Entries => EntryPoints::decode(&payload, nodes, code, "f").is_ok(),
        FileKind::Placement => PlacementFile::decode(payload, code, "f").is_ok(),
        FileKind::Pending => PendingFile::decode(&payload, nodes as u32, 128, "f").is_ok(),
        FileKind::Journal => JournalFile::decode(payload, page_bytes, "f").is_ok(),
        FileKind::Ids => {
            // Pairs of id and node, or only nodes, as many as fill the payload.
            let bits = 8 * payload.len() as u64;
            let alone = (1..=bits.min(1 << 16)).map(IdsFile::nodes_alone);
            let mut alone = alone.filter(|file| file.payload_bytes() == payload.len() as u64);
            let fields = alone.next_back().map(|file| file.fields());
            let mut whole = false;
            for fields in [Some(Vec::new()), fields].into_iter().flatten() {
                let file = stream::encode(FileKind::Ids, &payload, &fields);
                let mut blocks = (0..).zip(file[BLOCK..].chunks(BLOCK));
                whole |= IdsFile::open(&file, "f").is_ok_and(|(ids, _)| {
                    blocks.all(|(n, block)| ids.block(block, n, "f").is_ok())
                });
            }
            whole
        }
        FileKind::Log => LogHeader::decode(&payload, 1, "f").is_ok(),
        _ => {
            let model = SegmentModel::from_bytes(&payload).is_ok()
                || NestedModel::from_bytes(&payload).is_ok();
            let lists = ListModel::from_bytes(&payload).is_ok();
            let header = FileHeader::decode(&payload, "f").is_ok();
            Manifest::decode(&payload, "f").is_ok() || model || lists || header
        }
    });
}

type Now = Arc<Mutex<(Instant, u64)>>;

fn watch(now: &Now, seed: u64) {
    let now = now.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let Ok((since, input)) = now.lock().map(|now| *now) else {
                return;
            };
            if since.elapsed() > HANGS {
                eprintln!("hangs: --seed {seed} --from {input} --inputs 1");
                std::process::exit(1);
            }
        }
    });
}

fn main() {
    let Some(options) = options() else {
        return;
    };
    let mut sources = frozen();
    let large = sources.len();
    for (layout, direct) in [
        (Layout::Coupled, Update::Relocate),
        (Layout::Packed, Update::Accumulate),
        (Layout::Decoupled, Update::Accumulate),
        (Layout::Inline, Update::InPlace),
        // In this layout, vectors are in the log for each kind of update.
        (Layout::Layered, Update::Accumulate),
    ] {
        for update in [direct, Update::Merge] {
            let files = small(layout, update).expect("a small index");
            sources.push((format!("small {layout}, {update:?}"), files));
        }
    }
    let all: Vec<Files> = sources.iter().map(|(_, files)| files.clone()).collect();
    let payloads: Vec<(FileKind, Vec<u8>)> = all
        .iter()
        .flatten()
        .map(|(_, bytes)| {
            let kind = FileHeader::decode(bytes, "fuzz").map(|header| header.kind);
            let kind = kind.unwrap_or(FileKind::Graph);
            let payload = payload_of(kind, bytes).unwrap_or_else(|| bytes.clone());
            (kind, payload)
        })
        .collect();
    let hook = |info: &std::panic::PanicHookInfo<'_>| {
        let text = info.to_string().replace('\n', " ");
        if let Ok(mut said) = SAID.lock() {
            said.push(text);
        }
    };
    std::panic::set_hook(Box::new(hook));
    let now: Now = Arc::new(Mutex::new((Instant::now(), options.from)));
    watch(&now, options.seed);
    let (start, mut findings) = (Instant::now(), Findings::default());
    if options.from == 0 {
        known(&all[large..], &mut findings, &now);
    }
    let end = options.from.saturating_add(options.inputs);
    let mut input = options.from;
    while input < end && start.elapsed() < options.time {
        if let Ok(mut now) = now.lock() {
            *now = (Instant::now(), input);
        }
        let mut random = Random(options.seed ^ input.wrapping_mul(0xd134_2543_de82_ef95));
        for _ in 0..20 {
            decodes(&mut random, &payloads, &mut findings, input);
        }
        let (name, source) = &sources[random.below(sources.len())];
        let mut files = source.clone();
        mutate(&mut random, &mut files, &all);
        let bytes: usize = files.values().map(Vec::len).sum();
        let most = BASE + A_BYTE * bytes;
        let folder = tempfile::tempdir().expect("a folder");
        write(&files, folder.path());
        findings.note("open, search, verify", input, most, || reads(folder.path()));
        if name.starts_with("small") || random.below(20) == 0 {
            let copy = tempfile::tempdir().expect("a folder");
            write(&files, copy.path());
            findings.note("insert, delete, merge", input, most, || merges(copy.path()));
            findings.note("repair", input, most, || repairs(folder.path()));
        }
        input += 1;
    }
    drop(std::panic::take_hook());
    report(&findings, options.seed, start.elapsed());
    if !findings.panics.is_empty() || !findings.memory.is_empty() {
        std::process::exit(1);
    }
}

fn known(sources: &[Files], findings: &mut Findings, now: &Now) {
    // Case 0 has a hundred thousand names. It gives as many reports of problems, so it runs once.
    let most = std::env::var_os("STRATANN_SLOW").map_or(2, |_| sources.len());
    for (at, (what, craft)) in crafted::CASES.into_iter().enumerate() {
        let (mut times, indexes) = (0, if at == 0 { 1 } else { most });
        for source in sources {
            let mut files = source.clone();
            if times == indexes || !craft(&mut files) {
                continue;
            }
            times += 1;
            if let Ok(mut now) = now.lock() {
                *now = (Instant::now(), 0);
            }
            let most = BASE + A_BYTE * files.values().map(Vec::len).sum::<usize>();
            let [read, changed] = [(), ()].map(|()| tempfile::tempdir().expect("a folder"));
            write(&files, read.path());
            write(&files, changed.path());
            findings.note(what, 0, most, || reads(read.path()));
            findings.note(what, 0, most, || merges(changed.path()));
            findings.note(what, 0, most, || repairs(read.path()));
        }
        assert!(
            times > 0,
            "{what}: no index has the part that the case changes"
        );
    }
}

fn report(findings: &Findings, seed: u64, time: Duration) {
    println!("fuzz: seed {seed}, {:.0} s", time.as_secs_f64());
    for (target, inputs) in &findings.inputs {
        let (read, most) = (findings.read[target], findings.most[target] >> 10);
        println!("  {target}: {inputs} inputs, {read} of them read; at most {most} KiB of memory");
    }
    for (what, (input, times)) in findings.panics.iter().chain(&findings.memory) {
        println!("  {times} x {what}\n    --seed {seed} --from {input} --inputs 1");
    }
}
