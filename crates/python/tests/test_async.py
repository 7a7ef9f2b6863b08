"""Searches that an event loop awaits."""

import asyncio
import gc
import os
import signal

import numpy
import pytest

import stratann


def test_many_searches_are_awaited_at_once(index, queries):
    # Best-first results do not depend on the order in which reads complete.
    expected, distances = index.search(queries[:50], 10, strategy="best-first")

    async def all_of_them():
        return await asyncio.gather(*(index.search_async(query, 10, strategy="best-first") for query in queries[:50]))

    for _ in range(2):
        found = asyncio.run(all_of_them())
        numpy.testing.assert_array_equal(numpy.stack([ids for ids, _ in found]), expected)
        numpy.testing.assert_array_equal(numpy.stack([distances for _, distances in found]), distances)


def test_a_batch_and_its_stats_are_awaited(index, queries):
    async def search():
        ids, distances, stats = await index.search_async(queries[:9], 3, list_size=30, strategy="best-first", return_stats=True)
        none, _ = await index.search_async(queries[:0], 3)
        return ids, distances, stats, none

    ids, distances, stats, none = asyncio.run(search())
    numpy.testing.assert_array_equal(ids, index.search(queries[:9], 3, list_size=30, strategy="best-first")[0])
    assert distances.shape == (9, 3) and stats["queries"] == 9 and stats["list"] == 30 and none.shape == (0, 3)


def test_the_loop_goes_on_meanwhile(index, queries):
    async def search():
        ticks, searching = 0, asyncio.ensure_future(index.search_async(queries, 10, list_size=400))
        while not searching.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks, await searching

    ticks, (ids, _) = asyncio.run(search())
    # If the search blocked the loop, there would have been a turn or two.
    assert ticks > 2 and ids.shape == (len(queries), 10)


def test_one_that_is_late_or_cancelled_ends(index, queries):
    async def late():
        with pytest.raises(TimeoutError, match="timeout"):
            await index.search_async(queries, 10, list_size=2000, timeout=0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(index.search_async(numpy.tile(queries, (200, 1)), 10, list_size=2000), 0.01)
        task = asyncio.ensure_future(index.search_async(numpy.tile(queries, (20, 1)), 10, list_size=2000))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await index.search_async(queries[0], 1)

    ids, _ = asyncio.run(late())
    assert ids.shape == (1,)


def test_wrong_calls_are_told_at_once(index, queries):
    with pytest.raises(ValueError, match="k is 0"):
        index.search_async(queries[:2], 0)
    with pytest.raises(ValueError, match="timeout=-1"):
        index.search_async(queries[:2], 1, timeout=-1)
    with pytest.raises(ValueError, match="dimensions"):
        index.search_async(queries[:2, :5], 1)


def test_one_that_is_never_awaited_ends(index, queries):
    coroutine = index.search_async(queries, 10, list_size=2000)
    coroutine.close()
    del coroutine
    gc.collect()
    assert index.search(queries[0], 1)[0].shape == (1,)


def test_changes_are_seen_by_what_is_submitted_after_them(small, tmp_path):
    index = stratann.build(small[:500], tmp_path / "live.idx", degree=16, build_list=40)

    async def search():
        index.upsert(small[600:601], ids=[77])
        ids, distances = await index.search_async(small[600], 1, list_size=100)
        return int(ids[0]), float(distances[0])

    assert asyncio.run(search()) == (77, 0.0)
    index.close()


@pytest.fixture
def beside(small, tmp_path):
    rows = {"part": numpy.arange(1000) % 20, "tags": [[f"t{row % 3}"] for row in range(1000)]}
    with stratann.build(small[:1000], tmp_path / "beside.idx", degree=16, build_list=40, attributes=rows) as index:
        yield index


def test_what_matches_a_filter_is_awaited(beside, queries, small):
    filters = ["part == 3", stratann.column("part") < 10, "tags contains 't1' and part != 4", "part > 99"]

    async def all_of_them():
        searches = [
            beside.search_async(queries[:20], 5, filter=filter, strategy="best-first", return_stats=True)
            for filter in filters
        ]
        return await asyncio.gather(*searches)

    for changed in (False, True):
        for filter, found in zip(filters, asyncio.run(all_of_them())):
            expected = beside.search(queries[:20], 5, filter=filter, strategy="best-first", return_stats=True)
            numpy.testing.assert_array_equal(found[0], expected[0])
            numpy.testing.assert_array_equal(found[1], expected[1])
            # A repeated filter reads no columns.
            reads = {"column_reads": 0, "column_bytes": 0}
            assert expected[2]["filter"] == {**found[2]["filter"], **reads}
            assert found[2]["filter"]["matching"] == beside.count(filter)
        # The handle that is opened for changes sees earlier changes.
        if not changed:
            beside.insert(small[1000:1010], ids=range(1000, 1010), attributes=[{"part": 3}] * 10)

    async def near():
        return await beside.search_async(small[1004], 1, filter="part == 3")

    assert asyncio.run(near())[0].tolist() == [1004]


def test_one_with_a_filter_is_late_cancelled_or_refused_like_others(beside, queries):
    many = numpy.tile(queries, (20, 1))

    async def late():
        with pytest.raises(TimeoutError, match="timeout"):
            await beside.search_async(queries, 10, filter="part < 10", timeout=0)
        with pytest.raises(TimeoutError, match="timeout"):
            await beside.search_async(numpy.tile(many, (10, 1)), 10, list_size=900, filter="part < 15", timeout=0.001)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(beside.search_async(numpy.tile(many, (10, 1)), 10, list_size=900, filter="part < 15"), 0.01)
        task = asyncio.ensure_future(beside.search_async(many, 10, list_size=900, filter="part < 15"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await beside.search_async(queries[0], 1, filter="part == 3")

    ids, _ = asyncio.run(late())
    assert ids[0] % 20 == 3
    for rows in (queries[:2], queries[:0]):
        for wrong, said in [("prat == 3", 'did you mean "part"'), ("part == 'x'", "integer"), ("part ==", "character")]:
            with pytest.raises(ValueError, match=said):
                beside.search_async(rows, 1, filter=wrong)
    with pytest.raises(TypeError, match="filter=3"):
        beside.search_async(queries[:2], 1, filter=3)
    with pytest.raises(TypeError, match="did you mean 'filter'|did you mean \"filter\""):
        beside.search_async(queries[:2], 1, fliter="part == 3")


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_search_is_of_the_process_that_began_it(index, queries):
    search = index.search_async(queries[0], 3)

    async def answer():
        return await search

    process = os.fork()
    if process == 0:
        status = 1
        try:
            signal.alarm(60)
            asyncio.run(answer())
        except stratann.StratannError as error:
            status = 7 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    assert asyncio.run(answer())[0].tolist() == index.search(queries[0], 3)[0].tolist()
