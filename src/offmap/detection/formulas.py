"""What a bank or scikit-learn computes, in tensor operations alone, from which a graph can be drawn."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

BLOCK = 1024  # rows of a sample compared with all of it at once
DENSITY_FLOOR = 1e-10  # scikit-learn adds it to a mean distance before dividing


def directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """Rows scaled to length 1 as a bank does it, with lengths in float64, and which rows have any.

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
    """The distance to the k-th nearest row, or the mean over the k nearest, from the differences of the vectors.

    Parameters
    ----------
    queries, rows
        Vectors of the same width.
    half_norms
        Half the squared length of each row; `None` when all rows have the same.
    k, average
        Which neighbour, or over how many.

    Examples
    --------
    >>> rows = torch.tensor([[0.0], [3.0]])
    >>> kth_distance(torch.tensor([[1.0]]), rows, rows[:, 0].square() / 2, k=2)
    tensor([2.], dtype=torch.float64)
    """
    closeness = queries @ rows.T
    if half_norms is not None:
        closeness = closeness - half_norms
    nearest = closeness.topk(k, dim=1).indices
    chosen = rows[nearest if average else nearest[:, -1:]]
    return (queries[:, None] - chosen).double().norm(dim=2).mean(dim=1)


def mean_of_largest(products: Tensor, k: int) -> Tensor:
    """The mean of each row's k largest numbers.

    Examples
    --------
    >>> mean_of_largest(torch.tensor([[1.0, 5.0, 3.0]]), 2)
    tensor([4.], dtype=torch.float64)
    """
    return products.topk(k, dim=1).values.double().mean(dim=1)


def squared_distances(features: Tensor, rows: Tensor) -> Tensor:
    """All squared distances, features × rows."""
    norms = features.square().sum(dim=1, keepdim=True) + rows.square().sum(dim=1)
    return (norms - 2 * features @ rows.T).clamp(min=0)


def local_densities(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of each row of a sample: the distance to its k-th neighbour, and its density (Breunig et al. 2000, def. 6).

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
    """The density of the k nearest rows over that of the input itself (Breunig et al. 2000, def. 7).

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
    """The trees of a fitted isolation forest as tables, trees × nodes; a leaf leads to itself.

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
    """The mean length of an unsuccessful search in a binary tree of n (Liu et al. 2008, eq. 1).

    Examples
    --------
    >>> expected_length(1), expected_length(2), round(expected_length(256), 3)
    (0.0, 1.0, 10.245)
    """
    if n <= 2:
        return float(max(n - 1, 0))
    return 2 * (math.log(n - 1) + 0.5772156649015329) - 2 * (n - 1) / n


def path_lengths(features: Tensor, tables: dict[str, Tensor]) -> Tensor:
    """The mean path length of each input over the trees of `forest_tables`."""
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

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 2.0], [3.0, torch.inf]])
    >>> count_at_most(rows, rows[:, 0], torch.tensor([0.5, 2.0, 9.0]))
    tensor([0, 2, 3])
    """
    row = ((firsts <= scores[:, None]).sum(dim=1) - 1).clamp(min=0)
    return row * sorted_rows.shape[1] + (sorted_rows[row] <= scores[:, None]).sum(dim=1)


def fill_rows(scores: Tensor, width: int | None = None) -> Tensor:
    """Cut sorted scores into rows, at least one, the last filled up with infinity; by default as long as many.

    Examples
    --------
    >>> fill_rows(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [3., inf]])
    """
    width = max(1, math.isqrt(max(len(scores) - 1, 0)) + 1) if width is None else width
    rows = max(1, -(-len(scores) // width))
    return torch.nn.functional.pad(scores, (0, rows * width - len(scores)), value=math.inf).reshape(rows, width)
