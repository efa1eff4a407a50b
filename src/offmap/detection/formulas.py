"""Formulas that a bank or scikit-learn computes, in tensor operations alone, from which a graph can be drawn."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from offmap.neighbors import Bank
from offmap.neighbors.ranking import NEAR

CROWDED_ROWS = 1024  # looked at to tell whether rows are crowded
BLOCK = 1024  # rows of a sample compared with all of it at once
DENSITY_FLOOR = 1e-10  # scikit-learn adds it to a mean distance before dividing


def directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows to length 1 as a bank does it, with lengths in float64.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The rows.

    Returns
    -------
    directions : Tensor of shape (n, d)
        Rows of length 1; rows of zeros stay zeros.
    nonzero : Tensor of shape (n,)
        Whether a row has any length.

    Examples
    --------
    >>> directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    (tensor([[0.6000, 0.8000],
             [0.0000, 0.0000]]), tensor([ True, False]))
    """
    wide = features.double()
    length = wide.norm(dim=1, keepdim=True)
    return (wide / torch.where(length > 0, length, 1.0)).float(), length[:, 0] > 0


def kth_distance(queries: Tensor, rows: Tensor, half_norms: Tensor | None, k: int, average: bool = False) -> Tensor:
    """Compute the distance to the k-th nearest row, or the mean over the k nearest.

    Parameters
    ----------
    queries, rows : Tensor
        Vectors of the same width.
    half_norms : Tensor or None
        Half the squared length of each row; `None` when all rows have the same. In float64, rows are ranked by products
        in float64; see `half_norms`.
    k : int
        Which neighbour.
    average : bool, default=False
        Whether to average over the k nearest instead.

    Returns
    -------
    Tensor of shape (n_queries,)
        Distances in float64.

    Examples
    --------
    >>> rows = torch.tensor([[0.0], [3.0]])
    >>> kth_distance(torch.tensor([[1.0]]), rows, rows[:, 0].square() / 2, k=2)
    tensor([2.], dtype=torch.float64)
    """
    return nearest_distances(queries, rows, half_norms, k, last_only=not average)[0].mean(dim=1)


def nearest_distances(
    queries: Tensor, rows: Tensor, half_norms: Tensor | None, k: int, last_only: bool = False
) -> tuple[Tensor, Tensor]:
    """Find the k nearest rows of each query.

    Parameters
    ----------
    queries, rows : Tensor
        Vectors of the same width.
    half_norms : Tensor or None
        As `kth_distance` takes them.
    k : int
        How many neighbours.
    last_only : bool, default=False
        Whether only the distance to the k-th is computed.

    Returns
    -------
    distances : Tensor of shape (n_queries, k) or (n_queries, 1)
        In float64, the nearest first.
    places : Tensor of shape (n_queries, k)
        Which rows these are.

    Examples
    --------
    >>> rows = torch.tensor([[0.0], [3.0]])
    >>> nearest_distances(torch.tensor([[1.0]]), rows, rows[:, 0].square() / 2, k=2)
    (tensor([[1., 2.]], dtype=torch.float64), tensor([[0, 1]]))
    """
    wide = half_norms is not None and half_norms.dtype == torch.float64
    closeness = queries.double() @ rows.double().T if wide else queries @ rows.T
    if half_norms is not None:
        closeness = closeness - half_norms
    places = closeness.topk(k, dim=1).indices
    chosen = rows[places[:, -1:] if last_only else places]
    return (queries[:, None] - chosen).double().norm(dim=2), places


def half_norms(rows: Tensor, k: int) -> Tensor:
    """Compute half the squared length of each row: in float64 where rows are crowded, so that they are ranked right.

    Among rows whose k-th neighbour is very near, as where a network sees inputs of a class as nearly the same, products
    in float32 differ by less than they are rounded by.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        The rows.
    k : int
        Which neighbour will be asked for.

    Returns
    -------
    Tensor of shape (n,)
        float64 where a row among a sample has its k-th neighbour that near, else float32.

    Examples
    --------
    >>> half_norms(torch.eye(2), k=1).dtype, half_norms(torch.tensor([[1.0, 0.0], [1.0, 0.01]]), k=1).dtype
    (torch.float32, torch.float64)
    """
    halves = rows.double().square().sum(dim=1) / 2
    asked = torch.linspace(0, len(rows) - 1, min(len(rows), CROWDED_ROWS)).long()
    bank = Bank.of(rows.cpu().numpy(), normalize=False)
    near = torch.from_numpy(bank.kth_distance(rows[asked], min(k + 1, len(rows)))).double().square()
    return halves if bool((near < NEAR * 2 * halves[asked]).any()) else halves.float()


def mean_of_largest(products: Tensor, k: int) -> Tensor:
    """Compute the mean of each row's k largest numbers.

    Parameters
    ----------
    products : Tensor of shape (n, m)
        The numbers.
    k : int
        How many of a row count.

    Returns
    -------
    Tensor of shape (n,)
        The means, in float64.

    Examples
    --------
    >>> mean_of_largest(torch.tensor([[1.0, 5.0, 3.0]]), 2)
    tensor([4.], dtype=torch.float64)
    """
    return products.topk(k, dim=1).values.double().mean(dim=1)


def squared_distances(features: Tensor, rows: Tensor) -> Tensor:
    """Compute all squared distances between two sets of rows.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        One set.
    rows : Tensor of shape (m, d)
        The other.

    Returns
    -------
    Tensor of shape (n, m)
        Not below 0.
    """
    norms = features.square().sum(dim=1, keepdim=True) + rows.square().sum(dim=1)
    return (norms - 2 * features @ rows.T).clamp(min=0)


def local_densities(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Compute the distance of each row to its k-th neighbour, and its density (Breunig et al. 2000, def. 6).

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        A sample; it is compared with itself block by block.
    k : int
        Number of neighbours.

    Returns
    -------
    reach : Tensor of shape (n,)
        Distances to the k-th neighbour.
    density : Tensor of shape (n,)
        Local reachability densities.

    Examples
    --------
    >>> reach, density = local_densities(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64), k=1)
    >>> reach, density
    (tensor([1., 1., 2.], dtype=torch.float64), tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64))
    """
    found = []
    for start in range(0, len(rows), BLOCK):
        squared = squared_distances(rows[start : start + BLOCK], rows)
        squared[torch.arange(len(squared)), torch.arange(start, start + len(squared))] = torch.inf  # not its own
        found.append(squared.topk(k, dim=1, largest=False))
    near, places = torch.cat([part.values for part in found]).sqrt(), torch.cat([part.indices for part in found])
    reach = near[:, -1].contiguous()
    return reach, _density(near, reach[places])


def outlier_factor(features: Tensor, rows: Tensor, reach: Tensor, density: Tensor, k: int) -> Tensor:
    """Divide the density of the k nearest rows by that of each input itself (Breunig et al. 2000, def. 7).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    rows : Tensor of shape (m, d)
        The sample.
    reach, density : Tensor of shape (m,)
        What `local_densities` gave for the sample.
    k : int
        Number of neighbours.

    Returns
    -------
    Tensor of shape (n,)
        Local outlier factors; about 1 inside the sample, larger outside.

    Examples
    --------
    >>> rows = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    >>> outlier_factor(torch.tensor([[5.0]], dtype=torch.float64), rows, *local_densities(rows, 1), k=1)
    tensor([1.], dtype=torch.float64)
    """
    near = squared_distances(features, rows).topk(k, dim=1, largest=False)
    return density[near.indices].mean(dim=1) / _density(near.values.sqrt(), reach[near.indices])


def _density(distances: Tensor, reach: Tensor) -> Tensor:
    return 1 / (torch.maximum(distances, reach).mean(dim=1) + DENSITY_FLOOR)


def forest_tables(forest: Any) -> dict[str, Tensor]:
    """Write the trees of a fitted isolation forest as tables, trees × nodes; a leaf leads to itself.

    Parameters
    ----------
    forest : sklearn.ensemble.IsolationForest
        Fitted.

    Returns
    -------
    feature, threshold, left, right
        Where to go from each node: left when the feature is at most the threshold.
    length
        The path length that ends in each leaf, with what is expected below it (Liu et al. 2008, eq. 1).
    """
    trees = [estimator.tree_ for estimator in forest.estimators_]
    nodes = max(tree.node_count for tree in trees)
    tables = {name: torch.zeros(len(trees), nodes, dtype=torch.int64) for name in ("feature", "left", "right")}
    tables |= {name: torch.zeros(len(trees), nodes, dtype=torch.float64) for name in ("threshold", "length")}
    for place, (tree, chosen) in enumerate(zip(trees, forest.estimators_features_, strict=True)):
        depth = [0] * tree.node_count
        for node in range(tree.node_count):
            left, right = int(tree.children_left[node]), int(tree.children_right[node])
            if left < 0:
                tables["left"][place, node] = tables["right"][place, node] = node
                tables["length"][place, node] = depth[node] + expected_length(int(tree.n_node_samples[node]))
                continue
            depth[left] = depth[right] = depth[node] + 1
            tables["left"][place, node], tables["right"][place, node] = left, right
            tables["feature"][place, node] = int(chosen[tree.feature[node]])
            tables["threshold"][place, node] = float(tree.threshold[node])
    return tables | {"depth": torch.tensor(max(tree.max_depth for tree in trees))}


def expected_length(n: int) -> float:
    """Compute the mean length of an unsuccessful search in a binary tree of n inputs (Liu et al. 2008, eq. 1).

    Parameters
    ----------
    n : int
        Number of inputs.

    Returns
    -------
    float
        The mean length.

    Examples
    --------
    >>> expected_length(1), expected_length(2), round(expected_length(256), 3)
    (0.0, 1.0, 10.245)
    """
    if n <= 2:
        return float(max(n - 1, 0))
    return 2 * (math.log(n - 1) + 0.5772156649015329) - 2 * (n - 1) / n


def path_lengths(features: Tensor, tables: dict[str, Tensor]) -> Tensor:
    """Compute the mean path length of each input over the trees of a forest.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    tables : dict of str to Tensor
        What `forest_tables` gave.

    Returns
    -------
    Tensor of shape (n,)
        The mean lengths.
    """
    trees, nodes = tables["left"].shape
    flat = {name: table.reshape(-1) for name, table in tables.items()}
    roots = torch.arange(trees) * nodes
    at = roots + torch.zeros_like(features[:, :1], dtype=torch.int64)
    for _ in range(int(tables["depth"])):
        goes_left = features.gather(1, flat["feature"][at]).double() <= flat["threshold"][at]
        at = roots + torch.where(goes_left, flat["left"][at], flat["right"][at])
    return flat["length"][at].mean(dim=1)


def count_at_most(sorted_rows: Tensor, firsts: Tensor, scores: Tensor) -> Tensor:
    """Count how many of a sorted sequence, cut into rows of equal length, are at most each score.

    Two looks instead of n: which row the score falls in, by the first number of each, then how far along that row.

    Parameters
    ----------
    sorted_rows : Tensor of shape (rows, width)
        The sequence, as `fill_rows` cuts it.
    firsts : Tensor of shape (rows,)
        The first number of each row.
    scores : Tensor of shape (n,)
        What to compare with.

    Returns
    -------
    Tensor of shape (n,)
        The counts.

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 2.0], [3.0, torch.inf]])
    >>> count_at_most(rows, rows[:, 0], torch.tensor([0.5, 2.0, 9.0]))
    tensor([0, 2, 3])
    """
    row = ((firsts <= scores[:, None]).sum(dim=1) - 1).clamp(min=0)
    return row * sorted_rows.shape[1] + (sorted_rows[row] <= scores[:, None]).sum(dim=1)


def fill_rows(scores: Tensor, width: int | None = None) -> Tensor:
    """Cut sorted scores into rows of equal length, the last filled up with infinity.

    Parameters
    ----------
    scores : Tensor of shape (n,)
        Sorted upwards.
    width : int or None, default=None
        Length of a row; by default about as long as there are rows.

    Returns
    -------
    Tensor of shape (rows, width)
        At least one row.

    Examples
    --------
    >>> fill_rows(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [3., inf]])
    """
    width = max(1, math.isqrt(max(len(scores) - 1, 0)) + 1) if width is None else width
    rows = max(1, -(-len(scores) // width))
    return torch.nn.functional.pad(scores, (0, rows * width - len(scores)), value=math.inf).reshape(rows, width)
