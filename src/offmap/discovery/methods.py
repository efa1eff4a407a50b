"""The ways to form groups, by name: our k-means, and adapters to clusterers of good libraries.

Each takes rows in their space, the number of groups and the known classes; labels are used where the method can.
Known class i is group i in every answer; -1 is an outlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.discovery.assign import Labels, Rows
from offmap.discovery.graph_groups import group_by_graph
from offmap.discovery.kmeans import best_of, class_means, lloyd, plus_plus
from offmap.discovery.space import group
from offmap.neighbors.vectors import unit
from offmap.registry import Registry

DENSITY_WIDTH = 20
DENSITY_ROWS = 5  # the smallest group that HDBSCAN may find


@dataclass(frozen=True)
class Problem:
    """A grouping problem: rows in their space, how many groups, and what is known."""

    rows: Rows
    k: int
    codes: Labels
    n_known: int
    seed: int

    @property
    def forced(self) -> Labels | None:
        """Per row its known class; `None` when nothing is known."""
        return self.codes if self.n_known else None


Method = Callable[[Problem], Labels]
METHODS: Registry[Method] = Registry(
    "discovery method", package="offmap.discovery.methods", group="offmap.discovery_methods"
)


@METHODS.register("graph")
def graph(problem: Problem) -> Labels:
    """Join rows over the neighbour graph, or group its eigenvectors, whichever is tighter (`group_by_graph`)."""
    return group_by_graph(problem.rows, problem.codes, problem.n_known, problem.k, problem.seed).labels


@METHODS.register("ss-kmeans")
def ss_kmeans(problem: Problem) -> Labels:
    """Run semi-supervised k-means from the constrained Ward tree; plain k-means from a Ward tree without labels."""
    return group(problem.rows, problem.k, problem.seed, problem.forced, problem.n_known)[0]


@METHODS.register("kmeans")
def kmeans(problem: Problem) -> Labels:
    """Run plain k-means, best of three starts; groups are named after known classes afterwards."""
    rng = np.random.default_rng(problem.seed)
    fit = best_of(lloyd(problem.rows, plus_plus(problem.rows, problem.k, rng)) for _ in range(3))
    return name_after_known(fit.labels, problem, exactly=True)


@METHODS.register("gcd")
def gcd(problem: Problem) -> Labels:
    """Run semi-supervised k-means as published (Vaze et al. 2022): k-means++ starts, best of ten."""
    rng = np.random.default_rng(problem.seed)
    if problem.forced is None:
        return kmeans(problem)
    given, free = class_means(problem.rows, problem.codes, problem.n_known), np.flatnonzero(problem.codes < 0)
    return best_of(
        lloyd(
            problem.rows,
            plus_plus(problem.rows, problem.k, rng, given=given, free=free),
            forced=problem.forced,
        )
        for _ in range(10)
    ).labels


@METHODS.register("spectral")
def spectral(problem: Problem) -> Labels:
    """Group eigenvectors of the neighbour graph, labelled classes as cliques, by semi-supervised k-means."""
    from offmap.graph import spectral_features

    rows = problem.rows.block(0, len(problem.rows))
    if len(rows) < 3 or problem.k >= len(rows):
        return ss_kmeans(problem)
    features = spectral_features(rows, problem.codes, problem.k, seed=problem.seed)
    return group(Rows(features), problem.k, problem.seed, problem.forced, problem.n_known)[0]


@METHODS.register("gmm")
def gmm(problem: Problem) -> Labels:
    """Fit a mixture of Gaussians of one shape (scikit-learn), started from semi-supervised k-means.

    One covariance for all: in hundreds of columns a class has too few rows for a shape of its own.
    """
    from sklearn.mixture import GaussianMixture

    rows = problem.rows.block(0, len(problem.rows)).astype(np.float64)
    start = ss_kmeans(problem)
    sizes = np.maximum(np.bincount(start, minlength=problem.k), 1)
    means = _means(rows, start, problem.k)
    inside = rows - means[start]
    floor = max(1e-3 * float(rows.var(axis=0).mean()), 1e-9)
    model = GaussianMixture(
        problem.k,
        covariance_type="tied",
        means_init=means,
        weights_init=sizes / sizes.sum(),
        precisions_init=np.linalg.inv(inside.T @ inside / len(rows) + floor * np.eye(rows.shape[1])),
        reg_covar=floor,
        init_params="random_from_data",  # not used, all is given; the default would run k-means in vain
        random_state=problem.seed,
        max_iter=50,
    )
    return _with_labels(model.fit_predict(rows).astype(np.int64), problem)


@METHODS.register("vmf")
def vmf(problem: Problem) -> Labels:
    """Fit a mixture of von Mises–Fisher distributions with one concentration (Banerjee et al. 2005), labels held.

    Soft spherical k-means: each step weighs rows by ``exp(κ cos)``; κ from the mean resultant length.
    """
    rows = unit(problem.rows.block(0, len(problem.rows)))
    width = rows.shape[1]
    start = ss_kmeans(problem)
    centres = unit(_means(rows, start, problem.k)).astype(np.float32)
    log_shares = np.log(np.maximum(np.bincount(start, minlength=problem.k), 1) / len(rows))
    held = np.flatnonzero(problem.codes >= 0)
    found = start
    for _ in range(20):
        cosine = rows @ centres.T
        length = float(np.clip(cosine[np.arange(len(rows)), found].mean(), 1e-3, 1 - 1e-6))
        kappa = length * (width - length**2) / (1 - length**2)
        weight = kappa * cosine + log_shares
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        weight[held] = 0
        weight[held, problem.codes[held]] = 1
        new = weight.argmax(axis=1)
        if (new == found).all():
            break
        found = new.astype(np.int64)
        centres = unit(weight.T @ rows).astype(np.float32)
        log_shares = np.log(np.maximum(weight.mean(axis=0), 1e-12))
    return _with_labels(found, problem)


@METHODS.register("hdbscan")
def hdbscan(problem: Problem) -> Labels:
    """Run HDBSCAN (scikit-learn), which finds its own number of groups and leaves outliers out; `k` is not used.

    Densities mean little in hundreds of columns, so wide rows are first projected to their leading directions.
    """
    from sklearn.cluster import HDBSCAN
    from sklearn.decomposition import PCA

    rows = problem.rows.block(0, len(problem.rows))
    if rows.shape[1] > DENSITY_WIDTH and len(rows) > DENSITY_WIDTH:
        rows = PCA(DENSITY_WIDTH, svd_solver="randomized", random_state=problem.seed).fit_transform(rows)
    smallest = min(DENSITY_ROWS, len(rows))
    return name_after_known(
        HDBSCAN(min_cluster_size=max(smallest, 2), copy=True).fit_predict(rows).astype(np.int64), problem
    )


def name_after_known(found: Labels, problem: Problem, exactly: bool = False) -> Labels:
    """Renumber groups formed without labels so that the group matched to known class i is i; labels then hold.

    A known class that no group is left for keeps its labelled rows as a group. When there must be exactly as many
    groups as asked for, the smallest unnamed ones then become one.
    """
    from scipy.optimize import linear_sum_assignment

    if not problem.n_known:
        return found
    groups, position = np.unique(found[found >= 0], return_inverse=True)
    labelled = (problem.codes >= 0) & (found >= 0)
    counts = np.zeros((len(groups), problem.n_known))
    np.add.at(counts, (np.searchsorted(groups, found[labelled]), problem.codes[labelled]), 1)
    number = np.full(len(groups), -1, np.int64)
    at, of = linear_sum_assignment(counts, maximize=True)
    novel = problem.k - problem.n_known
    matched = (counts[at, of] > 0) | (exactly and novel == 0)
    number[at[matched]] = of[matched]
    free = np.flatnonzero(number < 0)
    free = free[np.argsort(-np.bincount(position, minlength=len(groups))[free], kind="stable")]
    number[free] = problem.n_known + np.minimum(np.arange(len(free)), novel - 1 if exactly else len(free))
    renamed = np.full(len(found), -1, np.int64)
    renamed[found >= 0] = number[position]
    return _with_labels(renamed, problem)


def _with_labels(found: Labels, problem: Problem) -> Labels:
    return np.where(problem.codes >= 0, problem.codes, found)


def _means(rows: npt.NDArray[Any], labels: Labels, k: int) -> npt.NDArray[Any]:
    sums = np.zeros((k, rows.shape[1]))
    np.add.at(sums, labels, rows)
    return np.asarray(sums / np.maximum(np.bincount(labels, minlength=k), 1)[:, None])
