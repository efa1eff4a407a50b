"""Folders of sentence encoders: damaged, tampered and half-written ones get a sentence, and files never mix."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import load_file, save_file

from offmap.errors import InputError, OffmapError, StoreError
from offmap.models import load_bert
from offmap.models.bert import BertEncoder
from offmap.models.bert_weights import FILES, save_bert
from offmap.models.tokenizer import Tokenizer
from offmap.text import TextEncoder
from offmap.text.bert_files import read_safetensors

SHAPE = {"vocabulary": 7, "width": 8, "depth": 2, "n_heads": 2, "hidden": 16, "positions": 32}
SETTINGS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings", "layer_norm_eps")  # fmt: skip
TEXTS = ["a b c", "c", "b " * 50]


def make_tokenizer() -> Tokenizer:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"]
    special = {name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]  # fmt: skip
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    words = {token: number for number, token in enumerate(tokens)}
    return Tokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "pre_tokenizer": {"type": "Whitespace"},
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": around,
                    "pair": pair,
                    "special_tokens": special,
                },
                "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
            }
        )
    )


def make_encoder(seed: int = 0, **shape: int) -> BertEncoder:
    encoder = BertEncoder(**{**SHAPE, **shape}, tokenizer=make_tokenizer())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return encoder


def encode(folder: Path) -> np.ndarray:
    return TextEncoder(folder).encode(TEXTS, progress=False)


def encode_with_torch(folder: Path) -> np.ndarray:
    encoder = load_bert(folder)
    with torch.no_grad():
        return encoder(torch.from_numpy(encoder.tokenize(TEXTS))).numpy()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(make_encoder(), tmp_path_factory.mktemp("whole") / "encoder")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "encoder")
    return tmp_path / "encoder"


def change(file: Path, **settings: object) -> None:
    content = json.loads(file.read_text()) | settings
    file.write_text(json.dumps(content))


def check_refused(folder: Path, what: str) -> None:
    """Both readers give rows, all finite, or one of our own errors."""
    for use in (encode, encode_with_torch):
        try:
            rows = use(folder)
        except OffmapError:
            continue
        else:
            assert np.isfinite(rows).all(), f"{use.__name__}: {what}"


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_gets_a_sentence(folder: Path, name: str) -> None:
    file = folder / name
    content = file.read_bytes()
    damaged = [b"", content[: len(content) // 2], b"\xff\xfe\x00\x01" * 9, b"[" * 100_000, b"[]", b"3", b"null"]
    for other in (*damaged, b'"x"', b"[1]", b'[{"type": 3}]', b'{"a": NaN}'):
        file.write_bytes(other)
        check_refused(folder, f"{name} = {other[:20]!r}")
    file.unlink()
    check_refused(folder, f"{name} is missing")
    file.mkdir()
    check_refused(folder, f"{name} is a folder")


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_are_not_those_of_the_weights_are_refused(folder: Path, name: str) -> None:
    """Among them a number of layers that would fill the memory before the weights are looked at."""
    for value in (None, "x", -1, 0, 10**12, 2.5, [], 3, True, 1e300):
        change(folder / "config.json", **{name: value})
        for use in (encode, encode_with_torch):
            with pytest.raises(InputError, match=r"config\.json"):
                use(folder)


def test_a_setting_that_is_missing_is_taken_from_the_weights(folder: Path) -> None:
    wanted = encode(folder)
    config = json.loads((folder / "config.json").read_text())
    for name in set(SETTINGS) - {"num_attention_heads"}:
        del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    assert np.array_equal(encode(folder), wanted)


@pytest.mark.parametrize("value", [None, "x", -1, 0, 1, 2, 10**12, 1.5, []])
def test_a_window_that_the_encoder_cannot_read_is_refused(folder: Path, value: object) -> None:
    change(folder / "sentence_bert_config.json", max_seq_length=value)
    with pytest.raises(InputError, match="max_tokens"):
        encode(folder)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_in_other_widths_are_read(folder: Path, kind: torch.dtype) -> None:
    wanted = encode(folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file(
        {f"bert.{name}": value.to(kind) for name, value in weights.items()}, folder / "model.safetensors"
    )
    read = read_safetensors(folder / "model.safetensors")
    assert all(np.array_equal(read[name], value.to(kind).float().numpy()) for name, value in weights.items())
    for use in (encode, encode_with_torch):
        assert np.abs(use(folder)[:2] - wanted[:2]).max() < 0.05


def test_weights_that_cannot_be_used_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    words, places = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
    cases = {
        "NaN": {name: np.full_like(value, np.nan) for name, value in weights.items()},
        "infinity": {name: np.full_like(value, np.inf) for name, value in weights.items()},
        "too large": {name: np.full(value.shape, 1e300) for name, value in weights.items()},
        "whole numbers": {name: value.astype(np.int64) for name, value in weights.items()},
        "one is missing": {name: value for name, value in weights.items() if "1.attention.self.query.b" not in name},
        "one more": weights | {"x": np.ones(3, np.float32)},
        "a layer more": weights
        | {name.replace("r.1.", "r.2."): value for name, value in weights.items() if "r.1." in name},
        "cut": {name: value[:1] for name, value in weights.items()},
        "flat": {name: value.ravel() for name, value in weights.items()},
        "fewer words": weights | {words: weights[words][:3]},
        "fewer places": weights | {places: weights[places][:2]},
        "nothing": {},
    }
    for what, changed in cases.items():
        save_file({name: np.ascontiguousarray(value) for name, value in changed.items()}, file)
        for use in (encode, encode_with_torch):
            with pytest.raises(InputError):
                pytest.fail(f"{what}: {use(folder)[:1]}")
    safetensors.torch.save_file({n: torch.from_numpy(v).to(torch.float8_e4m3fn) for n, v in weights.items()}, file)
    with pytest.raises(InputError, match="F8_E4M3"):
        encode(folder)


def test_a_tokenizer_with_more_tokens_than_the_encoder_is_refused(tmp_path: Path) -> None:
    folder = save_bert(make_encoder(vocabulary=5), tmp_path / "encoder")
    for use in (encode, encode_with_torch):
        with pytest.raises(InputError, match=r"cannot run on these texts|belongs to another encoder"):
            use(folder)


def test_an_encoder_replaces_the_one_before_but_no_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    save_bert(make_encoder(depth=3), folder)
    save_bert(make_encoder(1), folder)
    second = save_bert(make_encoder(1), tmp_path / "other")
    assert np.array_equal(encode(folder), encode(second))
    (folder / "model.onnx").write_bytes(b"an older one, which would be read instead")
    with pytest.raises(InputError, match=r"holds other files, such as model\.onnx"):
        save_bert(make_encoder(2), folder)
    (folder / "model.onnx").unlink()
    assert np.array_equal(encode(folder), encode(second))
    with pytest.raises(InputError, match="there is a file of this name"):
        save_bert(make_encoder(), folder / "config.json")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_fault_at_any_write_leaves_the_old_encoder_or_the_new(tmp_path: Path, error: BaseException) -> None:
    folder = tmp_path / "encoder"
    old, new = (encode(save_bert(make_encoder(seed), tmp_path / str(seed))) for seed in (0, 1))
    replace = os.replace
    reached = []
    for at in range(len(FILES) + 2):
        shutil.rmtree(folder, ignore_errors=True)
        save_bert(make_encoder(0), folder)
        count = iter(range(100))

        def fail(*names: str, count=count, at=at) -> None:
            if next(count) == at:
                raise error
            replace(*names)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises((StoreError, KeyboardInterrupt)):
                save_bert(make_encoder(1), folder)
        left = folder if folder.is_dir() else next(tmp_path.glob(".encoder.old*"))  # killed between the two renames
        found = encode(left)
        assert np.array_equal(found, old) or np.array_equal(found, new)
        reached.append(np.array_equal(found, new))
        if isinstance(error, OSError):
            assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "encoder"]
        shutil.rmtree(left)
    assert not any(reached)  # it was refused, so it was not done


@pytest.mark.parametrize("row", [b"", b"123", None, "text", np.full(8, np.nan, "<f4").tobytes(), b"\0" * 12])
def test_a_cache_with_damaged_rows_gets_a_sentence(whole: Path, tmp_path: Path, row: object) -> None:
    encoder = TextEncoder(whole, cache=tmp_path / "cache.sqlite")
    wanted = encoder.encode(TEXTS, progress=False)
    assert np.array_equal(encoder.encode(TEXTS, progress=False), wanted)
    with sqlite3.connect(tmp_path / "cache.sqlite") as connection:
        connection.execute("UPDATE embedding SET row = ? WHERE key = (SELECT min(key) FROM embedding)", [row])
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        encoder.encode(TEXTS, progress=False)
