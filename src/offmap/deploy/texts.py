"""Texts for a guard: embeddings, a linear head where there are labels, and what is set aside for the threshold."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offmap.activations import Activations, Head
from offmap.data import Texts, read_texts
from offmap.deploy.text_head import train_head
from offmap.errors import InputError, OffmapWarning
from offmap.openworld.examples import KnownExamples
from offmap.text import TextEncoder
from offmap.typing import BoolArray, IntArray

FIT_SHARE = 0.6  # as for other data: the rest calibrates and checks
FEWEST_ASIDE = 40  # with fewer texts that the encoder was not trained on, others are set aside too
# Chosen among sums of scores on validation queries of BANKING77 and CLINC150 with intents hidden, and on CLINC150's
# out-of-scope validation queries; benchmarks/text.py validate compares it with `auto`, which takes longer to fit.
DETECTOR = "maxlogit + rmds(shrinkage=0.2) + 1.5*knn(1)"


@dataclass(frozen=True)
class TextData:
    """Texts as a guard is made from them.

    Attributes
    ----------
    known, held_out : Activations
        What is fitted on, and what sets and checks the threshold: embeddings, with the head and class numbers where
        there are labels.
    unknown : Activations or None
        Of examples of unknown texts.
    classes : tuple of str or None
        Names of the classes.
    examples : KnownExamples
        The known texts.
    held_out_texts : tuple of str
        The texts of `held_out`.
    """

    known: Activations
    held_out: Activations
    unknown: Activations | None
    classes: tuple[str, ...] | None
    examples: KnownExamples
    held_out_texts: tuple[str, ...]

    @property
    def detector(self) -> str:
        """The detector to use unless one is named: without labels, or with one class, there is nothing but `auto`."""
        return DETECTOR if self.classes is not None and len(self.classes) > 1 else "auto"


def prepare_texts(
    encoder: TextEncoder, known: Any, held_out: Any = None, unknown: Any = None, seed: int = 0
) -> TextData:
    """Encode texts for a guard.

    With labels a linear head is trained over the embeddings, its regularisation chosen by cross-validation; without
    them detection is on the embeddings alone.

    Parameters
    ----------
    encoder : TextEncoder
        Turns texts into features.
    known : Texts, list of str, or tuple of texts and labels
        Texts of known classes. All have labels, or none.
    held_out : the same, optional
        Known texts to set and check the threshold on; 40 % of `known` by default, which nothing is then fitted on:
        of those that the encoder was not fine-tuned on, where its folder says so.
    unknown : Texts or list of str, optional
        Examples of unknown texts; nothing is chosen on them.
    seed : int, default 0
        Of the division.
    """
    texts = as_texts(known, "known")
    if texts.labels is not None and None in texts.labels:
        missing = sum(label is None for label in texts.labels)
        raise InputError(f"{missing} of {len(texts)} known texts have no label; label all of them, or none")
    classes = texts.classes or None
    features = encoder.encode(texts.texts)
    labels = None if classes is None else texts.encode_labels()
    if held_out is None:
        fitted, aside = _divide(len(texts), labels, seed, encoder.was_trained_on(texts.texts))
        others, other_labels = features[aside], None if labels is None else labels[aside]
        other_texts = tuple(texts.texts[row] for row in aside)
    else:
        fitted, more = np.arange(len(texts)), as_texts(held_out, "held_out")
        others, other_texts = encoder.encode(more.texts), tuple(more.texts)
        other_labels = None if classes is None or more.labels is None else more.encode_labels(classes)
    warn_of_trained(encoder, other_texts)
    own = None if labels is None else labels[fitted]
    head = None if own is None or classes is None else train_head(features[fitted], own, len(classes), seed)
    examples = KnownExamples(texts.texts, features, np.full(len(texts), -1) if labels is None else labels)
    return TextData(
        Activations(features[fitted], head, labels=own),
        Activations(others, head, labels=other_labels),
        None if unknown is None else Activations(encoder.encode(as_texts(unknown, "unknown").texts), head),
        classes,
        examples.sample(seed=seed),
        other_texts,
    )


@dataclass
class TextReader:
    """Reads files of texts as activations: the first with labels sets the classes and the head for all that follow.

    Parameters
    ----------
    encoder : TextEncoder
        Turns texts into features.
    text_column, label_column : str, optional
        As `offmap.data.read_texts` takes them.
    with_head : bool, default True
        Whether to train a linear head on the first file with labels, so that methods which read logits can be used.
    """

    encoder: TextEncoder
    text_column: str | None = None
    label_column: str | None = None
    with_head: bool = True
    head: Head | None = field(default=None, init=False)
    classes: tuple[str, ...] = field(default=(), init=False)
    _has_labels: bool = field(default=False, init=False, repr=False)

    def read_texts(self, path: str | os.PathLike[str]) -> Texts:
        """Read texts and labels; after one file with labels, others may come without that column."""
        found = read_columns(path, self.text_column, self.label_column, need_labels=not self._has_labels)
        self._has_labels = self._has_labels or found.labels is not None
        return found

    def read_activations(
        self, path: str | os.PathLike[str], unknown: str | None = None, labelled: bool = True
    ) -> Activations:
        """Read texts, encode them, and number their labels, -1 where there is none.

        Parameters
        ----------
        path : path
            A file or folder of texts.
        unknown : str, optional
            A label that stands for none.
        labelled : bool, default True
            Whether to read labels: those of unknown texts name other classes.
        """
        texts = self.read_texts(path)
        features = self.encoder.encode(texts.texts)
        if texts.labels is None or not labelled:
            return Activations(features, self.head)
        self.classes = self.classes or tuple(name for name in texts.classes if name != unknown)
        labels = texts.encode_labels(self.classes, unknown)
        if self.with_head and self.head is None and self.classes:
            self.head = train_head(features[labels >= 0], labels[labels >= 0], len(self.classes))
        return Activations(features, self.head, labels=labels)


def read_columns(
    path: str | os.PathLike[str],
    text_column: str | None = None,
    label_column: str | None = None,
    need_labels: bool = True,
) -> Texts:
    """Read texts and labels as `offmap.data.read_texts` does; the columns hold for files that have columns."""
    if Path(path).is_dir() or Path(path).suffix.lower() == ".txt":
        return read_texts(path)
    return read_texts(path, text_column, label_column, need_labels=need_labels)


def as_texts(given: Any, name: str) -> Texts:
    """Return what a caller gave as `Texts`: these, a list of texts, or texts and labels."""
    if isinstance(given, Texts):
        return given
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], str):
        labels = None if given[1] is None else [None if label is None else str(label) for label in given[1]]
        return Texts(list(given[0]), labels)
    if isinstance(given, list | tuple | np.ndarray):
        return Texts([text if isinstance(text, str) else str(text) for text in given])
    raise InputError(f"{name}={type(given).__name__}: give a list of texts, (texts, labels), or offmap.data.read_texts")


def warn_of_trained(encoder: TextEncoder, texts: Sequence[str]) -> None:
    """Warn if the encoder was fine-tuned on some of the texts that are to set a threshold."""
    n = int(encoder.was_trained_on(texts).sum())
    if n:
        message = (
            f"{n} of the {len(texts)} texts that set and check the threshold are among those that the encoder was "
            "fine-tuned on. It knows these too well, so more known texts than promised will be called unknown; give "
            "known texts that it was not fine-tuned on, as held_out or with --held-out, or fine-tune with --aside 0.4"
        )
        warnings.warn(message, OffmapWarning, stacklevel=3)


def _divide(n: int, labels: IntArray | None, seed: int, trained: BoolArray) -> tuple[IntArray, IntArray]:
    """Rows to fit on, and rows set aside; every class keeps at least one row to fit on.

    Set aside are rows that the encoder was not trained on, where there are enough of them.
    """
    order = np.random.default_rng(seed).permutation(n)
    order = order[np.argsort(~trained[order], kind="stable")]
    aside, unseen = n - round(FIT_SHARE * n), int((~trained).sum())
    chosen = np.zeros(n, bool)
    chosen[order[: n - (min(aside, unseen) if unseen >= FEWEST_ASIDE else aside)]] = True
    if labels is not None:
        for label in np.setdiff1d(labels, labels[chosen]):
            chosen[order[labels[order] == label][0]] = True
    if chosen.all():
        raise InputError(f"{n} known texts are too few to set some aside for the threshold; give more, or held_out")
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)
