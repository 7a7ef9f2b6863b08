//! Damaged indexes that hung a reader, took gigabytes or made it panic.

use serde_json::Value;

use crate::mutate::{Files, framed, parsed, payload_of, seal_page, sealed};

/// Damages an index as the case is named. Returns false if the index has no such part.
type Craft = fn(&mut Files) -> bool;

pub const CASES: [(&str, Craft); 9] = [
    ("a hundred thousand names in the MANIFEST", names),
    ("names of files outside of the index", elsewhere),
    ("2^32 - 1 pages in a placement", pages),
    ("vectors of 65,536 dimensions", |files| {
        number(files, "dimension", 65_536)
    }),
    ("2^32 - 2 vectors", |files| {
        number(files, "vectors", (1 << 32) - 2)
    }),
    ("the largest number of a checkpoint", |files| {
        number(files, "checkpoint", u64::MAX)
    }),
    ("the largest number of a log", |files| {
        manifest(files, |body| {
            body["log_from"]["number"] = u64::MAX.into();
            body["log_from"]["sequence"] = u64::MAX.into();
        })
    }),
    ("files of 2^63 bytes", |files| {
        manifest(files, |body| {
            for entry in body["files"].as_array_mut().into_iter().flatten() {
                entry["length"] = (1u64 << 63).into();
            }
        })
    }),
    ("a record of a node that does not exist", record),
];

fn manifest(files: &mut Files, change: impl FnOnce(&mut Value)) -> bool {
    let Some((version, mut body)) = files.get("MANIFEST").and_then(|text| parsed(text)) else {
        return false;
    };
    change(&mut body);
    files.insert("MANIFEST".into(), framed(&version, &body));
    true
}

fn number(files: &mut Files, key: &str, number: u64) -> bool {
    manifest(files, |body| body[key] = number.into())
}

fn names(files: &mut Files) -> bool {
    manifest(files, |body| {
        let Some(entries) = body["files"].as_array_mut() else {
            return;
        };
        let mut entry = entries[0].clone();
        for number in 0..100_000 {
            entry["name"] = format!("vectors-{number:06}").into();
            entry["role"] = format!("vectors-{number}").into();
            entries.push(entry.clone());
        }
    })
}

fn elsewhere(files: &mut Files) -> bool {
    manifest(files, |body| {
        for (number, entry) in body["files"]
            .as_array_mut()
            .into_iter()
            .flatten()
            .enumerate()
        {
            entry["name"] = ["../MANIFEST", "..", "/etc/hostname"][number % 3].into();
        }
    })
}

fn pages(files: &mut Files) -> bool {
    let name = files.keys().find(|name| name.starts_with("placement"));
    let Some(name) = name.cloned() else {
        return false;
    };
    let kind = stratann_layout::FileKind::Placement;
    let Some(mut payload) = payload_of(kind, &files[&name]) else {
        return false;
    };
    payload[8..12].fill(255);
    let file = sealed(kind, &files[&name], &payload);
    files.insert(name, file);
    manifest(files, |body| {
        body["placement"]["pages"] = u32::MAX.into();
    })
}

/// Makes page 0 a relocated page with a record of a node above all others, which no table has.
fn record(files: &mut Files) -> bool {
    let name = files.keys().find(|name| name.starts_with("packed"));
    let Some(bytes) = name.cloned().and_then(|name| files.get_mut(&name)) else {
        return false;
    };
    let block = stratann_layout::BLOCK;
    let relocated = |page: &&[u8]| page[7] & 8 != 0 && (page[4] > 1 || page[5] > 0);
    let pages = bytes[block..].chunks_exact(block);
    let Some(mut page) = pages.into_iter().find(relocated).map(<[u8]>::to_vec) else {
        return false;
    };
    // The record of the least node stays unchanged, so that the page's field for the least node
    // stays right.
    let least = page[8..12].to_vec();
    let nodes = page[28..].chunks_exact(4).take(2);
    let Some(other) = nodes.into_iter().position(|node| node != least) else {
        return false;
    };
    page[28 + 4 * other..32 + 4 * other].copy_from_slice(&0xffff_fff0u32.to_le_bytes());
    seal_page(&mut page, 1);
    bytes[block..2 * block].copy_from_slice(&page);
    true
}
