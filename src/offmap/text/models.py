"""Models that run inside a `TextEncoder`: an ONNX graph with its tokenizer, a torch model, or any function."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence, Sized
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from offmap.errors import DependencyError, InputError
from offmap.text.bert_files import check_bert, read_json, read_safetensors
from offmap.text.bert_graph import build_bert_graph
from offmap.text.pooling import check_pooling, pool_tokens
from offmap.text.tokens import TokenWindows
from offmap.typing import Array, Float32Array

MAX_TOKENS = 512
PROBE = "where is the nearest library, and when does it open?"  # its row tells encoders apart
_EXTRA = "pip install 'offmap[text]'"


class TextModel(Protocol):
    """The interface of the model inside a `TextEncoder`."""

    def cut(self, texts: Sequence[str]) -> list[list[Any]]:
        """Cut each text into pieces that the model reads at once; a piece has a length."""
        ...

    def run(self, pieces: Sequence[Any]) -> Array:
        """Return one row for each piece."""
        ...

    def reference(self) -> dict[str, Any]:
        """Return the plain values by which the model is found again."""
        ...

    def digest(self) -> str:
        """Return a checksum of everything that its answers depend on."""
        ...


class OnnxTextModel:
    """An ONNX graph from token ids to vectors, with its tokenizer.

    Parameters
    ----------
    graph : Path
        An ``.onnx`` file, or ``.safetensors`` weights of a BERT encoder beside their ``config.json``.
    tokenizer : Path
        A ``tokenizer.json``.
    pooling : {"mean", "cls"}
        How vectors of tokens become one, where the graph does not do it.
    normalize : bool
        Whether rows are scaled to length 1.
    max_tokens : int
        Tokens that the network reads at once; longer texts are cut.
    source : dict
        How the model was named, for `reference`.
    """

    def __init__(
        self, graph: Path, tokenizer: Path, pooling: str, normalize: bool, max_tokens: int, source: dict[str, Any]
    ) -> None:
        self.graph, self.tokenizer = graph, tokenizer
        self.pooling, self.normalize = check_pooling(pooling), normalize
        self.max_tokens, self.source = max_tokens, source
        if type(max_tokens) is not int or max_tokens < 1:
            raise InputError(f"{graph.parent}: max_tokens={str(max_tokens)[:40]}; a whole number from 1 on is needed")
        for file in (graph, tokenizer):
            if not file.is_file():
                raise InputError(f"{file}: there is no such file; an encoder is an .onnx file and a tokenizer.json")

    def cut(self, texts: Sequence[str]) -> list[list[Any]]:
        """Cut each text into windows of token ids."""
        return self._windows.cut(texts)

    def run(self, pieces: Sequence[Any]) -> Array:
        """Run windows of token ids as one batch, padded to the longest."""
        ids = np.zeros((len(pieces), max(map(len, pieces))), np.int64)
        mask = np.zeros_like(ids)
        for row, piece in enumerate(pieces):
            ids[row, : len(piece)] = piece
            mask[row, : len(piece)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        session, names, output = self._session
        try:
            (vectors,) = session.run([output], {name: given[name] for name in names})
        except Exception as error:  # such as tokens beyond its vocabulary; the runtime has no common kind of error
            raise InputError(f"{self.graph}: the encoder cannot run on these texts ({str(error)[:200]})") from error
        if vectors.ndim not in (2, 3) or len(vectors) != len(pieces):
            raise InputError(f"{self.graph}: its output has the shape {vectors.shape} for {len(pieces)} texts")
        rows = pool_tokens(vectors, mask, self.pooling, self.normalize)
        if not np.isfinite(rows).all():
            raise InputError(f"{self.graph}: the encoder gives NaN or infinity; its weights are damaged")
        return rows

    def reference(self) -> dict[str, Any]:
        """Return how the model was named, with its settings."""
        settings = {"pooling": self.pooling, "normalize": self.normalize, "max_tokens": self.max_tokens}
        return {**self.source, **settings}

    def digest(self) -> str:
        """Return the SHA-256 of both files and the settings."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(json.dumps([self.pooling, self.normalize, self.max_tokens]).encode())
        for file in (self.graph, self.tokenizer):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    @cached_property
    def _windows(self) -> TokenWindows:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise DependencyError(f"encoding texts needs tokenizers, which is not installed: {_EXTRA}") from error
        try:
            made = Tokenizer.from_file(str(self.tokenizer))
        except Exception as error:  # the library raises plain exceptions
            raise InputError(f"{self.tokenizer}: not a tokenizer.json ({error})") from error
        made.no_truncation()
        made.no_padding()

        def tokenize(texts: list[str], special: bool) -> list[list[int]]:
            return [one.ids for one in made.encode_batch_fast(texts, add_special_tokens=special)]

        return TokenWindows(tokenize, self.max_tokens)

    @cached_property
    def _session(self) -> tuple[Any, list[str], str]:
        """The session, the names of its inputs, and of the output that is taken."""
        try:
            import onnxruntime
        except ImportError as error:
            raise DependencyError(f"encoding texts needs onnxruntime, which is not installed: {_EXTRA}") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)  # 0: as many as there are cores
        content = self._built() if self.graph.suffix == ".safetensors" else str(self.graph)
        try:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has many kinds of errors and no common one
            raise InputError(f"{self.graph}: ONNX Runtime cannot read it ({str(error)[:200]})") from error
        names = [one.name for one in session.get_inputs()]
        other = sorted(set(names) - {"input_ids", "attention_mask", "token_type_ids"})
        if "input_ids" not in names or other:
            raise InputError(f"{self.graph}: its inputs are {names}; a text encoder reads input_ids, attention_mask")
        outputs = [one.name for one in session.get_outputs()]
        return session, names, "sentence_embedding" if "sentence_embedding" in outputs else outputs[0]

    def _built(self) -> bytes:
        config = read_json(self.graph.parent / "config.json", dict)
        weights = read_safetensors(self.graph)
        sizes = check_bert(config, weights, self.graph.parent)
        if self.max_tokens > sizes["max_position_embeddings"]:
            raise InputError(
                f"{self.graph.parent}: max_tokens={self.max_tokens}, the encoder reads at most "
                f"{sizes['max_position_embeddings']} tokens at once"
            )
        try:
            return bytes(build_bert_graph({**config, **sizes}, weights).SerializeToString())
        except ImportError as error:
            raise DependencyError(f"this encoder needs onnx, which is not installed: {_EXTRA}") from error


class TorchTextModel:
    """A model of transformers with its tokenizer.

    Parameters
    ----------
    model : nn.Module
        Returns ``last_hidden_state``.
    tokenizer : callable
        As transformers makes them.
    pooling, normalize, max_tokens : str, bool and int
        As for `OnnxTextModel`.
    """

    def __init__(self, model: Any, tokenizer: Any, pooling: str, normalize: bool, max_tokens: int) -> None:
        self.model, self.pooling, self.normalize = model, check_pooling(pooling), normalize
        self.pad = int(getattr(tokenizer, "pad_token_id", None) or 0)

        def tokenize(texts: list[str], special: bool) -> list[list[int]]:
            return [list(ids) for ids in tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"]]

        self.windows = TokenWindows(tokenize, max_tokens)

    def cut(self, texts: Sequence[str]) -> list[list[Any]]:
        """Cut each text into windows of token ids."""
        return self.windows.cut(texts)

    def run(self, pieces: Sequence[Any]) -> Array:
        """Run windows of token ids as one batch, in evaluation mode and without gradients."""
        import torch

        length = max(map(len, pieces))
        device = next(self.model.parameters()).device
        ids = torch.tensor([[*piece, *[self.pad] * (length - len(piece))] for piece in pieces], device=device)
        mask = torch.tensor([[1] * len(piece) + [0] * (length - len(piece)) for piece in pieces], device=device)
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                vectors = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        finally:
            self.model.train(training)
        return pool_tokens(vectors.float().cpu().numpy(), mask.cpu().numpy(), self.pooling, self.normalize)

    def reference(self) -> dict[str, Any]:
        """Return the class of the model, which must be given again."""
        return {"kind": "object", "name": type(self.model).__name__}

    def digest(self) -> str:
        """Return a checksum of the weights."""
        return digest_module(self.model)


class SentenceTransformersModel:
    """A model of sentence-transformers: anything with ``encode`` and a ``tokenizer``.

    Parameters
    ----------
    model : SentenceTransformer
        It pools and scales as it was made to.
    max_tokens : int or None
        Its own ``max_seq_length`` when `None`.
    """

    def __init__(self, model: Any, max_tokens: int | None) -> None:
        self.model = model
        self.max_tokens = int(max_tokens or getattr(model, "max_seq_length", None) or MAX_TOKENS)

    def cut(self, texts: Sequence[str]) -> list[list[Any]]:
        """Cut each text where its tokens would be too many; the pieces are texts, as the model tokenizes itself."""
        room = self.max_tokens - int(self.model.tokenizer.num_special_tokens_to_add())
        given = self.model.tokenizer(
            list(texts), add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        return [_cut_at(text, spans, room) for text, spans in zip(texts, given["offset_mapping"], strict=True)]

    def run(self, pieces: Sequence[Any]) -> Array:
        """Encode texts as one batch."""
        made = self.model.encode(list(pieces), batch_size=len(pieces), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(made, np.float32)

    def reference(self) -> dict[str, Any]:
        """Return the class of the model, which must be given again."""
        return {"kind": "object", "name": type(self.model).__name__}

    def digest(self) -> str:
        """Return a checksum of the weights."""
        return digest_module(self.model)


class FunctionTextModel:
    """Any function from a list of texts to one row each; it reads long texts as it likes."""

    def __init__(self, function: Callable[[list[str]], Any]) -> None:
        self.function = function
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
        self.name = f"{module}:{name}"

    def cut(self, texts: Sequence[str]) -> list[list[Sized]]:
        """Take each text whole."""
        return [[text] for text in texts]

    def run(self, pieces: Sequence[Any]) -> Array:
        """Call the function, and check that it gave one row of numbers per text."""
        rows: Float32Array = np.asarray(self.function(list(pieces)), dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(pieces):
            raise InputError(
                f"the encoder gave an array of shape {rows.shape} for {len(pieces)} texts; one row per text is needed"
            )
        return rows

    def reference(self) -> dict[str, Any]:
        """Return the name of the function, which must be given again."""
        return {"kind": "function", "name": self.name}

    def digest(self) -> str:
        """Return a checksum of the function's name and of what it says about one text."""
        return hashlib.sha256(self.name.encode() + self.run([PROBE]).tobytes()).hexdigest()


def digest_module(module: Any) -> str:
    """Return a checksum of a torch module's weights."""
    from offmap.network.batches import update_digest

    digest = hashlib.blake2b(digest_size=32)
    for name, value in sorted(module.state_dict().items()):
        update_digest(digest, name, value)
    return digest.hexdigest()


def _cut_at(text: str, spans: Sequence[tuple[int, int]], room: int) -> list[str]:
    """Cut a text before every token that does not fit; `spans` are the places of its tokens."""
    if len(spans) <= room:
        return [text]
    places = [0, *(spans[token][0] for token in range(room, len(spans), room)), len(text)]
    return [text[start:end] for start, end in pairwise(places) if end > start]
