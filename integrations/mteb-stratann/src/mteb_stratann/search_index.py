"""A search index of MTEB's encoders, on disk.

    model = mteb.get_model("...")
    index = StratannSearchIndex(model, memory="256MiB", recall=0.99)
    mteb.evaluate(SearchEncoderWrapper(model, index_backend=index), tasks)
"""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import stratann
from mteb.models.model_meta import ScoringFunction
from numpy.typing import NDArray

log = logging.getLogger(__name__)

_METRICS = {ScoringFunction.COSINE: "cosine", ScoringFunction.DOT_PRODUCT: "ip", ScoringFunction.EUCLIDEAN: "l2"}
_NO_ID = 2**64 - 1


class StratannSearchIndex:
    """The corpus of a task as an index on disk. A search finds documents of the whole corpus, or
    re-ranks given documents.

    Args:
        model: The encoder. Its similarity must be the cosine, the inner product or the Euclidean
        distance.
        path: A folder for the index. None is a temporary folder. `clear`, which MTEB calls after
        each search, removes the folder.
        memory: The maximum memory of searches, in bytes or as a text ("64MiB"). None is no cap.
        build: Arguments of `stratann.build`, such as `{"degree": 64}`.
        search: Arguments of `stratann.Index.search`: recall, list_size, ... Scores are exact unless
        `exact=False` is given.

    Scores are the cosine, the inner product, or minus the Euclidean distance.
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        memory: int | str | None = None,
        build: Mapping[str, Any] | None = None,
        **search: Any,
    ) -> None:
        similarity = model.mteb_model_meta.similarity_fn_name
        if similarity not in _METRICS:
            raise ValueError(f"the model's similarity is {similarity}; StratANN has {', '.join(_METRICS)}. Use a model with one of these")
        self._metric = _METRICS[similarity]
        self._path = None if path is None else pathlib.Path(path)
        self._memory = memory
        self._build = dict(build or {})
        self._search = search
        self._folder: pathlib.Path | None = None
        self._index: stratann.Index | None = None
        self._positions: dict[str, int] = {}
        self._count = 0

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Adds documents. The first call builds the index; later calls insert into the index."""
        rows = _rows(embeddings)
        if len(rows) != len(idxs):
            raise ValueError(f"there are {len(rows)} embeddings and {len(idxs)} ids. Pass one of each for a document")
        if not len(rows):
            return
        if self._index is None:
            self._folder = self._path or pathlib.Path(tempfile.mkdtemp(prefix="mteb-stratann-"))
            # The build measures the recall of list sizes only if searches will use `recall`.
            options = {"calibrate": "recall" in self._search, **self._build}
            stratann.build(rows, self._folder / "index", metric=self._metric, **options)
            self._index = stratann.open(self._folder / "index", memory=self._memory)
        else:
            self._index.insert(rows, numpy.arange(self._count, self._count + len(rows)))
        for at, id in enumerate(idxs, self._count):
            self._positions[id] = at
        self._count += len(rows)
        log.info("%d documents in %s", self._count, self._folder)

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[[Any, Any], Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Returns for each query the scores, largest first, and the positions of the documents. A
        position is the number of a document in the order in which documents were added. With
        `top_ranked`, a position is the position in the query's list.

        `similarity_fn` is not called, because the index uses the metric of the model.
        """
        if self._index is None:
            raise ValueError("there are no documents to search. Call add_documents first")
        queries = _rows(embeddings)
        if top_ranked is not None:
            if query_idx_to_id is None:
                raise ValueError("top_ranked needs query_idx_to_id, which maps positions of queries to their ids. Pass both")
            return self._ranked_anew(queries, top_k, top_ranked, query_idx_to_id)
        k = min(top_k, self._count)
        # MTEB asks for a thousand documents, and a list size must be at least that number.
        options = {**self._search, "list_size": max(self._search["list_size"], k)} if "list_size" in self._search else self._search
        ids, distances = self._index.search(queries, k, **options)
        found = ids != _NO_ID
        scores = self._scores(distances)
        return [row[known].tolist() for row, known in zip(scores, found)], [row[known].tolist() for row, known in zip(ids, found)]

    def _ranked_anew(
        self, queries: NDArray[numpy.float32], top_k: int, top_ranked: Mapping[str, Sequence[str]], query_idx_to_id: Mapping[int, str]
    ) -> tuple[list[list[float]], list[list[int]]]:
        assert self._index is not None
        all_scores: list[list[float]] = []
        all_places: list[list[int]] = []
        for at, query in enumerate(queries):
            ranked = top_ranked.get(query_idx_to_id[at])
            if not ranked:
                warnings.warn(f"top_ranked has no documents of the query {query_idx_to_id[at]!r}, so its results are empty", stacklevel=3)
                all_scores.append([])
                all_places.append([])
                continue
            rows = self._index.get([self._positions[id] for id in ranked]).vectors
            scores = self._scores(_distances(rows.astype(numpy.float32), query, self._metric))
            best = numpy.argsort(-scores, kind="stable")[:top_k]
            all_scores.append(scores[best].tolist())
            all_places.append(best.tolist())
        return all_scores, all_places

    def _scores(self, distances: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
        if self._metric == "cosine":
            return 1 - distances
        return -distances if self._metric == "ip" else -numpy.sqrt(numpy.maximum(distances, 0))

    def clear(self) -> None:
        """Removes the index and its folder."""
        if self._index is not None:
            self._index.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._index, self._folder, self._positions, self._count = None, None, {}, 0


def _rows(embeddings: Any) -> NDArray[numpy.float32]:
    """Embeddings of numpy or torch, on any device, as (n, d) float32."""
    if hasattr(embeddings, "detach"):
        embeddings = embeddings.detach().cpu().float().numpy()
    return numpy.ascontiguousarray(embeddings, numpy.float32)


def _distances(rows: NDArray[numpy.float32], query: NDArray[numpy.float32], metric: str) -> NDArray[numpy.float32]:
    if metric == "l2":
        squared: NDArray[numpy.float32] = numpy.square(rows - query).sum(axis=1)
        return squared
    products: NDArray[numpy.float32] = rows @ query
    if metric == "cosine":
        products = products / (numpy.linalg.norm(rows, axis=1) * numpy.linalg.norm(query))
        return numpy.float32(1) - products
    return -products
