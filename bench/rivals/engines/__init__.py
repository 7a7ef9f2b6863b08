"""The programs that are measured, and what each of them is asked."""

import importlib
import importlib.metadata
import threading

K = 10
M, EF_CONSTRUCTION = 32, 100  # of every HNSW graph
LISTS = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 240, 320, 480, 640, 960, 1280]

# By the name of `--only`: the module, and the class in it.
ENGINES = {
    "stratann-less": ("stratann", "Less"),
    "stratann-more": ("stratann", "More"),
    "stratann": ("stratann", "Stratann"),
    "stratann-whole": ("stratann", "Whole"),
    "hnswlib": ("hnswlib", "Hnswlib"),
    "faiss-hnsw": ("faiss", "Hnsw"),
    "faiss-ivf": ("faiss", "Refined"),
    "usearch": ("usearch", "Usearch"),
    "qdrant": ("qdrant", "Qdrant"),
    "lancedb": ("lancedb", "Lance"),
}


def engine(name):
    module, kind = ENGINES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)


class Engine:
    """A program, driven from Python.

    `title` is its name in tables, and `package` that of PyPI. `knobs` go from what is fast to what
    finds most. An engine `on_storage` reads its files during searches. Several engines may have the
    same `files`: one of them is built.
    """

    title = package = files = None
    knobs = LISTS
    on_storage = False

    def __init__(self, job):
        self.job, self.path, self.metric, self.dim = job, job["path"], job["metric"], job["dim"]
        self.prepare()

    def prepare(self):
        """Imports; what they take is not counted."""

    def build(self, base):
        """Makes the files at `self.path` from a `vectors.Rows`, with two threads."""
        raise NotImplementedError

    def open(self):
        """Loads or opens the files."""
        raise NotImplementedError

    def search(self, query, knob):
        """The ids of the K answers to one query, with one thread where that can be chosen."""
        raise NotImplementedError

    def search_all(self, queries, knob):
        """The ids for all queries, with two threads: two of Python, if no call takes them all."""
        found = [None] * len(queries)

        def work(first):
            for at in range(first, len(queries), 2):
                found[at] = self.search(queries[at], knob)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if None in found:
            raise RuntimeError("a thread ended early")
        return found

    def reads(self):
        """Reads from storage a query, of the last `search_all`, if the program counts them."""
        return None

    def said(self, knob):
        return f"{knob}"

    @classmethod
    def version(cls):
        return importlib.metadata.version(cls.package)
