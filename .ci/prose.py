#!/usr/bin/env python3
"""Checks texts for the rules of words in CONTRIBUTING.md, as far as a program can check them.

    python3 .ci/prose.py              checks documents, crates/, and Python in bench/ and integrations/.
    python3 .ci/prose.py crates/tier  checks files or folders.
    python3 .ci/prose.py --self-test  tests the check itself.

In Rust, the script reads doc comments, and string literals of five words and more (errors, help). In
Python, it reads comments, docstrings and errors. It does not read strings of tests, code, headings
and targets of links. No string may have ": expected ", since an error says the reason and the
remedy.
"""

import ast
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ["*.md", "bench/**/*.md", "fixtures/*.md", "docs/**/*.md", "integrations/**/*.md"]
SOURCES = ["crates", "bench/**/*.py", "integrations/**/*.py"]
LONGEST, MEAN, COLUMNS, WHATS = 35, 25, 100, 2  # words, words, characters of a line, "what" in a thousand words
SUFFIXES = (".rs", ".py", ".pyi", ".md")

LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|<https?:[^>]*>")
CODE = re.compile(r"(`+).+?\1", re.DOTALL)
ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s+|\s*>\s?")
# A sentence ends before white space, and behind a full stop that ends no abbreviation.
END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bal)(?<!\bcf)(?<!\bvs)(?<!\.)[.!?][)\"'*_»]*\s+")
SUBJECT = re.compile(r"^\W*(what|who|nobody|that of|those of)\b|\b(of which|nobody|those of)\b", re.IGNORECASE)
WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
WORD = re.compile(r"\w")
COMMENT = re.compile(r"\s*//([/!]?) ?(.*)")
STRING = re.compile(r"(?P<raw>\bb?r(?P<hash>#*)\".*?\"(?P=hash))|\"((?:\\.|[^\"\\])*)\"|'(?:\\.|[^'\\])'|//[^\n]*", re.DOTALL)
DOCSTRING = re.compile(r"(\"\"\"|''')(.*?)\1", re.DOTALL)
EXPECTED = re.compile(r": expected (?!to\b)")
TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:pub(?:\(crate\))? )?mod \w+ \{", re.MULTILINE)


def blocks(lines):
    """The paragraphs, list items and cells of numbered lines, as (number of the first line, text)."""
    number, text, fence = 0, [], None
    for at, line in lines:
        bare = line.strip()
        mark = bare[:3] if bare.startswith(("```", "~~~")) else None
        plain = fence is None and mark is None
        if mark and fence in (None, mark):
            fence = None if fence else mark
        starts = bool(ITEM.match(line))
        if not plain or not bare or starts or bare.startswith(("#", "|")):
            if text:
                yield number, " ".join(text)
            text = []
        if not plain or not bare or bare.startswith("#"):
            continue
        if bare.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", CODE.sub("`c`", bare)):
                yield at, cell
            continue
        if not text:
            number = at
        text.append(ITEM.sub("", line, count=1) if starts else bare)
    if text:
        yield number, " ".join(text)


def sentences(lines):
    """The sentences, as (number of a line, sentence without code and targets)."""
    for number, text in blocks(lines):
        plain = LINK.sub(lambda link: link.group(1) or "", CODE.sub("`", text))
        for sentence in END.split(plain):
            if sentence.strip():
                yield number, sentence.strip()


def words(sentence):
    return [word for word in sentence.split() if WORD.search(word)]


def judged(found):
    """The faults of sentences, as (kind, line, text)."""
    for number, sentence in found:
        count = len(words(sentence))
        if count > LONGEST:
            yield "long", number, f"{count} words, at most {LONGEST}: {sentence[:70]}.."
        subject = SUBJECT.search(sentence)
        if subject:
            yield "subject", number, f"name the thing in place of '{subject.group().strip()}': {sentence[:70]}.."
        for _ in WHAT.findall(sentence):
            yield "what", number, f"'what': {sentence[:70]}.."


def document(text):
    """The faults of a page, as (line, text). A few uses of the word in `WHAT` are allowed."""
    lines = list(enumerate(text.split("\n"), 1))
    found = list(sentences(lines))
    faults = [fault for fault in judged(found) if fault[0] != "what"]
    total = sum(len(words(sentence)) for _, sentence in found)
    whats = sum(len(WHAT.findall(sentence)) for _, sentence in found)
    if whats * 1000 >= WHATS * max(total, 1000):
        faults.append(("what", 1, f"'what' {whats} times in {total} words: fewer than {WHATS} in a thousand"))
    long = [sentence for sentence in found if len(words(sentence[1])) > 3]  # cells of a table are no sentences
    mean = sum(len(words(sentence)) for _, sentence in long) / max(len(long), 1)
    if mean > MEAN and len(long) > 9:
        faults.append(("long", 1, f"{mean:.0f} words a sentence on average, at most {MEAN}"))
    fence = False
    for number, line in lines:
        fence ^= line.lstrip().startswith(("```", "~~~"))
        plain = CODE.sub("`", line)  # it cannot be broken
        if len(plain) > COLUMNS and not fence and not line.startswith("#") and not line.lstrip().startswith("|") and len(words(LINK.sub("", plain))) > 3:
            faults.append(("columns", number, f"{len(line)} columns, at most {COLUMNS}"))
    return [(number, said) for _, number, said in sorted(faults, key=lambda fault: fault[1])]


def strings(text):
    """The strings of a Rust file outside its tests, as (line, text)."""
    tests = TESTS.search(text)
    for match in STRING.finditer(text, 0, tests.start() if tests else len(text)):
        if match.group(3):
            said = re.sub(r"\\\n\s*|\\n", " ", match.group(3))
            yield text.count("\n", 0, match.start()) + 1, re.sub(r"\{[^}]*\}", "`", said).replace("|", "/")


def errors(text):
    """The texts of raised errors, as (line, text)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args[:1]:
                parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
                said = [part.value if isinstance(part, ast.Constant) else "`" for part in parts]
                yield node.lineno, "".join(map(str, said)).replace("|", "/")


def comments(text):
    """The comments of a Python file, as lists of (line, text). A list has adjacent comments, or one
    behind code.
    """
    run = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            number, alone = token.start[0], token.line.lstrip().startswith("#")
            if run and (not alone or run[-1][0] + 1 != number):
                yield run
                run = []
            run.append((number, token.string.lstrip("# ")))
            if not alone:
                yield run
                run = []
    if run:
        yield run


def in_form(found):
    """The form of errors is "argument and value; reason. Remedy"."""
    for number, said in found:
        if EXPECTED.search(said):
            yield number, f"name the reason and the remedy in place of ': expected': {said[:70]}.."


def source(path, text):
    found, run = [], []
    if path.suffix != ".rs":
        for match in DOCSTRING.finditer(text):
            first = text.count("\n", 0, match.start()) + 1
            found += sentences(enumerate(match.group(2).split("\n"), first))
        for said in comments(text):
            found += sentences(said)
        said = list(errors(text)) if path.suffix == ".py" else []
        for one in said:
            found += sentences([one])
        return list(in_form(said)) + [fault[1:] for fault in judged(found)]
    faults = []
    for number, line in enumerate(text.split("\n"), 1):
        comment = COMMENT.match(line) if "//" in line else None
        if comment and comment.group(1):
            run.append((number, comment.group(2)))
        elif run:
            found += sentences(run)
            run = []
        if comment and len(line) > COLUMNS:
            faults.append((number, f"{len(line)} columns, at most {COLUMNS}"))
    found += sentences(run)
    if not any(part in ("tests", "testing", "benches") for part in path.with_suffix("").parts):
        said = list(strings(text))
        faults += in_form(said)
        for one in said:
            if len(words(one[1])) > 4:
                found += sentences([one])
    return faults + [fault[1:] for fault in judged(found)]


def files(folder):
    below = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES)
    return [path for path in below if path.suffix == ".rs" or not any("tests" in part for part in path.parts)]


def by_default():
    return [path for pattern in DOCUMENTS + SOURCES for path in sorted(ROOT.glob(pattern))]


def self_test():
    filler = "A word. " * 500
    right = f"# {'What ' * 40}\n\nSee [a page](what-of-which.md) and\n`{'who ' * 20}`.\nIt e.g. ends. {'word ' * 9}\n"
    right += f"\n| a | {'A cell. ' * 60} |\n|---|---|\n\n1. A list.\n\n   | a | {'A cell. ' * 60} |\n\n- One\n  item.\n- Next {'word ' * 10}\n\n```\n{'of which ' * 50}\n```\n"
    assert document(right) == [], document(right)
    wrong = {
        "a long sentence": "word " * 18 + "\n" + "word " * 18,
        "a long cell": "| a | " + "word " * 36 + "|",
        "a subject": "It is so. What is read counts.",
        "a subject in an item": "- **Who reads** has it.",
        "nobody": "Copies that nobody uses go.",
        "of which": "Pages of which one is read.",
        "a long line": "Some words. " * 9,
        "many whats": "Read what is there. " * 2,
        "long sentences": ("word " * 18 + "\n" + "word " * 9 + ".\n") * 10,
    }
    for name, text in wrong.items():
        assert len(document(text)) == 1, f"{name}: {document(text)}"
    assert document("Read what is there.\n" + filler.replace(". ", ".\n")) == []
    rust = pathlib.Path("crates/a/src/lib.rs")
    faults = lambda path, text: " ".join(said for _, said in source(path, text))
    two = faults(rust, "/// What is\n/// read.\n// what\nlet s = \"of which\"; // \"\n")
    assert two.count("name the thing") == two.count("'what'") == 1 and "place of 'What'" in two, two
    assert faults(rust, "f(\"that is \\\n   {nobody} what was read here\");\n").startswith("'what'")
    assert faults(rust, "/// ```\n/// what\n/// ```\n/// Fine.\n" + "//" + "x" * 99) == "101 columns, at most 100"
    assert not faults(rust, "#[cfg(test)]\nmod tests {\n \"what is it that is here\"")
    assert not faults(pathlib.Path("crates/a/tests/a.rs"), "\"what is it that is here\"")
    python = pathlib.Path("a.py")
    assert faults(python, 'def f():\n    """Nobody reads."""\n').startswith("name the thing")
    assert faults(python, "f()  # Nobody\n# reads\n# what\n").count("name the thing") == 1
    assert faults(python, "# reads\n# nobody\n").startswith("name the thing")
    assert faults(python, 'raise ValueError(f"{n} is read by nobody at all")\n').startswith("name the thing")
    for path, raised in (rust, 'call("k is {k}: expected 1");'), (python, 'raise ValueError(f"k is {k}: expected 1")\n'):
        assert faults(path, raised).startswith("name the reason"), raised
        assert not faults(path, raised.replace(": expected 1", "; it is too small. Pass 1"))
    read = {str(path.relative_to(ROOT)) for path in by_default()}
    below = {"CHANGELOG.md", "integrations/langchain-stratann/README.md", "docs/results/rivals.md", "bench/rivals/README.md", "bench/rivals/engines/__init__.py"}
    assert below <= read, below - read
    print(f"prose.py: {len(wrong)} faults found in documents and 5 kinds in sources, none in right texts")


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    if any(argument.startswith("-") for argument in arguments):
        sys.exit(__doc__)
    paths = [pathlib.Path(argument) for argument in arguments]
    for path in paths:
        if not path.exists():
            sys.exit(f"error: {path}: no such file or folder")
    if not arguments:
        paths = by_default()
    lines = []
    for path in (file.resolve() for folder in paths for file in files(folder)):
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        text = path.read_text(encoding="utf-8")
        found = document(text) if path.suffix == ".md" else source(name, text)
        lines += [f"{name}:{number}: {said}" for number, said in sorted(found)]
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
