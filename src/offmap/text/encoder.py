"""`TextEncoder`: texts in, one row of numbers each out, whatever model is inside."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from offmap.errors import InputError, StoreError
from offmap.progress import Advance, say_nothing, show_progress
from offmap.text.cache import EmbeddingCache
from offmap.text.checks import MAX_CHARACTERS, check_texts
from offmap.text.models import PROBE
from offmap.text.packaged import DEFAULT
from offmap.text.pooling import average_pieces
from offmap.text.sources import find_model
from offmap.text.trained_texts import digest_text, read_trained_texts
from offmap.typing import Array, BoolArray, Float32Array

WINDOW = 4096  # texts that are sorted by length together
BATCH_TOKENS = 16384  # of a batch, with its padding
_PROBED, _TOLERANCE = 8, 1e-2  # numbers of the probe's row that are kept; other hardware rounds otherwise


class TextEncoder:
    """Turn texts into rows of numbers with a sentence encoder.

    Texts are checked, long ones are cut into windows whose rows are averaged, batches hold texts of similar length,
    and equal texts are encoded once.

    Parameters
    ----------
    source : str, path, callable or model, default "minilm"
        The name of an encoder from an installed package; an ``.onnx`` file, or a folder with the model and its
        tokenizer as sentence-transformers writes it; a function from a list of texts to one row each; a model of
        sentence-transformers; or one of transformers, with its tokenizer. Nothing is downloaded.
    tokenizer : path or tokenizer, optional
        Of an ``.onnx`` file: its ``tokenizer.json``, by default the one beside it. Of a model of transformers: its
        tokenizer.
    pooling : {"mean", "cls"}, optional
        How the vectors of tokens become one, where the model does not do it; the folder's own setting, else the mean.
    normalize : bool, optional
        Whether rows are scaled to length 1; the folder's own setting, else yes.
    max_tokens : int, optional
        Tokens that the model reads at once; longer texts are cut. The model's own limit by default.
    cache : path, optional
        A file in which rows are kept by a hash of their text, so that no text is encoded twice.

    Examples
    --------
    >>> import offmap
    >>> encoder = offmap.TextEncoder()
    >>> rows = encoder.encode(["Where is my card?", "My card has not arrived", "What a lovely day"])
    >>> rows.shape
    (3, 384)
    >>> bool(rows[0] @ rows[1] > rows[0] @ rows[2])
    True
    >>> offmap.TextEncoder(lambda texts: [[len(text)] for text in texts]).encode(["a", "bcd"])
    array([[1.],
           [3.]], dtype=float32)
    """

    def __init__(
        self,
        source: Any = DEFAULT,
        tokenizer: Any = None,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_tokens: int | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        self.model = find_model(source, tokenizer, pooling, normalize, max_tokens)
        self._cache = None if cache is None else EmbeddingCache(cache, self.model.digest())

    def __repr__(self) -> str:
        return f"TextEncoder({_name(self.model.reference())})"

    def encode(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        progress: bool | None = None,
        max_characters: int = MAX_CHARACTERS,
    ) -> Float32Array:
        """Encode texts.

        Parameters
        ----------
        texts : iterable of str
            At least one; empty ones are refused.
        batch_size : int, default 32
            The most texts in one run of the model.
        progress : bool, optional
            `False` for no progress: a bar on a terminal, elsewhere a line every half minute.
        max_characters : int, default 1_000_000
            The longest text that is taken.

        Returns
        -------
        array of float32
            One row per text.

        Raises
        ------
        InputError
            If there is no text, or one that cannot be encoded.
        """
        checked = check_texts(texts, max_characters)
        if not checked:
            raise InputError("no texts were given; give at least one")
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: a batch holds at least one text")
        starts = range(0, len(checked), WINDOW)
        with show_progress("encoding", len(checked), progress) as advance:
            return np.concatenate(
                [self._encode_window(checked[start : start + WINDOW], batch_size, advance) for start in starts]
            )

    __call__ = encode

    @cached_property
    def width(self) -> int:
        """The number of columns of a row."""
        return len(self._probe)

    def fingerprint(self) -> str:
        """Return a checksum of everything that the rows depend on."""
        return self.model.digest()

    def was_trained_on(self, texts: Sequence[str]) -> BoolArray:
        """Tell which texts the encoder was fine-tuned on by `offmap.learning.fine_tune`, as far as its folder says.

        Parameters
        ----------
        texts : sequence of str
            Texts. An encoder knows those that it was trained on too well to set a threshold on them.

        Returns
        -------
        array of bool
            One per text; all false for encoders that did not come from `fine_tune`.
        """
        folder = self.model.reference().get("path")
        trained = frozenset() if folder is None else read_trained_texts(folder)
        return np.array([bool(trained) and digest_text(text) in trained for text in texts], bool)

    def reference(self) -> dict[str, Any]:
        """Return plain values by which `restore` finds this encoder again and recognises it."""
        probe = [round(float(value), 6) for value in self._projected_probe()]
        return {**self.model.reference(), "sha256": self.fingerprint(), "width": self.width, "probe": probe}

    @classmethod
    def restore(cls, reference: Mapping[str, Any], given: TextEncoder | None = None) -> TextEncoder:
        """Find the encoder that a file refers to, and refuse any other.

        Parameters
        ----------
        reference : mapping
            From `reference`.
        given : TextEncoder, optional
            The encoder itself. It must be given where the reference names a Python object, which no file can hold, and
            where files have moved.

        Raises
        ------
        StoreError
            If it is not there or not the same.
        """
        encoder = cls._find(reference) if given is None else given
        here, there = encoder.fingerprint(), reference["sha256"]
        # the checksum of a function is made of its answers, which other hardware rounds otherwise
        same = here == there or (reference["kind"] == "function" and encoder.model.reference()["kind"] == "function")
        if not same or not encoder._answers_as(reference["probe"]):
            raise StoreError(
                f"{encoder!r} is not the encoder that this was made with, {_name(reference)} (checksum {there[:12]}…, "
                f"here {here[:12]}…); give that one, or make it again with this one"
            )
        return encoder

    @classmethod
    def _find(cls, reference: Mapping[str, Any]) -> TextEncoder:
        settings = {name: reference[name] for name in ("pooling", "normalize", "max_tokens") if name in reference}
        kind = reference["kind"]
        if kind in ("object", "function"):
            raise StoreError(
                f"this was made with the encoder {reference['name']}, a Python object that no file holds; give it as "
                "encoder=offmap.TextEncoder(…), or with --encoder package.module:function"
            )
        try:
            if kind == "package":
                return cls(reference["name"], **settings)
            return cls(reference["path"], reference.get("tokenizer"), **settings)
        except InputError as error:
            raise StoreError(f"{error}; give the encoder where it is now as encoder=offmap.TextEncoder(…)") from error

    @cached_property
    def _probe(self) -> Float32Array:
        return np.asarray(self._run([PROBE], 1, say_nothing)[0])

    def _answers_as(self, probe: Sequence[float]) -> bool:
        here = self._projected_probe()
        return bool(np.allclose(here, probe, rtol=_TOLERANCE, atol=_TOLERANCE * np.abs(probe).max()))

    def _projected_probe(self) -> Array:
        """Return a few numbers that depend on every column of the probe's row."""
        directions = np.random.default_rng(0).normal(size=(_PROBED, self.width))
        return directions @ self._probe.astype(np.float64)

    def _encode_window(self, texts: list[str], batch_size: int, advance: Advance) -> Float32Array:
        different = list(dict.fromkeys(texts))
        found = {} if self._cache is None else self._cache.get(different)
        missing = [text for text in different if text not in found]
        advance(len(texts) - len(missing))
        if missing:
            made = dict(zip(missing, self._run(missing, batch_size, advance), strict=True))
            if self._cache is not None:
                self._cache.add(made)
            found |= made
        return np.stack([found[text] for text in texts])

    def _run(self, texts: list[str], batch_size: int, advance: Advance) -> Float32Array:
        """Run the pieces of all texts, the shortest first, and average those of each text."""
        cut = self.model.cut(texts)
        pieces = [piece for some in cut for piece in some]
        owners = np.repeat(np.arange(len(texts)), [len(some) for some in cut])
        sizes = np.array([len(piece) for piece in pieces])
        order = np.argsort(sizes, kind="stable")
        rows: list[Array] = []
        for batch in _batches(order, sizes, batch_size):
            rows.append(self.model.run([pieces[i] for i in batch]))
            advance(len(batch) * len(texts) / len(pieces))
        joined = np.empty((len(pieces), rows[0].shape[1]), np.float32)
        joined[order] = np.concatenate(rows)
        return average_pieces(joined, owners, sizes, len(texts))


def _batches(order: Array, sizes: Array, batch_size: int) -> Iterator[Array]:
    """Yield parts of `order`, from short pieces to long ones, each within the limits of a batch."""
    start = 0
    while start < len(order):
        end = min(start + batch_size, len(order))
        while end > start + 1 and (end - start) * sizes[order[end - 1]] > BATCH_TOKENS:
            end -= 1
        yield order[start:end]
        start = end


def _name(reference: Mapping[str, Any]) -> str:
    return repr(reference.get("name") or reference.get("path"))
