//! `verify` on inline indexes with a journal of pages that are to be written.

use stratann_layout::{InlineShape, JournalFile};

use super::*;

/// The offset of the degree of the first record on a page.
const DEGREE_AT: usize = 8 + 8 + WIDE;
const LINK_AT: usize = DEGREE_AT + 4;

impl Grown {
    fn inline() -> Self {
        let (layout, update) = INLINE;
        Self::new(layout, update)
    }

    fn shape(&self) -> InlineShape {
        reading::inline(&self.volume, &self.manifest()).unwrap().0
    }

    fn name(&self, kind: FileKind) -> String {
        self.manifest().file(kind.name()).unwrap().name.clone()
    }

    /// The index with a new journal. The journal has the pages `numbers`, each changed by `change`.
    fn journal(&self, numbers: &[u32], change: impl Fn(u32, &mut [u8])) -> Self {
        let (file, size) = self.pages();
        let bytes = self.volume.read(&file).unwrap();
        let mut payload = JournalFile::head(size, numbers);
        for &number in numbers {
            // The file may have no page with this number.
            let page = bytes[BLOCK..].chunks_exact(size).nth(number as usize);
            let mut page = page.map_or_else(|| vec![0; size], <[u8]>::to_vec);
            change(number, &mut page);
            payload.extend_from_slice(&page);
        }
        let volume = self.volume.fork();
        let mut manifest = self.manifest();
        let bytes = stream::encode(FileKind::Journal, &payload, &[]);
        let role = FileKind::Journal.name();
        let entry = manifest.files.iter_mut().find(|entry| entry.role == role);
        let entry = entry.unwrap();
        entry.length = bytes.len() as u64;
        entry.header_crc32c = stored_checksum(&bytes);
        write(&volume, &entry.name, &bytes);
        write(&volume, MANIFEST, &manifest.encode());
        Self {
            volume,
            folder: tempfile::tempdir().unwrap(),
            layout: self.layout,
        }
    }
}

fn as_it_is(_: u32, _: &mut [u8]) {}

#[test]
fn what_the_journal_has_may_be_anything_in_the_file() {
    let grown = Grown::inline();
    let (name, size) = grown.pages();
    let pages = grown.in_use().0.len() as u32;
    assert!(size == BLOCK && pages > 10);
    for numbers in [vec![], vec![1, 4, 5], vec![0, 3, pages - 2, pages - 1]] {
        let grown = grown.journal(&numbers, as_it_is);
        let whole = report(&grown.volume);
        let harmless = |change: &dyn Fn(&mut Vec<u8>)| {
            let volume = grown.changed(&name, change);
            assert_eq!(lines(&volume), Vec::<String>::new(), "{numbers:?}");
            assert_eq!(report(&volume), whole, "{numbers:?}");
        };
        let places = || numbers.iter().map(|&page| (page as usize + 1) * size);
        harmless(&|bytes| places().for_each(|at| bytes[at + 512..at + 1_024].fill(7)));
        harmless(&|bytes| places().for_each(|at| bytes[at..at + size].fill(0)));
        // The journal has the last two pages. So the file may lack them, or may have only a part of
        // them.
        if numbers.ends_with(&[pages - 2, pages - 1]) {
            let end = (pages as usize - 1) * size;
            harmless(&|bytes| bytes.truncate(end + 100));
            harmless(&|bytes| bytes.truncate(end));
        }
    }
}

#[test]
fn a_flipped_byte_is_found_in_every_file_but_where_the_journal_has_the_page() {
    let grown = Grown::inline();
    let pages = grown.in_use().0.len() as u32;
    let grown = grown.journal(&[1, 4, pages - 1], as_it_is);
    let (name, size) = grown.pages();
    for page in 0..pages {
        let at = (page as usize + 1) * size;
        for place in [5, 40, 1_000, 4_095] {
            let volume = grown.changed(&name, |bytes| bytes[at + place] ^= 4);
            match [1, 4, pages - 1].contains(&page) {
                true => assert_eq!(lines(&volume), Vec::<String>::new(), "{page}"),
                false => grown.says(&volume, 1, &name, &format!(", {at}: ")),
            }
        }
    }
    for FileEntry { name, length, .. } in grown.manifest().files {
        let pages = name == grown.pages().0;
        let end = if pages { BLOCK as u64 } else { length };
        for at in (0..end).step_by(701) {
            let volume = grown.changed(&name, |bytes| bytes[at as usize] ^= 1);
            let found = report(&volume);
            let file = stored::name_of(&volume, &name);
            let named = found.problems.iter().any(|problem| problem.file == file);
            assert!(named, "{name}, {at}: {:#?}", found.problems);
        }
    }
}

#[test]
fn pages_that_neither_file_has_are_named() {
    let grown = Grown::inline();
    let pages = grown.in_use().0.len() as u32;
    let grown = grown.journal(&[1, pages - 3, pages - 1], as_it_is);
    let (name, size) = grown.pages();
    let shape = grown.shape();
    for (there, behind) in [(pages - 2, 1), (pages - 3, 1), (pages - 4, 2)] {
        let volume = grown.changed(&name, |bytes| {
            bytes.truncate((there as usize + 1) * size);
        });
        let first = u64::from(if there == pages - 3 { pages - 2 } else { there });
        let text = format!(
            "its {there} pages end before page {first}, which has node {}; {} nodes are",
            shape.first_node(first),
            behind * shape.nodes_per_page(),
        );
        grown.says(&volume, 1, &name, &text);
    }
    // Even if the manifest has far too many nodes, `verify` must not take long.
    let volume =
        grown.with(|_, _, m| m.placement.as_mut().unwrap().nodes = u64::from(u32::MAX) - 1);
    let found = lines(&volume);
    let text = format!("its {pages} pages end before page {pages}");
    assert!(found.iter().any(|line| line.contains(&text)), "{found:#?}");
    let volume = grown.with(|_, _, m| m.placement.as_mut().unwrap().nodes += 1);
    let found = lines(&volume);
    assert_eq!(found.len(), 2, "{found:#?}");
    for (file, text) in [
        ("/placement-", "by the MANIFEST, there are"),
        ("/journal-", "count of records on the page"),
    ] {
        let named = |line: &String| line.contains(file) && line.contains(text);
        assert!(found.iter().any(named), "{file}: {found:#?}");
    }
}

#[test]
fn a_damaged_journal_is_named_and_so_are_the_pages_that_are_lost_with_it() {
    let grown = Grown::inline().journal(&[1, 4], as_it_is);
    let (pages, size) = grown.pages();
    let name = grown.name(FileKind::Journal);
    let bytes = grown.volume.read(&name).unwrap().len();
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(BLOCK);
    let gone = |volume: &SimVolume| volume.remove(&name).unwrap();
    for at in (0..bytes).step_by(501) {
        grown.says(&grown.changed(&name, |bytes| bytes[at] ^= 1), 1, &name, "");
    }
    grown.says(&grown.changed(&name, cut), 1, &name, "the MANIFEST says");
    let torn = grown.changed(&pages, |bytes| bytes[5 * size + 700] ^= 1);
    gone(&torn);
    let found = lines(&torn);
    assert_eq!(found.len(), 2, "{found:#?}");
    let at = format!("/{pages}, {}: ", 5 * size);
    assert!(found.iter().any(|line| line.contains(&name)), "{found:#?}");
    assert!(found.iter().any(|line| line.contains(&at)), "{found:#?}");
    let whole = report(&grown.volume);
    let volume = grown.volume.fork();
    let table = grown.name(FileKind::Placement);
    volume.remove(&table).unwrap();
    grown.says(&volume, 1, &table, "");
    let found = report(&volume);
    assert_eq!((found.pages, found.nodes), (whole.pages, whole.nodes));
}

#[test]
fn pages_of_the_journal_are_those_of_the_index() {
    let grown = Grown::inline();
    let facts = grown.manifest().placement.unwrap();
    let (nodes, pages) = (facts.nodes, facts.pages as u32);
    let says = |numbers: &[u32], change: &dyn Fn(&mut [u8]), text: &str| {
        let grown = grown.journal(numbers, |number, bytes| {
            if number == 2 {
                change(bytes);
            }
        });
        grown.says(&grown.volume, 1, "/journal-", text);
    };
    let text = format!("it has page {pages}; {nodes} nodes are on {pages} pages");
    says(&[1, 2, pages], &|_| (), &text);
    says(
        &[2, 3],
        &|bytes| bytes[900] ^= 1,
        "page 2 of inline: checksum",
    );
    let sealed = |change: fn(&mut [u8])| {
        move |bytes: &mut [u8]| {
            change(bytes);
            seal(bytes, 3);
        }
    };
    says(
        &[2, 3],
        &|bytes| seal(bytes, 4),
        "page 2 of inline: checksum",
    );
    let text = "page 2 of inline: count of records";
    says(&[2, 3], &sealed(|bytes| bytes[4] -= 1), text);
    let node = 2 * grown.shape().nodes_per_page();
    let text = format!("node {node} links to {} of {nodes} nodes", u32::MAX);
    says(
        &[2, 3],
        &sealed(|bytes| bytes[LINK_AT..LINK_AT + 4].fill(255)),
        &text,
    );
    let text = "degree of a node";
    let grown = grown.journal(&[2], |_, bytes| {
        bytes[DEGREE_AT] = 9;
        seal(bytes, 3);
    });
    grown.says(&grown.volume, 1, "/journal-", text);
    // If no page is to be written after a checkpoint, the journal of the checkpoint is empty.
    let none = grown.journal(&[], as_it_is);
    assert_eq!(lines(&none.volume), Vec::<String>::new());
}

#[test]
fn a_journal_belongs_to_inline_pages_that_took_inserts_and_to_nothing_else() {
    let grown = Grown::inline();
    for role in ["placement", "journal"] {
        let volume = grown.with(|_, _, m| m.files.retain(|entry| entry.role != role));
        grown.says(&volume, 1, "/MANIFEST", &format!("it names no {role} file"));
    }
    // If the manifest does not mention direct inserts, their files and their additional pages do
    // not belong to the index.
    let volume = grown.with(|_, _, manifest| manifest.placement = None);
    let found = lines(&volume);
    for role in ["placement", "journal"] {
        let text = format!("the role \"{role}\", but names no rewritten records");
        assert!(found.iter().any(|line| line.contains(&text)), "{found:#?}");
    }
    assert!(
        found
            .iter()
            .any(|line| line.contains(&grown.pages().0) && line.contains("the MANIFEST says so")),
        "{found:#?}"
    );
    let pending = PendingFile::default().encode();
    let journal = JournalFile::head(BLOCK, &[]);
    for ((layout, update), kind, payload) in [
        (INLINE, FileKind::Pending, &pending),
        (CASES[0], FileKind::Journal, &journal),
        (CASES[4], FileKind::Journal, &journal),
    ] {
        let grown = Grown::new(layout, update);
        with_file(&grown.volume, kind, payload);
        let text =
            format!("the role \"{kind}\", which the {layout} layout of this index does not have");
        grown.says(&grown.volume, 1, &format!("/{kind}"), &text);
    }
    let volume = index(Layout::Inline, &nothing);
    with_file(&volume, FileKind::Journal, &journal);
    let found = lines(&volume);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].contains("names no rewritten records"),
        "{found:#?}"
    );
    // In this layout, the number of pages follows from the number of nodes, so one more page is a
    // fault.
    let volume = grown.with(|_, _, m| m.placement.as_mut().unwrap().pages += 1);
    let found = lines(&volume);
    assert_eq!(found.len(), 2, "{found:#?}");
    let text = "/MANIFEST: it says that";
    assert!(found.iter().any(|line| line.contains(text)), "{found:#?}");
    let nodes = grown.tables().0.nodes as usize;
    let volume = grown.with(|placement, _, _| placement.page_of = vec![0; nodes]);
    grown.says(&volume, 1, "/placement-", "it has a table of pages");
    let volume = grown.with(|placement, _, _| placement.added.push(placement.built));
    let text = "which the inline layout of this index does not have";
    grown.says(&volume, 1, "/placement-", text);
}
