"""Sets that need no download: the handwritten digits inside scikit-learn, some held out as unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from offmap.data.samples import Samples
from offmap.errors import InputError


@dataclass(frozen=True)
class DigitsSplit:
    """Known classes in three parts, and the unknown ones.

    Labels count the known classes from 0; those of the unknown come after them.
    """

    train: Samples
    val: Samples
    test: Samples
    unknown: Samples


def digits(known: int | Iterable[int] = 6, seed: int = 0) -> DigitsSplit:
    """Load the 1,797 handwritten digits of 8×8 pixels, as a network takes them: one channel, values in [0, 1].

    Parameters
    ----------
    known : int or iterable of int, default=6
        The digits that are known: so many from 0 on, or these.
    seed : int, default=0
        Seed of the split: half of each known class to train on, a quarter to validate, a quarter to test.

    Returns
    -------
    DigitsSplit
        Each part with ``inputs`` (samples × 1 × 8 × 8) and ``labels``; `Samples.classes` names the digits.

    Examples
    --------
    >>> split = digits(known=[3, 8])
    >>> split.train.classes[:2], sorted(set(split.test.labels.tolist())), len(split.unknown)
    (('3', '8'), [0, 1], 1440)
    """
    from sklearn.datasets import load_digits

    chosen = list(range(known)) if isinstance(known, int) else [int(digit) for digit in known]
    if not 1 <= len(set(chosen)) == len(chosen) <= 10 or not set(chosen) <= set(range(10)):
        raise InputError(f"digits(known={known}): name one to ten different digits from 0 to 9")
    bunch = load_digits()
    images = (bunch.images[:, None] / 16).astype(np.float32)
    order = chosen + [digit for digit in range(10) if digit not in chosen]
    place = np.argsort(order)
    labels = place[bunch.target]
    classes = tuple(str(digit) for digit in order)
    parts: dict[str, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {"train": [], "val": [], "test": []}
    rng = np.random.default_rng(seed)
    for label in range(len(chosen)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        half, quarter = len(rows) // 2, len(rows) // 4
        parts["train"].append(rows[:half])
        parts["val"].append(rows[half : half + quarter])
        parts["test"].append(rows[half + quarter :])
    everything = Samples({"inputs": images, "labels": labels}, classes)
    return DigitsSplit(
        **{name: everything[rng.permutation(np.concatenate(rows))] for name, rows in parts.items()},
        unknown=everything[np.flatnonzero(labels >= len(chosen))],
    )
