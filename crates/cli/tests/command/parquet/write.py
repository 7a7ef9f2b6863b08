"""Writes the Parquet files in this folder for tests of `--attributes`, with pyarrow as most programs do.

    python3 -m venv venv && venv/bin/pip install pyarrow==26.0.1 && venv/bin/python write.py

`types` has each type that becomes an attribute, in each supported compression. `rows` has the rows of
`row()` in attributes.rs.
"""

import datetime
import decimal
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
UTC = datetime.timezone.utc
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


def write(name, columns, **options):
    pq.write_table(pa.table(columns), HERE / name, store_schema=False, **options)


def rows():
    there = [n if n % 7 else None for n in range(600)]

    def each(make, kind):
        return pa.array([None if n is None else make(n) for n in there], kind)

    return {
        "price": each(lambda n: n / 4, pa.float64()),
        "tags": each(lambda n: [f"t{n % 5}", "all"], pa.list_(pa.string())),
        "made": each(lambda n: datetime.datetime(2024, 2, 29, 12, tzinfo=UTC), pa.timestamp("ms", "UTC")),
        "more": each(lambda n: {"id": n}, pa.struct([("id", pa.int64())])),
    }


def types():
    """Each type has three rows: two values and a null."""
    nanoseconds = pa.array([1_709_208_000_123_456_789, -1, None], pa.timestamp("ns"))
    return {
        "boolean": [True, False, None],
        "int8": pa.array([-128, 127, None], pa.int8()),
        "int16": pa.array([-32768, 32767, None], pa.int16()),
        "int32": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "int64": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "uint8": pa.array([0, 255, None], pa.uint8()),
        "uint16": pa.array([0, 65535, None], pa.uint16()),
        "uint32": pa.array([0, 2**32 - 1, None], pa.uint32()),
        "uint64": pa.array([0, 2**63 - 1, None], pa.uint64()),
        "float16": pa.array([1.5, float("-inf"), None], pa.float16()),
        "float32": pa.array([0.25, float("nan"), None], pa.float32()),
        "float64": pa.array([1.0, float("inf"), None], pa.float64()),
        "string": pa.array(['a "quoted"\nline', "äö€", None], pa.string()),
        "large": pa.array(["", "x", None], pa.large_string()),
        "category": pa.array(["red", "blue", None]).dictionary_encode(),
        "date": pa.array([datetime.date(2024, 2, 29), datetime.date(1969, 12, 31), None], pa.date32()),
        "seconds": pa.array([NOON.replace(microsecond=0), None, None], pa.timestamp("s", "UTC")),
        "milliseconds": pa.array([NOON.replace(microsecond=123000), None, None], pa.timestamp("ms")),
        "microseconds": pa.array([NOON, None, None], pa.timestamp("us", "Europe/Berlin")),
        "nanoseconds": nanoseconds,
        "strings": pa.array([["p", "q"], [], None], pa.list_(pa.string())),
        "integers": pa.array([[1, -2], [3], None], pa.large_list(pa.int32())),
        "nothing": pa.nulls(3),
    }


write("rows.parquet", rows(), row_group_size=250, data_page_size=500)
for compression in ["none", "snappy", "zstd", "gzip", "lz4", "brotli"]:
    write(f"types.{compression}.parquet", types(), compression=compression, version="2.6")
write("types.pages2.parquet", types(), data_page_version="2.0", use_dictionary=False)
write("int96.parquet", {"at": types()["nanoseconds"]}, use_deprecated_int96_timestamps=True)
write("decimal.parquet", {"a": [1, 2], "cost": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2))})
write("json.parquet", {"a": [1, 2], "more": pa.array(['{"k":\n1e400}', None], pa.json_())})
write(
    "set.parquet",
    {"key": pa.array([8, 9, 10], pa.uint32()), "price": pa.array([7.0, None, None]), "note": ["new", None, "x"]},
)
write("dictionary.parquet", {"a": ["x", "y", "z"]}, compression="none")
