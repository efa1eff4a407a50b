"""How training goes, without a label of a novel class: what can be said live about known and novel classes.

These are estimates to watch a run by, not accuracies; docs/learning-results.md shows how far they were from the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offmap.neighbors.vectors import unit

Codes = npt.NDArray[np.int64]
WATCHED = 2000  # rows that are looked at after every epoch


@dataclass(frozen=True)
class Watched:
    """The rows that are looked at, and what is known of them.

    Parameters
    ----------
    rows
        Which rows of the set.
    codes
        Their known classes, -1 where unlabelled; where labels are held out, those of the held-out rows only.
    free
        Whether a row has no label at all.
    groups
        Their groups of the first grouping: where an objective has no classifier, means of these stand in.
    n_known
        How many classes are known.
    """

    rows: Codes
    codes: Codes
    free: npt.NDArray[np.bool_]
    groups: Codes
    n_known: int


def watched(codes: Codes, held: Codes, groups: Codes, n_known: int, seed: int) -> Watched:
    """A sample of at most 2,000 rows, the held-out ones among them first.

    Examples
    --------
    >>> watched(np.array([0, -1, -1]), np.array([0]), np.array([0, 1, 1]), 1, seed=0).rows
    array([0, 1, 2])
    """
    rng = np.random.default_rng([seed, 2])
    first = rng.permutation(held)[: WATCHED // 4]
    rest = rng.permutation(np.setdiff1d(np.arange(len(codes)), first))[: WATCHED - len(first)]
    rows = np.sort(np.concatenate([first, rest]))
    judged = codes[rows] if not len(held) else np.where(np.isin(rows, held), codes[rows], -1)
    return Watched(rows, judged, codes[rows] < 0, groups[rows], n_known)


def estimates(features: Tensor, of: Watched, classifier: tuple[Tensor, Tensor] | None) -> dict[str, float]:
    """All, Known and Novel as far as they can be seen without novel labels.

    Known is the share of labelled rows that are put in their class; of rows that were trained on, unless labels are
    held out, and then it flatters. Novel is the share of rows put in a novel class whose nearest row is put there
    too: groups that cut through a crowd lower it. All weighs the two by how many unlabelled rows are put where.

    Parameters
    ----------
    features
        Of the watched rows.
    of
        What is known of them.
    classifier
        Weights and biases over all classes, or `None`.

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> seen = watched(np.array([0, -1, -1, -1]), np.array([], int), np.array([0, 0, 1, 1]), 1, seed=0)
    >>> estimates(rows, seen, None)
    {'all_estimate': 1.0, 'known_estimate': 1.0, 'novel_estimate': 1.0}
    """
    placed = unit(features.float())
    groups = torch.from_numpy(of.groups).to(placed.device)
    if classifier is None:
        n_classes = max(int(of.groups.max()) + 1, of.n_known)
        sums = torch.zeros(n_classes, placed.shape[1], device=placed.device).index_add_(0, groups, placed)
        weight, bias = unit(sums), torch.zeros(n_classes, device=placed.device)
    else:
        weight, bias = classifier
    found = (placed @ weight.to(placed).T + bias.to(placed)).argmax(dim=1).cpu().numpy()
    similar = placed @ placed.T
    similar.fill_diagonal_(-torch.inf)
    nearest = similar.argmax(dim=1).cpu().numpy()
    known, novel = of.codes >= 0, of.free & (found >= of.n_known)
    right = float((found == of.codes)[known].mean()) if known.any() else 0.0
    together = float((found == found[nearest])[novel].mean()) if novel.any() else 0.0
    share = float(novel.sum() / max(of.free.sum(), 1))
    whole = share * together + (1 - share) * right if known.any() else together
    return {"all_estimate": whole, "known_estimate": right, "novel_estimate": together}
