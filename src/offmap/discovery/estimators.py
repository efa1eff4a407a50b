"""K-means and semi-supervised k-means with scikit-learn's interface, for pipelines and for people who know it."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin

from offmap.discovery.assign import Floats, Labels, Metric, Rows, check_rows, margins
from offmap.discovery.inputs import read_labels
from offmap.discovery.kmeans import Fit, best_of, class_means, lloyd, plus_plus
from offmap.discovery.tree import TREE_GROUPS, ward_tree
from offmap.errors import InputError, NotFittedError

Init = Literal["ward", "kmeans", "k-means++", "farthest"]


class KMeans(TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """K-means on all cores and in bounded memory, from arrays or memory maps; Euclidean or cosine.

    Parameters
    ----------
    n_clusters : int, default=8
        How many groups.
    metric : Metric, default="euclidean"
        ``"euclidean"``, or ``"cosine"`` (rows and centres of length 1).
    init : Init, default="ward"
        ``"ward"``: one tree, which ends lower than several draws by ``"k-means++"`` where groups can be told apart, and
        about as low where noise hides them; ``"farthest"``: farthest rows first. More than 4,000 groups have no tree
        and start by k-means++.
    n_init : int, default=1
        Starts to try; the lowest sum of squares wins. One is enough for ``"ward"``.
    balanced : bool, default=False
        Steer the groups to equal sizes (Sinkhorn).
    max_iter, tol : int and float, default=300 and 0.0001
        As in scikit-learn.
    random_state : int, default=0
        The seed.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [9.0], [10.0]])
    >>> model = KMeans(2).fit(points)
    >>> bool(model.labels_[0] == model.labels_[1] != model.labels_[2]), round(model.inertia_, 3)
    (True, 1.0)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Metric = "euclidean",
        init: Init = "ward",
        n_init: int = 1,
        balanced: bool = False,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.init = init
        self.n_init = n_init
        self.balanced = balanced
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Group the rows of `X`; `y` is ignored."""
        if sample_weight is not None:
            raise InputError("KMeans.fit(sample_weight=...): rows have no weights here; repeat rows instead")
        rows = _checked(X, self)
        self._keep(run(rows, self.n_clusters, self.random_state, **_options(self)), rows)
        return self

    def predict(self, X: Any) -> Labels:
        """Return the nearest centre of each row."""
        _, first, _ = self._nearest(X)
        return first

    def transform(self, X: Any) -> Floats:
        """Distances of each row to every centre."""
        rows, _, _ = self._nearest(X)
        block = rows.block(0, len(rows))
        squares = np.einsum("ij,ij->i", block, block)[:, None]
        gaps = squares - 2 * block @ self.cluster_centers_.T + (self.cluster_centers_**2).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(gaps, 0)), np.float32)

    def _keep(self, fit: Fit, rows: Rows) -> None:
        self.labels_ = fit.labels
        self.cluster_centers_ = fit.centres
        self.inertia_ = fit.inertia
        self.n_iter_ = fit.n_iter
        self.n_features_in_ = rows.width

    def _nearest(self, X: Any) -> tuple[Rows, Labels, Floats]:
        if not hasattr(self, "cluster_centers_"):
            raise NotFittedError(f"{type(self).__name__}: call fit before predict or transform")
        rows = Rows(check_rows(X, "X"), self.metric)
        if rows.width != self.n_features_in_:
            raise InputError(f"X has {rows.width} columns, the model was fitted with {self.n_features_in_}")
        first, near, _, _ = margins(rows, self.cluster_centers_)
        return rows, first, near


class SemiSupervisedKMeans(KMeans):
    """K-means in which labelled rows keep their class (Vaze et al. 2022), from a start that labels cannot spoil.

    The first centres are the known classes in order, the others are novel. Labelled rows never leave their class;
    all centres move. Started by k-means++, as published, forced labels can end below plain k-means; the default
    start is a Ward tree that keeps classes whole and apart.

    Parameters
    ----------
    n_clusters : int, default=8
        Known and novel classes together.
    init : Init, default="ward"
        ``"ward"``; ``"kmeans"``: a k-means solution whose groups are matched to known classes; ``"k-means++"``:
        as published; ``"farthest"``: farthest rows first.
    frozen : bool, default=False
        Known centres stay at the means of their labels (SORL's authors, with ``init="farthest"``).
    metric, n_init, balanced, max_iter, tol, random_state : Metric, int, bool and float, optional
        As in `KMeans`.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [9.0], [10.0]])
    >>> SemiSupervisedKMeans(2).fit(points, [5, -1, -1, -1]).labels_
    array([5, 5, 6, 6])
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: Metric = "euclidean",
        init: Init = "ward",
        n_init: int = 1,
        frozen: bool = False,
        balanced: bool = False,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            n_clusters,
            metric=metric,
            init=init,
            n_init=n_init,
            balanced=balanced,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
        )
        self.frozen = frozen

    @classmethod
    def authors(cls, n_clusters: int, **options: Any) -> SemiSupervisedKMeans:
        """Return what the authors of SORL run: known centres frozen, novel centres started farthest first."""
        return cls(n_clusters, init="farthest", frozen=True, **options)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Group the rows; `y` holds class numbers, -1 where unknown. Novel groups are numbered after the largest."""
        if sample_weight is not None:
            raise InputError("SemiSupervisedKMeans.fit(sample_weight=...): rows have no weights here")
        rows = _checked(X, self)
        known = read_labels(y, len(rows))
        if self.n_clusters < len(known):
            raise InputError(
                f"SemiSupervisedKMeans(n_clusters={self.n_clusters}): the labels already name {len(known)} classes"
            )
        self._keep(run(rows, self.n_clusters, self.random_state, known.codes, len(known), **_options(self)), rows)
        novel = np.arange(self.n_clusters - len(known)) + known.next_id
        self.classes_ = np.concatenate([known.ids, novel])
        self.labels_ = self.classes_[self.labels_]
        return self

    def predict(self, X: Any) -> Labels:
        """Return the class of the nearest centre."""
        found: Labels = self.classes_[super().predict(X)] if hasattr(self, "classes_") else super().predict(X)
        return found


def run(
    rows: Rows,
    k: int,
    seed: int,
    codes: Labels | None = None,
    n_known: int = 0,
    *,
    init: Init = "ward",
    n_init: int = 1,
    frozen: bool = False,
    balanced: bool = False,
    max_iter: int = 300,
    tol: float = 1e-4,
) -> Fit:
    """Return the best of `n_init` runs of k-means, with known classes as the first centres when there are any.

    Examples
    --------
    >>> run(Rows(np.array([[0.0], [1.0], [9.0]])), 2, 0).inertia
    0.5
    """
    forced = codes if codes is not None and n_known else None
    free = None if forced is None else np.flatnonzero(forced < 0)
    if free is not None and len(free) < k - n_known:
        raise InputError(f"k={k}: {k - n_known} novel classes cannot come out of {len(free)} unlabelled rows")
    given = class_means(rows, forced, n_known) if forced is not None else None
    shares = np.full(k, 1 / k) if balanced else None
    held = n_known if frozen else 0

    def fits() -> Any:
        for number in range(n_init):
            rng = np.random.default_rng([seed, number])
            start = _start(rows, k, rng, init, forced, given, free)
            yield lloyd(rows, start, forced=forced, frozen=held, balance=shares, max_iter=max_iter, tol=tol)

    return best_of(fits())


def _start(
    rows: Rows,
    k: int,
    rng: np.random.Generator,
    init: Init,
    forced: Labels | None,
    given: Floats | None,
    free: Labels | None,
) -> Floats:
    if init == "ward" and k <= TREE_GROUPS:
        return ward_tree(rows, k, rng, forced, 0 if given is None else len(given)).means(k, rows.metric)
    if init == "kmeans":
        return _from_plain(rows, k, rng, forced, given)
    return plus_plus(rows, k, rng, given=given, free=free, farthest=init == "farthest")


def _from_plain(rows: Rows, k: int, rng: np.random.Generator, forced: Labels | None, given: Floats | None) -> Floats:
    """Return the centres of plain k-means; groups that match a known class give way to that class' mean."""
    from scipy.optimize import linear_sum_assignment

    plain = lloyd(rows, plus_plus(rows, k, rng))
    if forced is None or given is None:
        return plain.centres
    labelled = forced >= 0
    counts = np.zeros((k, len(given)))
    np.add.at(counts, (plain.labels[labelled], forced[labelled]), 1)
    taken, _ = linear_sum_assignment(counts, maximize=True)
    return np.concatenate([given, np.delete(plain.centres, taken, axis=0)])


def _options(model: Any) -> dict[str, Any]:
    names = ("init", "n_init", "frozen", "balanced", "max_iter", "tol")
    return {name: getattr(model, name) for name in names if hasattr(model, name)}


def _checked(X: Any, model: Any) -> Rows:
    """Rows ready to group, after the parameters that a user can get wrong."""
    name = type(model).__name__
    rows = Rows(check_rows(X, "X"), model.metric)
    if model.metric not in ("euclidean", "cosine"):
        raise InputError(f"{name}(metric={model.metric!r}): 'euclidean' or 'cosine'")
    if model.init not in ("ward", "kmeans", "k-means++", "farthest"):
        raise InputError(f"{name}(init={model.init!r}): 'ward', 'kmeans', 'k-means++' or 'farthest'")
    if not 1 <= model.n_clusters <= len(rows):
        raise InputError(
            f"{name}(n_clusters={model.n_clusters}): between 1 and the number of rows, {len(rows)}, is needed"
        )
    if model.n_init < 1:
        raise InputError(f"{name}(n_init={model.n_init}): at least one start is needed")
    return rows
