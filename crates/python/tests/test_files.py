"""Vector files and numpy."""

import numpy
import pytest

import stratann

KINDS = [
    (".fbin", numpy.float32), (".hbin", numpy.float16), (".u8bin", numpy.uint8), (".i8bin", numpy.int8),
    (".ibin", numpy.int32), (".fvecs", numpy.float32), (".bvecs", numpy.uint8), (".ivecs", numpy.int32),
    (".npy", numpy.float32),
]  # fmt: skip


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(("suffix", "dtype"), KINDS)
def test_what_is_written_is_read(suffix, dtype, mmap, tmp_path):
    array = numpy.arange(7 * 5).reshape(7, 5).astype(dtype)
    path = tmp_path / f"a{suffix}"
    stratann.write(path, array)
    back = stratann.read(str(path), mmap=mmap)
    assert back.dtype == dtype and back.flags.c_contiguous
    numpy.testing.assert_array_equal(back, array)


def test_the_fixtures_are_what_they_say(base, queries, truth):
    assert base.shape == (20_000, 128) and queries.shape == (500, 128)
    ids, distances = truth
    assert ids.shape == distances.shape == (500, 100)
    exact = ((base[ids[0]].astype(int) - queries[0].astype(int)) ** 2).sum(axis=1)
    numpy.testing.assert_array_equal(exact, distances[0])


def test_ground_truth_may_lack_distances(tmp_path):
    path = tmp_path / "t.bin"
    numpy.array([2, 3, 1, 2, 3, 4, 5, 6], "<u4").tofile(path)
    ids, distances = stratann.read(path)
    assert ids.tolist() == [[1, 2, 3], [4, 5, 6]] and distances is None


@pytest.mark.parametrize("suffix", [".fbin", ".u8bin", ".fvecs", ".bin"])
@pytest.mark.parametrize("cut", [1, 33])
def test_a_cut_file_is_refused(suffix, cut, tmp_path):
    path = tmp_path / f"a{suffix}"
    if suffix == ".bin":
        numpy.array([2, 3, 1, 2, 3, 4, 5, 6], "<u4").tofile(path)
    else:
        stratann.write(path, numpy.ones((4, 5), numpy.uint8 if suffix == ".u8bin" else numpy.float32))
    path.write_bytes(path.read_bytes()[:-cut] if cut < path.stat().st_size else b"abc")
    with pytest.raises(ValueError, match=path.name):
        stratann.read(path)


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.xyz.*known are"):
        stratann.read(tmp_path / "a.xyz")
    with pytest.raises(ValueError, match=r"\.xyz"):
        stratann.write(tmp_path / "a.xyz", numpy.ones((2, 2)))


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        stratann.read(tmp_path / "gone.fbin")


def test_the_wrong_dtype_is_not_written(tmp_path):
    with pytest.raises(TypeError, match="float64.*float32"):
        stratann.write(tmp_path / "a.fbin", numpy.ones((2, 2)))
    assert list(tmp_path.iterdir()) == []
