"""Merges the search results of several indexes with different vectors."""

from __future__ import annotations

from typing import Any, Sequence

import numpy
from numpy.typing import NDArray

NOTHING = numpy.uint64(2**64 - 1)
"""The id of a missing result, at an infinite distance. No vector has this id."""


def nearest(found: Sequence[tuple[NDArray[Any], NDArray[Any]]], k: int) -> tuple[NDArray[numpy.uint64], NDArray[numpy.float32]]:
    """The `k` nearest vectors of each query: ids, (nq, k) uint64, and distances, (nq, k) float32,
    nearest first.

    `found` has the ids and distances of each index, (nq, any number), for the same queries. At
    equal distances, the smaller id comes first. If several indexes found the same id, it is one
    result, at its smallest distance. If there are fewer than k results, the rest of the row is
    `NOTHING`.
    """
    ids = numpy.concatenate([ids for ids, _ in found], axis=1).astype(numpy.uint64, copy=False)
    distances = numpy.concatenate([distances for _, distances in found], axis=1).astype(numpy.float32, copy=False)
    ids, distances = _sorted(ids, distances)
    again = _again(ids)
    if again.any():
        ids, distances = _sorted(numpy.where(again, NOTHING, ids), numpy.where(again, numpy.float32(numpy.inf), distances))
    missing = ((0, 0), (0, max(k - ids.shape[1], 0)))
    ids = numpy.pad(ids[:, :k], missing, constant_values=NOTHING)
    return ids, numpy.pad(distances[:, :k], missing, constant_values=numpy.float32(numpy.inf))


def _sorted(ids: NDArray[Any], distances: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sorts each row by distance, then by id. So missing results come last."""
    order = numpy.lexsort((ids, distances), axis=1)
    return numpy.take_along_axis(ids, order, axis=1), numpy.take_along_axis(distances, order, axis=1)


def _again(ids: NDArray[Any]) -> NDArray[Any]:
    """Marks each id that also appears farther left in its row."""
    order = numpy.argsort(ids, axis=1, kind="stable")
    by_id = numpy.take_along_axis(ids, order, axis=1)
    repeated = numpy.zeros(ids.shape, bool)
    repeated[:, 1:] = (by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] != NOTHING)
    again = numpy.empty_like(repeated)
    numpy.put_along_axis(again, order, repeated, axis=1)
    return again
