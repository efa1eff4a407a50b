"""Stored features of a classifier with some of its classes left out: unknown inputs near the known ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offmap.bench.networks import KINDS, Made
from offmap.bench.sets import READERS, LoadedSet, locate
from offmap.data import Samples, read_head
from offmap.errors import InputError
from offmap.typing import Array

Choice = Literal["random", "similar"]


def choose_left_out(weight: Array, count: int, how: Choice = "random", seed: int = 0) -> npt.NDArray[np.int64]:
    """Choose the classes to leave out of a head.

    Parameters
    ----------
    weight : ndarray of shape (c, d)
        Weights of the head.
    count : int
        How many, below c.
    how : {"random", "similar"}, default="random"
        Drawn by the seed, or one class of each of the `count` most similar pairs (by the cosine of their centred
        weights), whose other class stays in the head: the hardest unknowns.
    seed : int, default=0
        Seed of the draw.

    Returns
    -------
    ndarray of int
        In ascending order.

    Examples
    --------
    >>> choose_left_out(np.array([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]]), 1, "similar").tolist()
    [1]
    """
    classes = len(weight)
    if how not in ("random", "similar") or not 0 <= count < classes:
        raise InputError(
            f"leave_out={count} of {classes} classes, how={how!r}: from 0 to one below, 'random' or 'similar'"
        )
    if how == "random":
        return np.sort(np.random.default_rng(seed).permutation(classes)[:count])
    centred = np.asarray(weight, np.float64) - np.mean(weight, axis=0)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    rows, columns = np.triu_indices(classes, 1)
    order = np.argsort(-(centred @ centred.T)[rows, columns], kind="stable")
    hidden: set[int] = set()
    partners: set[int] = set()
    for pair in order:
        stays, goes = int(rows[pair]), int(columns[pair])
        if len(hidden) == count:
            break
        if stays not in hidden and goes not in hidden | partners:
            hidden.add(goes)
            partners.add(stays)
    if len(hidden) < count:
        raise InputError(f"leave_out={count}: only {len(hidden)} of {classes} classes have a partner that can stay")
    return np.array(sorted(hidden))


@READERS.register("features_of")
def _features_of(
    path: str,
    data: Path | None,
    head: str,
    part: str = "test",
    leave_out: int = 0,
    how: Choice = "random",
    share: float = 0.5,
    seed: int = 0,
) -> Samples:
    """One part of an archive of features, labels and class indices: ``fit``, ``test`` or ``left out``.

    The rows of classes that stay in the head are divided at random, `share` of them to fit on.
    """
    if part not in ("fit", "test", "left out") or not 0 < share < 1:
        raise InputError(
            f"{path}: part={part!r}, share={share}: 'fit', 'test' or 'left out', and a share within 0 to 1"
        )
    weight = read_head(locate(head, data)).weight
    with np.load(locate(path, data), allow_pickle=False) as arrays:
        features, labels, names = arrays["features"], arrays["labels"], arrays["classes"]
    index = np.array([int(name) for name in names])[labels]
    hidden = choose_left_out(weight, leave_out, how, seed)
    inside = ~np.isin(index, hidden)
    if part == "left out":
        rows = np.flatnonzero(~inside)
        return Samples({"features": features[rows].astype(np.float32)})
    order = np.random.default_rng(seed).permutation(np.flatnonzero(inside))
    cut = round(share * len(order))
    rows = np.sort(order[:cut] if part == "fit" else order[cut:])
    stays = np.setdiff1d(np.arange(len(weight)), hidden)
    return Samples({"features": features[rows].astype(np.float32), "labels": np.searchsorted(stays, index[rows])})


@KINDS.register("head")
def _head(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """The last layer of a network whose features are stored (`weights`), without the classes to leave out."""
    import torch
    from torch import nn

    from offmap.network import Network

    file = locate(options["weights"], data)
    given = read_head(file)
    hidden = choose_left_out(
        given.weight, options.get("leave_out", 0), options.get("how", "random"), options.get("seed", 0)
    )
    stays = np.setdiff1d(np.arange(given.n_classes), hidden)
    layer = nn.Linear(given.width, len(stays))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.asarray(given.weight[stays], np.float32)))
        layer.bias.copy_(torch.from_numpy(np.asarray(given.bias[stays], np.float32)))
    return Network(layer.eval()), file
