"""Live recall: some of the queries that an index served are answered exactly."""

import os
import pickle
import threading
import time

import numpy
import pytest

import stratann


@pytest.fixture
def two_thousand(tmp_path, small):
    """The folder of an index that a test may change."""
    path = tmp_path / "changed.idx"
    stratann.build(small, path, degree=16, build_list=40, threads=1)
    return path


def measured_by_hand(rows, ids, queries, found):
    """The mean recall of answers, by all rows."""
    hits = 0
    for query, answers in zip(queries, found):
        distances = ((rows.astype(numpy.int64) - query.astype(numpy.int64)) ** 2).sum(axis=1)
        kth = numpy.sort(distances)[len(answers) - 1]
        hits += len(set(ids[distances <= kth]) & set(answers.tolist()))
    return hits / found.size


def test_what_is_measured_is_what_all_rows_say(photos, queries, photos_truth):
    index = stratann.open(photos, watch_recall=100)
    some = queries[:100]
    assert index.stats()["live_recall"]["last"] is None
    # Answers of best-first searches do not depend on the order in which reads come in.
    found, distances = index.search(some, 10, list_size=12, strategy="best-first")
    until = time.monotonic() + 300
    while index.stats()["live_recall"]["passes"] == 0 and time.monotonic() < until:
        time.sleep(0.01)
    told = index.stats()["live_recall"]
    truth_ids, truth_distances = photos_truth
    expected = numpy.mean(
        [(row <= kth).mean() for row, kth in zip(distances, truth_distances[:100, 9])]
    )
    assert told["last"]["found"] == pytest.approx(expected) and expected < 1
    assert (told["last"]["queries"], told["last"]["k"], told["last"]["asked"]) == (100, 10, None)
    assert told["passes"] == 1 and told["error"] is None and told["sample"] == 100


def test_a_sample_goes_on_through_changes_and_a_close(two_thousand, small, base, queries):
    index = stratann.open(two_thousand, watch_recall=1000, merges=False)
    some = queries[:50]
    with index:
        index.insert(base[2000:2100], numpy.arange(5000, 5100))
        index.delete(numpy.arange(0, 2000, 5))
        # The second time searches know which nodes are deleted, and go on by that.
        for _ in range(2):
            found, _ = index.search(some, 10, list_size=12, strategy="best-first", whole_page=False)
            told = index.measure_recall()
        ids = numpy.concatenate([numpy.arange(2000), numpy.arange(5000, 5100)])
        rows, live = base[:2100], ~((ids < 2000) & (ids % 5 == 0))
        expected = measured_by_hand(rows[live], ids[live], some, found)
        assert told["last"]["found"] == pytest.approx(expected)
        index.search(some, 5, recall=0.9)
    # What was served before the close is measured behind it.
    assert index.stats()["live_recall"]["waiting"] == 50
    told = index.measure_recall()
    assert told["last"]["asked"] == 0.9 and told["last"]["queries"] == 50
    assert told["all"]["queries"] == 150 and told["all"]["k"] is None
    assert told == index.stats()["live_recall"]
    # Objects that change a folder together are opened alike.
    with index:
        index.delete([1])
        with pytest.raises(stratann.InUseError, match="watch_recall=None"):
            stratann.open(two_thousand, merges=False).delete([2])


def test_without_a_watch_there_is_nothing_to_measure(photos, queries):
    index = stratann.open(photos)
    index.search(queries[:3])
    assert index.stats()["live_recall"] is None
    with pytest.raises(ValueError, match="watch_recall is not given"):
        index.measure_recall()
    for wrong in [0, 1001]:
        with pytest.raises(ValueError, match="queries of watch_recall"):
            stratann.open(photos, watch_recall=wrong)
    with pytest.raises(TypeError, match="watch_recall"):
        stratann.open(photos, watch_recall="all")


def test_it_is_not_carried_to_other_processes(photos, queries):
    index = stratann.open(photos, watch_recall=10)
    index.search(queries[:3])
    assert pickle.loads(pickle.dumps(index)).stats()["live_recall"] is None
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            with pytest.raises(stratann.StratannError, match="forked"):
                index.measure_recall()
            # It must not wait for a thread that is not here.
            del index
            said = "gone"
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert said == "gone"
    assert index.measure_recall()["last"]["queries"] == 3


def test_searches_of_many_threads_are_sampled_and_measured(photos, queries):
    index = stratann.open(photos, watch_recall=20)

    def search(first):
        for row in range(first, first + 50):
            index.search(queries[row], 10)

    threads = [threading.Thread(target=search, args=(first,)) for first in (0, 50, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until = time.monotonic() + 300
    while index.stats()["live_recall"]["passes"] == 0 and time.monotonic() < until:
        time.sleep(0.01)
    told = index.measure_recall()
    assert told["error"] is None and told["thrown_away"] == 0
    assert 0.9 < told["all"]["found"] <= 1 and told["all"]["queries"] >= 20
