"""Choosing settings without novel labels: some known classes play the novel ones (thesis, appendix B.3.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from offmap.activations import as_array
from offmap.discovery.inputs import hide_classes, read_labels
from offmap.errors import InputError
from offmap.learning.closed_form import GRID as SPECTRAL_GRID
from offmap.learning.closed_form import SPECTRAL
from offmap.learning.inputs import as_inputs
from offmap.learning.learn import AUTO, learn
from offmap.learning.objectives import objective as get_objective
from offmap.metrics.clustering import open_world_accuracy

GAIN = 0.005  # another setting must be better by this much than the one in use


@dataclass(frozen=True)
class Tuning:
    """The settings that were tried.

    Parameters
    ----------
    settings : dict of str to Any
        The best, to be given to `learn`.
    table : tuple of tuple of dict of str to Any, tuple of float
        Every candidate with the accuracy (v2, All) of each trial, in the order tried.
    """

    settings: dict[str, Any]
    table: tuple[tuple[dict[str, Any], tuple[float, ...]], ...]

    def __str__(self) -> str:
        return "\n".join(f"{np.mean(scores):.4f}  {settings or 'defaults'}" for settings, scores in self.table)


def tune(
    inputs: Any,
    labels: Any,
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None,
    trials: int = 1,
    seed: int = 0,
    *,
    objective: str = "auto",
    **settings: Any,
) -> Tuning:
    """Try settings where half of the known classes are hidden, and half of the others' labels too.

    Parameters
    ----------
    inputs, labels : array-like
        As for `learn`; only labelled inputs are used.
    grid : mapping or sequence of mappings, optional
        Values to try by name, all combinations; or a list of candidates. Each objective has its own grid otherwise,
        of which one value at a time is changed.
    trials : int, default 1
        How often classes are drawn.
    seed : int, default 0
        Seed of the draws, and of the runs.
    objective : str, default "auto"
        As for `learn`.
    **settings : Any
        Given to every run.

    Returns
    -------
    Tuning
        The best settings, and the table of all that were tried.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(4), 30)
    >>> rows = rng.normal(size=(4, 8))[truth] + 0.1 * rng.normal(size=(120, 8))
    >>> tune(rows, truth, grid={"balance": (0.2, 0.5)}, objective="gcd", epochs=1).settings
    {}
    """
    values = as_array(inputs, "inputs")
    known = read_labels(labels, len(values))
    if len(known) < 4:
        raise InputError(f"tune: {len(known)} known classes; at least 4 are needed, half of them to be hidden")
    name = AUTO[as_inputs(values[:1]).kind] if objective == "auto" else objective
    candidates = list(_candidates(name, grid))
    labelled = np.flatnonzero(known.codes >= 0)
    rows, truth = values[labelled], known.codes[labelled]
    scores: list[list[float]] = [[] for _ in candidates]
    for trial in range(trials):
        given, shown = hide_classes(truth, seed + trial)
        hidden = given < 0
        for at, candidate in enumerate(candidates):
            options = {**settings, **candidate, "objective": name, "progress": False}
            model = learn(rows, given, len(known), seed=seed + trial, **options)
            found = model.predict(rows[hidden])
            scores[at].append(open_world_accuracy(truth[hidden], found, shown).all)
    means = [float(np.mean(one)) for one in scores]
    best = int(np.argmax(means))
    chosen = best if means[best] > means[0] + GAIN else 0
    table = tuple((one, tuple(several)) for one, several in zip(candidates, scores, strict=True))
    return Tuning(dict(candidates[chosen]), table)


def _candidates(
    name: str, grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None
) -> Iterator[dict[str, Any]]:
    yield {}
    if grid is None:
        usual = SPECTRAL_GRID if name == SPECTRAL else get_objective(name).grid
        for key, values in usual.items():
            for value in values:
                yield {key: value}
    elif isinstance(grid, Mapping):
        for values in product(*grid.values()):
            yield dict(zip(grid, values, strict=True))
    else:
        yield from (dict(one) for one in grid)
