"""The command line on texts: guard, score, discover, learn, loop, compare, explain, extract."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

import offmap
from offmap.cli import app
from offmap.data import holds_texts
from offmap.errors import InputError, StoreError
from offmap.models import save_bert
from offmap.models.bert import BertEncoder
from offmap.openworld import Deployment
from offmap.text import TextEncoder, extract_texts
from text_kit import FOREIGN, encode_words, known_texts, make_tokenizer

ENCODER = ("--encoder", "text_kit:encode_words")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("texts")
    texts, labels = known_texts(80)

    def write(name: str, rows: list[tuple[str, str]]) -> None:
        with (made / name).open("w", newline="") as file:
            csv.writer(file).writerows([("id", "question", "topic"), *((i, *row) for i, row in enumerate(rows))])

    rows = list(zip(texts, labels, strict=True))
    random.Random(0).shuffle(rows)
    write("known.csv", rows[::2])
    write("test.csv", rows[1::2])
    write("mixed.csv", [(text, label if n % 2 and label != "loan" else "") for n, (text, label) in enumerate(rows)])
    (made / "foreign.txt").write_text("\n".join(FOREIGN * 5))
    return made


def run(folder: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_guard_from_a_csv_scores_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(
        folder, "guard", "--texts", "known.csv", "--text-column", "question", "--label-column", "topic",
        "--unknown", "foreign.txt", "--detector", "knn(3)", "--out", "made", *ENCODER, "--json",
        monkeypatch=monkeypatch,
    )  # fmt: skip
    result = json.loads(said)
    assert result["unknown_flagged"] == {"unknown inputs that were given": 1.0}
    assert result["accuracy"] == 1.0
    said = run(
        folder, "score", "made/guard.offmap", "test.csv", "--text-column", "question", *ENCODER, "--out", "scores.csv",
        "--json", monkeypatch=monkeypatch,
    )  # fmt: skip
    assert json.loads(said)["inputs"] == 120
    with (folder / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == {"card", "loan", "transfer"}
    known = {row["question"] for row in csv.DictReader((folder / "known.csv").open())}
    assert {row["nearest"] for row in rows} <= known
    assert rows[0]["text"] == next(csv.DictReader((folder / "test.csv").open()))["question"]
    assert sum(row["known"] == "true" for row in rows) > 100
    asked = list(csv.DictReader((folder / "test.csv").open()))
    assert [(row["id"], row["topic"]) for row in rows] == [(row["id"], row["topic"]) for row in asked]


def encode_backwards(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    return encode_words([text[::-1] for text in texts])


def check_encoder_is_kept(made: Any) -> None:
    """What was made from texts refers to its encoder: a function must be given, and another is refused."""
    with pytest.raises(StoreError, match="a Python object that no file holds"):
        _ = made.text_encoder
    with pytest.raises(StoreError, match="is not the encoder that this was made with"):
        made.with_text_encoder(TextEncoder(encode_backwards))
    given = TextEncoder(encode_words)
    assert made.with_text_encoder(given).text_encoder is given


def test_discover_reads_columns_and_not_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(
        folder, "discover", "mixed.csv", "--text-column", "question", "--label-column", "topic", "--k", "3", *ENCODER,
        "--json", "--report", "page.html", "--save", "found.offmap", "--out", "groups.csv", monkeypatch=monkeypatch,
    )  # fmt: skip
    result = json.loads(said)
    assert result["n_classes"] == 3
    assert {"card", "transfer"} < set(result["names"].values())
    check_encoder_is_kept(offmap.load(folder / "found.offmap"))
    assert "loan" in " ".join(result["names"].values())
    assert "loan interest rate" in (folder / "page.html").read_text()
    assert (folder / "groups.csv").read_text().startswith("text,id,topic,class,known,label,confidence\n")


def test_compare_and_explain_train_a_head(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("--text-column", "question", "--label-column", "topic")
    (folder / "foreign.csv").write_text("question\n" + "\n".join(FOREIGN * 5))  # unknown texts come without labels
    said = run(
        folder, "compare", "msp, knn(3)", "--known", "known.csv", "--id-test", "test.csv", "--ood", "far=foreign.csv",
        *columns, *ENCODER, "--json", monkeypatch=monkeypatch,
    )  # fmt: skip
    assert "knn(3)" in said
    named = "\n".join(f"{text},cooking" for text in FOREIGN * 5)  # or with labels of their own, which do not count
    (folder / "named.csv").write_text(f"question,topic\n{named}\n")
    same = run(
        folder, "compare", "msp, knn(3)", "--known", "known.csv", "--id-test", "test.csv", "--ood", "far=named.csv",
        "--outliers", "named.csv", *columns, *ENCODER, "--json", monkeypatch=monkeypatch,
    )  # fmt: skip
    assert [row["auroc"] for row in json.loads(same)["rows"]] == [row["auroc"] for row in json.loads(said)["rows"]]
    said = run(folder, "explain", "known.csv", *columns, *ENCODER, "--json", monkeypatch=monkeypatch)
    assert json.loads(said)


def test_learn_and_loop_take_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("--text-column", "question", "--label-column", "topic")
    said = run(
        folder, "learn", "sorl-spectral", "--data", "mixed.csv", *columns, *ENCODER, "--k", "3", "--out", "learned",
        "--predictions", "found.csv", monkeypatch=monkeypatch,
    )  # fmt: skip
    assert "2 known classes, 1 novel" in said
    assert "novel classes: " in said
    assert "loan" in said.split("novel classes: ")[1]
    assert offmap.load(folder / "learned" / "model.offmap").class_names[:2] == ("card", "transfer")
    with (folder / "found.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows if row["known"] == "true"} == {"card", "transfer"}
    assert [row["id"] for row in rows] == [str(n) for n in range(len(rows))]
    novel = [row for row in rows if row["known"] == "false"]
    assert novel
    assert all("loan" in row["text"] or "cash" in row["text"] for row in novel)
    assert all("loan" in row["class"] for row in novel)  # by its keywords
    read = offmap.load(folder / "learned" / "model.offmap")
    texts = [row["text"] for row in rows]
    assert read.predict(encode_words(texts)).tolist() == [int(row["label"]) for row in rows]
    check_encoder_is_kept(read)
    with_encoder = read.with_text_encoder(TextEncoder(encode_words))
    assert with_encoder.predict(texts).tolist() == [int(row["label"]) for row in rows]
    with pytest.raises(InputError, match="put it in brackets"):
        with_encoder.predict("one text")
    said = run(
        folder, "loop", "--data", "mixed.csv", *columns, *ENCODER, "--out", "loop", "--learner", "linear", "--json",
        monkeypatch=monkeypatch,
    )  # fmt: skip
    assert (folder / "loop" / "stream.csv").read_text().startswith("text,id,topic,class,known,p_value,score")
    (done,) = json.loads(said)["rounds"]
    assert done["flagged"] > 30
    assert all("loan" in name or "cash" in name for name in done["round"]["new_classes"])
    assert "repay loan early" in (folder / "loop" / "round-1.html").read_text()
    made = Deployment.load(folder / "loop" / "deployment.offmap", encoder=TextEncoder(encode_words))
    assert made.examples.find_nearest_texts(encode_words(["repay loan early why"]))[0].startswith("repay loan early")
    answers = made.class_names[made.predict(["loan interest rate now"], "texts")[0]]
    assert answers in done["round"]["new_classes"]


def test_parquet_with_a_column_of_texts_needs_no_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = list(csv.DictReader((folder / "mixed.csv").open()))
    columns = {name: [row[name] or None for row in rows] for name in ("question", "topic")}
    pq.write_table(pa.table(columns), folder / "mixed.parquet")
    said = run(folder, "discover", "mixed.parquet", "--k", "3", "--json", monkeypatch=monkeypatch)
    assert {"card", "transfer"} < set(json.loads(said)["names"].values())
    pq.write_table(pa.table({**columns, "features": [[1.0, 2.0]] * len(rows)}), folder / "features.parquet")
    assert holds_texts(folder / "mixed.parquet")
    assert not holds_texts(folder / "features.parquet")  # texts beside features are a remark on them
    (folder / "broken.parquet").write_bytes(b"PAR1")
    assert not holds_texts(folder / "broken.parquet")


def test_finetune_makes_an_encoder_for_the_other_commands(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word for text in known_texts(80)[0] for word in text.split()]
    module = BertEncoder(60, 24, 2, 3, 48, 16, tokenizer=make_tokenizer(words))
    save_bert(module, tmp_path / "start")
    start = ("--encoder", str(tmp_path / "start"))
    tuned = str(tmp_path / "tuned")
    said = run(
        folder, "finetune", "mixed.csv", *start, "--out", tuned, "--trained", "1", "--set", "epochs=2", "--json",
        monkeypatch=monkeypatch,
    )  # fmt: skip
    result = json.loads(said)
    assert result["classes"] == 2
    assert result["labelled"] == sum(bool(row["topic"]) for row in csv.DictReader((folder / "mixed.csv").open()))
    run(folder, "guard", "--texts", "known.csv", "--encoder", tuned, "--out", "tuned-guard", monkeypatch=monkeypatch)
    scored = ("score", "tuned-guard/guard.offmap", "test.csv", "--out", "s.csv", "--json")
    assert json.loads(run(folder, *scored, monkeypatch=monkeypatch))["inputs"] == 120
    done = CliRunner().invoke(app, ["finetune", "foreign.txt", *start, "--out", tuned])
    assert done.exit_code == 1
    assert "no labels to learn from" in done.output


def test_extract_keeps_the_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, "extract", "foreign.txt", "--to", "acts", *ENCODER, monkeypatch=monkeypatch)
    assert json.loads((folder / "acts" / "texts.jsonl").read_text().splitlines()[0]) == FOREIGN[0]


def test_rows_that_were_extracted_are_scored_and_grouped_with_their_texts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ("--text-column", "question", "--label-column", "topic")
    run(folder, "guard", "--texts", "known.csv", *columns, "--detector", "knn(3)", "--out", "kept", *ENCODER,
        monkeypatch=monkeypatch)  # fmt: skip
    (folder / "plain.txt").write_text("\n".join(known_texts(20)[0]))
    run(folder, "extract", "plain.txt", "--to", "rows", *ENCODER, monkeypatch=monkeypatch)
    for source, out in (("plain.txt", "from-texts.csv"), ("rows", "from-rows.csv")):
        run(folder, "score", "kept/guard.offmap", source, *ENCODER, "--out", out, monkeypatch=monkeypatch)
    assert (folder / "from-rows.csv").read_text() == (folder / "from-texts.csv").read_text()
    found = run(folder, "discover", "rows", "--k", "3", "--out", "groups.csv", monkeypatch=monkeypatch)
    assert "loan" in found  # named by keywords
    assert (folder / "groups.csv").read_text().startswith("text,class,")
    extract_texts(TextEncoder(encode_backwards), FOREIGN, folder / "other")
    refused = CliRunner().invoke(app, ["score", "kept/guard.offmap", "other", *ENCODER])
    assert (refused.exit_code, "rows of another encoder" in refused.stderr) == (1, True)


def test_long_and_odd_texts_are_printed_on_one_line_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, "guard", "--texts", "known.csv", "--text-column", "question", "--label-column", "topic",
        "--detector", "knn(3)", "--out", "shown", *ENCODER, monkeypatch=monkeypatch)  # fmt: skip
    odd = ["repay loan early " * 500, "lost card\nplease \x1b[31m now", "💳 card \u202e كيف"]
    (folder / "odd.jsonl").write_text("".join(json.dumps(text) + "\n" for text in odd))
    said = run(folder, "score", "shown/guard.offmap", "odd.jsonl", *ENCODER, monkeypatch=monkeypatch).splitlines()
    assert len(said) == 5  # a summary, the header, three texts
    assert max(map(len, said)) < 300
    assert not any("\x1b" in line for line in said)


def test_only_a_guard_or_a_scope_is_scored_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("--text-column", "question", "--label-column", "topic")
    run(folder, "discover", "mixed.csv", *columns, "--k", "3", *ENCODER, "--save", "groups.offmap",
        monkeypatch=monkeypatch)  # fmt: skip
    for command in (["score", "groups.offmap", "test.csv"], ["recalibrate", "groups.offmap", "test.csv", "--out", "x"]):
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, "a guard from offmap fit or offmap guard is needed" in done.stderr) == (1, True)


def test_refusals_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for arguments, message in (
        (["guard", "--out", "x"], "give known inputs with --known, or known texts with --texts"),
        (["guard", "--texts", "known.csv", "--text-column", "q", "--out", "x", *ENCODER], "has no such column"),
        (["discover", "foreign.txt", "--encoder", "nothing"], "the packaged encoders are minilm"),
        (["serve", "made/guard.offmap", "--text-column", "question"], "are columns of --known"),
        (["serve", "made/guard.offmap", "--known", "known.csv", "--text-column", "q"], "has no such column"),
        (["loop", "--data", "mixed.csv", "--tpr", "95"], "a share between 0 and 1"),
        (["loop", "--data", "digits", "--tpr", "0.9"], "the built-in digits have their own"),
        (["score", "made/guard.offmap", "foreign.txt"], "a Python object that no file holds"),
    ):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 1
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
