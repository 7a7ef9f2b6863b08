"""Converts vectors and ids from a user's form to the arrays that the engine reads.

- numpy arrays of another dtype, strided, big-endian or masked;
- lists, tuples, ranges, and values that numpy.asarray accepts, such as a tensor;
- pandas: a DataFrame of numbers, and a column whose cells are vectors;
- polars: a DataFrame of numbers, and a column of List or Array;
- pyarrow: arrays and chunked arrays of lists, also of a fixed size.

This module recognises types of pandas, polars and pyarrow by the name of the type's module. So this
module imports none of these packages.

Whole numbers are never rounded. A vector of floats becomes uint8 only if each element is a whole
number in the range of uint8. An id is always exactly the integer that the caller passed.
Conversions from float64 to float32 or float16 round, as in numpy. A missing or masked value is an
error that names the row.

The Rust part of the package calls these functions with values that it cannot read in place.
"""

from __future__ import annotations

import itertools
import operator
import pathlib
import sys
import uuid
import warnings
from typing import Any, Iterable, List, Optional, Set, Tuple

import numpy
from numpy.typing import NDArray

NATIVE = ("float32", "float16", "uint8", "int8")
"""The element types that an index can have."""

LARGE = 64 << 20
"""A copy of at least this many bytes causes a warning."""

MOST_ID = 2**64 - 2
"""The largest id. In results, 2^64 - 1 marks a missing result."""

_BLOCK = 1 << 22  # elements that are converted at a time, to bound the memory of their checks
_FOLDER = str(pathlib.Path(__file__).parent)
_warned: Set[Tuple[str, str]] = set()


class CopyWarning(UserWarning):
    """A conversion copied a large argument. Python shows the warning once for each argument and
    kind of conversion.
    """


_SEVERAL = "an array, (n, d), or a list of vectors"
_SINGLE = "an array, (d,), or a list of numbers"


def single(value: Any, name: str, owner: str, remedy: str) -> NDArray[Any]:
    """`value` as one vector, (d,), of an element type that an index can have. Raises ValueError for
    an array of vectors, because `owner`, such as "a search", takes one vector. `remedy` is the
    remedy for several vectors.
    """
    array = vectors(value, name, None, _SINGLE)
    shape = f"{name} has the shape {array.shape}"
    if array.ndim != 1:
        if array.ndim == 0:
            remedy = "Pass an array, (d,), or a list of numbers"
        elif array.ndim == 2 and len(array) == 1:
            remedy = "Pass vector[0]"
        raise ValueError(f"{shape}; {owner} has one vector, (d,). {remedy}")
    if not array.size:
        raise ValueError(f"{shape}; a vector has at least one element. Pass a vector, (d,)")
    return array


def vectors(value: Any, name: str, dtype: Optional[str], forms: str = _SEVERAL) -> NDArray[Any]:
    """`value` as a C-contiguous array of `dtype`, in the shape of `value`: (n, d), (d,) or any
    other. `forms` are the accepted forms, for errors.

    If `dtype` is None, the array keeps its own dtype if an index can have this dtype, and else
    becomes float32.
    """
    array, kind = _array_of_vectors(value, name, forms)
    if array.dtype.kind not in "fiu":
        raise TypeError(_not_numbers(array, name))
    wanted = numpy.dtype(dtype if dtype is not None else _usual(array.dtype))
    made = array
    if array.dtype != wanted or not array.flags.c_contiguous:
        made = _converted(array, wanted, name)
        if array.dtype == wanted:
            kind = "not C-contiguous"
    # If memory of another package has the wanted form, it is read in place, without a warning.
    if made is not array or not isinstance(value, numpy.ndarray) and _owner(array).flags.owndata:
        _say(name, kind, made)
    return made


def ids(value: Any, beside: Optional[str]) -> NDArray[numpy.uint64]:
    """`value` as an array of ids, (n,). `beside` names the list that has the order of the ids, such
    as "the vectors". If `beside` is None, there is no such list, and `value` may be a set.
    """
    array = _array_of_ids(value, beside)
    if array.ndim == 0:
        array = array.reshape(1)
    if array.ndim != 1:
        raise ValueError(f"ids has the shape {array.shape}; it must be (n,). Pass ids.ravel()")
    if array.dtype.kind == "b":
        # The caller may have passed a mask of rows instead of ids.
        raise TypeError("ids is bool. If it is a mask of row numbers, pass numpy.flatnonzero(ids)")
    if array.dtype.kind == "O":
        array = _whole(array.tolist())
    elif array.dtype.kind == "f":
        array = _whole_floats(array)
    elif array.dtype.kind not in "iu":
        raise TypeError(f"ids has elements of type {array.dtype}; ids are integers. Keep other keys as attributes, or outside of the index")
    if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        row = int(numpy.argmax(array < 0))
        raise _no_id(row, int(array[row]))
    return array.astype(numpy.uint64, copy=False)


# Vectors


def _array_of_vectors(value: Any, name: str, forms: str) -> Tuple[NDArray[Any], str]:
    """`value` as an array of numbers, and the kind of `value` in words, for the warning about a
    large copy.
    """
    package = _package(value)
    if package == "pandas":
        return _of_pandas(value, name), f"a {type(value).__name__} of pandas"
    if package == "polars":
        return _of_polars(value, name), f"a {type(value).__name__} of polars"
    if package == "pyarrow":
        return _of_arrow(value, name), f"a {type(value).__name__} of pyarrow"
    if isinstance(value, numpy.ndarray):
        array, kind = _unmasked(value, name), str(value.dtype)
    elif isinstance(value, (list, tuple)):
        array, kind = _of_rows(value, name), f"a {type(value).__name__}"
    elif isinstance(value, range) or hasattr(value, "__array__"):
        array, kind = numpy.asarray(value), f"a {type(value).__name__}"
    else:
        article = "an" if type(value).__name__[:1].lower() in "aeio" else "a"
        raise TypeError(f"{name} is {article} {type(value).__name__}. Pass {forms}")
    if array.dtype.kind == "O":
        array = _of_rows(list(array), name)
    return array, kind


def _of_rows(rows: Iterable[Any], name: str) -> NDArray[Any]:
    """Converts a list of vectors, or the list of the elements of one vector, to an array."""
    rows = list(rows)
    for row, cell in enumerate(rows):
        if cell is None or _is_missing(cell):
            raise ValueError(f"{name}: row {row} is missing ({cell!r}). Leave it out")
    if not rows or not hasattr(rows[0], "__len__"):
        return _of_numbers(rows, name, None)
    made: List[NDArray[Any]] = []
    for row, cell in enumerate(rows):
        if not hasattr(cell, "__len__"):
            raise ValueError(f"{name}: row {row} is {cell!r}, and row 0 is a vector; all rows must be vectors. Leave it out")
        if isinstance(cell, numpy.ndarray):
            cell = _unmasked(cell, name, row)
            if cell.dtype.kind == "O":
                cell = _of_numbers(cell.tolist(), name, row)
        elif isinstance(cell, (list, tuple)):
            cell = _of_numbers(cell, name, row)
        else:
            cell = numpy.asarray(cell)
        if cell.shape != (made[0].shape if made else cell.shape):
            raise ValueError(
                f"{name} has rows of different lengths: row {row} has {len(cell)} elements and row 0 has {len(made[0])}. Pass vectors of one dimension"
            )
        made.append(cell)
    return numpy.stack(made)


def _of_numbers(cells: Iterable[Any], name: str, row: Optional[int]) -> NDArray[Any]:
    cells = list(cells)
    try:
        array = numpy.array(cells)
    except ValueError as error:
        raise ValueError(f"{name}: {_at(row)}{error}") from None
    if array.dtype.kind == "O":
        for column, cell in enumerate(cells):
            if cell is None or _is_missing(cell):
                raise ValueError(f"{name}: {_at(row)}column {column} is missing ({cell!r}); every element of a vector needs a value. Leave the row out")
        try:
            array = numpy.array(cells, dtype=numpy.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{name}: {_at(row)}{error}") from None
    return array


def _at(row: Optional[int]) -> str:
    return "" if row is None else f"row {row}: "


def _of_pandas(value: Any, name: str) -> NDArray[Any]:
    if value.ndim == 2 and value.shape[1] == 1 and value.dtypes.iloc[0] == object:
        value = value.iloc[:, 0]
    missing = value.isna().to_numpy()
    if missing.any():
        row = int(numpy.argmax(missing.any(axis=1) if missing.ndim == 2 else missing))
        raise ValueError(f"{name}: row {row} is missing, or has a missing value. Leave the row out, or fill it in")
    if value.ndim == 1 and value.dtype == object:
        return _of_rows(value.tolist(), name)
    array = value.to_numpy()
    if array.dtype.kind == "O":
        if value.ndim == 2:
            others = _not_numeric(value)
            held = [column for column in others if len(value) and _is_vector(value[column].iloc[0])]
            if len(held) == 1:
                raise TypeError(f"{name} is a DataFrame, and its column {held[0]!r} has the vectors. Pass this column, {name}[{held[0]!r}]")
            raise TypeError(f"{name} has columns that are no numbers ({', '.join(map(str, others))}). Pass only columns of numbers, {name}[..]")
        return _of_rows(array.tolist(), name)
    return numpy.asarray(array)


def _not_numeric(frame: Any) -> List[Any]:
    return [column for column, dtype in frame.dtypes.items() if getattr(dtype, "kind", "O") not in "fiu"]


def _is_vector(cell: Any) -> bool:
    return isinstance(cell, (list, tuple, numpy.ndarray)) and len(cell) > 1 and isinstance(cell[0], (int, float, numpy.number))


def _of_polars(value: Any, name: str) -> NDArray[Any]:
    polars: Any = sys.modules["polars"]

    if isinstance(value, polars.DataFrame):
        if value.width != 1 or not value.dtypes[0].is_nested():
            for column in value.iter_columns():
                if column.dtype in (polars.List, polars.Array):
                    raise TypeError(f"{name} is a DataFrame of several columns, and its column {column.name!r} has lists. Pass one column, {name}[{column.name!r}]")
                if not column.dtype.is_numeric():
                    raise TypeError(f"{name} has a column that is no number, {column.name!r}. Pass only columns of numbers, {name}.select(..)")
                _no_gaps(column, name, 1)
            return numpy.asarray(value.to_numpy())
        value = value.to_series(0)
    if not isinstance(value, polars.Series):
        raise TypeError(f"{name} is a {type(value).__name__} of polars. Pass a Series or a DataFrame (.collect() of a lazy one)")
    _no_gaps(value, name, 1)
    if not value.dtype.is_nested():
        return numpy.asarray(value.to_numpy())
    if value.dtype == polars.Array:
        value = value.arr.to_list()
    if value.dtype != polars.List:
        raise TypeError(f"{name} is a Series of {value.dtype}. Pass a Series of List or Array")
    elements = _equal(value.list.len().to_numpy(), name)
    flat = value.explode()
    _no_gaps(flat, name, elements)
    return numpy.asarray(flat.to_numpy()).reshape(len(value), elements)


def _no_gaps(series: Any, name: str, elements: int) -> None:
    """Refuses a polars Series with nulls. `elements` is the number of elements of each row."""
    if series.null_count():
        row = int(series.is_null().arg_max()) // max(elements, 1)
        raise ValueError(f"{name}: row {row} is null, or has a null element. Leave the row out, or fill it in")


def _of_arrow(value: Any, name: str) -> NDArray[Any]:
    pyarrow: Any = sys.modules["pyarrow"]

    if isinstance(value, (pyarrow.Table, pyarrow.RecordBatch)):
        if value.num_columns != 1:
            raise TypeError(f"{name} is a {type(value).__name__} of {value.num_columns} columns. Pass the column that has the vectors")
        value = value.column(0)
    value = _whole_arrow(value)
    if not isinstance(value, pyarrow.Array):
        raise TypeError(f"{name} is a {type(value).__name__} of pyarrow. Pass an array, or a column of a table")
    _no_nulls(value, name, 1)
    if pyarrow.types.is_fixed_size_list(value.type):
        elements = value.type.list_size
    elif pyarrow.types.is_list(value.type) or pyarrow.types.is_large_list(value.type):
        elements = _equal(numpy.diff(value.offsets.to_numpy()), name)
    else:
        return numpy.asarray(value.to_numpy(zero_copy_only=False))
    flat = value.flatten()
    _no_nulls(flat, name, elements)
    return numpy.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(value), elements)


def _whole_arrow(value: Any) -> Any:
    """Joins chunks to one array, and returns the storage array of an extension type (tensors)."""
    pyarrow: Any = sys.modules["pyarrow"]

    if isinstance(value, pyarrow.ChunkedArray):
        value = value.combine_chunks()
        if isinstance(value, pyarrow.ChunkedArray):
            value = pyarrow.concat_arrays(value.chunks) if value.num_chunks else pyarrow.array([], value.type)
    return value.storage if isinstance(value, pyarrow.ExtensionArray) else value


def _no_nulls(array: Any, name: str, elements: int) -> None:
    if array.null_count:
        row = int(numpy.argmax(array.is_null().to_numpy(zero_copy_only=False))) // max(elements, 1)
        raise ValueError(f"{name}: row {row} is null, or has a null element. Leave the row out, or fill it in")


def _equal(lengths: NDArray[Any], name: str) -> int:
    """The length of all rows. Raises ValueError if their lengths differ."""
    if len(lengths) == 0:
        return 0
    other = numpy.flatnonzero(lengths != lengths[0])
    if len(other):
        row = int(other[0])
        raise ValueError(
            f"{name} has rows of different lengths: row {row} has {lengths[row]} elements and row 0 has {lengths[0]}. Pass vectors of one dimension"
        )
    return int(lengths[0])


def _usual(dtype: numpy.dtype[Any]) -> str:
    """The element type of an index that is built from numbers of this dtype, if the user chose no
    type.
    """
    name = dtype.newbyteorder("=").name
    return name if name in NATIVE else "float32"


def _converted(array: NDArray[Any], wanted: numpy.dtype[Any], name: str) -> NDArray[Any]:
    """A copy of `array` with elements of the type `wanted`. Raises ValueError if this would change
    an element, except by rounding a float to a shorter float.
    """
    made = numpy.empty(array.shape, dtype=wanted)
    if array.ndim == 0 or array.size == 0:
        made[...] = array
        return made
    step = max(1, _BLOCK // max(1, array[0].size))
    rounds = array.dtype.kind == "f" and wanted.kind == "f"
    for first in range(0, len(array), step):
        before, after = array[first : first + step], made[first : first + step]
        with numpy.errstate(all="ignore"):
            after[...] = before
            if rounds:
                wrong = numpy.isinf(after) & numpy.isfinite(before)
            elif array.dtype.kind == "f":
                wrong = after != before
            else:
                # Compares as integers, because a large integer may have no equal float. Above 2^53,
                # every value is an error.
                floats = after.astype(numpy.float64)
                wrong = (floats != before) | (numpy.abs(floats) > 2.0**53) | (after.astype(before.dtype) != before)
        if wrong.any():
            place = [int(at) for at in numpy.unravel_index(int(numpy.argmax(wrong)), wrong.shape)]
            shown = before[tuple(place)].item()
            place[0] += first
            where = f"row {place[0]}, column {place[1]}" if array.ndim == 2 else f"element {place[0]}"
            does = "is too large for" if rounds else "is no"
            remedy = f"If it should be rounded, pass {name}.astype(numpy.{wanted})" if not rounds else "Scale the vectors"
            raise ValueError(f"{name}: {where} is {shown}, which {does} {wanted}. {remedy}")
    return made


def _not_numbers(array: NDArray[Any], name: str) -> str:
    if array.dtype.kind == "b":
        return f"{name} is bool. Pass {name}.astype(numpy.uint8)"
    return f"{name} is {array.dtype}; an index holds float32, float16, uint8 and int8, and other numbers are converted. Pass numbers"


# Ids


def _array_of_ids(value: Any, beside: Optional[str]) -> NDArray[Any]:
    package = _package(value)
    if package is not None and type(value).__name__ in ("DataFrame", "LazyFrame", "Table", "RecordBatch"):
        raise TypeError(f"ids is a {type(value).__name__}; it has several columns. Pass one of them")
    if package == "pandas":
        missing = value.isna()
        if missing.any():
            raise ValueError(f"ids: row {int(numpy.argmax(missing))} is missing. Leave it out")
        return numpy.asarray(value.to_numpy())
    if package == "polars":
        _no_gaps(value, "ids", 1)
        return numpy.asarray(value.to_numpy())
    if package == "pyarrow":
        value = _whole_arrow(value)
        _no_nulls(value, "ids", 1)
        return numpy.asarray(value.to_numpy(zero_copy_only=False))
    if isinstance(value, numpy.ndarray):
        return _unmasked(value, "ids")
    if isinstance(value, range):
        return _whole(value)
    if isinstance(value, (bool, numpy.bool_)):
        raise TypeError("ids is a bool. Pass an integer, or several")
    if isinstance(value, (int, float, numpy.number)):
        return _whole([value])
    if isinstance(value, (str, bytes, dict)) or value is None:
        article = "an" if type(value).__name__[:1] in "aeio" else "a"
        raise TypeError(f"ids is {article} {type(value).__name__}; it has no integers. Pass them as an array or a list")
    if beside is not None and isinstance(value, (set, frozenset)):
        raise TypeError(f"ids is a {type(value).__name__}, which has no order. Pass a list, in the order of {beside}")
    if hasattr(value, "__array__"):
        return numpy.asarray(value)
    try:
        return _whole(value)
    except _NotIterable:
        article = "an" if type(value).__name__[:1] in "aeio" else "a"
        raise TypeError(f"ids is {article} {type(value).__name__}; it has no integers. Pass them as an array or a list") from None


class _NotIterable(TypeError):
    pass


def _whole(cells: Any) -> NDArray[numpy.uint64]:
    """Python numbers as ids, exactly. numpy would convert a list with numbers of 2^63 and more to
    floats.
    """
    try:
        cells = iter(cells)
    except TypeError:
        raise _NotIterable from None
    made = []
    for row, cell in enumerate(cells):
        if isinstance(cell, (bool, numpy.bool_)):
            raise TypeError(f"ids: row {row} is {cell!r}, a bool. Pass integers, such as numpy.flatnonzero of a mask")
        try:
            number = operator.index(cell)
        except TypeError:
            if cell is None or _is_missing(cell):
                raise ValueError(f"ids: row {row} is missing ({cell!r}). Leave it out") from None
            if not isinstance(cell, (float, numpy.floating)):
                remedy = ". For texts and UUIDs use stratann.documents.Documents" if isinstance(cell, (str, uuid.UUID)) else ""
                raise TypeError(f"ids: row {row} is {cell!r}; ids are integers from 0 to 2^64 - 2. Pass these{remedy}") from None
            number = int(_whole_floats(numpy.array([cell]), row)[0])
        if not 0 <= number <= MOST_ID:
            raise _no_id(row, number)
        made.append(number)
    return numpy.array(made, dtype=numpy.uint64)


def _whole_floats(array: NDArray[Any], first: int = 0) -> NDArray[numpy.uint64]:
    """Floats as integers, if each is a whole number below a bound. Above the bound, one float
    stands for several integers.
    """
    bound = 2.0 ** (numpy.finfo(array.dtype).nmant + 1)
    with numpy.errstate(invalid="ignore"):
        right = (array >= 0) & (array < bound) & (numpy.floor(array) == array)
    if not right.all():
        row = int(numpy.argmin(right))
        raise ValueError(
            f"ids: row {first + row} is {array[row].item()}; in {array.dtype}, only whole numbers from 0 to below "
            f"{int(bound)} are ids, since larger numbers are not exact. Keep ids as integers from their source on"
        )
    return array.astype(numpy.uint64)


def _no_id(row: int, number: int) -> ValueError:
    return ValueError(f"ids: row {row} is {number}; ids are from 0 to 2^64 - 2")


# Both


def _package(value: Any) -> str:
    """The name of the package of a value's type, if this module converts values of that package,
    else "".
    """
    for kind in type(value).__mro__:
        package = kind.__module__.partition(".")[0]
        # If the package is not imported, the type is from another module of the same name.
        if package in ("pandas", "polars", "pyarrow") and package in sys.modules:
            return package
    return ""


def _is_missing(cell: Any) -> bool:
    """Whether a cell is the `NA` or `NaT` of pandas, or a masked element."""
    return cell is numpy.ma.masked or type(cell).__name__ in ("NAType", "NaTType")


def _unmasked(array: NDArray[Any], name: str, row: Optional[int] = None) -> NDArray[Any]:
    """The array without its mask. A masked element has an arbitrary value in memory, so an array
    with a masked element is an error.
    """
    if not isinstance(array, numpy.ma.MaskedArray):
        return numpy.asarray(array)
    mask = numpy.ma.getmaskarray(array)
    if mask.any():
        if row is None:
            row = int(numpy.argmax(mask.reshape(len(mask), -1).any(axis=1))) if mask.ndim else 0
        raise ValueError(
            f"{name}: row {row} has a masked element; an index holds no missing values. Leave such rows out, or fill them, as "
            f"{name}.filled(0) does"
        )
    return numpy.asarray(array.data)


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """The array that owns the memory of `array`."""
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def _say(name: str, kind: str, made: NDArray[Any]) -> None:
    """Warns of a large copy, once for each argument and kind of conversion."""
    if made.nbytes < LARGE or (name, kind) in _warned:
        return
    _warned.add((name, kind))
    warnings.warn(
        f"{name} is {kind}, and was copied to {made.nbytes / 1e6:.0f} MB of {made.dtype}. Pass a C-contiguous array of {made.dtype}, "
        "which is read in place",
        CopyWarning,
        stacklevel=2 + _frames_of_ours(),
    )


def _frames_of_ours() -> int:
    """The number of frames above `_say` that belong to this package. The warning then names the
    line of the user's program.
    """
    frame = sys._getframe(2)
    for depth in itertools.count():
        if frame is None or not frame.f_code.co_filename.startswith(_FOLDER):
            return depth
        frame = frame.f_back  # type: ignore[assignment]
    return 0
