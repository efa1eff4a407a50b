"""Texts with or without labels, from text files, folders, CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offmap.data.samples import MAX_BYTES, check_size
from offmap.errors import DependencyError, InputError
from offmap.text.checks import MAX_CHARACTERS, check_text
from offmap.typing import IntArray

TEXT_COLUMNS = ("text", "texts", "sentence", "utterance", "query", "question", "message", "document", "content")
LABEL_COLUMNS = ("label", "labels", "intent", "category", "class", "topic")
ENDINGS = (".txt", ".csv", ".tsv", ".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")  # texts or features
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}

Records = tuple[list[str], list[dict[str, Any]]]


@dataclass(frozen=True)
class Texts:
    """Texts, and the name of each one's class where there are labels.

    Parameters
    ----------
    texts : list of str
        None of them empty.
    labels : list of str or None, optional
        One per text, `None` where a text has none; `None` altogether when there are no labels.
    columns : dict of str to list, optional
        What the file says of each text besides, such as an id: tables that are written about these texts have it too.

    Examples
    --------
    >>> found = Texts(["lost card", "open account", "hm"], ["card", "account", None])
    >>> found.classes, found.encode_labels().tolist(), len(found.labelled())
    (('account', 'card'), [1, 0, -1], 2)
    """

    texts: list[str]
    labels: list[str | None] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise InputError(f"{len(self.labels)} labels for {len(self.texts)} texts; give one each")

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in order: by number where all are numbers, else by name."""
        names = {label for label in self.labels or () if label is not None}
        return tuple(sorted(names, key=int if names and all(name.isdecimal() for name in names) else None))

    def encode_labels(self, classes: Sequence[str] | None = None, unknown: str | None = None) -> IntArray:
        """Return class numbers, -1 for texts without a label.

        Parameters
        ----------
        classes : sequence of str, optional
            The names in the order of their numbers; `classes` of these texts by default.
        unknown : str, optional
            A label that stands for none.
        """
        numbers = {name: number for number, name in enumerate(self.classes if classes is None else classes)}
        other = sorted({label for label in self.labels or () if label not in (None, unknown)} - numbers.keys())
        if other:
            raise InputError(f"the label {other[0]!r} is not one of the {len(numbers)} classes; check the label column")
        return np.array([numbers.get(label, -1) if label else -1 for label in self.labels or [None] * len(self)], int)

    def labelled(self) -> Texts:
        """Return the texts that have a label."""
        kept = [i for i, label in enumerate(self.labels or ()) if label is not None]
        assert self.labels is not None or not kept
        columns = {name: [values[i] for i in kept] for name, values in self.columns.items()}
        return Texts([self.texts[i] for i in kept], [(self.labels or [])[i] for i in kept], columns)

    def named(self) -> dict[str, list[Any]]:
        """Return the columns by which a table says which text a row is about: the text, then those of the file."""
        others = {"given_text" if name == "text" else name: values for name, values in self.columns.items()}
        return {"text": self.texts, **others}


def holds_texts(path: str | os.PathLike[str], text_column: str | None = None) -> bool:
    """Tell whether a path names texts: by its ending, because a column of texts was named, or by Parquet's columns.

    A Parquet file is one of texts when a column of strings has a usual name and no column holds lists or fractions:
    those would be features, and texts beside features are a remark on them.
    """
    file = Path(path)
    if file.suffix.lower() in PARQUET and text_column is None and file.is_file():
        return _has_texts_only(file)
    return text_column is not None or file.suffix.lower() in ENDINGS


def _has_texts_only(file: Path) -> bool:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:  # whoever reads it says what is wrong, here and below
        return False
    try:
        fields = list(pq.read_schema(file))
    except (pa.ArrowException, OSError):
        return False
    if any(pa.types.is_nested(f.type) or pa.types.is_floating(f.type) for f in fields):
        return False
    strings = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    return any(name.strip().lower() in TEXT_COLUMNS for name in strings)


def read_texts(
    path: str | os.PathLike[str],
    text_column: str | None = None,
    label_column: str | None = None,
    *,
    need_labels: bool = True,
    max_bytes: int = MAX_BYTES,
    max_characters: int = MAX_CHARACTERS,
) -> Texts:
    r"""Read texts and their labels by what the path is.

    ``.txt``: one text per line, empty lines are left out. A folder: one text per ``.txt`` file, the names of
    sub-folders are labels. ``.csv`` and ``.tsv`` with a header, ``.jsonl`` (an object or a text on each line) and
    Parquet: one text per row. Semicolons or tabs separate the columns of a ``.csv`` whose header has no comma.

    Parameters
    ----------
    path : path
        The file or folder.
    text_column, label_column : str, optional
        Names of columns. By default the column called text, sentence, utterance, query, question, message, document or
        content, or the only one there is; and label, intent, category, class or topic, if there is one.
    need_labels : bool, default True
        Whether a `label_column` that is named must be there.
    max_bytes : int, optional
        What may be brought into memory.
    max_characters : int, default 1_000_000
        The longest text that is taken.

    Returns
    -------
    Texts
        In the order of the file; a text whose label is empty has none.

    Raises
    ------
    InputError
        If the file is not UTF-8, lacks a column, or holds an empty or overlong text.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "intents.csv"
    >>> _ = file.write_text("text,intent\n\"where is it, my card\",card\nfreeze my account,account\n")
    >>> read_texts(file)
    Texts(texts=['where is it, my card', 'freeze my account'], labels=['card', 'account'])
    """
    source = Path(path)
    if source.is_dir():
        return _read_folder(source, max_bytes, max_characters)
    if not source.is_file():
        raise InputError(f"{source}: there is no such file or folder of texts")
    ending = source.suffix.lower()
    if ending in PARQUET:
        records = _read_parquet(source, max_bytes)
        found = _from_records(source, records, text_column, label_column, need_labels)
        return _check(found, source, max_characters)
    check_size(source.stat().st_size, str(source), max_bytes)
    content = _decode(source)
    readers: dict[str, Callable[[str, Path], Records]] = {
        ".csv": _read_csv, ".tsv": _read_tsv, ".jsonl": _read_lines_of_json, ".ndjson": _read_lines_of_json,
    }  # fmt: skip
    if ending in readers:
        found = _from_records(source, readers[ending](content, source), text_column, label_column, need_labels)
    elif text_column is not None or label_column is not None:
        raise InputError(
            f"{source}: columns are read from .csv, .tsv, .jsonl and .parquet, not from {ending or 'this'}"
        )
    else:
        found = Texts([line.strip() for line in content.splitlines() if line.strip()])
    return _check(found, source, max_characters)


def _decode(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}: not text in UTF-8 ({error.reason} at byte {error.start}); convert it, as iconv -t UTF-8 does"
        ) from error


def _read_folder(folder: Path, max_bytes: int, max_characters: int) -> Texts:
    within = sorted(one for one in folder.iterdir() if one.is_dir())
    files = [file for part in within for file in sorted(part.glob("*.txt"))] or sorted(folder.glob("*.txt"))
    if not files:
        raise InputError(f"{folder}: no texts; give a file with one text per line, or a folder of .txt files")
    check_size(sum(file.stat().st_size for file in files), str(folder), max_bytes)
    read = [(_decode(file).strip(), file) for file in files]
    kept = [(text, file.parent.name if file.parent != folder else None) for text, file in read if text]
    labels = [label for _, label in kept]
    columns = {"path": [str(file) for text, file in read if text]}
    return _check(Texts([text for text, _ in kept], labels if any(labels) else None, columns), folder, max_characters)


def _read_csv(content: str, file: Path, delimiter: str | None = None) -> Records:
    delimiter = delimiter or _find_delimiter(content)
    before = csv.field_size_limit(MAX_BYTES)
    hint = f"texts with {_DELIMITERS[delimiter]} need quotes"
    try:
        rows = csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True, restkey="")
        records = list(rows)
    except csv.Error as error:
        raise InputError(f"{file}: line {rows.line_num} is not CSV ({error}); {hint}") from error
    finally:
        csv.field_size_limit(before)
    for number, record in enumerate(records, 2):
        if "" in record or None in record.values():
            raise InputError(f"{file}: row {number} has not as many fields as the header; {hint}")
    return list(rows.fieldnames or ()), records


def _find_delimiter(content: str) -> str:
    """Return what separates the names in the header: a comma, or what some spreadsheets write in its place."""
    header = content.partition("\n")[0]
    return next((one for one in _DELIMITERS if one in header), ",")


def _read_tsv(content: str, file: Path) -> Records:
    return _read_csv(content, file, "\t")


def _read_lines_of_json(content: str, file: Path) -> Records:
    records: list[dict[str, Any]] = []
    columns: dict[str, None] = {}
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}: line {number} is not JSON ({error})") from error
        record = {"text": found} if isinstance(found, str) else found
        if not isinstance(record, dict):
            raise InputError(f"{file}: line {number} is neither a JSON object nor a text")
        records.append(record)
        columns |= dict.fromkeys(record)
    return list(columns), records


def _read_parquet(file: Path, max_bytes: int) -> Records:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DependencyError("Parquet needs pyarrow, which is not installed: pip install 'offmap[data]'") from error
    try:
        meta = pq.read_metadata(file)
        check_size(sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups)), str(file), max_bytes)
        fields = list(meta.schema.to_arrow_schema())
        plain = [field.name for field in fields if not pa.types.is_nested(field.type)]  # lists are features
        table = pq.read_table(file, columns=plain)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read as Parquet ({error})") from error
    return table.column_names, table.to_pylist()


def _are_numbers(records: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether the first record has two or more columns, most of which hold numbers."""
    values = list(records[0].values()) if records else []
    try:
        [float(value) for value in values[: max(len(values) - 1, 1)]]
    except (TypeError, ValueError):
        return False
    return len(values) > 1


def _from_records(
    file: Path, read: Records, text_column: str | None, label_column: str | None, need_labels: bool
) -> Texts:
    columns, records = read
    if not need_labels and label_column not in columns:
        label_column = None
    text = _choose(columns, text_column, TEXT_COLUMNS, "--text-column", file)
    if text is None and len(columns) == 1:
        text = columns[0]
    if text is None:
        numbers = "; a table of numbers is read from .parquet, .npz or .npy" if _are_numbers(records) else ""
        raise InputError(
            f"{file}: which column holds the texts? Name it with --text-column; there are {_list(columns)}{numbers}"
        )
    if text == label_column:
        raise InputError(f"{file}: the column {text!r} cannot hold both the texts and their labels")
    usual = tuple(name for name in LABEL_COLUMNS if name != text.strip().lower())
    label = _choose(columns, label_column, usual, "--label-column", file)
    texts = []
    for number, record in enumerate(records, 1):
        if not isinstance(record.get(text), str):
            raise InputError(f"{file}: row {number} has no text in the column {text!r}; fill it or leave the row out")
        texts.append(record[text].strip())
    others = {name: _plain([record.get(name) for record in records]) for name in columns if name != text}
    if label is None:
        return Texts(texts, None, others)
    given = (record.get(label) for record in records)
    labels = [None if value is None or not str(value).strip() else str(value).strip() for value in given]
    return Texts(texts, labels, others)


def _plain(values: list[Any]) -> list[Any]:
    """Values of one kind as they are, others as texts, so that every table can hold them."""
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and kinds <= {str, int, float, bool}:
        return values
    return [
        "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str) for value in values
    ]


def _choose(columns: Iterable[str], wanted: str | None, usual: tuple[str, ...], option: str, file: Path) -> str | None:
    columns = list(columns)
    if wanted is not None and wanted not in columns:
        raise InputError(f"{option} {wanted}: {file} has no such column; there are {_list(columns)}")
    return wanted or next((name for word in usual for name in columns if name.strip().lower() == word), None)


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns[:20])) or "none"


def _check(found: Texts, source: Path, max_characters: int) -> Texts:
    if not found.texts:
        raise InputError(f"{source}: there are no texts in it")
    for number, text in enumerate(found.texts, 1):
        check_text(text, f"{source}: text {number}", max_characters)
    return found
