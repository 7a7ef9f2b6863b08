use super::text::KEYS;
use super::*;
use crate::block::crc32c;
use proptest::prelude::*;

const COUPLED: &str = "coupled";
const PACKED: &str = "packed";
const DECOUPLED: &str = "decoupled";

fn sample() -> Manifest {
    Manifest {
        format_version: FORMAT_VERSION,
        reader_features: PLACEMENT,
        writer_features: STATE,
        created_by: "0.1.0".into(),
        checkpoint: 1,
        preset: "diskann".into(),
        element: Element::U8,
        metric: Metric::InnerProduct,
        dimension: 128,
        kind: IndexKind::Graph(GraphFacts {
            degree: 64,
            build_list: 100,
            alpha: 1.2,
            entry: 4711,
            degree_mean: 61.237_891_234_567_89,
            degree_max: 64,
            edges: 6_123_789,
            navigation: Some(NavigationFacts {
                nodes: 1000,
                degree: 24,
            }),
        }),
        vectors: 100_000,
        code_bytes: 32,
        order: "input".into(),
        deleted: 0,
        seed: u64::MAX,
        layout: DECOUPLED.into(),
        list_bytes: 8_123_456,
        vector_bytes: 8_654_321,
        list_codec: "gaps".into(),
        vector_codec: "columns".into(),
        segments: vec![
            SegmentFacts {
                first: 0,
                vectors: 65_536,
                codec: "columns".into(),
                kept: None,
            },
            SegmentFacts {
                first: 65_536,
                vectors: 34_464,
                codec: "raw".into(),
                kept: None,
            },
        ],
        measured: Some(Measured {
            queries: 100,
            list: 80,
            reads_medoid: 81.25,
            reads_navigation: 60.1,
            vector_reads: 12.7,
            hot_graph: vec![HotShare {
                share: 0.01,
                hits: 0.123_456_789,
            }],
            hot_vectors: vec![],
        }),
        codebook: "0123456789abcdef".repeat(4),
        next_id: 100_000,
        log_from: LogFrom {
            number: 3,
            sequence: 4711,
        },
        build: BuildFacts {
            compression: "best".into(),
            chunk_bytes: 4 << 20,
            segment_bytes: 512 << 20,
            navigation: 0.01,
            low_codes: String::new(),
        },
        placement: Some(PlacementFacts {
            nodes: 100_123,
            pages: 9876,
            live: 99_999,
            next_id: 70,
            drift: None,
        }),
        state: Some("0123456789abcdef0123456789abcdef".into()),
        files: vec![
            FileEntry {
                role: "graph".into(),
                name: "graph.1".into(),
                length: 40_964_096,
                header_crc32c: 0xdead_beef,
            },
            FileEntry {
                role: "codes".into(),
                name: "codes.1".into(),
                length: 4_104_192,
                header_crc32c: 17,
            },
        ],
    }
}

fn sample_of_1() -> Manifest {
    Manifest {
        format_version: 1,
        reader_features: 0,
        writer_features: 0,
        state: None,
        layout: COUPLED.into(),
        list_bytes: 0,
        vector_bytes: 0,
        list_codec: String::new(),
        vector_codec: String::new(),
        segments: Vec::new(),
        measured: None,
        codebook: String::new(),
        next_id: 0,
        log_from: LogFrom::default(),
        build: BuildFacts::default(),
        placement: None,
        ..sample()
    }
}

fn framed(body: &str) -> Vec<u8> {
    framed_as(FORMAT_VERSION, body)
}

fn framed_as(version: u32, body: &str) -> Vec<u8> {
    let mut text = first_line(version, body.as_bytes()).into_bytes();
    text.extend_from_slice(body.as_bytes());
    text
}

fn body(manifest: &Manifest) -> serde_json::Value {
    serde_json::to_value(manifest).unwrap()
}

fn decode_value(value: &serde_json::Value) -> Result<Manifest, LayoutError> {
    Manifest::decode(&framed(&value.to_string()), "MANIFEST")
}

#[test]
fn round_trip_and_text() {
    let manifest = sample();
    let text = manifest.encode();
    assert_eq!(Manifest::decode(&text, "MANIFEST").unwrap(), manifest);
    let text = String::from_utf8(text).unwrap();
    let (first, body) = text.split_once('\n').unwrap();
    assert_eq!(
        first,
        format!(
            "STRATANN MANIFEST 4 {:08x} {}",
            crc32c(body.as_bytes()),
            body.len()
        )
    );
    assert!(body.starts_with("{\n  \"format_version\": 4,"), "{body}");
    assert!(body.contains("\"element\": \"u8\""), "{body}");
    assert!(body.contains("\"metric\": \"ip\""), "{body}");
    assert_eq!(manifest.file("codes").unwrap().name, "codes.1");
    assert_eq!(manifest.file("navigation"), None);
}

#[test]
fn every_bit_flip_is_found() {
    let mut text = sample().encode();
    for bit in 0..text.len() * 8 {
        text[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&text, "MANIFEST").is_err(), "bit {bit}");
        text[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn every_truncation_is_found() {
    let text = sample().encode();
    for length in 0..text.len() {
        Manifest::decode(&text[..length], "MANIFEST").unwrap_err();
    }
    let mut longer = text;
    longer.push(b'\n');
    let error = Manifest::decode(&longer, "MANIFEST").unwrap_err();
    assert!(matches!(error, LayoutError::Length { .. }), "{error}");
}

#[test]
fn the_first_line_has_one_spelling() {
    let body = "{}";
    let sum = crc32c(body.as_bytes());
    for line in [
        format!("STRATANN MANIFEST 02 {sum:08x} 2\n"),
        format!("STRATANN MANIFEST 2 {sum:08X} 2\n"),
        format!("STRATANN MANIFEST 2 {sum:08x} +2\n"),
        format!("STRATANN MANIFEST 2 {sum:08x} 2 \n"),
        format!("STRATANN MANIFEST 2 {sum:08x} 2\r\n"),
        format!("STRATANN MANIFEST 2  {sum:08x} 2\n"),
        "STRATANN MANIFEST 2\n".to_owned(),
        "STRATANN MANIFEST \n".to_owned(),
    ] {
        let error = Manifest::decode(format!("{line}{body}").as_bytes(), "MANIFEST").unwrap_err();
        assert!(
            matches!(error, LayoutError::Field { offset: 18, .. }),
            "{line:?}: {error}"
        );
    }
}

#[test]
fn newer_version_is_refused() {
    let mut manifest = sample();
    manifest.format_version = 5;
    let text = Manifest::decode(&manifest.encode(), "a.idx/MANIFEST")
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("a.idx/MANIFEST: unknown format version 5 at offset 18; 4 is the newest"),
        "{text}"
    );
    let mut value = body(&sample());
    value["format_version"] = 0.into();
    decode_value(&value).unwrap_err();
}

const UNKNOWN: u64 = 1 << 40;

#[test]
fn unknown_features_are_refused() {
    let mut manifest = sample();
    manifest.reader_features = 1 << 40 | 1 << 7;
    let text = Manifest::decode(&manifest.encode(), "MANIFEST")
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("MANIFEST: unknown reader feature bit 7 at offset"),
        "{text}"
    );
    manifest.reader_features = PLACEMENT;
    manifest.writer_features |= UNKNOWN;
    let back = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
    let text = back.check_writable("MANIFEST").unwrap_err().to_string();
    assert!(text.contains("writer feature bit 40"), "{text}");
}

#[test]
fn a_file_of_ids_needs_a_feature_bit() {
    let mut manifest = sample();
    manifest.files.push(FileEntry {
        role: "ids".into(),
        name: "ids-000001".into(),
        ..manifest.files[0].clone()
    });
    let text = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap_err();
    let text = text.to_string();
    assert!(
        text.contains("writer_features") && text.contains("bit 0"),
        "{text}"
    );
    manifest.writer_features |= IDS;
    let back = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
    back.check_writable("MANIFEST").unwrap();
    manifest.files.pop();
    Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
}

#[test]
fn columns_are_two_files_each_and_need_a_feature_bit() {
    let mut manifest = sample();
    let entry = |role: &str| FileEntry {
        role: role.into(),
        name: role.into(),
        ..sample().files[0].clone()
    };
    manifest
        .files
        .extend(["rows-2", "columns-2", "rows-0", "columns-0"].map(entry));
    let refused = |manifest: &Manifest| {
        let error = Manifest::decode(&manifest.encode(), "m").unwrap_err();
        error.to_string()
    };
    let text = refused(&manifest);
    assert!(
        text.contains("writer_features") && text.contains("bit 2"),
        "{text}"
    );
    manifest.writer_features |= COLUMNS;
    let back = Manifest::decode(&manifest.encode(), "m").unwrap();
    back.check_writable("m").unwrap();
    assert_eq!(back.column_segments(), [0, 2]);
    manifest.files.pop();
    let text = refused(&manifest);
    assert!(
        text.contains("\"columns-0\" with the same number"),
        "{text}"
    );
    manifest.files.pop();
    manifest.files.push(entry("rows"));
    assert!(refused(&manifest).contains("a number"));
}

#[test]
fn a_state_is_of_one_checkpoint_and_has_its_feature_bit() {
    let mut manifest = sample_of_1();
    manifest.begin_state([0; 16]);
    let text = String::from_utf8(manifest.encode()).unwrap();
    let digits = "0".repeat(STATE_DIGITS);
    assert!(
        text.contains(&format!("\n  \"state\": \"{digits}\",\n")),
        "{text}"
    );
    assert_eq!(Manifest::decode(text.as_bytes(), "m").unwrap(), manifest);
    let mut next = manifest.clone();
    next.begin_state(*b"another and more");
    assert_ne!(next.encode(), manifest.encode());
    let refused = |manifest: &Manifest| {
        let error = Manifest::decode(&manifest.encode(), "m").unwrap_err();
        error.to_string()
    };
    next.writer_features = IDS;
    let text = refused(&next);
    assert!(
        text.contains("writer_features") && text.contains("bit 1"),
        "{text}"
    );
    for wrong in ["", "0123456789abcdef", "0123456789ABCDEF0123456789ABCDEF"] {
        manifest.state = Some(wrong.into());
        let text = refused(&manifest);
        assert!(
            text.contains("state") && text.contains("32 hexadecimal"),
            "{text}"
        );
    }
}

#[test]
fn unknown_keys_need_a_feature_bit() {
    for path in [
        "",
        "/navigation",
        "/files/1",
        "/segments/1",
        "/placement",
        "/measured",
        "/measured/hot_graph/0",
    ] {
        let mut value = body(&sample());
        value.pointer_mut(path).unwrap()["colour"] = "blue".into();
        let text = decode_value(&value).unwrap_err().to_string();
        assert!(
            text.contains("is \"colour\"; expected a key of this version"),
            "{text}"
        );
        value["writer_features"] = (STATE | UNKNOWN).into();
        decode_value(&value).unwrap();
    }
    let mut value = body(&sample());
    value.as_object_mut().unwrap().remove("entry");
    let text = decode_value(&value).unwrap_err().to_string();
    assert!(text.contains("missing field `entry`"), "{text}");
}

#[test]
fn names_stay_in_the_directory() {
    for name in [
        "",
        ".",
        "..",
        "/etc/passwd",
        "../x",
        "a/b",
        "a\\b",
        "MANIFEST",
        "a\0",
        "codes.1",
    ] {
        let mut manifest = sample();
        manifest.files[0].name = name.into();
        let text = Manifest::decode(&manifest.encode(), "MANIFEST")
            .unwrap_err()
            .to_string();
        assert!(text.contains("name of a file"), "{name:?}: {text}");
    }
    let mut manifest = sample();
    manifest.files[0].role = "codes".into();
    Manifest::decode(&manifest.encode(), "MANIFEST").unwrap_err();
}

#[test]
fn values_of_wrong_types_are_refused_with_their_place() {
    let text = String::from_utf8(sample().encode()).unwrap();
    let (_, json) = text.split_once('\n').unwrap();
    let bad = framed(&json.replace("\"u8\"", "\"u9\""));
    let error = Manifest::decode(&bad, "MANIFEST").unwrap_err();
    let at = error.offset().unwrap() as usize;
    let near = String::from_utf8_lossy(&bad[at - 20..at]);
    assert!(near.contains("u9"), "{near:?}");
    assert!(error.to_string().contains("u9"), "{error}");
    Manifest::decode(&framed("[]"), "MANIFEST").unwrap_err();
    Manifest::decode(&framed(""), "MANIFEST").unwrap_err();
    Manifest::decode(&framed("\u{fffd}"), "MANIFEST").unwrap_err();
}

#[test]
fn version_1_is_read_as_coupled() {
    let manifest = sample_of_1();
    let text = manifest.encode();
    assert!(text.starts_with(b"STRATANN MANIFEST 1 "));
    assert_eq!(Manifest::decode(&text, "MANIFEST").unwrap(), manifest);
    for (key, _) in later_keys() {
        let mut value = manifest.value().unwrap();
        assert_eq!(value.get(key), None, "{key}");
        value[key] = body(&manifest)[key].take();
        let error = Manifest::decode(&framed_as(1, &value.to_string()), "MANIFEST").unwrap_err();
        let text = error.to_string();
        let expected = format!("is \"{key}\"; expected a key of this version");
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn the_frozen_manifest_of_version_1_is_read() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/index-v1/MANIFEST"
    );
    let manifest = Manifest::decode(&std::fs::read(path).unwrap(), "MANIFEST").unwrap();
    assert_eq!(manifest.format_version, 1);
    assert_eq!(manifest.layout, COUPLED);
    assert_eq!((manifest.list_bytes, manifest.vector_bytes), (0, 0));
    assert_eq!((&*manifest.list_codec, &*manifest.vector_codec), ("", ""));
    assert!(manifest.segments.is_empty() && manifest.measured.is_none());
    let again = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
    assert_eq!(again, manifest);
}

#[test]
fn every_frozen_manifest_is_written_to_the_byte() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
    let mut versions = Vec::new();
    for folder in std::fs::read_dir(fixtures).unwrap() {
        let path = folder.unwrap().path().join("MANIFEST");
        let Ok(text) = std::fs::read(&path) else {
            continue; // No index.
        };
        let manifest = Manifest::decode(&text, "MANIFEST").unwrap();
        assert!(manifest.encode() == text, "{}", path.display());
        versions.push(manifest.format_version);
    }
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions, (1..=FORMAT_VERSION).collect::<Vec<_>>());
}

#[test]
fn the_keys_are_all_that_there_are() {
    let keys_of = |manifest: &Manifest| {
        let value = body(manifest);
        let keys = value.as_object().unwrap().keys().cloned();
        keys.collect::<std::collections::BTreeSet<String>>()
    };
    let found = &keys_of(&sample()) | &keys_of(&clustered());
    assert_eq!(found.len(), KEYS.len());
    assert!(KEYS.iter().all(|&(key, _)| found.contains(key)));
}

#[test]
fn a_kind_that_is_not_known_is_refused_before_its_keys_are_missed() {
    let mut value = body(&sample());
    let keys = value.as_object_mut().unwrap();
    keys.retain(|key, _| !["entry", "edges", "degree", "navigation"].contains(&key.as_str()));
    value["kind"] = "tree".into();
    let refused = |value: &serde_json::Value| decode_value(value).unwrap_err().to_string();
    let text = refused(&value);
    assert!(text.contains("kind") && text.contains("bit 2"), "{text}");
    value["reader_features"] = (PLACEMENT | KIND).into();
    let text = refused(&value);
    assert!(
        text.contains("unknown kind of index \"tree\"") && text.contains("with that version"),
        "{text}"
    );
    let mut manifest = sample();
    manifest.reader_features |= KIND;
    let text = refused(&body(&manifest));
    assert!(text.contains("kind") && text.contains("bit 2"), "{text}");
}

#[test]
fn manifests_of_earlier_versions_are_written_as_they_were() {
    for version in 1..FORMAT_VERSION {
        let now = sample_of_1();
        let then = Manifest {
            format_version: version,
            ..now.clone()
        };
        let text = String::from_utf8(then.encode()).unwrap();
        assert_eq!(Manifest::decode(text.as_bytes(), "MANIFEST").unwrap(), then);
        let keys = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.starts_with("  \""));
            let key = |line: &str| line.split('"').nth(1).unwrap().to_owned();
            lines.map(key).collect()
        };
        let now = Manifest {
            format_version: FORMAT_VERSION,
            ..now
        };
        let mut expected = keys(&String::from_utf8(now.encode()).unwrap());
        expected.retain(|key| KEYS.iter().any(|(k, since)| k == key && *since <= version));
        assert_eq!(keys(&text), expected);
        assert!(text.ends_with("  ]\n}\n"), "{text}");
    }
    let odd = Manifest {
        preset: "\n  \"layout\": \"".into(),
        order: "  \"placement\": null".into(),
        ..sample_of_1()
    };
    assert_eq!(Manifest::decode(&odd.encode(), "MANIFEST").unwrap(), odd);
}

#[test]
fn a_placeholder_is_the_only_record_of_its_build() {
    let mut manifest = sample();
    (manifest.layout, manifest.placement) = (COUPLED.into(), None);
    manifest.segments.clear();
    manifest.vectors = 1;
    manifest.next_id = 1;
    assert!(manifest.has_row_numbers());
    manifest.reader_features |= PLACEHOLDER;
    assert!(manifest.has_placeholder() && !manifest.has_row_numbers());
    assert_eq!(manifest.built_vectors(), 0);
    assert_eq!(
        Manifest::decode(&manifest.encode(), "MANIFEST").unwrap(),
        manifest
    );
    manifest.vectors = 2;
    let error = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("vectors") && error.contains("placeholder"),
        "{error}"
    );
}

#[test]
fn a_placement_has_its_feature_bit() {
    let mut manifest = sample();
    manifest.reader_features = 0;
    let refused = |manifest: &Manifest| {
        let error = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap_err();
        error.to_string()
    };
    let text = refused(&manifest);
    assert!(
        text.contains("reader_features at offset 34 is 0; expected bit 0 set where there"),
        "{text}"
    );
    manifest.placement = None;
    let back = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
    assert_eq!(back, manifest);
    let text = String::from_utf8(manifest.encode()).unwrap();
    assert!(text.contains("\n  \"placement\": null,\n"), "{text}");

    let mut manifest = sample();
    manifest.placement = Some(PlacementFacts {
        nodes: 5,
        pages: 1,
        live: 6,
        next_id: 70,
        drift: None,
    });
    let text = refused(&manifest);
    assert!(
        text.contains("the placement at offset 34 is 6; expected at most 5"),
        "{text}"
    );
    let mut value = body(&sample_of_1());
    value["format_version"] = 3.into();
    let text = Manifest::decode(&framed_as(3, &value.to_string()), "MANIFEST")
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("is \"placement\"; expected a key of this"),
        "{text}"
    );
}

#[test]
fn a_drift_stands_in_the_placement_where_a_writer_must_know_of_it() {
    type Spoil = fn(&mut Manifest);
    let drift = DriftFacts {
        came: 120,
        thousandths: 970,
    };
    let mut manifest = sample();
    let without = manifest.encode();
    manifest.note_drift(Some(drift));
    assert_eq!(manifest.writer_features, STATE | DRIFT);
    let text = String::from_utf8(manifest.encode()).unwrap();
    assert!(
        text.contains("\"drift\": {\n      \"came\": 120,"),
        "{text}"
    );
    let back = Manifest::decode(text.as_bytes(), "m").unwrap();
    assert_eq!(back, manifest);
    manifest.note_drift(None);
    assert_eq!(manifest.encode(), without);

    let spoilt: [(&str, Spoil); 3] = [
        ("bit 5 set where there is a drift", |m| {
            m.writer_features = STATE
        }),
        (
            "of the drift at offset 34 is 124; expected at most 123",
            |m| {
                m.placement.as_mut().unwrap().drift.as_mut().unwrap().came = 124;
            },
        ),
        (
            "of the drift at offset 34 is 1001; expected at most 1000",
            |m| {
                let placement = m.placement.as_mut().unwrap();
                placement.drift.as_mut().unwrap().thousandths = 1_001;
            },
        ),
    ];
    for (expected, spoil) in spoilt {
        manifest.note_drift(Some(drift));
        spoil(&mut manifest);
        let refused = Manifest::decode(&manifest.encode(), "m").unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(expected), "{expected}: {text}");
    }
    manifest.placement = None;
    manifest.note_drift(Some(drift));
    assert_eq!(manifest.writer_features, STATE);
}

#[test]
fn each_version_needs_its_keys() {
    for (key, _) in later_keys() {
        let mut value = body(&sample());
        value.as_object_mut().unwrap().remove(key);
        let text = decode_value(&value).unwrap_err().to_string();
        assert!(text.contains(&format!("is \"{key}\", missing")), "{text}");
    }
}

#[test]
fn layouts_and_segments_that_contradict_each_other_are_refused() {
    for (change, text) in [
        (
            (|m| m.layout = "scattered".into()) as fn(&mut Manifest),
            "layout at offset",
        ),
        (
            |m| m.layout = PACKED.into(),
            "is 100000; expected 0 in the packed layout",
        ),
        (
            |m| m.layout = COUPLED.into(),
            "is 100000; expected 0 in the coupled layout",
        ),
        (
            |m| m.segments.clear(),
            "is 0; expected 100000 in the decoupled layout",
        ),
        (
            |m| m.codebook = "xyz".into(),
            "codebook at offset 34 is \"xyz\"; expected 64 hexadecimal digits",
        ),
        (|m| drop(m.segments.pop()), "is 65536; expected 100000"),
        (|m| m.vectors += 1, "is 100000; expected 100001"),
        (
            |m| m.segments[1].first += 1,
            "segment at offset 34 is 1: 34464 vectors, first number 65537; expected 1 or more vectors, first number 65536",
        ),
        (
            |m| m.segments[0].first = 1,
            "is 0: 65536 vectors, first number 1",
        ),
        (
            |m| m.segments[0].vectors = 0,
            "is 0: 0 vectors, first number 0",
        ),
        (
            |m| m.segments.swap(0, 1),
            "is 0: 34464 vectors, first number 65536",
        ),
    ] {
        let mut manifest = sample();
        change(&mut manifest);
        let error = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap_err();
        let found = error.to_string();
        assert!(found.contains(text), "{found}\n{text}");
    }
    for layout in [COUPLED, PACKED] {
        let mut manifest = sample();
        manifest.layout = layout.into();
        manifest.segments.clear();
        let back = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
        assert_eq!(back, manifest);
    }
}

#[test]
fn a_role_says_kind_and_segment() {
    let entry = |role: &str| FileEntry {
        role: role.into(),
        ..sample().files[0].clone()
    };
    for kind in FileKind::ALL {
        assert_eq!(entry(kind.name()).kind(), Some((kind, None)));
        let of_segments = [FileKind::Vectors, FileKind::Chunks];
        let of_columns = [FileKind::Rows, FileKind::Columns];
        let in_segments = of_segments.contains(&kind)
            || of_columns.contains(&kind)
            || matches!(kind.form(), crate::header::Form::Clusters(_));
        for segment in [0, 3, u32::MAX] {
            let role = FileEntry::role_of(kind, Some(segment));
            let right = in_segments.then_some((kind, Some(segment)));
            assert_eq!(entry(&role).kind(), right, "{role}");
        }
    }
    for role in [
        "",
        "-",
        "-3",
        "colours",
        "vectors-",
        "vectors-03",
        "vectors-+3",
        "vectors--3",
        "vectors-3-4",
        "vectors-4294967296",
        "Vectors-3",
        "vectors-3 ",
        "vectors 3",
    ] {
        assert_eq!(entry(role).kind(), None, "{role:?}");
    }

    let mut manifest = sample();
    for (at, role) in ["vectors-0", "chunks-1", "vectors-1"].iter().enumerate() {
        let mut entry = entry(role);
        entry.name = format!("{role}-{at}");
        manifest.files.push(entry);
    }
    let manifest = Manifest::decode(&manifest.encode(), "MANIFEST").unwrap();
    let role = |kind, segment| Some(manifest.segment_file(kind, segment)?.role.as_str());
    assert_eq!(role(FileKind::Vectors, 1), Some("vectors-1"));
    assert_eq!(role(FileKind::Chunks, 1), Some("chunks-1"));
    assert_eq!(role(FileKind::Chunks, 0), None);
    assert_eq!(role(FileKind::Graph, 0), None);
}

#[test]
fn segments_that_were_kept_need_their_bit_and_leave_others_as_they_were() {
    let before = String::from_utf8(sample().encode()).unwrap();
    assert!(!before.contains("kept"), "{before}");
    let mut manifest = sample();
    manifest.segments[1].kept = Some(KeptFacts {
        first: 80_000,
        garbage: 31_072,
    });
    assert_eq!(manifest.segments[1].stored(), (80_000, 65_536));
    assert_eq!(manifest.segments[0].stored(), (0, 65_536));
    let decode = |manifest: &Manifest| Manifest::decode(&manifest.encode(), "m");
    let text = decode(&manifest).unwrap_err().to_string();
    assert!(
        text.contains("is 1; expected bit 1 set where a segment was kept"),
        "{text}"
    );
    manifest.reader_features |= KEPT;
    assert_eq!(decode(&manifest).unwrap(), manifest);
    manifest.segments[1].kept = Some(KeptFacts {
        first: u32::MAX - 40_000,
        garbage: 31_072,
    });
    let text = decode(&manifest).unwrap_err().to_string();
    assert!(
        text.contains("1: 65536 records, first number 4294927295"),
        "{text}"
    );
}

#[test]
fn numbers_that_are_added_to_have_a_bound() {
    type Spoil = fn(&mut Manifest);
    let spoilt: [(&str, Spoil); 6] = [
        ("checkpoint", |manifest| manifest.checkpoint = LARGEST + 1),
        ("number of the log", |manifest| {
            manifest.log_from.number = LARGEST + 1;
        }),
        ("length of all files", |manifest| {
            manifest.files[0].length = u64::MAX;
        }),
        ("edges", |manifest| {
            manifest.graph_mut().edges = LARGEST + 1;
        }),
        ("bytes of all lists", |manifest| {
            manifest.list_bytes = u64::MAX;
        }),
        ("bytes of all vectors", |manifest| {
            manifest.vector_bytes = u64::MAX;
        }),
    ];
    for (what, spoil) in spoilt {
        let mut manifest = sample();
        spoil(&mut manifest);
        let text = Manifest::decode(&manifest.encode(), "m")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains(what) && text.contains("at most 4611686018427387904"),
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn any_manifest_round_trips(
        (element, metric) in (0usize..4, 0usize..3),
        (dimension, degree, build_list, code_bytes, entry, degree_max) in any::<(u32, u32, u32, u32, u32, u32)>(),
        (checkpoint, vectors, edges, deleted, seed) in any::<(u64, u64, u64, u64, u64)>(),
        alpha in 1.0f32..100.0,
        degree_mean in 0.0f64..1e6,
        preset in ".*",
        navigation in prop::option::of(any::<(u64, u32)>()),
        (list_bytes, vector_bytes) in any::<(u64, u64)>(),
        codecs in any::<(String, String)>(),
        segments in prop::collection::vec((any::<u16>(), prop::option::of(any::<(u16, u16)>())), 0..5),
        measured in prop::option::of((any::<(u32, u32)>(), prop::collection::vec(0.0f64..1.0, 0..6))),
        packed: bool,
        placement in prop::option::of(any::<(u64, u64, u64)>()),
        drift in prop::option::of((any::<u64>(), 0u32..=1_000)),
        files in prop::collection::btree_map("[a-z]{1,8}\\.[0-9]{1,5}", any::<(u64, u32)>(), 0..5),
    ) {
        let mut first = 0;
        let segments: Vec<_> = segments.into_iter().map(|(vectors, kept)| {
            let vectors = u32::from(vectors) + 1;
            first += vectors;
            let kept = kept.map(|(first, garbage)| KeptFacts { first: first.into(), garbage: garbage.into() });
            SegmentFacts { first: first - vectors, vectors, codec: format!("{vectors}"), kept }
        }).collect();
        let kept = if segments.iter().any(|segment| segment.kept.is_some()) { KEPT } else { 0 };
        let layout = match (segments.is_empty(), packed) {
            (false, _) => DECOUPLED,
            (true, true) => PACKED,
            (true, false) => COUPLED,
        };
        let vectors = if segments.is_empty() { vectors } else { u64::from(first) };
        let measured = measured.map(|((queries, list), numbers)| Measured {
            queries, list,
            reads_medoid: numbers.iter().sum::<f64>() * 1e3,
            reads_navigation: numbers.len() as f64,
            vector_reads: 1.0 / (1.0 + numbers.len() as f64),
            hot_graph: numbers.iter().map(|&share| HotShare { share, hits: 1.0 - share }).collect(),
            hot_vectors: numbers.iter().map(|&hits| HotShare { share: hits / 3.0, hits }).collect(),
        });
        let mut manifest = Manifest {
            layout: layout.into(),
            reader_features: kept | if placement.is_some() { PLACEMENT } else { 0 },
            placement: placement.map(|(a, pages, b)| PlacementFacts { nodes: a.max(b), pages, live: a.min(b), next_id: a, drift: None }),
            list_codec: codecs.0, vector_codec: codecs.1,
            list_bytes: list_bytes >> 2, vector_bytes: vector_bytes >> 2, segments, measured,
            element: Element::ALL[element],
            metric: Metric::ALL[metric],
            dimension, code_bytes,
            checkpoint: checkpoint >> 2, vectors, deleted, seed, preset,
            kind: IndexKind::Graph(GraphFacts {
                degree, build_list, alpha, entry, degree_mean, degree_max, edges: edges >> 2,
                navigation: navigation.map(|(nodes, degree)| NavigationFacts { nodes, degree }),
            }),
            files: files.into_iter().map(|(name, (length, header_crc32c))| FileEntry {
                role: format!("role of {name}"), name, length: length >> 8, header_crc32c,
            }).collect(),
            ..sample()
        };
        let came = manifest.nodes().saturating_sub(vectors);
        manifest.note_drift(drift.map(|(some, thousandths)| DriftFacts { came: some.min(came), thousandths }));
        prop_assert_eq!(Manifest::decode(&manifest.encode(), "m").unwrap(), manifest);
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), form in 0..3) {
        if form == 1 {
            bytes.splice(..0, *b"STRATANN MANIFEST 2 ");
        }
        if form == 2 {
            let line = first_line(FORMAT_VERSION, &bytes);
            bytes.splice(..0, line.into_bytes());
        }
        let _ = Manifest::decode(&bytes, "m");
    }

    #[test]
    fn damaged_json_never_panics(at: prop::sample::Index, byte: u8) {
        let text = sample().encode();
        let start = text.iter().position(|&b| b == b'\n').unwrap() + 1;
        let mut json = text[start..].to_vec();
        let at = at.index(json.len());
        json[at] = byte;
        let mut damaged = first_line(FORMAT_VERSION, &json).into_bytes();
        damaged.extend_from_slice(&json);
        let _ = Manifest::decode(&damaged, "m");
    }
}

fn clustered() -> Manifest {
    Manifest {
        reader_features: KIND,
        kind: IndexKind::Cluster(ClusterFacts {
            clusters: 900,
            size: 8,
            replicas: 8,
            closure: 10.0,
            members: 40_000,
            largest: 77,
            radius: 1.25,
        }),
        layout: "grouped".into(),
        segments: Vec::new(),
        measured: None,
        placement: None,
        ..sample()
    }
}

#[test]
fn a_cluster_index_says_its_kind_and_nothing_of_graphs() {
    let manifest = clustered();
    let text = String::from_utf8(manifest.encode()).unwrap();
    assert!(text.contains("\n  \"kind\": \"cluster\",\n"), "{text}");
    for key in ["degree", "entry", "edges", "alpha", "navigation\": {"] {
        assert!(!text.contains(&format!("\n  \"{key}")), "{key}: {text}");
    }
    assert_eq!(Manifest::decode(text.as_bytes(), "m").unwrap(), manifest);
    assert!(manifest.clusters().is_some() && sample().clusters().is_none());
}

#[test]
fn a_cluster_index_that_cannot_be_is_refused() {
    type Spoil = fn(&mut Manifest);
    fn facts(manifest: &mut Manifest) -> &mut ClusterFacts {
        match &mut manifest.kind {
            IndexKind::Cluster(facts) => facts,
            IndexKind::Graph(_) => unreachable!("the manifest is not of a cluster index"),
        }
    }
    let spoilt: [(&str, Spoil); 7] = [
        ("the bit where there is a kind", |m| m.reader_features = 0),
        ("layout of clusters", |m| m.layout = "packed".into()),
        ("clusters at", |m| facts(m).clusters = 0),
        ("size of a cluster", |m| facts(m).size = 0),
        ("replicas", |m| facts(m).replicas = 0),
        ("members of all", |m| facts(m).members = LARGEST + 1),
        // JSON has no infinity: it is written as null.
        ("MANIFEST's JSON|manifest's JSON", |m| {
            facts(m).radius = f32::INFINITY
        }),
    ];
    for (expected, spoil) in spoilt {
        let mut manifest = clustered();
        spoil(&mut manifest);
        let text = Manifest::decode(&manifest.encode(), "m")
            .unwrap_err()
            .to_string();
        assert!(
            expected.split('|').any(|expected| text.contains(expected)),
            "{expected}: {text}"
        );
    }
    let mut graph = sample();
    (graph.layout, graph.segments) = ("grouped".into(), Vec::new());
    let text = Manifest::decode(&graph.encode(), "m")
        .unwrap_err()
        .to_string();
    assert!(text.contains("a layout of a graph"), "{text}");
}
