"""StratANN from Python with its defaults, with and without a cap on the memory of searches. Without
a cap, only the codes are in memory, and searches read all other parts.
"""

import process

from . import K, Engine


class Stratann(Engine):
    package, files = "stratann", "stratann"
    on_storage = True
    cap = None  # bytes

    @property
    def title(self):
        return f'StratANN, memory="{self.cap / 1e6:.0f}MB"' if self.cap else "StratANN, no cap"

    def prepare(self):
        import stratann

        self.library = stratann

    def build(self, base):
        self.library.build(base.path, self.path, metric=self.metric, threads=2, overwrite=True).close()

    def open(self):
        self.index = self.library.open(self.path, memory=self.cap)

    def search(self, query, knob):
        return self.index.search(query, K, list_size=knob, threads=1, in_flight=1)[0].tolist()

    def search_all(self, queries, knob):
        ids, _, stats = self.index.search(queries, K, list_size=knob, threads=2, return_stats=True)
        self.per_query = stats["per_query"]
        return ids.tolist()

    def reads(self):
        return self.per_query["graph_reads"] + self.per_query["vector_reads"]

    def said(self, knob):
        return f"list_size={knob}"


class Less(Stratann):
    @property
    def cap(self):
        return self.job["memory"][0]


class More(Stratann):
    @property
    def cap(self):
        return self.job["memory"][1]


class Whole(Stratann):
    """StratANN with a cap that suffices for the whole index and the program."""

    title = "StratANN, whole index in memory"

    @property
    def cap(self):
        return 2 * process.size(self.path) + 64_000_000
