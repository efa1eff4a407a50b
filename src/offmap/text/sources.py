"""From what a user names or gives to the model inside a `TextEncoder`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from offmap.errors import InputError
from offmap.text.bert_files import read_json
from offmap.text.models import (
    MAX_TOKENS,
    FunctionTextModel,
    OnnxTextModel,
    SentenceTransformersModel,
    TextModel,
    TorchTextModel,
)
from offmap.text.packaged import ENCODERS

_GRAPHS = ("model.onnx", "onnx/model.onnx", "model.safetensors")


def find_model(
    source: Any,
    tokenizer: Any = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_tokens: int | None = None,
) -> TextModel:
    """Return the model that a name, a path or an object stands for; parameters as in `TextEncoder`."""
    if isinstance(source, str) and source in ENCODERS:
        name = {"kind": "package", "name": source}
        return _from_folder(ENCODERS.get(source)(), name, pooling, normalize, max_tokens)
    if isinstance(source, str | os.PathLike):
        return _from_path(Path(source), tokenizer, pooling, normalize, max_tokens)
    if hasattr(source, "encode") and hasattr(source, "tokenizer"):
        return SentenceTransformersModel(source, max_tokens)
    if hasattr(source, "parameters"):
        if tokenizer is None:
            raise InputError(
                f"TextEncoder({type(source).__name__}): give its tokenizer too, TextEncoder(model, tokenizer)"
            )
        own = getattr(getattr(source, "config", None), "max_position_embeddings", MAX_TOKENS)
        return TorchTextModel(source, tokenizer, pooling or "mean", normalize is not False, max_tokens or int(own))
    if callable(source):
        return FunctionTextModel(source)
    raise InputError(
        f"TextEncoder({type(source).__name__}): give a name ({', '.join(ENCODERS)}), an .onnx file with its "
        "tokenizer.json, a function from texts to rows, or a model of sentence-transformers or transformers"
    )


def _from_path(
    path: Path, tokenizer: Any, pooling: str | None, normalize: bool | None, max_tokens: int | None
) -> TextModel:
    if path.is_dir():
        return _from_folder(path, {"kind": "folder", "path": str(path.resolve())}, pooling, normalize, max_tokens)
    if path.suffix != ".onnx":
        raise InputError(
            f"encoder {os.fspath(path)!r}: name one of {', '.join(ENCODERS)}, an .onnx file beside its tokenizer.json, "
            "or a folder with both"
        )
    beside = path.parent / "tokenizer.json" if tokenizer is None else Path(tokenizer)
    source = {"kind": "onnx", "path": str(path.resolve()), "tokenizer": str(beside.resolve())}
    return OnnxTextModel(path, beside, pooling or "mean", normalize is not False, max_tokens or MAX_TOKENS, source)


def _from_folder(
    folder: Path, source: dict[str, Any], pooling: str | None, normalize: bool | None, max_tokens: int | None
) -> TextModel:
    """Return a folder as sentence-transformers writes it; its settings hold where none were given."""
    graph = next((folder / name for name in _GRAPHS if (folder / name).is_file()), folder / _GRAPHS[0])
    pooled = _read_settings(folder / "1_Pooling" / "config.json")
    own_pooling = "cls" if pooled.get("pooling_mode_cls_token") else "mean"
    own_normalize = any("Normalize" in kind for kind in _read_modules(folder / "modules.json") or ["Normalize"])
    own_tokens = _read_settings(folder / "sentence_bert_config.json").get("max_seq_length", MAX_TOKENS)
    return OnnxTextModel(
        graph,
        folder / "tokenizer.json",
        pooling or own_pooling,
        own_normalize if normalize is None else normalize,
        max_tokens or own_tokens,
        source,
    )


def _read_modules(file: Path) -> list[str]:
    """Return the types of modules that sentence-transformers runs one after the other."""
    found = (
        [one.get("type") if isinstance(one, dict) else None for one in read_json(file, list)] if file.is_file() else []
    )
    if not all(isinstance(kind, str) for kind in found):
        raise InputError(f"{file}: not a list of modules, each with its type")
    return [str(kind) for kind in found]


def _read_settings(file: Path) -> dict[str, Any]:
    return read_json(file, dict) if file.is_file() else {}
