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
    with pytest.raises(ValueError, match=r"\.xyz.*Use one of"):
        stratann.read(tmp_path / "a.xyz")
    (tmp_path / "a.parquet").touch()
    for use in (stratann.read, lambda path: stratann.build(path, tmp_path / "a.idx")):
        with pytest.raises(ValueError, match=r"\.parquet.*pyarrow.parquet.read_table"):
            use(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"\.xyz"):
        stratann.write(tmp_path / "a.xyz", numpy.ones((2, 2)))


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        stratann.read(tmp_path / "gone.fbin")


def test_the_wrong_dtype_is_not_written(tmp_path):
    with pytest.raises(TypeError, match="float64.*float32"):
        stratann.write(tmp_path / "a.fbin", numpy.ones((2, 2)))
    assert list(tmp_path.iterdir()) == []


def test_the_ids_of_ground_truth_may_have_64_bits(tmp_path):
    ids = numpy.array([[5, 2**40], [1, 2**64 - 1]], dtype="<u8")
    distances = numpy.array([[0, 1], [2, numpy.inf]], dtype="<f4")
    path = tmp_path / "t.bin64"
    path.write_bytes(numpy.array([2, 2], "<u4").tobytes() + ids.tobytes() + distances.tobytes())
    found = stratann.read(path)
    assert (found[0] == ids).all() and (found[1] == distances).all()
    assert stratann.recall(found, found) == 1.0
    assert stratann.recall((ids[:, ::-1].copy(), distances), (ids, None), k=1) == 0.0
    path.write_bytes(numpy.array([2, 2], "<u4").tobytes() + ids.tobytes())
    assert stratann.read(path)[1] is None


@pytest.mark.parametrize("rows", [6, 10**9])
def test_a_cropped_file_has_as_many_rows_as_its_name_says(rows, tmp_path):
    matrix = numpy.arange(24, dtype="<f4").reshape(6, 4)
    path = tmp_path / "base.1B.fbin.crop_nb_6"
    path.write_bytes(numpy.array([rows, 4], "<u4").tobytes() + matrix.tobytes())
    for mmap in [False, True]:
        assert (stratann.read(path, mmap=mmap) == matrix).all()
    with pytest.raises(ValueError, match="its name says 7|need"):
        stratann.read(path.rename(tmp_path / "base.1B.fbin.crop_nb_7"))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", ">f4", "<f4"])
def test_other_arrays_of_numpy_are_converted_as_they_are_read(dtype, order, small, tmp_path):
    rows = small[:300].astype(numpy.float64) / 3
    numpy.save(tmp_path / "rows.npy", numpy.asarray(rows.astype(dtype), order=order))
    index = stratann.build(tmp_path / "rows.npy", tmp_path / "a.idx", degree=16, build_list=40)
    assert (index[7] == rows[7].astype(numpy.float32)).all()
    assert len(index) == 300
