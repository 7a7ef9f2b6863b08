"""LanceDB: HNSW over codes of 8 bits per dimension on storage, with candidates re-ranked by
vectors.
"""

from . import EF_CONSTRUCTION, K, M, Engine

AGAIN = 2  # re-ranked candidates per result


class Lance(Engine):
    title, package, files = "LanceDB IVF_HNSW_SQ", "lancedb", "lancedb"
    knobs = [20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 240, 320, 480, 640, 960, 1280]
    on_storage = True

    def prepare(self):
        import lancedb
        import lancedb.index
        import pyarrow

        self.library, self.arrow = lancedb, pyarrow

    def build(self, base):
        arrow = self.arrow
        kind = arrow.list_(arrow.float32(), self.dim)
        schema = arrow.schema([("id", arrow.int64()), ("vector", kind)])

        def pieces():
            for first, piece in base.pieces():
                ids = arrow.array(range(first, first + len(piece)), arrow.int64())
                vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(piece.ravel()), self.dim)
                yield arrow.record_batch([ids, vectors], schema=schema)

        table = self.library.connect(self.path).create_table("rows", pieces(), schema=schema)
        kinds = self.library.index
        table.create_index("vector", config=kinds.HnswSq(self.metric, m=M, ef_construction=EF_CONSTRUCTION))

    def open(self):
        self.table = self.library.connect(self.path).open_table("rows")

    def search(self, query, knob):
        asked = self.table.search(query).distance_type(self.metric).ef(knob).refine_factor(AGAIN)
        return asked.select(["id", "_distance"]).limit(K).to_arrow()["id"].to_pylist()

    def said(self, knob):
        return f"ef={knob}"
