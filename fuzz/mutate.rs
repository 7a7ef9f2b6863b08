//! Makes invalid contents under valid checksums. The checksums are computed here: with the code of
//! `stratann_layout`, no input would show that a reader forgets to verify a checksum.

use std::collections::BTreeMap;

use serde_json::Value;
use stratann_layout::{BLOCK, CoupledShape, FileHeader, FileKind, InlineShape, SlottedShape};
use stratann_layout::{StreamReader, stream};

pub type Files = BTreeMap<String, Vec<u8>>;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A position to change: often near the beginning, where counts are.
    fn place(&mut self, len: usize) -> usize {
        match self.below(3) {
            0 => self.below(len.min(64)),
            _ => self.below(len),
        }
    }

    /// A number at a limit, at which code often fails.
    fn special(&mut self, old: u64) -> u64 {
        match self.below(14) {
            0 => 0,
            1 => 1,
            2 => 2,
            3 => 1 << 16,
            4 => 1 << 31,
            5 => (1 << 32) - 1,
            6 => 1 << 32,
            7 => 1 << 63,
            8 => u64::MAX,
            9 => u64::MAX - 1,
            10 => old.wrapping_add(1),
            11 => old.wrapping_sub(1),
            12 => old.wrapping_mul(2),
            _ => self.next() >> self.below(64),
        }
    }
}

fn crc(seeds: &[u64], bytes: &[u8]) -> [u8; 4] {
    let mut sum = 0;
    for seed in seeds {
        sum = crc32c::crc32c_append(sum, &seed.to_le_bytes());
    }
    crc32c::crc32c_append(sum, bytes).to_le_bytes()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, u32::from_le_bytes)
}

pub fn scramble(random: &mut Random, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    let at = random.place(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 | 3 => {
            // Fields are at multiples of four.
            let at = at - at % 4;
            let len = [2, 4, 4, 8][random.below(4)];
            let Some(field) = bytes.get_mut(at..at + len) else {
                return;
            };
            let mut old = [0; 8];
            old[..len].copy_from_slice(field);
            let new = random.special(u64::from_le_bytes(old)).to_le_bytes();
            field.copy_from_slice(&new[..len]);
        }
        4 => {
            let from = random.place(bytes.len());
            let len = random.below(200).min(bytes.len() - at.max(from));
            bytes.copy_within(from..from + len, at);
        }
        _ => {
            let len = random.below(64).min(bytes.len() - at);
            bytes[at..at + len].fill([0, 255][random.below(2)]);
        }
    }
}

pub fn scramble_all(random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(8) {
        0 => bytes.truncate(random.below(bytes.len() + 1)),
        1 => {
            let more = random.below(5_000);
            bytes.resize(bytes.len() + more, [0, 255][random.below(2)]);
        }
        2 if !bytes.is_empty() => {
            let (from, to) = (random.below(bytes.len()), random.below(bytes.len()));
            let part = bytes[from.min(to)..from.max(to)].to_vec();
            let at = random.below(bytes.len());
            bytes.splice(at..at, part.into_iter().take(5_000));
        }
        _ => scramble(random, bytes),
    }
}

/// Makes one to three changes to an index, and corrects the checksums. Returns a description.
pub fn mutate(random: &mut Random, files: &mut Files, others: &[Files]) -> String {
    let mut said = Vec::new();
    for _ in 0..1 + random.below(3) {
        let names: Vec<String> = files.keys().cloned().collect();
        let name = match random.below(5) {
            0 => "MANIFEST".to_owned(),
            _ => names[random.below(names.len())].clone(),
        };
        let bytes = files.get(&name).cloned().unwrap_or_default();
        let changed = match name.as_str() {
            "MANIFEST" => manifest(random, &bytes),
            _ if random.below(30) == 0 => other(random, &name, others).unwrap_or(bytes),
            _ => file(random, bytes),
        };
        files.insert(name.clone(), changed);
        if name != "MANIFEST" && random.below(10) > 0 {
            named_right(files, &name);
        }
        said.push(name);
    }
    said.join(", ")
}

fn other(random: &mut Random, name: &str, others: &[Files]) -> Option<Vec<u8>> {
    let files = &others[random.below(others.len())];
    let kind = name.split('-').next()?;
    let found = files.iter().find(|(name, _)| name.starts_with(kind));
    found.map(|(_, bytes)| bytes.clone())
}

fn named_right(files: &mut Files, name: &str) {
    let bytes = &files[name];
    let (length, sum) = (bytes.len() as u64, u32_at(bytes, BLOCK - 4));
    let Some((version, mut body)) = files.get("MANIFEST").and_then(|text| parsed(text)) else {
        return;
    };
    let entries = body.get_mut("files").and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        if entry.get("name").and_then(Value::as_str) == Some(name) {
            entry["length"] = length.into();
            entry["header_crc32c"] = sum.into();
        }
    }
    files.insert("MANIFEST".into(), framed(&version, &body));
}

pub fn parsed(text: &[u8]) -> Option<(String, Value)> {
    let end = text.iter().position(|&byte| byte == b'\n')?;
    let line = std::str::from_utf8(&text[..end]).ok()?;
    let version = line.split(' ').nth(2)?.to_owned();
    Some((version, serde_json::from_slice(&text[end + 1..]).ok()?))
}

pub fn framed(version: &str, body: &Value) -> Vec<u8> {
    let body = format!("{body:#}\n").into_bytes();
    let sum = crc32c::crc32c(&body);
    let line = format!("STRATANN MANIFEST {version} {sum:08x} {}\n", body.len());
    [line.into_bytes(), body].concat()
}

fn manifest(random: &mut Random, text: &[u8]) -> Vec<u8> {
    let Some((version, mut body)) = parsed(text) else {
        return text.to_vec();
    };
    for _ in 0..1 + random.below(2) {
        let count = values(&mut body, usize::MAX, &mut |_| {});
        let chosen = random.below(count);
        values(&mut body, chosen, &mut |value| change(random, value));
    }
    framed(&version, &body)
}

/// Visits all values except the outermost, and changes value number `chosen`. Returns the number of
/// visited values.
fn values(value: &mut Value, chosen: usize, change: &mut dyn FnMut(&mut Value)) -> usize {
    fn walk(
        value: &mut Value,
        seen: &mut usize,
        chosen: usize,
        change: &mut dyn FnMut(&mut Value),
    ) {
        let inner: Vec<&mut Value> = match value {
            Value::Object(map) => map.values_mut().collect(),
            Value::Array(all) => all.iter_mut().collect(),
            _ => Vec::new(),
        };
        for value in inner {
            if *seen == chosen {
                change(value);
            }
            *seen += 1;
            walk(value, seen, chosen, change);
        }
    }
    let mut seen = 0;
    walk(value, &mut seen, chosen, change);
    seen
}

fn change(random: &mut Random, value: &mut Value) {
    *value = match value {
        Value::Number(number) => match random.below(8) {
            0 => Value::from(-1),
            1 => Value::from([0.5, -0.0, 1e300, 1e-300][random.below(4)]),
            _ => Value::from(random.special(number.as_u64().unwrap_or(7))),
        },
        Value::String(text) => Value::from(match random.below(7) {
            0 => String::new(),
            1 => "..".into(),
            2 => format!("../{text}"),
            3 => "/etc/hostname".into(),
            4 => "x".repeat(10_000),
            5 => ["coupled", "packed", "decoupled", "inline"][random.below(4)].into(),
            _ => ["f32", "u8", "cosine", "ip", "l2", "MANIFEST", "LOCK"][random.below(7)].into(),
        }),
        Value::Array(all) => {
            let mut all = all.clone();
            let at = random.below(all.len());
            match random.below(4) {
                _ if all.is_empty() => {}
                0 => drop(all.remove(at)),
                1 => all.push(all[at].clone()),
                2 => all.swap(0, at),
                _ => {
                    for number in 0..2_000 {
                        let mut copy = all[at].clone();
                        for key in ["name", "role"] {
                            if let Some(text) = copy.get(key).and_then(Value::as_str) {
                                copy[key] = format!("{text}-{number}").into();
                            }
                        }
                        all.push(copy);
                    }
                }
            }
            Value::Array(all)
        }
        Value::Null => Value::from(random.next() >> random.below(64)),
        _ => Value::Null,
    };
}

fn file(random: &mut Random, mut bytes: Vec<u8>) -> Vec<u8> {
    let Ok(header) = FileHeader::decode(&bytes, "fuzz") else {
        scramble_all(random, &mut bytes);
        return bytes;
    };
    if random.below(6) == 0 {
        // The header: a field of the kind, or the length.
        let fields = header.fields.len().max(4);
        let at = match random.below(4) {
            0 => 32,
            _ => 48 + random.below(fields) / 4 * 4,
        };
        let mut old = [0; 8];
        old.copy_from_slice(&bytes[at..at + 8]);
        let new = random.special(u64::from_le_bytes(old)).to_le_bytes();
        let len = [4, 8][random.below(2)];
        bytes[at..at + len].copy_from_slice(&new[..len]);
        seal_header(&mut bytes);
        return bytes;
    }
    match header.kind {
        FileKind::Log => log(random, bytes),
        FileKind::Graph
        | FileKind::Inline
        | FileKind::Packed
        | FileKind::Adjacency
        | FileKind::Layered
        | FileKind::Vectors => pages(random, &header, bytes),
        kind => byte_string(random, kind, bytes),
    }
}

fn seal_header(bytes: &mut [u8]) {
    if let Some(block) = bytes.get_mut(..BLOCK) {
        let sum = crc(&[0], &block[..BLOCK - 4]);
        block[BLOCK - 4..].copy_from_slice(&sum);
    }
}

pub fn payload_of(kind: FileKind, bytes: &[u8]) -> Option<Vec<u8>> {
    stream::decode(kind, bytes, "fuzz")
        .ok()
        .map(|(_, payload)| payload)
}

fn byte_string(random: &mut Random, kind: FileKind, bytes: Vec<u8>) -> Vec<u8> {
    let Some(mut payload) = payload_of(kind, &bytes) else {
        return bytes;
    };
    scramble_all(random, &mut payload);
    sealed(kind, &bytes, &payload)
}

pub fn sealed(kind: FileKind, before: &[u8], payload: &[u8]) -> Vec<u8> {
    let Ok(reader) = StreamReader::open(kind, before, "fuzz") else {
        return before.to_vec();
    };
    let fields = reader.fields().rest().to_vec();
    let mut bytes = stream::encode(kind, payload, &fields);
    bytes[12..16].copy_from_slice(&before[12..16]);
    seal_header(&mut bytes);
    bytes
}

fn pages(random: &mut Random, header: &FileHeader, mut bytes: Vec<u8>) -> Vec<u8> {
    let size = match header.kind {
        FileKind::Graph => CoupledShape::from_header(header, "fuzz").map(|(s, _)| s.page_bytes()),
        FileKind::Inline => InlineShape::from_header(header, "fuzz").map(|(s, _)| s.page_bytes()),
        _ => SlottedShape::from_header(header, "fuzz").map(|(s, _)| s.page_bytes()),
    };
    let Ok(size) = size else {
        return bytes;
    };
    if random.below(20) == 0 {
        let pages = bytes.len() / size;
        bytes.truncate(BLOCK + random.below(pages) * size);
        return bytes;
    }
    for _ in 0..1 + random.below(4) {
        let count = bytes.len().saturating_sub(BLOCK) / size;
        let number = random.below(count);
        let start = BLOCK + number * size;
        let Some(page) = bytes.get_mut(start..start + size) else {
            return bytes;
        };
        scramble(random, &mut page[4 * (size / BLOCK)..]);
        seal_page(page, start / BLOCK);
    }
    bytes
}

/// Corrects the checksums of a page, whose first block in the file has the number `first`.
pub fn seal_page(page: &mut [u8], first: usize) {
    for block in 1..page.len() / BLOCK {
        let part = &page[block * BLOCK..(block + 1) * BLOCK];
        let sum = crc(&[(first + block) as u64], part);
        page[4 * block..4 * block + 4].copy_from_slice(&sum);
    }
    let sum = crc(&[first as u64], &page[4..BLOCK]);
    page[..4].copy_from_slice(&sum);
}

fn log(random: &mut Random, mut bytes: Vec<u8>) -> Vec<u8> {
    let number = u64::from(u32_at(&bytes, 56)) | u64::from(u32_at(&bytes, 60)) << 32;
    let first = match u32_at(&bytes, 12) {
        1 => BLOCK,
        _ => 3 * BLOCK,
    };
    let start = match random.below(4) {
        0 if first > BLOCK => BLOCK * (1 + random.below(2)),
        _ => first,
    };
    if start < first && bytes.len() >= first {
        scramble(random, &mut bytes[start + 4..start + 32]);
        let sum = crc(&[start as u64], &bytes[start + 4..start + 32]);
        bytes[start..start + 4].copy_from_slice(&sum);
        return bytes;
    }
    let starts = records(&bytes, first);
    if starts.is_empty() || random.below(10) == 0 {
        bytes.truncate(random.below(bytes.len() + 1));
        return bytes;
    }
    for _ in 0..1 + random.below(4) {
        let (at, len) = starts[random.below(starts.len())];
        scramble(random, &mut bytes[at + 4..at + len.min(40)]);
    }
    // A change of kind or length moves all later records.
    for (at, len) in records(&bytes, first) {
        let sum = crc(&[number, at as u64], &bytes[at + 4..at + len]);
        bytes[at..at + 4].copy_from_slice(&sum);
    }
    bytes
}

fn records(bytes: &[u8], mut at: usize) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    while at + 28 <= bytes.len() {
        let len = (28 + u32_at(bytes, at + 8) as usize).next_multiple_of(8);
        if at + len > bytes.len() {
            break;
        }
        found.push((at, len));
        at += len;
    }
    found
}
