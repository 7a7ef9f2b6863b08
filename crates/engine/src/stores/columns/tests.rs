//! Compares segments with a model, and tests damage to their files.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use stratann_layout::BLOCK;
use stratann_layout::attributes::Value;
use stratann_tier::testing::SimVolume;
use stratann_vector::Element;

use super::*;
use crate::data::{Matrix, RowTable};
use crate::filter::Filter;
use crate::progress::Silent;
use crate::{
    BuildOptions, Index, Layout, OpenOptions, RepairOptions, build_with_rows, repair, verify,
};

struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }
}

/// A row with random values. Some values are missing, others occur in many rows, and others in one
/// row.
fn any_row(numbers: &mut Numbers) -> Row {
    let mut row = Row::default();
    let mut put = |name: &str, value| _ = row.attributes.insert(name.to_owned(), value);
    let words = |numbers: &mut Numbers| {
        let count = numbers.next(4);
        (0..count)
            .map(|_| format!("w{}", numbers.next(30)))
            .collect()
    };
    if numbers.next(4) > 0 {
        put("flag", Value::Boolean(numbers.next(2) > 0));
        put("number", Value::Integer(numbers.next(100) as i64 - 50));
    }
    if numbers.next(3) > 0 {
        put(
            "float",
            Value::Float(numbers.next(1_000) as f64 / 7.0 - 60.0),
        );
        let long = numbers.next(9) > 7;
        // Long names have a common prefix that is longer than the part of a key in the directory.
        let name = format!(
            "{}{}",
            if long { "x".repeat(50) } else { String::new() },
            numbers.next(40)
        );
        put("name", Value::String(name));
    }
    if numbers.next(2) > 0 {
        put("at", Value::Timestamp(numbers.next(1 << 40) as i64));
        put("words", Value::Strings(words(numbers)));
        put("numbers", Value::Integers(vec![numbers.next(5) as i64, -3]));
    }
    if numbers.next(5) == 0 {
        row.payload = Some(format!("\"{}\"", "p".repeat(numbers.next(3_000) as usize)));
    }
    row
}

const FILTERS: [&str; 20] = [
    "flag == true",
    "flag != true",
    "number == 7",
    "number < -10",
    "number >= 0 and number <= 20",
    "number between -50 and 49",
    "not number in [1, 2, 3]",
    "number > -48 and number != 3",
    "number <= 48",
    "float between -59.5 and 80.5",
    "float > 0.0",
    "float <= 12.5 and not exists words",
    "name == '7'",
    "name in ['1', '2', 'nothing']",
    "name == 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx7'",
    "at < 500000000000",
    "words contains 'w3'",
    "words contains any ['w1', 'w2'] or flag == false",
    "words contains all ['w1', 'w2']",
    "numbers contains -3 and not numbers contains 4",
];

type Model = BTreeMap<u32, (u64, Row)>;

fn is_the_model(columns: &Columns, model: &Model, nodes: u32) {
    let mut windows = Windows::default();
    for node in 0..nodes + 3 {
        let found = columns.row_of(node, &mut windows).unwrap();
        let found = found.map(|found| (found.id, decoded(&found.row).unwrap()));
        assert_eq!(found.as_ref(), model.get(&node), "node {node}");
    }
    for (node, (id, _)) in model {
        assert_eq!(columns.node_of(*id, &mut windows).unwrap(), Some(*node));
        assert_eq!(columns.node_of(id ^ (1 << 60), &mut windows).unwrap(), None);
    }
    for text in FILTERS {
        let filter = Filter::parse(text)
            .unwrap()
            .check(&columns.schema())
            .unwrap();
        let nothing = Row::default();
        let row = |node| model.get(&node).map_or(&nothing, |(_, row)| row);
        let expected: Vec<u32> = (0..nodes)
            .filter(|&node| filter.matches(row(node)))
            .collect();
        let found = columns.matching(&filter, nodes).unwrap();
        assert_eq!(found.iter().collect::<Vec<u32>>(), expected, "{text}");
    }
}

fn id_of(node: u32) -> u64 {
    u64::from(node).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 5
}

#[test]
fn segments_are_what_the_model_is_however_little_memory_they_are_made_in() {
    for (seed, memory) in [(1, u64::MAX), (2, 0), (3, 9_000)] {
        let mut numbers = Numbers(seed);
        let volume = SimVolume::new();
        let checkpoint = Checkpoint::begin(&volume, true).unwrap();
        let columns = Columns::default();
        let mut model = Model::new();
        // The first round is the build. Checkpoints follow, and the rows of the last round are only
        // in memory.
        let nodes = 1_500;
        let mut made = 0;
        for (turn, count) in [(0, 1_000), (1, 3), (2, 60), (3, 40), (4, 200), (5, 30)] {
            for _ in 0..count {
                let node = match turn {
                    0 => made,
                    _ if numbers.next(2) > 0 && made < nodes => made,
                    _ => numbers.next(made.into()) as u32,
                };
                made = made.max(node + 1);
                let mut row = any_row(&mut numbers);
                columns
                    .declare(std::slice::from_mut(&mut row))
                    .unwrap()
                    .keep();
                columns.put(node, id_of(node), encoded(&row).unwrap().into());
                model.insert(node, (id_of(node), row));
            }
            is_the_model(&columns, &model, nodes);
            if turn < 5 {
                let dead = |_, _| false;
                let written = columns.write_new(&volume, &checkpoint, Vec::new(), &dead, memory);
                columns.committed(written.unwrap().unwrap());
                is_the_model(&columns, &model, nodes);
                let held = columns.held.read();
                // Segments of similar size were merged. So each segment has more than twice the
                // rows of the next segment.
                let rows: Vec<u64> = held.segments.iter().map(|s| s.rows.rows()).collect();
                assert!(
                    rows[1..].windows(2).all(|two| two[0] > 2 * two[1]),
                    "{rows:?}"
                );
                for segment in held.segments.iter() {
                    let mut wrong = Vec::new();
                    let told = &mut |file: &str, what| wrong.push((file.to_owned(), what));
                    check(&segment.rows, &segment.part, nodes.into(), told).unwrap();
                    assert_eq!(wrong, []);
                }
            }
        }
        assert!(columns.memory_bytes() > columns.new_bytes());
    }
}

#[test]
fn more_numbers_of_a_range_than_are_held_at_a_time_are_all_found() {
    let (volume, columns) = (SimVolume::new(), Columns::default());
    let checkpoint = Checkpoint::begin(&volume, true).unwrap();
    let nodes = 140_000_u32;
    let number = |node: u32| (u64::from(node) * 48_271 % u64::from(nodes)) as i64;
    let row = |node| Row {
        attributes: [("number".to_owned(), Value::Integer(number(node)))].into(),
        payload: None,
    };
    columns.declare(&mut [row(0)]).unwrap().keep();
    for node in 0..nodes {
        columns.put(node, id_of(node), encoded(&row(node)).unwrap().into());
    }
    let dead = |_, _| false;
    let written = columns.write_new(&volume, &checkpoint, Vec::new(), &dead, 1 << 20);
    columns.committed(written.unwrap().unwrap());
    let filter = Filter::parse("number < 69000").unwrap();
    let filter = filter.check(&columns.schema()).unwrap();
    let found = columns.matching(&filter, nodes).unwrap();
    let expected = (0..nodes).filter(|&node| number(node) < 69_000);
    assert!(found.iter().eq(expected));
    assert!(found.len() > 1 << 16);
}

#[test]
fn a_segment_is_the_same_however_little_memory_it_is_made_in() {
    let made = |memory| {
        let (mut numbers, volume) = (Numbers(5), SimVolume::new());
        let checkpoint = Checkpoint::begin(&volume, true).unwrap();
        let before = volume.operations();
        let schema = Schema::default();
        let mut writer = SegmentWriter::create(&volume, &checkpoint, 0, &schema, memory).unwrap();
        for node in 0..3_000 {
            let row = encoded(&any_row(&mut numbers)).unwrap();
            writer.push(node, id_of(node), &row).unwrap();
        }
        let (segment, files) = writer.finish().unwrap();
        let mut wrong = Vec::new();
        let told = &mut |file: &str, what| wrong.push((file.to_owned(), what));
        check(&segment.rows, &segment.part, 3_000, told).unwrap();
        assert_eq!(wrong, []);
        assert_eq!(
            volume.list().unwrap().len(),
            2,
            "a file of the sort is left"
        );
        let bytes = files.map(|file| volume.read(&file.name).unwrap());
        (bytes, volume.operations() - before)
    };
    let (expected, few) = made(u64::MAX);
    let (found, many) = made(100_000);
    // With little memory, some hundred KiB did not fit, and were written to a temporary file.
    assert!(many > few + 10, "{many} operations, {few} with memory");
    assert!(found == expected);
}

#[test]
fn what_most_have_is_found_by_what_they_have_not() {
    let (volume, columns) = (SimVolume::new(), Columns::default());
    let checkpoint = Checkpoint::begin(&volume, true).unwrap();
    let nodes = 30_000_u32;
    for node in 0..nodes {
        let mut row = Row::default();
        let value = Value::Integer(i64::from(node.wrapping_mul(0x9e37_79b9) >> 8));
        row.attributes.insert("number".into(), value);
        columns
            .declare(std::slice::from_mut(&mut row))
            .unwrap()
            .keep();
        columns.put(node, id_of(node), encoded(&row).unwrap().into());
    }
    let dead = |_, _| false;
    let written = columns.write_new(&volume, &checkpoint, Vec::new(), &dead, u64::MAX);
    columns.committed(written.unwrap().unwrap());
    let look = |text: &str| {
        let filter = Filter::parse(text).unwrap().check(&columns.schema());
        let (found, looked) = Looked::of(|| columns.matching(&filter.unwrap(), nodes).unwrap());
        (found.len(), looked)
    };
    let (half, of_half) = look("number < 8000000");
    let (most, of_most) = look("number < 16000000");
    let (few, of_few) = look("number >= 16000000");
    assert_eq!(most + few, u64::from(nodes));
    assert!(half > 14_000 && few < 1_600, "{half} {few}");
    // One read returns many matches. If most nodes match, the look-up reads the few nodes that do
    // not match.
    assert!(of_half.bytes > 20_000 && of_half.reads <= 2, "{of_half:?}");
    assert!(of_most.bytes < of_half.bytes / 2, "{of_most:?} {of_half:?}");
    assert!(
        of_most.bytes <= of_few.bytes + 2 * BLOCK as u64,
        "{of_most:?} {of_few:?}"
    );
}

#[test]
fn a_type_that_a_column_has_not_is_refused_and_changes_nothing() {
    let columns = Columns::default();
    let row = |value| Row {
        attributes: [("a".to_owned(), value), ("b".to_owned(), Value::Integer(1))].into(),
        payload: None,
    };
    columns
        .declare(&mut [row(Value::Float(0.5))])
        .unwrap()
        .keep();
    let mut integer = [row(Value::Integer(3))];
    columns.declare(&mut integer).unwrap().keep();
    assert_eq!(integer[0], row(Value::Float(3.0)));
    let mut wrong = [
        Row {
            attributes: [("c".to_owned(), Value::Boolean(true))].into(),
            payload: None,
        },
        row(Value::String("x".into())),
    ];
    let error = columns.declare(&mut wrong).unwrap_err().to_string();
    assert!(error.contains("\"a\""), "{error}");
    assert_eq!(columns.schema().len(), 2);
}

#[test]
fn columns_of_rows_that_were_not_logged_go_again_but_for_those_of_others() {
    let columns = Columns::default();
    let row = |name: &str, value| {
        [Row {
            attributes: [(name.to_owned(), value)].into(),
            payload: None,
        }]
    };
    let (text, number) = (Value::String("x".into()), Value::Integer(1));
    drop(columns.declare(&mut row("a", text.clone())).unwrap());
    assert!(columns.schema().is_empty());
    // A declared column keeps its type until the rows of the call are logged or dropped.
    let one = columns.declare(&mut row("a", number.clone())).unwrap();
    columns.declare(&mut row("a", text.clone())).unwrap_err();
    let other = columns.declare(&mut row("a", number.clone())).unwrap();
    drop(one);
    columns.declare(&mut row("a", text.clone())).unwrap_err();
    let third = columns.declare(&mut row("a", number.clone())).unwrap();
    other.keep();
    drop(third);
    drop(columns.declare(&mut row("a", number)).unwrap());
    columns.declare(&mut row("a", text)).unwrap_err();
    assert_eq!(columns.schema().len(), 1);
}

#[test]
fn a_row_that_came_to_nothing_leaves_what_its_id_had() {
    let columns = Columns::default();
    let row = |value| {
        let row = Row {
            attributes: [("a".to_owned(), Value::Integer(value))].into(),
            payload: None,
        };
        RowBytes::from(encoded(&row).unwrap())
    };
    columns.put(3, 70, row(1));
    columns.put(5, 80, row(2));
    let before = columns.new_bytes();
    columns.put(6, 70, row(3));
    columns.put(7, 90, row(4));
    columns.take_back(6);
    columns.take_back(7);
    let windows = &mut Windows::default();
    assert_eq!(columns.node_of(70, windows).unwrap(), Some(3));
    assert_eq!(columns.node_of(90, windows).unwrap(), None);
    assert_eq!(columns.row_of(6, windows).unwrap(), None);
    assert_eq!(columns.new_bytes(), before);
}

const ROWS: usize = 700;

fn build(layout: Layout, path: &Path) -> Vec<Row> {
    let mut numbers = Numbers(9);
    let vectors = (0..ROWS * 8).map(|_| numbers.next(256) as u8).collect();
    let rows: Vec<Row> = (0..ROWS).map(|_| any_row(&mut numbers)).collect();
    let options = BuildOptions {
        layout: Some(layout),
        degree: Some(8),
        build_list: 16,
        code_bytes: Some(4),
        ids: Some((0..ROWS as u32).map(|row| id_of(row + 1)).collect()),
        ..BuildOptions::default()
    };
    let vectors = Matrix::new(vectors, ROWS, 8, Element::U8).unwrap();
    let source = RowTable::new(rows.clone());
    build_with_rows(&vectors, &source, path, &options.in_any_layout(), &Silent).unwrap();
    rows
}

fn read(path: &Path) -> Vec<Row> {
    let index = Index::open(path, &OpenOptions::default()).unwrap();
    let ids: Vec<u64> = (0..ROWS as u32).map(|row| id_of(row + 1)).collect();
    let rows = index.attributes(&ids).unwrap();
    rows.into_iter().map(Option::unwrap).collect()
}

#[test]
fn an_index_has_the_rows_that_it_was_built_with_in_any_layout() {
    for layout in [
        Layout::Packed,
        Layout::Decoupled,
        Layout::Inline,
        Layout::Grouped,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let rows = build(layout, &path);
        assert_eq!(read(&path), rows, "{layout}");
        let index = Index::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(index.attributes(&[3]).unwrap(), [None]);
        assert!(index.stats().bytes.columns > 0 && index.schema().len() == 7);
        for text in FILTERS {
            let filter = Filter::parse(text).unwrap();
            let checked = filter.check(&index.schema()).unwrap();
            let expected = rows.iter().filter(|row| checked.matches(row)).count();
            assert_eq!(
                index.count(&filter).unwrap(),
                expected as u64,
                "{layout}, {text}"
            );
            let (mut after, mut found) = (None, Vec::new());
            loop {
                let page = index.scroll(&filter, after, 37).unwrap();
                let ids: Vec<u64> = page.iter().map(|(id, _)| *id).collect();
                assert_eq!(index.ids_matching(&filter, after, 37).unwrap(), ids);
                let Some(last) = page.last() else { break };
                after = Some(last.0);
                found.extend(page.into_iter().map(|(id, _)| id));
            }
            assert!(
                found.is_sorted() && found.len() == expected,
                "{layout}, {text}"
            );
        }
        let report = verify(&path, &Silent).unwrap();
        assert!(report.clean(), "{layout}: {:?}", report.problems);
    }
}

fn damage(path: &Path, kind: &str, block: u64) -> u64 {
    let mut entries = path.read_dir().unwrap().map(Result::unwrap);
    let is_it = |name: &str| name.starts_with(kind);
    let entry = entries
        .find(|entry| is_it(entry.file_name().to_str().unwrap()))
        .unwrap();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(entry.path())
        .unwrap();
    let blocks = file.metadata().unwrap().len() / BLOCK as u64;
    if block < blocks {
        let (mut byte, at) = ([0], block * BLOCK as u64 + 100);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 16], at).unwrap();
    }
    blocks
}

#[test]
fn damage_is_found_in_every_block_and_costs_the_rows_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let rows = build(Layout::Packed, &whole);
    let copy = |to: &Path| {
        let _ = std::fs::remove_dir_all(to);
        std::fs::create_dir(to).unwrap();
        for entry in whole.read_dir().unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    let path = folder.path().join("damaged");
    let repaired = |kind: &str, block| {
        copy(&path);
        damage(&path, kind, block);
        let report = verify(&path, &Silent).unwrap();
        assert!(!report.clean(), "{kind}, block {block}");
        let options = RepairOptions {
            threads: 1,
            ..RepairOptions::default()
        };
        let report = repair(&path, &options, &Silent).unwrap();
        assert_eq!((report.vectors, report.vectors_lost), (ROWS as u64, 0));
        assert!(
            report.lost.iter().any(|lost| lost.file.contains(kind)),
            "{kind}: {report:?}"
        );
        assert!(verify(&path, &Silent).unwrap().clean());
        let found = read(&path);
        let lost = found.iter().zip(&rows).filter(|(found, row)| found != row);
        let lost: Vec<&Row> = lost.map(|(found, _)| found).collect();
        assert!(
            lost.iter().all(|row| row.is_empty()),
            "{kind}, block {block}"
        );
        lost.len()
    };
    let blocks = damage(&whole, "columns", u64::MAX);
    for block in [0, 1, blocks / 2, blocks - 1] {
        assert_eq!(repaired("columns", block), 0, "block {block}");
    }
    assert_eq!(repaired("rows", 0), 0);
    let blocks = damage(&whole, "rows", u64::MAX);
    assert_eq!(repaired("rows", blocks - 1), 0);
    let lost = repaired("rows", 5);
    assert!((1..ROWS / 3).contains(&lost), "{lost} rows");
    let lost = repaired("rows", blocks - 4);
    assert!((1..=186).contains(&lost), "{lost} rows");
}
