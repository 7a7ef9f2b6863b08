"""Exact results, and recall."""

import numpy
import pytest

import stratann


def test_truth_is_the_fixtures_truth(base, queries, truth):
    ids, distances = stratann.truth(base, queries[:100], 100)
    assert ids.dtype == numpy.uint64 and distances.dtype == numpy.float32
    numpy.testing.assert_array_equal(ids, truth[0][:100])
    numpy.testing.assert_array_equal(distances, truth[1][:100])


def test_truth_of_files(fixtures, truth):
    ids, distances = stratann.truth(
        fixtures / "photo-sift-20k.base.u8bin", fixtures / "photo-sift-20k.query.u8bin", k=10
    )
    numpy.testing.assert_array_equal(ids, truth[0][:, :10])
    numpy.testing.assert_array_equal(distances, truth[1][:, :10])


def test_of_fewer_rows_than_are_wanted_there_are_all(small, queries, tmp_path):
    ids, distances = stratann.truth(small[:20], queries[:5], 30)
    whole = stratann.truth(small[:20], queries[:5], 20)
    numpy.testing.assert_array_equal(ids[:, :20], whole[0])
    numpy.testing.assert_array_equal(distances[:, :20], whole[1])
    assert (ids[:, 20:] == 2**64 - 1).all() and numpy.isinf(distances[:, 20:]).all()
    # A search returns rows of the same form: after a build, after changes, and through a catalog.
    index = stratann.build(small[:20], tmp_path / "few", degree=8, build_list=16)
    catalog = stratann.Catalog(tmp_path)
    found = index.search(queries[:5], 30)
    for other in [found, catalog.search(queries[:5], 30), stratann.open(tmp_path / "few").search(queries[:5], 30)]:
        numpy.testing.assert_array_equal(other[0], ids)
        numpy.testing.assert_array_equal(other[1], distances)
    assert stratann.recall(found, (ids, distances)) == 1.0
    index.insert(small[20:22])
    more = stratann.truth(small[:22], queries[:5], 30)
    numpy.testing.assert_array_equal(index.search(queries[:5], 30)[0], more[0])
    lists = stratann.to_lists(*found)
    assert [len(answers) for answers in lists] == [20] * 5
    assert lists[3] == list(zip(ids[3, :20].tolist(), distances[3, :20].tolist()))


def test_truth_under_cosine(fixtures):
    exact = stratann.read(fixtures / "package-text-2k.truth100.bin")
    ids, distances = stratann.truth(
        fixtures / "package-text-2k.base.fbin", fixtures / "package-text-2k.query.fbin", metric="cosine"
    )
    numpy.testing.assert_allclose(distances, exact[1], atol=2e-6)
    assert (ids == exact[0]).mean() > 0.99


@pytest.mark.parametrize(
    ("k", "metric", "text"),
    [(0, "l2", "k"), (65_537, "l2", "65537"), (10, "manhattan", "manhattan")],
)
def test_wrong_arguments_are_refused(k, metric, text, base, queries):
    with pytest.raises(ValueError, match=text):
        stratann.truth(base, queries, k, metric)


def test_queries_of_another_kind_are_refused(base, queries):
    with pytest.raises(ValueError, match="no uint8"):
        stratann.truth(base, queries + 0.5, 10)
    with pytest.raises((ValueError, stratann.StratannError)):
        stratann.truth(base, queries[:, :64].copy(), 10)


def test_recall_counts():
    truth = (numpy.array([[1, 2, 3, 4], [5, 6, 7, 8]]), numpy.array([[1, 2, 3, 4], [1, 2, 3, 4]], numpy.float32))
    assert stratann.recall(truth, truth) == 1
    found = (numpy.array([[1, 2, 9], [5, 9, 10]]), numpy.array([[1, 2, 5], [1, 5, 6]], numpy.float32))
    assert stratann.recall(found, truth) == pytest.approx(3 / 6)
    assert stratann.recall(found, truth, k=1) == 1
    assert stratann.recall(found, truth, k=2) == pytest.approx(3 / 4)


def test_a_tie_counts_as_found():
    truth = (numpy.array([[1, 2]]), numpy.array([[1, 2]], numpy.float32))
    found = (numpy.array([[1, 30]], numpy.uint64), numpy.array([[1, 2]], numpy.float32))
    assert stratann.recall(found, truth) == 1


def test_truth_without_distances_counts_ids():
    found = (numpy.array([[1, 30]]), numpy.array([[1, 2]]))
    assert stratann.recall(found, (numpy.array([[1, 2]]), None)) == 0.5


def test_recall_of_one_query():
    row = (numpy.array([1, 2]), numpy.array([1.0, 2.0]))
    assert stratann.recall(row, row) == 1


@pytest.mark.parametrize("k", [0, 3])
def test_recall_of_more_than_there_is_is_refused(k):
    row = (numpy.array([[1, 2]]), numpy.array([[1.0, 2.0]]))
    with pytest.raises(ValueError, match=f"k={k}"):
        stratann.recall(row, row, k)


def test_recall_of_different_queries_is_refused():
    one = (numpy.array([[1, 2]]), numpy.array([[1.0, 2.0]]))
    two = (numpy.array([[1, 2]] * 2), numpy.array([[1.0, 2.0]] * 2))
    with pytest.raises(ValueError, match="queries"):
        stratann.recall(one, two)
