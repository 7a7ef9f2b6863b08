"""hnswlib: HNSW in memory, over 32-bit floats."""

import numpy

from . import EF_CONSTRUCTION, K, M, Engine


class Hnswlib(Engine):
    title, package, files = "hnswlib", "hnswlib", "hnswlib"

    def prepare(self):
        import hnswlib

        self.library = hnswlib

    def build(self, base):
        index = self.library.Index(space=self.metric, dim=self.dim)
        index.init_index(len(base), ef_construction=EF_CONSTRUCTION, M=M)
        for first, piece in base.pieces():
            index.add_items(piece, numpy.arange(first, first + len(piece)), num_threads=2)
        index.save_index(self.path)

    def open(self):
        self.index = self.library.Index(space=self.metric, dim=self.dim)
        self.index.load_index(self.path)

    def search(self, query, knob):
        self.index.set_ef(knob)
        return self.index.knn_query(query, k=K, num_threads=1)[0][0].tolist()

    def search_all(self, queries, knob):
        self.index.set_ef(knob)
        return self.index.knn_query(queries, k=K, num_threads=2)[0].tolist()

    def said(self, knob):
        return f"ef={knob}"
