#!/usr/bin/env python3
"""Checks that the modules of the engine use each other in one direction.

    python3 .ci/modules.py              reads crates/engine/src.
    python3 .ci/modules.py --edges      also lists each edge between two modules, and its places.
    python3 .ci/modules.py --self-test  tests the check itself.

An edge leads from a top-level module to another one that its code names, in `use` or in a path. The
check follows `mod` from lib.rs. It leaves out comments, strings, and code that only tests compile. A
name that lib.rs exports belongs to the module from which lib.rs takes it.

The check does not see the call of a method whose `impl` is in another module than its type, such as
`Layout::composition` in stores and `Index::search` in search.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = "crates/engine/src"

# module -> the modules that it uses, each in a row above
MAY = {
    # values, and helpers that know nothing of an index
    "alike": set(),
    "type_names": {"alike"},
    "bits": set(),
    "fill": set(),
    "visited": set(),
    "progress": set(),
    "threads": set(),
    "error": set(),
    "filter": {"alike", "error"},
    "spec": {"error", "threads"},
    "data": {"alike", "error", "filter", "progress", "spec", "threads"},
    "stored": {"error", "spec"},
    "codebook": {"data", "error", "progress", "spec", "stored", "threads"},
    "places": {"error", "spec", "stored"},
    "options": {"codebook", "places", "spec", "threads"},
    # graphs and clusters, without files
    "frontier": set(),
    "navigation": {"frontier", "visited"},
    # the sample of served queries
    "watch": {"data", "error", "filter", "progress", "spec"},
    "savepoint": {"data", "error", "options", "progress", "stored"},
    "graph": {"data", "error", "progress", "savepoint", "threads"},
    "cluster": {"data", "error", "graph", "navigation", "progress", "threads"},
    # stores: the files of an index, and their memory
    "durable": {"error", "savepoint", "spec", "stored"},
    "sorter": {"durable", "error"},
    "cache": {"error"},
    "plan": {"codebook", "error", "spec", "visited"},
    "room": {"error", "plan", "progress"},
    "stores": {
        "cache", "codebook", "data", "durable", "error", "filter", "graph", "navigation", "options",
        "plan", "progress", "sorter", "spec", "stored", "threads",
    },
    # changes since the checkpoint, as a search sees them
    "overlay": {"durable", "error", "filter", "frontier", "stores", "visited"},
    # an open index: its stores and its log, and nothing that searches them
    "index": {
        "cache", "codebook", "data", "durable", "error", "filter", "navigation", "overlay", "places",
        "plan", "progress", "room", "spec", "stored", "stores", "threads", "watch",
    },
    # searches
    "search": {
        "cache", "codebook", "data", "error", "filter", "frontier", "index", "navigation",
        "overlay", "plan", "progress", "room", "spec", "stores", "threads", "visited",
    },
    "measure": {"data", "error", "index", "progress", "spec", "stores"},
    "recall": {
        "data", "durable", "error", "graph", "index", "navigation", "progress", "search", "spec",
        "stored", "stores", "threads",
    },
    # builds
    "build": {
        "cluster", "codebook", "data", "durable", "error", "fill", "filter", "graph", "index",
        "measure", "navigation", "options", "plan", "progress", "recall", "savepoint", "sorter",
        "spec", "stored", "stores",
    },
    # changes
    "update": {
        "bits", "build", "cluster", "codebook", "data", "durable", "error", "filter", "frontier",
        "fill", "graph", "index", "overlay", "places", "plan", "progress", "room", "search", "spec",
        "stored", "stores", "threads", "watch",
    },
    "live_recall": {
        "bits", "data", "error", "filter", "index", "progress", "recall", "search", "update", "watch",
    },
    "lookup": {"error", "index", "overlay", "progress", "search", "spec", "stores", "update"},
    "range": {"data", "error", "filter", "index", "lookup", "progress", "search", "spec", "update"},
    # the halves of PRESS on servers
    "press": {
        "codebook", "data", "error", "frontier", "index", "overlay", "progress", "search", "spec",
        "stored", "stores", "update", "visited",
    },
    # checks of files
    "verify": {
        "bits", "codebook", "durable", "error", "index", "places", "progress", "spec", "stored",
        "stores",
    },
    "repair": {
        "bits", "build", "codebook", "data", "durable", "error", "filter", "progress", "spec",
        "stored", "stores", "threads", "update", "verify",
    },
    # calls about whole indexes
    "snapshot": {"durable", "error", "progress", "spec", "stored", "update"},
    "export": {"bits", "data", "error", "filter", "index", "progress", "spec", "stores", "update"},
    "catalog": {
        "alike", "codebook", "data", "durable", "error", "filter", "index", "places", "plan",
        "progress", "search", "spec", "stored", "stores",
    },
}

# Comments and literals name no module. Lifetimes ('a) are no literals.
QUIET = re.compile(
    r"//[^\n]*|/\*.*?\*/|\bb?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.[^']*|[^'\\])'", re.DOTALL
)
TEST = re.compile(r"#\[cfg\((?:test|any\(test\b[^\]]*\))\)\]\s*")
ATTRIBUTE = re.compile(r"#\[")
VISIBILITY = r"(?:pub\b(?:\([^)]*\))?\s*)?"
TO_SEMICOLON = re.compile(VISIBILITY + r"(?:use|let|static|type|const(?!\s+(?:fn|unsafe)))\b")
TO_BRACE = re.compile(
    VISIBILITY + r"(?:(?:async|unsafe|const)\s+)*(?:mod|fn|struct|enum|union|trait|impl|macro_rules)\b|(?=\{)"
)
MODULE = re.compile(r"\bmod\s+(\w+)\s*([;{])")
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:])(?:crate|super)(?:\s*::\s*\w+)+")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def bare(text):
    return QUIET.sub(blank, text)


def closing(text, at):
    """The position behind the bracket that closes the bracket at `at`."""
    depth = 0
    for bracket in re.compile(r"[(\[{}\])]").finditer(text, at):
        depth += 1 if bracket.group() in "([{" else -1
        if depth == 0:
            return bracket.end()
    return len(text)


def end_of_item(text, at):
    """The end of the item, statement, field or variant at `at`."""
    while ATTRIBUTE.match(text, at):
        at = closing(text, at + 1)
        at += len(text[at:]) - len(text[at:].lstrip())
    ends = ";" if TO_SEMICOLON.match(text, at) else ";{" if TO_BRACE.match(text, at) else ",;"
    while at < len(text) and text[at] not in ends:
        if text[at] in ")]}":
            return at
        at = closing(text, at) if text[at] in "([{" else at + 1
    return closing(text, at) if text[at : at + 1] == "{" else min(at + 1, len(text))


def without(text, start, end):
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def production(text):
    """A bare text without the items that only tests compile."""
    while test := TEST.search(text):
        text = without(text, test.start(), end_of_item(text, test.end()))
    return text


def tree(text):
    """The paths of a tree of `use` such as `a::{b, c::{d as e}}`, as (offset, names)."""
    found, outer, names, at = [], [[]], [], 0
    for token in re.finditer(r"\w+|[*{},]|$", text):
        if token.group() == "{":
            outer.append(names)
        elif token.group() in (",", "}", ""):
            if names != outer[-1]:
                found.append((at, names))
            if token.group() == "}":
                outer.pop()
            names = outer[-1]
        else:
            names, at = [*names, token.group()], token.start()
    return found


def from_root(names, inside):
    """A path from the root of the crate, or None. `inside`: the path of the module."""
    if names[0] == "crate":
        return names[1:]
    ups = len(names) - len(re.sub(r"^(super )*", "", " ".join(names)).split())
    return [*inside[: len(inside) - ups], *names[ups:]] if ups else None


def used(text, inside):
    """The paths from the root that the code uses, as (line, names)."""
    found = [
        (use.start(1) + at, from_root(names, inside))
        for use in USE.finditer(text)
        for at, names in tree(use.group(1))
    ]
    for path in PATH.finditer(USE.sub(blank, text)):
        found.append((path.start(), from_root(re.findall(r"\w+", path.group()), inside)))
    return [(text.count("\n", 0, at) + 1, names) for at, names in found if names]


def modules(files, file, inside=()):
    """The modules of a file and of its children, as (file, path of the module, production code)."""
    text = production(bare(files[file]))
    own = pathlib.PurePosixPath(file)
    folder = own.parent if own.name in ("lib.rs", "mod.rs") else own.with_suffix("")
    while module := MODULE.search(text):
        name, start, end = module.group(1), module.start(), module.end()
        if module.group(2) == "{":
            end = closing(text, end - 1)
            yield file, (*inside, name), without(without(text, 0, module.end()), end - 1, len(text))
        for child in (folder / f"{name}.rs", folder / name / "mod.rs"):
            if module.group(2) == ";" and str(child) in files:
                yield from modules(files, str(child), (*inside, name))
        text = without(text, start, end)
    yield file, inside, text


def edges(files):
    """The top-level modules, and (from, to) -> places. `files`: name, relative to src -> text."""
    found, owners, parts = {}, {}, list(modules(files, "lib.rs"))
    tops = {inside[0] for _, inside, _ in parts if inside}
    for use in USE.finditer(parts[-1][2]):
        for _, names in tree(use.group(1)):
            if names[0] in tops:
                owners[names[-1]] = names[0]
    for file, inside, text in parts[:-1]:
        for line, names in used(text, inside):
            top = names[0] if names[0] in tops else owners.get(names[0])
            if top not in (None, inside[0]):
                found.setdefault((inside[0], top), []).append(f"{SOURCES}/{file}:{line}: {'::'.join(names)}")
    return tops, found


def faults(tops, found, may):
    rows = {name: row for row, name in enumerate(may)}
    here = ".ci/modules.py"
    lines = [f"{SOURCES}/{name} has no row in MAY of {here}. Add the modules that it uses" for name in sorted(tops - set(may))]
    lines += [f"{here}: MAY has a row of {name}, which is no module. Remove the row" for name in may if name not in tops]
    drawn = {(by, to) for by, names in may.items() for to in names}
    for by, to in sorted(drawn):
        if rows.get(to, len(rows)) >= rows[by]:
            lines.append(f"{here}: the row of {by} in MAY has {to}, which has no row above. Move what {by} uses of {to} to a row above both")
    for by, to in sorted(drawn - set(found)):
        lines.append(f"{here}: no code of {by} uses {to}. Remove the edge {by} -> {to}")
    for by, to in sorted(set(found) - drawn):
        place, path = found[by, to][0].rsplit(": ", 1)
        if rows.get(to, len(rows)) < rows.get(by, 0):
            remedy = f"Add {to} to the row of {by} in MAY of {here}"
        else:
            remedy = f"Move {path.split('::')[-1]} to a module in a row above both"
        lines.append(f"{place}: {by} uses {path}; no edge leads from {by} to {to}. {remedy}")
    return lines


def read(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.rs"))}


def self_test():
    right = {
        "lib.rs": "mod spec;\nmod store;\nmod search;\npub use spec::{Layout, Text as Words};\npub use stratann_tier::IoMode;",
        "spec.rs": "//! [`crate::search`]\npub struct Layout;\n#[cfg(test)]\nmod tests { use crate::store::Pages; }",
        "store/mod.rs": "mod pages;\nuse crate::Layout;\nuse crate::IoMode;\npub(in crate::store) fn f() {}",
        "store/pages.rs": "use super::super::spec::Layout;\n#[cfg(test)]\nuse crate::search::{a, b};\n#[cfg(test)]\nmod tests;",
        "store/pages/tests.rs": "use crate::search::Walk;",
        "search.rs": "use crate::{spec::Layout, store::{self, Pages}};\n"
        "struct S<'a> {\n#[cfg(test)]\npub(crate) hook: Option<crate::tests::Hook>,\n x: &'a str }\n"
        "fn f() { let c = '\"'; let s = \"crate::index::X\"; /* crate::index::Y */ }",
    }
    may = {"spec": set(), "store": {"spec"}, "search": {"spec", "store"}}

    def lines(changed=(), may=may):
        return faults(*edges({**right, **dict(changed)}), may)

    assert lines() == [], lines()
    back = {"spec.rs": "\n\nfn f() {\n crate::search::g() }"}
    wrong = {
        "a path in the text": (lines(back), "spec.rs:4: spec uses search::g"),
        "a use in a group": (lines({"spec.rs": "use crate::{\n a, search::{b, c}}; mod a {}"}), "spec.rs:2: spec uses search::b"),
        "super": (lines({"spec.rs": "use super::store::Pages;"}), "spec.rs:1: spec uses store::Pages"),
        "super in an inline module": (lines({"spec.rs": "mod a {\nuse super::super::store; }"}), "spec.rs:2: spec uses store"),
        "a name that lib.rs exports": (
            lines({"lib.rs": right["lib.rs"] + "pub use search::Walk;", "spec.rs": "use crate::Walk;"}),
            "spec.rs:1: spec uses Walk",
        ),
        "code behind a test": (
            lines({"spec.rs": "#[cfg(test)]\n#[derive(A)]\nstruct T(u8);\nuse crate::store::Pages;"}),
            "spec.rs:4: spec uses store::Pages",
        ),
        "a macro": (lines({"spec.rs": "macro_rules! m { () => { $crate::store::f() } }"}), "spec uses store::f"),
        "an edge that is not drawn": (lines(may={**may, "search": {"store"}}), "Add spec to the row of search"),
        "an edge to a row below": (lines(back, may={**may, "spec": {"search"}}), "which has no row above"),
        "an edge that is gone": (lines(may={**may, "store": {"spec"}, "search": {"spec", "store"}}, changed={"store/mod.rs": "", "store/pages.rs": ""}), "no code of store uses spec"),
        "a module without a row": (lines({"lib.rs": right["lib.rs"] + "mod new;", "new.rs": ""}), "new has no row"),
        "a row without a module": (lines(may={**may, "old": set()}), "a row of old"),
    }
    for case, (found, part) in wrong.items():
        assert len(found) == 1 and part in found[0], f"{case}: {found}"
    print(f"modules.py: {len(wrong)} faults found, none in a right tree")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:] not in ([], ["--edges"]):
        sys.exit(__doc__)
    tops, found = edges(read(ROOT / SOURCES))
    if sys.argv[1:]:
        for (by, to), places in sorted(found.items()):
            print(f"{by} -> {to}", *places, sep="\n    ")
    lines = faults(tops, found, MAY)
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    print(f"modules.py: {len(tops)} modules, {len(found)} edges")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
