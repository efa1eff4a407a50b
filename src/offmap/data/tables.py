"""Tables on disk: Parquet in, Parquet or CSV out."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offmap.data.arrays import SYNONYMS, rename_arrays
from offmap.data.readers import READERS
from offmap.data.samples import MAX_BYTES, Samples, check_size, encode_labels
from offmap.errors import DependencyError, InputError
from offmap.store import write_atomically
from offmap.typing import Array


@READERS.register("pq")
@READERS.register("parquet")
def read_parquet(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Samples:
    """Read a table: columns of lists are features (or what their name says), without any the numeric columns are.

    A column named ``label`` or ``labels`` holds the classes, as numbers or text. Other text, a column named ``id`` and
    the index of a DataFrame are no features; they are kept as `Samples.others`.

    Parameters
    ----------
    path : str or path
        A Parquet file.
    max_bytes : int, optional
        How much may be read into memory.

    Returns
    -------
    Samples
        The arrays.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/a.parquet"
    >>> write_table(file, {"a": np.arange(3.0), "b": np.ones(3), "label": np.array(["x", "y", "x"])})
    >>> samples = read_parquet(file)
    >>> samples, samples.classes
    (Samples(3: features 2, labels one each), ('x', 'y'))
    """
    file = Path(path)
    pa, pq = _arrow()
    try:
        meta = pq.read_metadata(file)
        check_size(sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups)), str(file), max_bytes)
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read as Parquet ({error})") from error
    names = SYNONYMS["labels"]
    numbers: dict[str, Array] = {}
    lists: dict[str, Array] = {}
    others: dict[str, Array] = {}
    index = [name for name in (table.schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)]
    labels: Array | None = None
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        where = f"{file}: column {name!r}"
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if name in names and labels is None and not _is_list(pa, kind):
            labels = _flat(column, where).astype(str if pa.types.is_string(kind) else None)
        elif _is_list(pa, kind):
            lists[name] = _matrix(pa, column, where)
        elif name in index or name.strip().lower() == "id":
            others["index" if name.startswith("__index_level") else name] = np.array(column.to_pylist())
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers[name] = _flat(column, where)
        elif not pa.types.is_nested(kind):
            others[name] = np.array(["" if value is None else str(value) for value in column.to_pylist()])
    arrays = _as_named(lists, numbers, file)
    columns = () if lists else tuple(numbers)
    others |= numbers if lists else {}
    if labels is None:
        return Samples(arrays, columns=columns, others=others)
    arrays["labels"], classes = encode_labels(labels, f"{file}: labels")
    return Samples(arrays, classes, columns=columns, others=others)


def check_table(path: str | os.PathLike[str] | None) -> None:
    """Refuse a path that `write_table` could not write, before any work is done; `None` passes.

    Examples
    --------
    >>> check_table("scores.xlsx")
    Traceback (most recent call last):
    ...
    offmap.errors.InputError: scores.xlsx: the ending says how to write it, .parquet or .csv
    """
    if path is None:
        return
    file = Path(path)
    if file.suffix not in (".csv", ".parquet"):
        raise InputError(f"{file}: the ending says how to write it, .parquet or .csv")
    if file.suffix == ".parquet":
        _arrow()
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise InputError(f"{file}: the folder {file.absolute().parent} must exist, and the name must be that of a file")


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Any]) -> None:
    """Write columns of equal length as Parquet or CSV, by the file's ending, whole or not at all.

    Parameters
    ----------
    path : str or path
        Ends in ``.parquet`` or ``.csv``.
    columns : mapping of str to array-like
        By name.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/scores.csv"
    >>> write_table(file, {"score": np.array([0.5, -1.25]), "known": np.array([True, False])})
    >>> print(Path(file).read_text())
    score,known
    0.5,true
    -1.25,false
    """
    file = Path(path)
    arrays = {name: _as_column(column) for name, column in columns.items()}
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) != 1:
        raise InputError(f"columns of different lengths {rows}: each needs one value per row")
    check_table(file)
    if file.suffix == ".csv":
        write_atomically(file, _csv(arrays))
        return
    pa, pq = _arrow()
    stream = io.BytesIO()
    pq.write_table(pa.table(arrays), stream)
    write_atomically(file, stream.getvalue())


def join_columns(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Put columns that a user's file holds before those of a result; where both have a name, theirs is ``given_…``.

    Parameters
    ----------
    given : mapping of str to array-like
        What the file says of each row.
    own : mapping of str to array-like
        What was found.

    Returns
    -------
    dict of str to array-like
        For `write_table`.

    Examples
    --------
    >>> list(join_columns({"text": ["a"], "id": [7], "class": ["x"]}, {"class": ["y"], "known": [True]}))
    ['text', 'id', 'given_class', 'class', 'known']
    """
    return {f"given_{name}" if name in own else name: column for name, column in given.items()} | dict(own)


def _as_column(column: Any) -> Array:
    """An array; of texts one that does not widen all of them to the longest."""
    if not isinstance(column, list) or not all(isinstance(value, str) for value in column):
        return np.asarray(column)
    made = np.empty(len(column), object)
    made[:] = column
    return made


def _csv(arrays: Mapping[str, Array]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(arrays)
    # repr of Python's floats is the shortest text that reads back to the same bits
    writer.writerows(
        [str(value).lower() if isinstance(value, bool) else value for value in row]
        for row in zip(*(array.tolist() for array in arrays.values()), strict=True)
    )
    return stream.getvalue().encode()


def _as_named(lists: dict[str, Array], numbers: dict[str, Array], file: Path) -> dict[str, Array]:
    if len(lists) == 1 and not any(name in names for name in lists for names in SYNONYMS.values()):
        return {"features": next(iter(lists.values()))}
    if lists:
        return rename_arrays(lists, str(file))
    if not numbers:
        raise InputError(f"{file}: no column of numbers or of lists of numbers to take as features")
    return {"features": np.column_stack(list(numbers.values()))}


def _is_list(pa: Any, kind: Any) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(listed and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)))


def _flat(column: Any, where: str) -> Array:
    if column.null_count:
        raise InputError(f"{where}: {column.null_count} of its {len(column)} values are missing; fill or drop them")
    array: Array = np.asarray(column.to_numpy(zero_copy_only=False))
    return array


def _matrix(pa: Any, column: Any, where: str) -> Array:
    """Return lists of equal length as rows."""
    if column.null_count:
        raise InputError(f"{where}: {column.null_count} of its {len(column)} lists are missing; fill or drop them")
    values = _flat(column.flatten(), where)
    if not len(column) or len(values) % len(column):
        raise InputError(f"{where}: its lists differ in length, or there are none; each row needs as many numbers")
    if not pa.types.is_fixed_size_list(column.type):
        lengths = np.diff(column.offsets.to_numpy(zero_copy_only=False))
        if len(np.unique(lengths)) > 1:
            raise InputError(f"{where}: lists of {lengths.min()} to {lengths.max()} numbers; all need as many")
    return values.reshape(len(column), -1)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DependencyError("Parquet needs pyarrow, which is not installed: pip install 'offmap[data]'") from error
    return pa, pq
