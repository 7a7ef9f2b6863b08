"""Qdrant's engine in this process (`qdrant-edge-py`): HNSW over codes of 8 bits per dimension in
memory, with candidates re-ranked by vectors. It has one segment, and a search uses one thread.
"""

from . import EF_CONSTRUCTION, K, M, Engine

METRICS = {"l2": "Euclid", "cosine": "Cosine", "ip": "Dot"}


class Qdrant(Engine):
    title, package, files = "Qdrant Edge, int8, re-ranked", "qdrant-edge-py", "qdrant"
    on_storage = True

    def prepare(self):
        import qdrant_edge

        self.library = qdrant_edge

    def configured(self):
        library = self.library
        graph = library.HnswIndexConfig(m=M, ef_construct=EF_CONSTRUCTION, full_scan_threshold=10_000, max_indexing_threads=2)
        codes = library.ScalarQuantizationConfig(library.ScalarType.Int8, quantile=0.99, always_ram=True)
        vectors = library.EdgeVectorParams(self.dim, getattr(library.Distance, METRICS[self.metric]))
        # max_segment_size and indexing_threshold are in kilobytes.
        one = library.EdgeOptimizersConfig(default_segment_number=1, max_segment_size=1 << 30, indexing_threshold=1)
        return library.EdgeConfig(
            vectors, hnsw_config=graph, quantization_config=codes, optimizers=one, max_search_threads=1, wal_enabled=False
        )

    def build(self, base):
        library = self.library
        shard = library.EdgeShard.create(self.path, self.configured())
        for first, piece in base.pieces(2_000):
            points = [library.Point(first + at, row.tolist()) for at, row in enumerate(piece)]
            shard.update(library.UpdateOperation.upsert_points(points))
        shard.flush()
        while shard.optimize():
            pass
        shard.flush()
        shard.close()

    def open(self):
        self.shard = self.library.EdgeShard.load(self.path, self.configured())

    def search(self, query, knob):
        library = self.library
        again = library.QuantizationSearchParams(rescore=True, oversampling=2.0)
        params = library.SearchParams(hnsw_ef=knob, quantization=again)
        nearest = library.Query.Nearest(query.tolist())
        return [point.id for point in self.shard.search(library.SearchRequest(nearest, K, params=params))]

    def said(self, knob):
        return f"hnsw_ef={knob}"
