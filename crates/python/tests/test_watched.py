"""Live recall, from exact results for a sample of queries."""

import asyncio
import os
import pickle
import threading
import time

import numpy
import pytest

import stratann


@pytest.fixture
def two_thousand(tmp_path, small):
    path = tmp_path / "changed.idx"
    stratann.build(small, path, degree=16, build_list=40, threads=1)
    return path


def until_measured(index, samples):
    """Waits until the thread has measured this many samples."""
    until = time.monotonic() + 300
    while index.stats()["live_recall"]["samples_measured"] < samples and time.monotonic() < until:
        time.sleep(0.01)
    assert index.stats()["live_recall"]["samples_measured"] >= samples


def measured_by_hand(rows, ids, queries, found):
    """The mean recall of results, by brute force."""
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
    # Best-first results do not depend on the order of reads.
    found, distances = index.search(some, 10, list_size=12, strategy="best-first")
    until_measured(index, 1)
    told = index.stats()["live_recall"]
    truth_ids, truth_distances = photos_truth
    expected = numpy.mean(
        [(row <= kth).mean() for row, kth in zip(distances, truth_distances[:100, 9])]
    )
    assert told["last"]["found"] == pytest.approx(expected) and expected < 1
    assert (told["last"]["queries"], told["last"]["k"], told["last"]["asked"]) == (100, 10, None)
    assert told["samples_measured"] == 1 and told["error"] is None and told["sample"] == 100


def test_a_sample_goes_on_through_changes_and_a_close(two_thousand, small, base, queries):
    index = stratann.open(two_thousand, watch_recall=1000, merges=False)
    some = queries[:50]
    with index:
        index.insert(base[2000:2100], numpy.arange(5000, 5100))
        index.delete(numpy.arange(0, 2000, 5))
        # The second measurement knows which nodes are deleted.
        for _ in range(2):
            found, _ = index.search(some, 10, list_size=12, strategy="best-first", whole_page=False)
            told = index.measure_recall()
        ids = numpy.concatenate([numpy.arange(2000), numpy.arange(5000, 5100)])
        rows, live = base[:2100], ~((ids < 2000) & (ids % 5 == 0))
        expected = measured_by_hand(rows[live], ids[live], some, found)
        assert told["last"]["found"] == pytest.approx(expected)
        index.search(some, 5, recall=0.9)
    # Queries from before the close are measured after it.
    assert index.stats()["live_recall"]["waiting"] == 50
    told = index.measure_recall()
    assert told["last"]["asked"] == 0.9 and told["last"]["queries"] == 50
    assert told["all"]["queries"] == 150 and told["all"]["k"] is None
    assert told == index.stats()["live_recall"]
    # Objects that change a folder together may have different samples.
    with index:
        index.delete([1])
        with stratann.open(two_thousand, merges=False) as other:
            other.delete([2])
            assert other.stats()["live_recall"] is None


def test_objects_of_one_folder_have_samples_of_their_own(two_thousand, base, queries, another_process):
    first = stratann.open(two_thousand, watch_recall=20)
    second = stratann.open(two_thousand, watch_recall=20)
    with first:
        first.insert(base[2000:2010], numpy.arange(5000, 5010))
    # The sample of the first object contains only its own searches.
    second.search(queries[:7])
    assert first.stats()["live_recall"]["waiting"] == 0
    assert second.stats()["live_recall"]["waiting"] == 7
    # The first object opens the folder again, with another measuring thread, and is freed.
    another_process(two_thousand, "index.delete([3]); index.close()")
    first.refresh()
    del first
    second.search(queries[:20])
    until_measured(second, 1)
    assert second.stats()["live_recall"]["all"]["queries"] == 20


@pytest.mark.parametrize("watch_recall", [None, 20, 30])
def test_a_sample_goes_on_while_another_object_changes_the_folder(two_thousand, base, queries, watch_recall):
    watching = stratann.open(two_thousand, watch_recall=20)
    watching.search(queries[:5], 10, list_size=300)
    other = stratann.open(two_thousand, watch_recall=watch_recall)
    with other:
        other.insert(base[2000:2100], numpy.arange(5000, 5100))
        assert watching.stats()["live_recall"]["waiting"] == 5
        # The other object opened the index that both search now.
        watching.search(queries[:3], 10, list_size=300)
        assert watching.stats()["live_recall"]["waiting"] == 8
        told = watching.measure_recall()
        assert (told["samples_measured"], told["last"]["queries"], told["waiting"]) == (1, 8, 0)
        # In the background too, for both kinds of search.
        watching.search(queries[:10], 10, list_size=300)

        async def search():
            await watching.search_async(queries[:10], 10, list_size=300)

        asyncio.run(search())
        until_measured(watching, 2)
        assert watching.stats()["live_recall"]["all"]["queries"] == 28
        known = other.stats()["live_recall"]
        assert (known is None) == (watch_recall is None)
        if watch_recall is None:
            with pytest.raises(ValueError, match="watch_recall is not given"):
                other.measure_recall()
        watching.search(queries[:4], 10, list_size=300)
    assert watching.stats()["live_recall"]["waiting"] == 4
    watching.search(queries[:4], 10, list_size=300)
    told = watching.measure_recall()
    assert told["last"]["queries"] == 8 and told["all"]["queries"] == 36
    assert told["error"] is None and told["thrown_away"] == 0


def test_searches_of_another_object_are_in_no_sample_of_this_one(two_thousand, base, queries):
    watching = stratann.open(two_thousand, watch_recall=500)
    other = stratann.open(two_thousand)
    with watching:
        # The first object opened the index that both search now, with its sample.
        watching.insert(base[2000:2001], [5000])
        other.search(queries[:40])

        async def search():
            await other.search_async(queries[:10])

        asyncio.run(search())
        assert watching.stats()["live_recall"]["waiting"] == 0
        watching.search(queries[:5])
        assert watching.stats()["live_recall"]["waiting"] == 5
    other.search(queries[:40])
    assert watching.stats()["live_recall"]["waiting"] == 5


def test_a_sample_goes_on_in_an_index_that_is_taken_up_again(two_thousand, base, queries, tmp_path):
    watching = stratann.open(two_thousand, watch_recall=20)
    other = stratann.open(two_thousand)
    other.insert(base[2000:2001], [5000])
    watching.search(queries[:3])
    done = []

    def close_and_change(*_):
        if done:
            return
        # The export still reads the closed index, so the insert uses it again.
        other.close()
        # Meanwhile the folder is open for reading, and is measured there.
        watching.search(queries[:3])
        other.insert(base[2001:2002], [5001])
        watching.search(queries[:14])
        until_measured(watching, 1)
        done.append(True)

    other.export(tmp_path / "all.npy", progress=close_and_change)
    assert done
    assert watching.stats()["live_recall"]["all"]["queries"] == 20
    other.close()


def test_an_object_that_goes_ends_its_measuring_in_an_index_that_stays_open(two_thousand, base, queries):
    def threads():
        names = []
        for task in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.append(file.read().strip())
            except FileNotFoundError:
                pass
        return names.count("stratann-recall")

    before = threads()
    with stratann.open(two_thousand) as other:
        other.insert(base[2000:2001], [5000])
        watching = stratann.open(two_thousand, watch_recall=20)
        watching.search(queries[:1])
        until = time.monotonic() + 300
        while threads() != before + 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert threads() == before + 1
        del watching
        assert threads() == before


def test_an_index_that_was_built_or_created_is_sampled_from_the_beginning(tmp_path, small, queries):
    built = stratann.build(small, tmp_path / "built.idx", degree=16, build_list=40, watch_recall=20)
    made = stratann.create(tmp_path / "made.idx", dimension=128, dtype="uint8", watch_recall=20)
    made.insert(small[:50])
    for index in (built, made):
        index.search(queries[:12], 10, list_size=2000)
        told = index.measure_recall()
        assert (told["last"]["queries"], told["last"]["found"]) == (12, 1.0)
        assert told["sample"] == 20 and index.stats()["live_recall"] == told
    made.close()
    again = stratann.create(tmp_path / "made.idx", dimension=128, dtype="uint8", exist_ok=True, watch_recall=5)
    assert again.stats()["live_recall"]["sample"] == 5
    for wrong in [0, 1001]:
        with pytest.raises(ValueError, match="queries of watch_recall"):
            stratann.build(small, tmp_path / "no.idx", watch_recall=wrong)
        with pytest.raises(ValueError, match="queries of watch_recall"):
            stratann.create(tmp_path / "no.idx", dimension=4, watch_recall=wrong)
    assert not (tmp_path / "no.idx").exists()


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
            # The process must not wait for a missing thread.
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
            index.search(queries[row], 10, list_size=6000)

    threads = [threading.Thread(target=search, args=(first,)) for first in (0, 50, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until_measured(index, 1)
    told = index.measure_recall()
    assert told["error"] is None and told["thrown_away"] == 0
    assert told["all"]["found"] == told["all"]["lowest"] == 1.0
    # All samples but the last were full.
    assert told["all"]["queries"] == 20 * (told["samples_measured"] - 1) + told["last"]["queries"]
    assert told["waiting"] == 0
