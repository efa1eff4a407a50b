"""A tree of groups by Ward's rule that respects labels: one class stays together, two classes stay apart.

It is the start that semi-supervised k-means needs. Centres drawn by k-means++ put two into one class and none into
the next, and forced labels then pin the mistake; a tree built from small groups upward does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offmap.discovery.assign import Doubles, Floats, Labels, Rows
from offmap.discovery.kmeans import class_means, lloyd
from offmap.errors import InputError
from offmap.neighbors.vectors import unit

TREE_ROWS = 20_000
TREE_GROUPS = 4000  # the tree holds the square of three times this in memory, at most
SMALL_GROUPS = 1500
SMALL_ITERATIONS = 4


@dataclass(frozen=True)
class Tree:
    """Small groups and the order in which they join.

    Parameters
    ----------
    centres, sizes : ndarray of float32 and ndarray of float64
        The leaves: known classes first, then small groups of free rows.
    n_known : int
        How many leaves are known classes.
    joins : ndarray of int64
        Pairs of leaves, each standing for the group it is in by then, in the order of `heights`.
    heights : ndarray of float64
        What each join adds to the sum of squares, doubled, as in Ward's linkage.
    """

    centres: Floats
    sizes: Doubles
    n_known: int
    joins: Labels
    heights: Doubles

    def cut(self, k: int) -> Labels:
        """Return the group of each leaf when `k` groups are left; known class i is group i."""
        parent = np.arange(len(self.centres))

        def root(leaf: int) -> int:
            while parent[leaf] != leaf:
                parent[leaf] = parent[parent[leaf]]
                leaf = int(parent[leaf])
            return leaf

        for left, right in self.joins[: max(len(self.centres) - k, 0)]:
            a, b = root(int(left)), root(int(right))
            parent[max(a, b)] = min(a, b)
        roots = np.array([root(leaf) for leaf in range(len(parent))])
        groups: Labels = np.unique(roots, return_inverse=True)[1].astype(np.int64)
        return groups  # a known class is the first leaf of its group, so it keeps its number

    def means(self, k: int, metric: str = "euclidean") -> Floats:
        """Return the centres of the `k` groups."""
        group = self.cut(k)
        sums = np.zeros((int(group.max()) + 1, self.centres.shape[1]))
        np.add.at(sums, group, self.centres * self.sizes[:, None])
        means = sums / np.bincount(group, self.sizes)[:, None]
        return np.asarray(unit(means) if metric == "cosine" else means, np.float32)


def ward_tree(rows: Rows, k: int, rng: np.random.Generator, forced: Labels | None = None, n_known: int = 0) -> Tree:
    """Return the constrained Ward tree over known classes and small groups of free rows.

    Parameters
    ----------
    rows : Rows
        All rows; of many free ones a sample is looked at, 20,000 or eight per group.
    k : int
        The largest number of groups that will be asked for.
    rng : numpy.random.Generator
        Draws the sample and the first centres of the small groups.
    forced, n_known : ndarray of int64 or None and int, default=None and 0
        Per row its known class or -1; how many known classes there are.

    Examples
    --------
    >>> points = Rows(np.array([[0.0], [0.2], [5.0], [5.2], [9.0]]))
    >>> tree = ward_tree(points, 3, np.random.default_rng(0))
    >>> np.sort(tree.means(3).ravel()).round(1)
    array([0.1, 5.1, 9. ], dtype=float32)
    """
    if k > TREE_GROUPS:
        raise InputError(f"k={k}: a tree is built for at most {TREE_GROUPS} groups; start by 'k-means++' instead")
    free = np.arange(len(rows)) if forced is None else np.flatnonzero(forced < 0)
    wanted = max(TREE_ROWS, 8 * k)
    if len(free) > wanted:
        free = np.sort(rng.choice(free, wanted, replace=False))
    leaves = min(len(free), max(min(SMALL_GROUPS, len(free) // 4), 3 * k, 64))
    centres, sizes = np.zeros((0, rows.width), np.float32), np.zeros(0)
    if leaves:
        pool = Rows(rows.take(free))
        if leaves == len(free):
            centres, sizes = pool.block(0, len(free)), np.ones(leaves)
        else:
            start = pool.take(np.sort(rng.choice(len(free), leaves, replace=False)))
            small = lloyd(pool, start, max_iter=SMALL_ITERATIONS)
            counts = np.bincount(small.labels, minlength=leaves)
            centres, sizes = small.centres[counts > 0], counts[counts > 0].astype(np.float64)
        sizes = sizes * ((len(rows) if forced is None else int((forced < 0).sum())) / len(free))
    if n_known and forced is not None:
        centres = np.concatenate([class_means(rows, forced, n_known), centres])
        sizes = np.concatenate([np.bincount(forced[forced >= 0], minlength=n_known), sizes])
    joins, heights = ward(centres, sizes, n_known)
    return Tree(centres, sizes, n_known, joins, heights)


def ward(centres: Floats, sizes: Doubles, n_apart: int = 0) -> tuple[Labels, Doubles]:
    """Ward's linkage of weighted points by nearest-neighbour chains (Murtagh 1983); the first `n_apart` never meet.

    Returns pairs of points and heights, lowest first.

    Examples
    --------
    >>> pairs, heights = ward(np.array([[0.0], [1.0], [9.0]], np.float32), np.ones(3))
    >>> pairs.tolist(), heights.round(2).tolist()
    ([[0, 1], [0, 2]], [1.0, 96.33])
    """
    n = len(centres)
    weight = sizes.astype(np.float64).copy()
    points = centres.astype(np.float64)
    squares = np.einsum("ij,ij->i", points, points)
    cost = np.maximum(squares[:, None] + squares - 2 * (points @ points.T), 0)
    cost *= 2 * weight[:, None] * weight / (weight[:, None] + weight)
    cost[:n_apart, :n_apart] = np.inf
    np.fill_diagonal(cost, np.inf)
    pairs: list[tuple[int, int]] = []
    heights: list[float] = []
    chain: list[int] = []
    unfinished = np.ones(n, bool)
    while True:
        if not chain:
            left = np.flatnonzero(unfinished)
            if not len(left):
                break
            chain = [int(left[0])]
        at = chain[-1]
        row = cost[at]
        near = int(row.argmin())
        if not np.isfinite(row[near]):  # alone, or kept apart from all that is left
            unfinished[at] = False
            chain.pop()
            continue
        if len(chain) > 1 and row[chain[-2]] <= row[near]:
            a, b = min(at, chain[-2]), max(at, chain[-2])
            height = float(cost[a, b])
            pairs.append((a, b))
            heights.append(height)
            # Lance & Williams' update; a pair kept apart (infinite) stays apart from the union
            joint = ((weight[a] + weight) * cost[a] + (weight[b] + weight) * cost[b] - weight * height) / (
                weight[a] + weight[b] + weight
            )
            joint[a] = joint[b] = np.inf
            weight[a] += weight[b]
            cost[a] = cost[:, a] = joint
            cost[b] = cost[:, b] = np.inf
            unfinished[b] = False
            chain = chain[:-2]
        else:
            chain.append(near)
    order = np.argsort(heights, kind="stable")
    ordered = np.asarray(heights, np.float64)[order]
    return np.asarray(pairs, np.int64).reshape(-1, 2)[order], ordered
