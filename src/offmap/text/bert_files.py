"""The files of a sentence encoder's folder: settings and weights, compared before anything is built from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from offmap.errors import InputError
from offmap.typing import Array, Float32Array

EPSILON = 1e-12  # of normalisation, where the settings do not say
UNUSED = ("pooler.", "position_ids")
_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
_LINEAR = {  # and normalisation, each with weight and bias: how many numbers out, and in
    "attention.self.query": ("hidden_size", "hidden_size"),
    "attention.self.key": ("hidden_size", "hidden_size"),
    "attention.self.value": ("hidden_size", "hidden_size"),
    "attention.output.dense": ("hidden_size", "hidden_size"),
    "attention.output.LayerNorm": ("hidden_size",),
    "intermediate.dense": ("intermediate_size", "hidden_size"),
    "output.dense": ("hidden_size", "intermediate_size"),
    "output.LayerNorm": ("hidden_size",),
}
_PREFIX = re.compile(r"^(bert|0\.auto_model)\.")
_LAYER = re.compile(r"^encoder\.layer\.(\d{1,4})\.")
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_Json = TypeVar("_Json", dict[str, Any], list[Any])


def read_text(file: Path) -> str:
    """Read a file of text; one that cannot be read gets a sentence."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as text ({error})") from error


def read_json(file: Path, kind: type[_Json]) -> _Json:
    """Read a JSON file that holds an object or a list; anything else gets a sentence."""
    try:
        found = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not JSON ({error})") from error
    if not isinstance(found, kind):
        raise InputError(f"{file}: holds a {type(found).__name__}; a {kind.__name__} is needed")
    return found


def read_safetensors(file: Path) -> dict[str, Float32Array]:
    """Read the weights of an encoder, in 16, 32 or 64 bits, by transformers' names without a prefix.

    Parameters
    ----------
    file : Path
        Such as ``model.safetensors``. Whole numbers in it, which are no weights, are left out.

    Returns
    -------
    dict of str to array of float32
        All of them finite.

    Raises
    ------
    InputError
        If the file is damaged, or holds numbers in another form.
    """
    from safetensors import SafetensorError, deserialize

    try:
        parts = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: not a readable file of weights ({error})") from error
    found: dict[str, Float32Array] = {}
    for name, part in parts:
        if part["dtype"] not in (*_FLOATS, "BF16"):
            if part["dtype"].startswith("F"):
                raise InputError(f"{file}: {name} is {part['dtype']}; weights of 16, 32 or 64 bits are needed")
            continue
        content = bytes(part["data"])
        if part["dtype"] == "BF16":  # the upper half of a float32
            array = (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            with np.errstate(over="ignore"):  # what does not fit is refused as infinite
                array = np.frombuffer(content, _FLOATS[part["dtype"]]).astype(np.float32)
        if not np.isfinite(array).all():
            raise InputError(f"{file}: {name} holds NaN or infinity; the weights are damaged")
        found[strip_prefix(name)] = array.reshape(part["shape"])
    return found


def strip_prefix(name: str) -> str:
    """Return a weight's name without what models around the encoder put before it.

    Examples
    --------
    >>> strip_prefix("bert.embeddings.LayerNorm.bias")
    'embeddings.LayerNorm.bias'
    """
    return _PREFIX.sub("", name)


def list_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """List all weights of a BERT encoder by transformers' names, with their shapes.

    Examples
    --------
    >>> config = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> shapes = list_shapes(config | {"max_position_embeddings": 16})
    >>> len(shapes), shapes["encoder.layer.0.intermediate.dense.weight"]
    (21, (8, 4))
    """
    width = config["hidden_size"]
    rows = (config["vocab_size"], config["max_position_embeddings"], 2)
    shapes = {f"embeddings.{name}.weight": (n, width) for name, n in zip(_EMBEDDINGS, rows, strict=False)}
    found: dict[str, tuple[int, ...]] = {
        **shapes, "embeddings.LayerNorm.weight": (width,), "embeddings.LayerNorm.bias": (width,)
    }  # fmt: skip
    for block in range(config["num_hidden_layers"]):
        for name, sizes in _LINEAR.items():
            shape = tuple(config[size] for size in sizes)
            found |= {f"encoder.layer.{block}.{name}.weight": shape, f"encoder.layer.{block}.{name}.bias": shape[:1]}
    return found


def check_bert(config: Mapping[str, Any], weights: Mapping[str, Array], place: Path) -> dict[str, int]:
    """Compare an encoder's settings with its weights, which say how large it is; so no setting can ask for more.

    Parameters
    ----------
    config : mapping
        ``config.json`` as transformers writes it.
    weights : mapping of str to array
        By transformers' names.
    place : Path
        The folder, for errors.

    Returns
    -------
    dict of str to int
        The sizes, by the names of ``config.json``.

    Raises
    ------
    InputError
        If a setting is no number or another one than that of the weights, or a weight is missing or of another shape.
    """
    own = {name: array for name, array in weights.items() if not any(part in name for part in UNUSED)}
    sizes = _measure(own, place)
    for name, there in sizes.items():
        given = config.get(name, there)
        if type(given) is not int or given != there:
            raise InputError(f"{place / 'config.json'}: {name}={str(given)[:40]}, the weights have {there}")
    heads = config.get("num_attention_heads")
    if type(heads) is not int or heads < 1 or sizes["hidden_size"] % heads:
        raise InputError(
            f"{place / 'config.json'}: num_attention_heads={str(heads)[:40]}; a divisor of {sizes['hidden_size']} is "
            "needed"
        )
    epsilon = config.get("layer_norm_eps", EPSILON)
    if type(epsilon) is not float or not 0 < epsilon < 0.1:
        raise InputError(f"{place / 'config.json'}: layer_norm_eps={str(epsilon)[:40]}; a small number is needed")
    shapes = list_shapes(sizes)
    wrong = sorted(shapes.keys() ^ own.keys()) or [name for name in shapes if own[name].shape != shapes[name]]
    if wrong:
        raise InputError(
            f"{place}: not the weights of this BERT encoder: {', '.join(wrong[:3])} missing, unknown or of another "
            "shape"
        )
    return {**sizes, "num_attention_heads": heads}


def _measure(weights: Mapping[str, Array], place: Path) -> dict[str, int]:
    """Return the sizes of an encoder as its weights have them."""
    needed = {
        "vocab_size": "embeddings.word_embeddings.weight",
        "max_position_embeddings": "embeddings.position_embeddings.weight",
        "intermediate_size": "encoder.layer.0.intermediate.dense.weight",
    }
    for name in needed.values():
        if name not in weights or weights[name].ndim != 2 or 0 in weights[name].shape:
            raise InputError(
                f"{place}: not the weights of this BERT encoder: {name} missing, unknown or of another shape"
            )
    layers = {match[1] for name in weights if (match := _LAYER.match(name))}
    width = weights["embeddings.word_embeddings.weight"].shape[1]
    sizes = {setting: len(weights[name]) for setting, name in needed.items()}
    return {**sizes, "hidden_size": width, "num_hidden_layers": len(layers)}
