"""Reading and writing a sentence encoder of the BERT family: weights, from safetensors or ONNX, and its tokenizer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.models.tokenizer import MAX_LENGTH, Tokenizer
from offmap.store import write_folder
from offmap.text.bert_files import (
    EPSILON,
    UNUSED,
    check_bert,
    list_shapes,
    read_json,
    read_safetensors,
    read_text,
    strip_prefix,
)
from offmap.text.packaged import DEFAULT, ENCODERS
from offmap.text.trained_texts import TRAINED_TEXTS

if TYPE_CHECKING:
    from offmap.models.bert import BertEncoder


_NAMES = (  # transformers' names in ours; longer ones first
    (r"embeddings\.word_embeddings", "states.words"),
    (r"embeddings\.position_embeddings", "states.places"),
    (r"embeddings\.token_type_embeddings", "states.kinds"),
    (r"embeddings\.LayerNorm", "states.norm"),
    (r"attention\.self\.", ""),
    (r"attention\.output\.dense", "out"),
    (r"attention\.output\.LayerNorm", "norm_1"),
    (r"intermediate\.dense", "up"),
    (r"output\.dense", "down"),
    (r"output\.LayerNorm", "norm_2"),
)
FILES = (
    "config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "tokenizer.json",
    "model.safetensors",
)  # fmt: skip
_SHAPE = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "positions": "max_position_embeddings",
}


def load_bert(source: str | os.PathLike[str] = DEFAULT, trained: int | None = None) -> BertEncoder:
    """Load a sentence encoder that can be fine-tuned, with its tokenizer.

    Parameters
    ----------
    source : str or path, default "minilm"
        The name of an encoder from an installed package, as `offmap.TextEncoder` takes it; or a folder as transformers
        and sentence-transformers write it, with ``config.json``, ``tokenizer.json`` and ``model.safetensors`` or
        ``model.onnx`` (also in ``onnx/``). A text's row is the mean over its tokens, of length 1.
    trained : int, optional
        How many of the last blocks `offmap.learn` trains; the whole network when `None`.

    Returns
    -------
    BertEncoder
        In evaluation mode; `BertEncoder.tokenize` makes its token numbers.

    Raises
    ------
    InputError
        If there is no such folder, or its weights are not of the BERT family.

    See Also
    --------
    offmap.TextEncoder : The same encoder where it is not trained, and faster.

    Examples
    --------
    >>> encoder = load_bert(trained=2)
    >>> encoder.tokenize(["Where is my card?"]).tolist()
    [[101, 2073, 2003, 2026, 4003, 1029, 102]]
    """
    from offmap.models.bert import BertEncoder

    folder = find_folder(source)
    config = read_json(folder / "config.json", dict)
    if config.get("model_type", "bert") != "bert" or config.get("hidden_act", "gelu") != "gelu":
        raise InputError(
            f"{folder}: a {config.get('model_type')} with {config.get('hidden_act')}; only a BERT with gelu can be read"
        )
    if config.get("layer_norm_eps", EPSILON) != EPSILON:
        raise InputError(
            f"{folder / 'config.json'}: layer_norm_eps={config['layer_norm_eps']!r}; only {EPSILON} is read"
        )
    weights = read_bert_weights(_find_weights(folder))
    sizes = check_bert(config, weights, folder)
    shape = {ours: sizes[theirs] for ours, theirs in _SHAPE.items()}
    tokenizer = Tokenizer(read_text(folder / "tokenizer.json"), min(MAX_LENGTH, shape["positions"]))
    encoder = BertEncoder(**shape, trained=trained, tokenizer=tokenizer)
    fill_bert(encoder, weights)
    return encoder.eval()


def save_bert(encoder: BertEncoder, folder: str | os.PathLike[str], beside: Mapping[str, bytes] | None = None) -> Path:
    """Write an encoder as a folder that `offmap.TextEncoder`, `load_bert` and sentence-transformers read.

    Parameters
    ----------
    encoder : BertEncoder
        With a tokenizer.
    folder : path
        Gets ``config.json``, ``model.safetensors``, ``tokenizer.json`` and what sentence-transformers wants to know of
        pooling, all or nothing. An encoder that was written there before is replaced; other files are not.
    beside : mapping of str to bytes, optional
        Contents of further files, such as the list of texts that it was trained on.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InputError
        If the folder holds files that are not written here, such as a ``model.onnx`` that would be read instead.
    StoreError
        If it cannot be written; what was there before is untouched.
    """
    from safetensors.numpy import save

    if encoder.tokenizer is None:
        raise InputError("save_bert: this encoder has no tokenizer, without which no text can be encoded")
    shape = {theirs: encoder.shape[ours] for ours, theirs in _SHAPE.items()}
    named = {"architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": EPSILON}
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    longest = min(encoder.tokenizer.max_length, encoder.shape["positions"])
    settings: dict[str, Any] = {
        "config.json": named | shape | {"type_vocab_size": 2},
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": encoder.width, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
    }
    state = encoder.state_dict()
    depth, first = encoder.shape["depth"], encoder.shape["depth"] - (encoder.trained or 0)
    weights = {
        name: state[_rename(name, encoder.trained is None, first, depth)].detach().cpu().numpy()
        for name in list_shapes(shape)
    }
    files = {name: (json.dumps(content, indent=1) + "\n").encode() for name, content in settings.items()}
    files["tokenizer.json"] = encoder.tokenizer.definition.encode()
    files["model.safetensors"] = save(weights, {"format": "pt"})
    write_folder(folder, {**files, **(beside or {})}, [TRAINED_TEXTS])
    return Path(folder)


def find_folder(source: str | os.PathLike[str]) -> Path:
    """Find the folder of a model: that of an encoder by name, or the path itself."""
    folder = ENCODERS.get(source)() if isinstance(source, str) and source in ENCODERS else Path(source)
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{os.fspath(source)}: neither an encoder's name ({', '.join(ENCODERS)}) nor a folder with "
            f"{' and '.join(missing)}; give the folder of a sentence encoder"
        )
    return folder


def read_bert_weights(file: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Read weights by transformers' names; in ONNX files those of linear layers are found by their place in the graph.

    Parameters
    ----------
    file : Path
        ``.safetensors`` or ``.onnx``.

    Returns
    -------
    dict of str to ndarray
        Weights of linear layers are outputs × inputs, as torch has them.
    """
    if file.suffix == ".safetensors":
        return read_safetensors(file)
    import onnx

    try:
        graph = onnx.load(file).graph
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    except Exception as error:  # a damaged file can make the parser raise almost anything
        raise InputError(f"{file}: not a readable ONNX file ({str(error)[:200]})") from error
    found = {strip_prefix(name): array for name, array in arrays.items() if "::" not in name}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            layer = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            found[f"{strip_prefix(layer)}.weight"] = arrays[node.input[1]].T
    return found


def fill_bert(encoder: BertEncoder, weights: dict[str, npt.NDArray[np.float32]]) -> None:
    """Fill an encoder with weights by transformers' names, all of them; nothing is changed if one does not fit."""
    import torch

    own = encoder.state_dict()
    depth, first = encoder.shape["depth"], encoder.shape["depth"] - (encoder.trained or 0)
    state = {}
    for name, array in weights.items():
        if not any(part in name for part in UNUSED):
            state[_rename(name, encoder.trained is None, first, depth)] = torch.from_numpy(np.array(array, np.float32))
    wrong = sorted(own.keys() ^ state.keys())
    wrong = wrong or [name for name, value in own.items() if value.shape != state[name].shape]
    if wrong:
        raise InputError(
            f"not the weights of this BERT encoder: {', '.join(wrong[:3])} missing, unknown or of another shape"
        )
    encoder.load_state_dict(state)


def _rename(name: str, whole: bool, first: int, depth: int) -> str:
    """Return our name of a weight: blocks before `first` stand in the front, the others in the body."""
    for pattern, ours in _NAMES:
        name = re.sub(pattern, ours, name)
    front = "body.0" if whole else "front"
    layer = re.match(r"encoder\.layer\.(\d+)\.(.*)", name)
    if layer is None:
        return name.replace("states.", f"{front}.")
    number = int(layer[1])
    return f"{front}.blocks.{number}.{layer[2]}" if number < first else f"body.blocks.{number - first}.{layer[2]}"


def _find_weights(folder: Path) -> Path:
    for name in ("model.safetensors", "model.onnx", "onnx/model.onnx"):
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{folder}: no weights; model.safetensors, model.onnx or onnx/model.onnx is needed")
