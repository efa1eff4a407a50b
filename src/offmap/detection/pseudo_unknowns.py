"""Unknown inputs made from known ones, on which candidates are compared when no unknown input is at hand.

Two kinds, both from activations alone. *Classes left out*: some classes are taken away, the head and every statistic
are fitted without them, and their inputs play the unknown ones. *Crossed inputs*: each takes every feature from one of
two known inputs of different classes, so that single features look usual and their combination does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from offmap.activations import Activations, Head
from offmap.typing import Array

LEFT_OUT, CROSSED = "left out", "crossed"
SHARE_LEFT_OUT = 1 / 3
MOST = 1000  # pseudo-unknown inputs of one trial
CLUSTERS = 10  # stand in for classes where there are neither labels nor logits
DECAY = 1e-4  # of the weights of a head fitted again
STEPS = 60


@dataclass(frozen=True)
class Trial:
    """One experiment: what to fit on, and which known and pseudo-unknown inputs to tell apart.

    Attributes
    ----------
    kind : str
        ``"left out"`` or ``"crossed"``.
    fit, known, unknown : Activations
        The known inputs to fit on, others to recognise, and the pseudo-unknown ones.
    """

    kind: str
    fit: Activations
    known: Activations
    unknown: Activations


def make_trials(fit: Activations, val: Activations, rounds: int = 2, seed: int = 0) -> Iterator[Trial]:
    """Make pseudo-unknown inputs from known ones.

    Parameters
    ----------
    fit, val : Activations
        Known inputs to fit on, and held-out ones of the same kind.
    rounds : int, default=2
        How often another third of the classes is left out.
    seed : int, default=0
        Seed of every choice.

    Yields
    ------
    Trial
        None where there are fewer than two classes or clusters to tell apart.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(90) % 3
    >>> acts = Activations(rng.normal(size=(90, 4)) + 5 * np.eye(4)[labels], labels=labels)
    >>> [(trial.kind, len(trial.unknown)) for trial in make_trials(acts[:60], acts[60:], rounds=1)]
    [('crossed', 500), ('left out', 30)]
    """
    groups, val_groups = group_inputs(fit, val, seed)
    classes = np.unique(groups)
    if fit.has_features and len(classes) > 1:
        yield Trial(CROSSED, fit, val, cross_inputs(fit, groups, np.random.default_rng([seed, 1])))
    if len(classes) < (3 if fit.has_logits else 2):
        return
    for number in range(rounds):
        order = np.random.default_rng([seed, 2, number]).permutation(classes)
        kept = np.sort(order[max(1, round(len(order) * SHARE_LEFT_OUT)) :])
        trial = leave_classes_out(fit, val, groups, val_groups, kept)
        if len(trial.fit) > len(kept) and len(trial.known) and len(trial.unknown):
            yield trial


def group_inputs(fit: Activations, val: Activations, seed: int = 0) -> tuple[Array, Array]:
    """Give each input a class: its label where all have one, else the network's answer, else the nearest cluster.

    Parameters
    ----------
    fit, val : Activations
        Inputs to fit on, and held-out ones.
    seed : int, default=0
        Seed of the clusters.

    Returns
    -------
    tuple of 2 ndarray of int
        The class of each input of `fit` and of `val`.
    """
    if fit.labels is not None and val.labels is not None:
        return fit.labels, val.labels
    if fit.has_logits and val.has_logits:
        return fit.predictions, val.predictions
    from sklearn.cluster import KMeans

    mean, spread = fit.features.mean(axis=0), fit.features.std(axis=0)
    scale = np.where(spread > 0, spread, 1)
    clusters = max(1, min(CLUSTERS, len(fit) // 10, len(np.unique(fit.features, axis=0))))
    found = KMeans(clusters, n_init=3, random_state=seed).fit((fit.features - mean) / scale)
    return found.labels_, found.predict((val.features - mean) / scale)


def cross_inputs(acts: Activations, groups: Array, rng: np.random.Generator) -> Activations:
    """Take every feature of an input from one of two inputs of different classes, with a chance of one half each.

    Parameters
    ----------
    acts : Activations
        Known inputs.
    groups : ndarray of int
        The class of each.
    rng : numpy.random.Generator
        Draws the partners and the features.

    Returns
    -------
    Activations
        As many inputs, crossed.

    Examples
    --------
    >>> acts = Activations(np.array([[1.0, 1.0], [2.0, 2.0]]))
    >>> crossed = cross_inputs(acts, np.array([0, 1]), np.random.default_rng(0))
    >>> len(crossed), np.unique(crossed.features)
    (500, array([1., 2.]))
    """
    count = int(np.clip(len(acts), MOST // 2, MOST))
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(np.searchsorted(np.unique(groups), groups))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    first = rng.integers(len(acts), size=count)
    group = np.searchsorted(starts, first, side="right") - 1
    # a place outside the first one's class: counted from the class's end, round the list of inputs by class
    step = rng.integers(len(acts) - sizes[group])
    second = (starts[group] + sizes[group] + step) % len(acts)
    one, other = acts.features[order[first]], acts.features[order[second]]
    return _with_logits(np.where(rng.random(one.shape) < 0.5, one, other), acts)


def _with_logits(features: Array, like: Activations) -> Activations:
    """Activations with logits where `like` has any: by its head, or by one fitted to its logits."""
    if like.head is not None or not like.has_logits:
        return Activations(features, head=like.head)
    design = np.column_stack([like.features, np.ones(len(like))]).astype(np.float64)
    solved = np.linalg.lstsq(design, like.logits.astype(np.float64), rcond=None)[0]
    return Activations(features, logits=(features @ solved[:-1] + solved[-1]).astype(np.float32))


def leave_classes_out(fit: Activations, val: Activations, groups: Array, val_groups: Array, kept: Array) -> Trial:
    """Take all but the kept classes away: from the inputs to fit on, the labels, and the head, which is fitted again.

    Parameters
    ----------
    fit, val : Activations
        Known inputs to fit on, and held-out ones.
    groups, val_groups : array of int
        The class of each.
    kept : array of int
        The classes that stay, sorted.

    Returns
    -------
    Trial
        Its unknown inputs are those of the other classes, the held-out ones first.
    """
    inside, val_inside = np.isin(groups, kept), np.isin(val_groups, kept)
    labels = None if fit.labels is None else np.searchsorted(kept, groups[inside])
    parts = fit[inside], val[val_inside], val[~val_inside], fit[~inside]
    if not fit.has_features:
        known, seen, far, further = (Activations(None, logits=part.logits[:, kept]) for part in parts)
        unknown = np.concatenate([far.logits, further.logits])[:MOST]
        relabelled = Activations(None, logits=known.logits, labels=labels)
        return Trial(LEFT_OUT, relabelled, seen, Activations(None, logits=unknown))
    head = None
    if fit.has_logits:
        head = fit_head(parts[0].features, np.searchsorted(kept, groups[inside]), len(kept))
    left_out = np.concatenate([parts[2].features, parts[3].features])[:MOST]
    return Trial(
        LEFT_OUT,
        Activations(parts[0].features, head=head, labels=labels),
        Activations(parts[1].features, head=head),
        Activations(left_out, head=head),
    )


def fit_head(features: Array, labels: Array, n_classes: int, steps: int = STEPS) -> Head:
    """Fit a linear head by multinomial logistic regression with a small weight decay (L-BFGS).

    Parameters
    ----------
    features : array of shape (n, d)
        Penultimate features.
    labels : array of int
        The class of each input, from 0.
    n_classes : int
        How many rows the head has.
    steps : int, default=60
        At most this many steps.

    Returns
    -------
    Head
        The same for the same data.

    Examples
    --------
    >>> x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> fit_head(x, np.array([0, 0, 1, 1]), 2)(x).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    x = torch.from_numpy(np.asarray(features, dtype=np.float32))
    y = torch.from_numpy(np.asarray(labels, dtype=np.int64))
    mean, scale = x.mean(dim=0), x.std().clamp(min=1e-12)
    inputs = (x - mean) / scale
    weight = torch.zeros(n_classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(n_classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        fitted = torch.nn.functional.cross_entropy(torch.addmm(bias, inputs, weight.T), y)
        total: torch.Tensor = fitted + DECAY * weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]  # torch's stubs
        return total

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch's stubs
    found = weight.detach() / scale
    return Head(found.numpy(), (bias.detach() - found @ mean).numpy())
