"""`Scope`: a guard for an application of a language model, from examples of what it is for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap import store
from offmap.deploy.texts import as_texts, warn_of_trained
from offmap.detection import Calibration
from offmap.errors import InputError, StoreError
from offmap.openworld import Deployment, KnownExamples
from offmap.openworld.network_files import prefix_names, select_prefix
from offmap.text import TextEncoder
from offmap.typing import Array, Float32Array
from offmap.wording import format_count

KIND = "scope"
TPR = 0.97
FIT_SHARE = 0.6
OFF_WEIGHT = 0.5  # chosen on CLINC150's validation queries among 0.25, 0.5 and 1
_ON, _OFF, _CALIBRATION = "on.", "off.", "calibration."


@dataclass(frozen=True)
class ScopeVerdict:
    """The verdict on one text.

    Attributes
    ----------
    on_topic : bool
        Whether the text is accepted.
    p_value : float
        Conformal p-value: small when the text is unlike the examples. Accepted are texts above ``1 - tpr``.
    score : float
        How like the examples it is; higher means on topic.
    nearest : str or None
        The on-topic example that it is most like.
    """

    on_topic: bool
    p_value: float
    score: float
    nearest: str | None = None

    def __bool__(self) -> bool:
        return self.on_topic


@dataclass(frozen=True)
class Scope:
    """Accepts texts that are like the examples it was made from, and refuses others; no language model is asked.

    A text's score is its largest cosine to an on-topic example, as in nearest-neighbour detection (thesis, chapter 5),
    less half of its largest cosine to an off-topic one where there are some. The threshold is a conformal one, set on
    examples that the score has not seen, so that on average at least a share `tpr` of future on-topic texts, drawn
    like the examples, is accepted; off-topic examples do not change that.

    Parameters
    ----------
    encoder : TextEncoder
        Turns texts into rows.
    on_topic : KnownExamples
        The examples that texts are compared with.
    calibration : Calibration
        Scores of further on-topic examples.
    off_topic : KnownExamples, optional
        Examples of what is refused.

    See Also
    --------
    fit_scope : make one.
    offmap.scope : load one.
    """

    encoder: TextEncoder
    on_topic: KnownExamples
    calibration: Calibration
    off_topic: KnownExamples | None = None

    def __repr__(self) -> str:
        off = "" if self.off_topic is None else f", {format_count(len(self.off_topic), 'off-topic one')}"
        examples = format_count(len(self.on_topic), "example")
        return f"Scope({examples}{off}, accepts {self.calibration.tpr:.0%} of on-topic texts)"

    def check(self, text: str) -> ScopeVerdict:
        """Judge one text.

        Parameters
        ----------
        text : str
            What a user has written.
        """
        return self.check_all([text])[0]

    def check_all(self, texts: Sequence[str]) -> list[ScopeVerdict]:
        """Judge several texts at once, which is faster than one by one."""
        rows = self.encoder.encode(texts, progress=False)
        scores, places = _score(rows, self.on_topic, self.off_topic)
        verdicts = self.calibration.verdicts(scores)
        return [
            ScopeVerdict(one.known, one.p_value, one.score, self.on_topic.texts[place])
            for one, place in zip(verdicts, places, strict=True)
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `offmap.scope` reads; it refers to the encoder and holds its checksum."""
        config: dict[str, Any] = {"encoder": self.encoder.reference(), "tpr": self.calibration.tpr}
        arrays = prefix_names(self.calibration.arrays(), _CALIBRATION)
        for name, examples in ((_ON, self.on_topic), (_OFF, self.off_topic)):
            if examples is not None:
                config[name], tensors = examples.to_parts()
                arrays |= prefix_names(tensors, name)
        store.save(path, KIND, config, arrays)

    @classmethod
    def restore(cls, stored: store.Stored, encoder: TextEncoder | None = None) -> Scope:
        """Build a scope from what `offmap.store.load` has read; another encoder than its own is refused."""
        config = stored.config
        store.check_fields(KIND, config, {"encoder": dict, "tpr": float, _ON: dict})
        with store.restoring(KIND):
            kept = {
                name: KnownExamples.from_parts(config[name], select_prefix(stored.tensors, name))
                for name in (_ON, _OFF)
                if name in config
            }
            calibration = Calibration(stored.tensors[f"{_CALIBRATION}scores"], config["tpr"]).check()
            found = TextEncoder.restore(config["encoder"], encoder)
        for examples in kept.values():
            if not len(examples) or examples.features.shape[1] != found.width:
                shape = "×".join(map(str, examples.features.shape))
                raise StoreError(f"not a whole scope: examples of shape {shape}, the encoder has {found.width} columns")
        return cls(found, kept[_ON], calibration, kept.get(_OFF))


@dataclass(frozen=True)
class GuardScope:
    """A guard that was made from texts, used as a scope: on topic is what it calls known."""

    deployment: Deployment

    def check(self, text: str) -> ScopeVerdict:
        """Judge one text; see `Scope.check`."""
        return self.check_all([text])[0]

    def check_all(self, texts: Sequence[str]) -> list[ScopeVerdict]:
        """Judge several texts at once."""
        acts = self.deployment.activations(texts, "texts")
        known = self.deployment.examples
        nearest: Sequence[str | None] = [None] * len(acts)
        if known is not None:
            nearest = known.find_nearest_texts(acts.features)
        return [
            ScopeVerdict(one.known, one.p_value, one.score, text)
            for one, text in zip(self.deployment.detector.verdicts(acts), nearest, strict=True)
        ]


def fit_scope(
    examples: Any,
    off_topic: Any = None,
    *,
    tpr: float = TPR,
    encoder: TextEncoder | None = None,
    seed: int = 0,
) -> Scope:
    """Make a scope from examples of on-topic texts.

    Parameters
    ----------
    examples : list of str or Texts
        What users of the application may ask; about a hundred or more for a `tpr` of 0.97. 60 % of them are compared
        with, the others set the threshold.
    off_topic : list of str or Texts, optional
        A few texts that should be refused though they are like the examples. The promise on on-topic texts stays.
    tpr : float, default 0.97
        The share of on-topic texts to accept.
    encoder : TextEncoder, optional
        ``offmap.TextEncoder()`` by default.
    seed : int, default 0
        Of the division of the examples.

    Returns
    -------
    Scope
        With `check` and `save`.

    Raises
    ------
    InputError
        If there are too few examples for the promise.

    Examples
    --------
    >>> from offmap.text import TextEncoder
    >>> letters = TextEncoder(lambda texts: [[text.count(letter) for letter in "abcxyz"] for text in texts])
    >>> scope = fit_scope([f"{'a' * (n % 7 + 1)}{'b' * (n % 5)}" for n in range(60)], tpr=0.9, encoder=letters)
    >>> scope.check("aab").on_topic, scope.check("xyz").on_topic
    (True, False)
    """
    encoder = encoder or TextEncoder()
    texts = list(dict.fromkeys(as_texts(examples, "examples").texts))  # a copy on both sides would set the bar too high
    rows = encoder.encode(texts)
    order = np.random.default_rng(seed).permutation(len(texts))
    cut = round(FIT_SHARE * len(texts))
    if not 0 < cut < len(texts):
        raise InputError(f"{len(texts)} different examples are too few to set some aside for the threshold; give more")
    kept, aside = np.sort(order[:cut]), np.sort(order[cut:])
    warn_of_trained(encoder, [texts[i] for i in aside])
    on = KnownExamples([texts[i] for i in kept], rows[kept], np.zeros(len(kept), np.int64))
    off = None
    if off_topic is not None:
        refused = as_texts(off_topic, "off_topic").texts
        off = KnownExamples(refused, encoder.encode(refused), np.ones(len(refused), np.int64))
    return Scope(encoder, on, Calibration.of(_score(rows[aside], on, off)[0], tpr), off)


def scope(path: str | os.PathLike[str], encoder: TextEncoder | None = None) -> Scope | GuardScope:
    """Load a scope that `Scope.save` or ``offmap scope fit`` wrote, or a guard that was made from texts.

    Parameters
    ----------
    path : path
        The file.
    encoder : TextEncoder, optional
        For an encoder that is a Python object, or whose files have moved: the same one; another is refused.

    Returns
    -------
    Scope or GuardScope
        Its `check` judges a text.
    """
    stored = store.load(path)
    if stored.kind == KIND:
        return Scope.restore(stored, encoder)
    if stored.kind == "deployment" and "encoder" in stored.config:
        return GuardScope(Deployment.restore(stored, encoder=encoder))
    raise StoreError(f"{path}: holds a {stored.kind}; a scope, or a guard made from texts, is needed")


def _score(rows: Array, on: KnownExamples, off: KnownExamples | None) -> tuple[Float32Array, list[int]]:
    """Score rows, and return the place of the nearest on-topic example of each."""
    places, cosines = on.find_nearest(rows, 1)
    score = cosines[:, 0]
    if off is not None:
        score = score - OFF_WEIGHT * off.find_nearest(rows, 1)[1][:, 0]
    return score, places[:, 0].tolist()
