"""StratANN for VectorDBBench.

Inserted vectors are appended to one file, and their ids and labels to another file. `optimize`
builds the index from these files. Any number of threads and processes can then search the index. If
a case inserts vectors after `optimize` (streaming), only one process can insert.
"""

import json
import logging
import pathlib
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy
import stratann

from vectordb_bench.backend.filter import Filter, FilterOp

from ..api import VectorDB
from .config import StratannIndexConfig

log = logging.getLogger(__name__)

NO_ID = 2**64 - 1


class Stratann(VectorDB):
    supported_filter_types: list[FilterOp] = [FilterOp.NonFilter, FilterOp.NumGE, FilterOp.StrEqual]
    thread_safe: bool = True
    name: str = "StratANN"

    def __init__(
        self,
        dim: int,
        db_config: dict,
        db_case_config: StratannIndexConfig,
        collection_name: str = "vector_bench_test",
        drop_old: bool = False,
        with_scalar_labels: bool = False,
        **kwargs: Any,
    ) -> None:
        self.dim = dim
        self.case_config = db_case_config
        self.with_scalar_labels = with_scalar_labels
        self.folder = pathlib.Path(db_config["path"]).absolute() / collection_name
        self.wanted: str | None = None
        self.index: stratann.Index | None = None
        self._lock = threading.Lock()
        if drop_old:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __getstate__(self) -> dict:
        # A copy of this object in another process must open the index again.
        return {name: value for name, value in self.__dict__.items() if name not in ("index", "_lock")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state, index=None, _lock=threading.Lock())

    @contextmanager
    def init(self) -> Generator[None, None, None]:
        self._open()
        try:
            yield
        finally:
            if self.index is not None:
                self.index.close()
            self.index = None

    def _open(self) -> None:
        if (self.folder / "index").exists():
            self.index = stratann.open(self.folder / "index", memory=self.case_config.memory)

    def insert_embeddings(
        self,
        embeddings: list[list[float]],
        metadata: list[int],
        labels_data: list[str] | None = None,
        **kwargs: Any,
    ) -> tuple[int, Exception | None]:
        try:
            vectors = numpy.ascontiguousarray(embeddings, numpy.float32).reshape(-1, self.dim)
            labels = labels_data if self.with_scalar_labels else None
            if self.index is not None:
                self.index.insert(vectors, metadata, attributes=self._attributes(metadata, labels))
            else:
                self._append(vectors, metadata, labels)
        except Exception as error:  # noqa: BLE001: the benchmark expects the exception as a result
            log.warning(f"{self.folder}: {len(metadata)} vectors were not inserted: {error}")
            return 0, error
        return len(metadata), None

    @staticmethod
    def _attributes(ids: list[int], labels: list[str] | None) -> dict[str, list]:
        return {"id": list(map(int, ids)), **({} if labels is None else {"label": list(labels)})}

    def _append(self, vectors: numpy.ndarray, ids: list[int], labels: list[str] | None) -> None:
        # Several threads insert at once. The lock gives a batch the same position in both files.
        with self._lock, (self.folder / "rows").open("ab") as rows, (self.folder / "beside").open("a") as beside:
            vectors.tofile(rows)
            json.dump(self._attributes(ids, labels), beside)
            beside.write("\n")

    def optimize(self, data_size: int | None = None) -> None:
        if self.index is not None:
            self.index.flush()
            return
        beside = self.folder / "beside"
        beside.touch()
        with beside.open() as lines:
            batches = list(map(json.loads, lines))
        if not batches:
            msg = f"{self.folder}: no vectors were inserted, so nothing can be searched. Insert vectors first"
            raise RuntimeError(msg)
        attributes = {name: [value for batch in batches for value in batch[name]] for name in batches[0]}
        rows = numpy.memmap(self.folder / "rows", numpy.float32, "r").reshape(-1, self.dim)
        if len(rows) != len(attributes["id"]):
            msg = f"{self.folder}: there are {len(rows)} vectors and {len(attributes['id'])} ids; an insert failed half-way. Begin again with drop_old"
            raise RuntimeError(msg)
        # The build measures the recall of list sizes only if searches will use `recall`.
        options = {"calibrate": self.case_config.recall is not None, **self.case_config.index_param()}
        stratann.build(rows, self.folder / "index", ids=attributes["id"], attributes=attributes, **options)
        for name in ("rows", "beside"):
            (self.folder / name).unlink()
        self._open()

    def prepare_filter(self, filters: Filter) -> None:
        if filters.type == FilterOp.NonFilter:
            self.wanted = None
        elif filters.type == FilterOp.NumGE:
            self.wanted = f"id >= {filters.int_value}"
        elif filters.type == FilterOp.StrEqual:
            self.wanted = f"label == {json.dumps(filters.label_value)}"
        else:
            msg = f"the filter is {filters}; StratANN's client has {', '.join(self.supported_filter_types)}. Use one of these"
            raise ValueError(msg)

    def search_embedding(self, query: list[float], k: int = 100, **kwargs: Any) -> list[int]:
        if self.index is None:
            msg = f"{self.folder}: there is no index yet. Call optimize first, which builds it"
            raise RuntimeError(msg)
        ids, _ = self.index.search(query, k, filter=self.wanted, threads=1, **self.case_config.search_param())
        return ids[ids != NO_ID].tolist()
