"""Merged results of several indexes, as in `stratann.ray` and `bench/shards.py`."""

import numpy

import stratann
from stratann.merging import NOTHING, nearest


def found(*rows):
    """Ids and distances of an index, from the pairs of each query."""
    ids = numpy.array([[id for id, _ in row] for row in rows], numpy.uint64)
    return ids, numpy.array([[distance for _, distance in row] for row in rows], numpy.float32)


def merged(parts, k):
    ids, distances = nearest(parts, k)
    assert ids.dtype == numpy.uint64 and distances.dtype == numpy.float32
    return [[(int(id), float(distance)) for id, distance in zip(*row)] for row in zip(ids, distances)]


def test_the_nearest_of_all_come_first_and_on_equal_distance_the_smaller_id():
    a = found([(7, 1.0), (3, 2.0), (9, 4.0)], [(1, 0.0), (2, 0.5), (3, 9.0)])
    b = found([(5, 1.0), (4, 3.0), (8, 3.5)], [(6, 0.5), (8, 0.5), (4, 0.75)])
    assert merged([a, b], 3) == [[(5, 1.0), (7, 1.0), (3, 2.0)], [(1, 0.0), (2, 0.5), (6, 0.5)]]
    assert merged([b, a], 3) == merged([a, b], 3)


def test_an_id_that_several_have_is_one_answer_at_its_least_distance():
    a = found([(7, 1.0), (3, 2.0)])
    b = found([(3, 1.5), (7, 1.0)])
    c = found([(7, 3.0), (4, 4.0)])
    assert merged([a, b, c], 3) == [[(7, 1.0), (3, 1.5), (4, 4.0)]]


def test_where_there_are_fewer_than_k_the_rest_is_nothing():
    nothing = (int(NOTHING), float("inf"))
    a = found([(7, 1.0), nothing])
    b = found([(3, 0.5)])
    assert merged([a, b], 2) == [[(3, 0.5), (7, 1.0)]]
    assert merged([a, b], 4) == [[(3, 0.5), (7, 1.0), nothing, nothing]]
    # Two missing results do not count as a repeated one. A repeated result leaves a place empty.
    assert merged([a, a], 3) == [[(7, 1.0), nothing, nothing]]
    empty = (numpy.empty((1, 0), numpy.uint64), numpy.empty((1, 0), numpy.float32))
    assert merged([empty, b], 2) == [[(3, 0.5), nothing]]


def test_parts_of_a_collection_have_what_all_of_it_has(small, queries):
    whole = stratann.truth(small, queries, 10)
    parts = []
    for first in (0, 500, 1100):
        part = small[first : {0: 500, 500: 1100, 1100: 2000}[first]]
        ids, distances = stratann.truth(part, queries, 10)
        parts.append((ids + numpy.uint64(first), distances))
    for ours, theirs in zip(nearest(parts, 10), whole):
        numpy.testing.assert_array_equal(ours, theirs)
