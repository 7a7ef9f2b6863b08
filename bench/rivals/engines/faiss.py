"""faiss: HNSW in memory, and IVF-PQ whose results are re-ranked by exact distances."""

import numpy

from . import EF_CONSTRUCTION, K, M, Engine

TRAINED = 64  # rows for each list of an IVF
AGAIN = 10  # so many candidates for each answer are ranked again


class Faiss(Engine):
    package = "faiss-cpu"

    def prepare(self):
        import faiss

        self.library = faiss
        self.distance = faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT

    def unit(self, rows):
        """faiss has the cosine as the product of vectors of unit length."""
        if self.metric == "cosine":
            rows = rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows

    def build(self, base):
        self.library.omp_set_num_threads(2)
        index = self.trained(base)
        for _, piece in base.pieces():
            index.add(self.unit(piece))
        self.library.write_index(index, self.path)

    def open(self):
        self.index = self.library.read_index(self.path)

    def search(self, query, knob):
        self.library.omp_set_num_threads(1)
        return self.index.search(self.unit(query[None]), K, params=self.settings(knob))[1][0].tolist()

    def search_all(self, queries, knob):
        self.library.omp_set_num_threads(2)
        return self.index.search(self.unit(queries), K, params=self.settings(knob))[1].tolist()


class Hnsw(Faiss):
    title, files = "faiss HNSW", "faiss-hnsw"

    def trained(self, base):
        index = self.library.IndexHNSWFlat(self.dim, M, self.distance)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return index

    def settings(self, knob):
        return self.library.SearchParametersHNSW(efSearch=knob)

    def said(self, knob):
        return f"efSearch={knob}"


class Refined(Faiss):
    """4 sqrt(n) lists, codes of half a byte for each two dimensions, and the vectors: 32-bit floats, or
    their bytes where the elements are bytes."""

    title, files = "faiss IVF-PQ, refined", "faiss-ivf"
    knobs = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]

    def trained(self, base):
        lists = round(4 * len(base) ** 0.5)
        index = self.library.index_factory(self.dim, f"IVF{lists},PQ{self.dim // 2}x4fs", self.distance)
        index.train(self.unit(base.sample(lists * TRAINED)))
        if base.type == numpy.uint8:
            whole = self.library.IndexScalarQuantizer(
                self.dim, self.library.ScalarQuantizer.QT_8bit_direct, self.distance
            )
        else:
            whole = self.library.IndexFlat(self.dim, self.distance)
        self.kept = index, whole  # faiss does not hold them
        refined = self.library.IndexRefine(index, whole)
        refined.is_trained = True
        return refined

    def settings(self, knob):
        probes = self.library.SearchParametersIVF(nprobe=knob)
        return self.library.IndexRefineSearchParameters(k_factor=AGAIN, base_index_params=probes)

    def said(self, knob):
        return f"nprobe={knob}"
