"""The programs that packages.py measures, with a common interface and common parameters."""

import importlib
import importlib.metadata
import threading

K = 10
M, EF_CONSTRUCTION = 32, 100  # parameters of every HNSW graph
LISTS = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 240, 320, 480, 640, 960, 1280]

# For each name of `--only`: the module, and the class in this module.
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
    """A program with a Python package.

    `title` is its name in tables, and `package` its name on PyPI. `knobs` are the settings of a
    search, from the fastest to the most exact. An engine `on_storage` reads its files during
    searches. Several engines may use the same `files`, which are built once.
    """

    title = package = files = None
    knobs = LISTS
    on_storage = False

    def __init__(self, job):
        self.job, self.path, self.metric, self.dim = job, job["path"], job["metric"], job["dim"]
        self.prepare()

    def prepare(self):
        """Imports the package, before memory and time are measured."""

    def build(self, base):
        """Builds the files at `self.path` from a `vectors.Rows`, with two threads."""
        raise NotImplementedError

    def open(self):
        """Loads or opens the files."""
        raise NotImplementedError

    def search(self, query, knob):
        """The ids of the K results of one query, on one thread if the program has such a setting.
        """
        raise NotImplementedError

    def search_all(self, queries, knob):
        """The ids of the results of all queries, on two threads. If the program has no call for
        many queries, two threads of Python call `search`.
        """
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
            raise RuntimeError("a thread stopped before its last query. Its error is printed above")
        return found

    def reads(self):
        """The reads from storage per query in the last `search_all`. None if the program has no
        counter.
        """
        return None

    def said(self, knob):
        return f"{knob}"

    @classmethod
    def version(cls):
        return importlib.metadata.version(cls.package)
