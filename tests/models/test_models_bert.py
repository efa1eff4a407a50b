"""The sentence encoder: against a plain formula, an ONNX graph, and rows that another program computed."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

import offmap
from offmap.errors import InputError
from offmap.models import load_bert
from offmap.models.bert import BertEncoder

SHAPE = {"vocabulary": 30, "width": 12, "depth": 3, "n_heads": 3, "hidden": 20, "positions": 10}
CONFIG = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 10,
}
LINEAR = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")


def make_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by transformers' names."""
    rng = np.random.default_rng(seed)
    width, hidden = 12, 20
    shapes = {
        "embeddings.word_embeddings.weight": (30, width),
        "embeddings.position_embeddings.weight": (10, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(3):
        layer = f"encoder.layer.{i}"
        for name in LINEAR:
            shapes |= {f"{layer}.{name}.weight": (width, width), f"{layer}.{name}.bias": (width,)}
        shapes |= {f"{layer}.intermediate.dense.weight": (hidden, width), f"{layer}.intermediate.dense.bias": (hidden,)}
        shapes |= {f"{layer}.output.dense.weight": (width, hidden), f"{layer}.output.dense.bias": (width,)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return {name: (0.5 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def encode_plainly(weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """One text by the formulas, in float64, token by token and head by head."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True)) * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
    for i in range(3):
        layer = f"encoder.layer.{i}"
        q, k, v = (linear(f"{layer}.attention.self.{name}", x) for name in ("query", "key", "value"))
        heads = []
        for start in range(0, 12, 4):
            part = slice(start, start + 4)
            scores = np.exp(q[:, part] @ k[:, part].T / 2)
            heads.append(scores / scores.sum(axis=1, keepdims=True) @ v[:, part])
        x = norm(
            f"{layer}.attention.output.LayerNorm",
            x + linear(f"{layer}.attention.output.dense", np.concatenate(heads, axis=1)),
        )
        up = linear(f"{layer}.intermediate.dense", x)
        gelu = up * np.vectorize(lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2))))(up)
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", gelu))
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def write_folder(folder: Path, weights: dict[str, np.ndarray], kind: str) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    if kind == "safetensors":
        save_file(weights | {"pooler.dense.weight": np.eye(12, dtype=np.float32)}, folder / "model.safetensors")
        return folder
    initial, nodes = [], []
    for name, value in weights.items():  # as exporters write them: linear layers' weights transposed, without a name
        if value.ndim == 2 and "embeddings" not in name:
            hidden = f"onnx::MatMul_{len(initial)}"
            initial.append(numpy_helper.from_array(np.ascontiguousarray(value.T), hidden))
            place = "/" + name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.") + "/MatMul"
            nodes.append(helper.make_node("MatMul", ["x", hidden], [f"y{len(nodes)}"], name=place))
        else:
            initial.append(numpy_helper.from_array(value, name))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    onnx.save(helper.make_model(helper.make_graph(nodes, "bert", [x], [], initial)), folder / "model.onnx")
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
@pytest.mark.parametrize("trained", [None, 1, 3])
def test_the_rows_are_those_of_the_formulas(tmp_path: Path, kind: str, trained: int | None) -> None:
    weights = make_weights()
    encoder = load_bert(write_folder(tmp_path, weights, kind), trained=trained)
    texts = [[5, 7, 9, 11, 2], [3, 4], [8], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    ids = torch.zeros(4, 10, dtype=torch.long)
    for row, tokens in zip(ids, texts, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    with torch.no_grad():
        rows = encoder(ids).numpy()
    wanted = np.stack([encode_plainly(weights, tokens) for tokens in texts])
    assert np.abs(rows - wanted).max() < 1e-5


def test_the_rest_of_a_batch_and_its_padding_change_nothing() -> None:
    encoder = BertEncoder(**SHAPE)
    ids = torch.randint(1, 30, (600, 10), generator=torch.Generator().manual_seed(0))
    ids[torch.arange(10)[None, :] >= torch.arange(600)[:, None] % 10 + 1] = 0
    with torch.no_grad():
        whole = encoder(ids)
        assert torch.allclose(whole[:7], encoder(ids[:7, :8]), atol=1e-6)
        assert torch.allclose(whole[599:], encoder(ids[599:]), atol=1e-6)
    with_gradient = encoder(ids)
    assert torch.allclose(whole, with_gradient, atol=1e-6)
    with_gradient.sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for name, p in encoder.named_parameters())


def test_an_absent_token_in_the_middle_leaves_the_places_of_the_others() -> None:
    encoder = BertEncoder(**SHAPE, trained=1)
    with torch.no_grad():
        states = encoder.front(torch.tensor([[5, 6, 7]]))
        states[0, 1] = 0
        order = encoder.body(states[:, [2, 1, 0]])
        assert torch.allclose(encoder.body(states), order, atol=1e-6)  # after the first blocks order is in the states
        assert not torch.allclose(encoder(torch.tensor([[5, 0, 7]])), encoder(torch.tensor([[5, 7, 0]])), atol=1e-4)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nor a folder with config\.json"):
        load_bert(tmp_path)
    weights = make_weights()
    weights.pop("encoder.layer.1.output.dense.bias")
    with pytest.raises(InputError, match="not the weights of this BERT encoder"):
        load_bert(write_folder(tmp_path, weights, "safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "roberta"}))
    with pytest.raises(InputError, match="roberta"):
        load_bert(tmp_path)
    with pytest.raises(InputError, match="from 1 to 3 blocks"):
        BertEncoder(**SHAPE, trained=4)
    with pytest.raises(InputError, match="a multiple of the heads"):
        BertEncoder(**{**SHAPE, "n_heads": 5})
    with pytest.raises(InputError, match="no token left"):
        BertEncoder(**SHAPE)(torch.tensor([[0, 0]]))
    with pytest.raises(InputError, match="at most 10 numbers"):
        BertEncoder(**SHAPE)(torch.ones(1, 11))


def test_the_packaged_encoder_gives_the_rows_that_were_computed_elsewhere(data_folder: Path) -> None:
    with (data_folder / "text" / "banking77_test.tsv").open(newline="") as opened:
        texts = [row[0] for row in csv.reader(opened, delimiter="\t")][1:41]
    wanted = np.load(data_folder / "text" / "banking77_minilm.npz")["test_features"][:40].astype(np.float32)
    encoder = load_bert(trained=2)
    with torch.no_grad():
        rows = encoder(torch.from_numpy(encoder.tokenize(texts))).numpy()
    assert np.abs(rows - wanted).max() < 1e-4  # stored in 16 bits


def test_the_packaged_encoder_gives_the_rows_of_its_onnx_graph() -> None:
    texts = ["Where is my card?", "I would like to know when, and how, it was sent to me", "ok", "ÄÖ 🙂 emoji, שלום"]
    encoder = load_bert()
    with torch.no_grad():
        rows = encoder(torch.from_numpy(encoder.tokenize(texts))).numpy()
    assert np.abs(rows - offmap.TextEncoder().encode(texts)).max() < 1e-4
