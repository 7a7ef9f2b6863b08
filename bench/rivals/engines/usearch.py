"""usearch: HNSW in memory, over 16-bit floats (bf16), which represent integers up to 256 exactly.
"""

import numpy

from . import EF_CONSTRUCTION, K, M, Engine

METRICS = {"l2": "l2sq", "cosine": "cos", "ip": "ip"}


class Usearch(Engine):
    title, package, files = "usearch, bf16", "usearch", "usearch"

    def prepare(self):
        import usearch.index

        self.library = usearch.index

    def made(self):
        return self.library.Index(
            ndim=self.dim, metric=METRICS[self.metric], dtype="bf16", connectivity=M, expansion_add=EF_CONSTRUCTION
        )

    def build(self, base):
        index = self.made()
        for first, piece in base.pieces():
            index.add(numpy.arange(first, first + len(piece)), piece, threads=2)
        index.save(self.path)

    def open(self):
        self.index = self.made()
        self.index.load(self.path)

    def search(self, query, knob):
        self.index.expansion_search = knob
        return self.index.search(query, K, threads=1).keys.tolist()

    def search_all(self, queries, knob):
        self.index.expansion_search = knob
        return self.index.search(queries, K, threads=2).keys.tolist()

    def said(self, knob):
        return f"expansion_search={knob}"
