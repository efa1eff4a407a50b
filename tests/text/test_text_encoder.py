"""The encoder: the graph it is built from, real texts, what is refused, the cache, and what a file refers to."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offmap import TextEncoder
from offmap.errors import InputError, StoreError
from offmap.text import ENCODERS
from offmap.text.bert_graph import build_bert_graph
from offmap.text.cache import EmbeddingCache


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return TextEncoder()


class Lengths:
    """An encoder that can be counted: how many letters and words a text has."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(texts)
        return [[len(text), len(text.split())] for text in texts]


def bert_weights(rng: np.random.Generator, layers: int, width: int, wide: int) -> dict[str, Any]:
    shapes = {
        "embeddings.word_embeddings.weight": (20, width),
        "embeddings.position_embeddings.weight": (16, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{name}.{part}.weight": (width, width), f"{name}.{part}.bias": (width,)}
        shapes |= {f"{name}.intermediate.dense.weight": (wide, width), f"{name}.intermediate.dense.bias": (wide,)}
        shapes |= {f"{name}.output.dense.weight": (width, wide), f"{name}.output.dense.bias": (width,)}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{name}.{part}.weight": (width,), f"{name}.{part}.bias": (width,)}
    return {name: rng.normal(size=shape).astype(np.float32) / 2 for name, shape in shapes.items()}


def bert_by_hand(weights: dict[str, Any], ids: list[int], layers: int, heads: int) -> Any:
    """Devlin et al. (2019) written out for one text, in float64 and with a loop over heads."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12) * w[f"{name}.weight"]
            + w[f"{name}.bias"]
        )

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    size = x.shape[1] // heads
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        q, k, v = (linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        mixed = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(size))
            mixed.append(scores / scores.sum(axis=1, keepdims=True) @ v[:, part])
        attended = linear(np.concatenate(mixed, axis=1), f"{name}.attention.output.dense")
        x = norm(attended + x, f"{name}.attention.output.LayerNorm")
        inner = linear(x, f"{name}.intermediate.dense")
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = norm(linear(inner, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")
    return x


def test_the_graph_is_bert() -> None:
    import onnxruntime

    weights = bert_weights(np.random.default_rng(0), 2, 8, 12)
    config = {"model_type": "bert", "hidden_act": "gelu", "num_hidden_layers": 2, "num_attention_heads": 2}
    graph = build_bert_graph({**config, "hidden_size": 8}, weights)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    ids, mask = np.array([[3, 7, 1, 0], [5, 2, 9, 4]]), np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (found,) = session.run(None, given)
    np.testing.assert_allclose(found[0, :3], bert_by_hand(weights, [3, 7, 1], 2, 2), atol=1e-4)
    np.testing.assert_allclose(found[1], bert_by_hand(weights, [5, 2, 9, 4], 2, 2), atol=1e-4)
    with pytest.raises(InputError, match="only 'bert' with 'gelu'"):
        build_bert_graph({"model_type": "gpt2"}, weights)
    del weights["encoder.layer.1.output.dense.bias"]
    with pytest.raises(InputError, match=r"hold no 'encoder.layer.1.output.dense.bias'"):
        build_bert_graph({**config, "hidden_size": 8}, weights)


@pytest.mark.slow
def test_a_model_of_sentence_transformers_gives_the_same_rows(encoder: TextEncoder) -> None:
    from sentence_transformers import SentenceTransformer

    folder = str(ENCODERS["minilm"]())
    texts = ["Where is my card?", "🙂 emoji", "أين بطاقتي", "a much longer sentence about the price of tea in winter"]
    model = SentenceTransformer(folder, device="cpu")
    own = encoder.encode(texts)
    np.testing.assert_allclose(own, model.encode(texts), atol=1e-5)
    wrapped = TextEncoder(model)
    document = "the price of tea rose again this winter, and nobody knows why. " * 60
    np.testing.assert_allclose(own, wrapped.encode(texts), atol=1e-5)
    assert float(wrapped.encode([document])[0] @ encoder.encode([document])[0]) > 0.99  # windows end at other words
    bert = TextEncoder(model[0].auto_model if hasattr(model[0], "auto_model") else model[0].model, model.tokenizer)
    np.testing.assert_allclose(own, bert.encode(texts), atol=1e-5)
    restored = TextEncoder.restore(wrapped.reference(), wrapped)
    assert restored is wrapped
    with pytest.raises(StoreError, match="a Python object that no file holds"):
        TextEncoder.restore(wrapped.reference())


def test_real_sentences_lie_near_their_paraphrases(encoder: TextEncoder) -> None:
    pairs = [
        ("I lost my card", "my card is missing"),
        ("what is the weather tomorrow", "will it rain tomorrow"),
        ("play some music", "put on a song"),
    ]
    first, second = (encoder.encode([pair[i] for pair in pairs]) for i in (0, 1))
    assert np.array_equal(np.argmax(first @ second.T, axis=1), [0, 1, 2])
    assert encoder.width == 384
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)


def test_batches_and_order_change_nothing(encoder: TextEncoder) -> None:
    texts = [" ".join(["word"] * n) for n in (1, 30, 3, 300, 2, 1)]
    together = encoder.encode(texts)
    one_by_one = np.concatenate([encoder.encode([text], batch_size=1) for text in texts])
    np.testing.assert_allclose(together, one_by_one, atol=1e-5)
    assert np.array_equal(together[0], together[5])


def test_a_long_document_is_the_average_of_its_windows() -> None:
    encoder = TextEncoder(max_tokens=12)
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    windows = encoder.encode(["one two three four five six seven eight nine ten", "eleven twelve thirteen fourteen"])
    sizes = np.array([12, len(encoder.model.cut(["eleven twelve thirteen fourteen"])[0][0])])
    expected = (windows * sizes[:, None]).sum(axis=0)
    np.testing.assert_allclose(encoder.encode([text])[0], expected / np.linalg.norm(expected), atol=1e-5)


def test_any_writing_is_encoded(encoder: TextEncoder) -> None:
    rows = encoder.encode(["🙂🙃", "שלום עולם", "مرحبا", "你好", "a\x00b\x07", "x" * 5000, "\u202eabc"])
    assert np.isfinite(rows).all()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no texts were given"),
        ("one text", "put it in brackets"),
        (["fine", ""], "text 1 is empty"),
        (["fine", " \n"], "text 1 is empty"),
        (["fine", 3], "text 1 is a int"),
        (["fine", "half \ud83d of"], "half of a character at place 5"),
        (["x" * 1_000_001], "1,000,001 characters, the limit is 1,000,000"),
    ],
)
def test_what_cannot_be_encoded_is_said(texts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextEncoder(Lengths()).encode(texts)


def test_sources_that_are_no_encoder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="TextEncoder\\(int\\): give a name \\(minilm\\)"):
        TextEncoder(3)
    with pytest.raises(InputError, match="name one of minilm"):
        TextEncoder("minilmm")
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match=r"tokenizer.json: there is no such file"):
        TextEncoder(tmp_path / "model.onnx")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"not a tokenizer.json"):
        TextEncoder(tmp_path / "model.onnx").encode(["a"])
    with pytest.raises(InputError, match="one row per text"):
        TextEncoder(lambda texts: [1.0] * len(texts)).encode(["a"])


def test_an_onnx_file_with_its_tokenizer_is_an_encoder(tmp_path: Path, encoder: TextEncoder) -> None:
    folder = ENCODERS["minilm"]()
    (tmp_path / "encoder.onnx").write_bytes(encoder.model._built())  # type: ignore[attr-defined]
    shutil.copy(folder / "tokenizer.json", tmp_path / "words.json")
    own = TextEncoder(tmp_path / "encoder.onnx", tmp_path / "words.json", max_tokens=256)
    np.testing.assert_allclose(own.encode(["tea"]), encoder.encode(["tea"]), atol=1e-6)
    reference = own.reference()
    assert TextEncoder.restore(reference).fingerprint() == own.fingerprint()
    with pytest.raises(StoreError, match="is not the encoder that this was made with"):
        TextEncoder.restore(reference, TextEncoder(Lengths()))
    with pytest.raises(StoreError, match="is not the encoder"):
        TextEncoder.restore(reference, TextEncoder(tmp_path / "encoder.onnx", tmp_path / "words.json", pooling="cls"))
    (tmp_path / "words.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(StoreError, match="give the encoder where it is now"):
        TextEncoder.restore(reference)
    assert TextEncoder.restore(reference, TextEncoder(tmp_path / "encoder.onnx", max_tokens=256))


def test_a_function_is_recognised_by_what_it_answers() -> None:
    reference = TextEncoder(Lengths()).reference()
    assert TextEncoder.restore(reference, TextEncoder(Lengths()))
    with pytest.raises(StoreError, match="is not the encoder"):
        TextEncoder.restore(reference, TextEncoder(lambda texts: [[0.0, 1.0]] * len(texts)))


def test_no_text_is_encoded_twice(tmp_path: Path) -> None:
    function = Lengths()
    encoder = TextEncoder(function, cache=tmp_path / "rows.sqlite")
    function.calls.clear()
    first = encoder.encode(["a b", "c", "a b"])
    assert sorted(text for call in function.calls for text in call) == ["a b", "c"]
    function.calls.clear()
    again = TextEncoder(function, cache=tmp_path / "rows.sqlite").encode(["c", "a b", "new"])
    assert function.calls[-1] == ["new"]
    assert np.array_equal(first[:2], again[[1, 0]])
    assert b"a b" not in (tmp_path / "rows.sqlite").read_bytes()
    other = TextEncoder(lambda texts: [[1.0, 2.0]] * len(texts), cache=tmp_path / "rows.sqlite")
    assert other.encode(["c"]).tolist() == [[1.0, 2.0]]


def test_a_cache_that_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "rows.sqlite").write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreError, match="not a cache of embeddings"):
        EmbeddingCache(tmp_path / "rows.sqlite", "x")
