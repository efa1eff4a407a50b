"""Texts from every format users hold, and one sentence for each that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offmap.data import Texts, holds_texts, join_columns, read_texts, write_table
from offmap.errors import InputError

ROWS = [("where is it, my card?", "card"), ('she said "freeze it"', "account"), ("שלום 🙂", "")]


def test_every_format_gives_the_same_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'id,utterance,intent\n1,"where is it, my card?",card\n2,"she said ""freeze it""",account\n3,שלום 🙂,\n',
        encoding="utf-8-sig",
    )
    (tmp_path / "a.tsv").write_text(
        "text\tlabel\n" + "\n".join(f'"{t.replace(chr(34), chr(34) * 2)}"\t{c}' for t, c in ROWS)
    )
    lines = [json.dumps({"text": text, "label": label or None}) for text, label in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n\n")
    columns: Any = {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS], "n": [1.0, 2.0, 3.0]}
    write_table(tmp_path / "a.parquet", columns)
    (tmp_path / "b.csv").write_text((tmp_path / "a.tsv").read_text().replace("\t", ";"))  # as some spreadsheets do
    (tmp_path / "c.csv").write_text((tmp_path / "a.tsv").read_text())
    for name in ("b.csv", "c.csv", "a.csv", "a.tsv", "a.jsonl", "a.parquet"):
        found = read_texts(tmp_path / name)
        assert found == Texts([text for text, _ in ROWS], ["card", "account", None]), name
        assert holds_texts(tmp_path / name) == (name != "a.parquet")
    assert found.classes == ("account", "card")
    assert found.encode_labels(("card", "account")).tolist() == [0, 1, -1]


def test_lines_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n  one \n\ntwo\n")
    assert read_texts(tmp_path / "a.txt") == Texts(["one", "two"])
    (tmp_path / "plain.jsonl").write_text('"one"\n"two"\n')
    assert read_texts(tmp_path / "plain.jsonl").texts == ["one", "two"]
    for label, text in (("card", "lost it"), ("account", "open one")):
        (tmp_path / "docs" / label).mkdir(parents=True)
        (tmp_path / "docs" / label / "a.txt").write_text(text)
    assert read_texts(tmp_path / "docs") == Texts(["open one", "lost it"], ["account", "card"])


def test_other_columns_go_with_the_texts(tmp_path: Path) -> None:
    lines = [{"query": "one", "label": "a", "id": 7, "tags": ["x"]}, {"query": "two", "id": 8, "text": "remark"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = read_texts(tmp_path / "a.jsonl", "query")
    assert found.named() == {
        "text": ["one", "two"], "label": ["a", ""], "id": [7, 8], "tags": ['["x"]', ""], "given_text": ["", "remark"],
    }  # fmt: skip
    assert found.labelled().columns["id"] == [7]
    write_table(tmp_path / "out.parquet", join_columns(found.named(), {"label": [0, 1]}))
    assert list(read_texts(tmp_path / "out.parquet").columns) == ["given_label", "id", "tags", "given_text", "label"]


def test_numbered_labels_are_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": f"t{n}", "label": n}) for n in (10, 9, 1)))
    assert read_texts(tmp_path / "a.jsonl").classes == ("1", "9", "10")


def test_a_field_longer_than_the_csv_module_takes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text\n{'word ' * 40_000}\n")
    assert len(read_texts(tmp_path / "a.csv").texts[0]) == 199_999


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "a,b\nx,y\n", {}, "which column holds the texts\\? Name it with --text-column; there are 'a', 'b'$"),
        ("a.csv", "a,b\n1,2\n", {}, "there are 'a', 'b'; a table of numbers is read from .parquet, .npz or .npy"),
        ("a.csv", "text\nx\n", {"text_column": "body"}, "--text-column body: .* has no such column; there are 'text'"),
        ("a.csv", "text,label\nx,y\n", {"label_column": "intent"}, "--label-column intent"),
        ("a.csv", "text,label\nfine,y\n,z\n", {}, "text 2 is empty"),
        ("a.csv", "text,label\nwell, no,y\n", {}, "row 2 has not as many fields as the header"),
        ("a.csv", 'text,label\n"open,y\n', {}, "is not CSV"),
        ("a.csv", "text;label\nwell; no;y\n", {}, "fields as the header; texts with semicolons need quotes"),
        ("a.csv", "text,label\n", {}, "there are no texts in it"),
        ("a.txt", "\n\n", {}, "there are no texts in it"),
        ("a.txt", "x\n", {"text_column": "text"}, "columns are read from .csv"),
        ("a.jsonl", '{"text": "x"}\n{"text": \n', {}, "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", {}, "line 1 is neither a JSON object nor a text"),
        ("a.jsonl", '{"text": "x"}\n{"text": 3}\n', {}, "row 2 has no text in the column 'text'"),
        ("a.parquet", "no", {}, "cannot be read as Parquet"),
        ("a.txt", "x" * 30, {"max_characters": 20}, "30 characters, the limit is 20"),
        ("a.jsonl", '{"text": "half \\ud83d"}\n', {}, "half of a character"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, name: str, content: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_texts(tmp_path / name, **options)


def test_other_encodings_missing_files_and_foreign_labels(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("text\ncafé\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"not text in UTF-8 .* at byte 8.*; convert it"):
        read_texts(tmp_path / "latin.csv")
    with pytest.raises(InputError, match="no such file or folder of texts"):
        read_texts(tmp_path / "nowhere.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no texts; give a file"):
        read_texts(tmp_path / "empty")
    with pytest.raises(InputError, match="the label 'b' is not one of the 1 classes"):
        Texts(["x"], ["b"]).encode_labels(("a",))
    with pytest.raises(InputError, match="1 labels for 2 texts"):
        Texts(["x", "y"], ["b"])
