"""Advice on what to label next: forecast, from the graph alone, which labels will tighten known and novel clusters.

The forecast is the slope of the K-means measure (`offmap.theory.perturbation`), taken over the partition as it is
believed to be now. It is only as good as that partition; `benchmarks/advice.py` measures how good on real data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from offmap.activations import as_array
from offmap.errors import InputError
from offmap.graph import Graph, eigengap, knn_graph, label_connections, spectral_embedding
from offmap.graph.adjacency import Matrix
from offmap.metrics.kmeans_measure import kmeans_measure
from offmap.theory.perturbation import MeasureGradient, measure_gradient
from offmap.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Option:
    """One thing to spend labels on: a known class, or a cluster of unlabelled inputs that may be a novel class.

    Attributes
    ----------
    name : str
        ``"class 3"`` or ``"cluster 0"``.
    known : bool
        True if it already has labels.
    members, labelled : int
        Inputs believed to belong to it, and those of them with labels.
    gain, gain_known, gain_novel : float
        By how much a batch of its labels should lower the K-means measure, as a share of its value: over everything,
        over known classes only, over novel clusters only. Negative: it should get worse.
    items : ndarray of int
        Its unlabelled inputs in random order: a fair draw shows if the option is what it is believed to be.
    spend : int
        How many of them to label within the budget.
    """

    name: str
    known: bool
    members: int
    labelled: int
    gain: float
    gain_known: float
    gain_novel: float
    items: IntArray
    spend: int

    @property
    def hurts(self) -> str:
        """Groups that its labels are predicted to make worse: ``""``, ``"known"``, ``"novel"`` or ``"both"``."""
        known, novel = self.gain_known < 0, self.gain_novel < 0
        return "both" if known and novel else "known" if known else "novel" if novel else ""


@dataclass(frozen=True)
class Advice:
    """Options for labelling, best first, and the believed partition they rest on.

    Attributes
    ----------
    options : list of Option
        Every known class and cluster that has unlabelled inputs.
    budget, batch : int
        Labels to spend, and how many at once each forecast is for.
    partition : ndarray of int
        Believed class of every input: known classes 0 … n_known−1 in the order of `classes`, then clusters.
    classes : ndarray of int
        The known classes.
    measure : float
        K-means measure of that partition before any label is bought.
    """

    options: list[Option]
    budget: int
    batch: int
    partition: IntArray
    classes: IntArray
    measure: float

    @property
    def items(self) -> IntArray:
        """Inputs to label, within the budget."""
        parts = [option.items[: option.spend] for option in self.options]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def rows(self) -> list[list[Any]]:
        """Return the options as a table: name, members, labels, gains in per cent, what it hurts, labels to buy."""
        return [
            [
                option.name,
                option.members,
                option.labelled,
                100 * option.gain,
                100 * option.gain_known,
                100 * option.gain_novel,
                option.hurts,
                option.spend,
            ]
            for option in self.options
        ]

    def __str__(self) -> str:
        chosen = sorted((o for o in self.options if o.spend), key=lambda option: option.known)
        harmful = [option.name for option in self.options if option.gain < 0]
        if not chosen:
            return "no option is predicted to tighten the clusters: more labels of these inputs should not help"
        first = ", ".join(f"{option.name} ({option.spend})" for option in chosen[:5])
        warning = f"; predicted to hurt: {', '.join(harmful[:5])}" if harmful else ""
        return (
            f"spend {sum(option.spend for option in chosen)} labels on {first}"
            f"{' and others' if len(chosen) > 5 else ''}; {self.batch} labels for {self.options[0].name} should "
            f"lower the K-means measure most, by {self.options[0].gain:.1%}{warning}. A forecast on the believed "
            "partition, not a promise"
        )


def label_advice(
    features: Any,
    labels: Any,
    budget: int,
    *,
    n_novel: int | None = None,
    batch: int = 3,
    neighbours: int = 15,
    label_weight: float = 1.0,
    seed: int = 0,
) -> Advice:
    """Rank known classes and clusters of unlabelled inputs by how much labels for them should help.

    The features make a k-NN graph, the labels so far are mixed into it as cliques, and its spectral embedding is
    clustered into the known classes and `n_novel` clusters. For each of these the change that a batch of its labels
    makes to the graph is put through the exact derivative of the K-means measure (thesis, section 7.4.2, theorem 7.2).

    Parameters
    ----------
    features : array_like of shape (n_inputs, n_dimensions)
        Labelled and unlabelled inputs.
    labels : array_like of int of shape (n_inputs,)
        Class indices, -1 where unlabelled.
    budget : int
        How many labels can be bought.
    n_novel : int, optional
        How many novel classes to look for; estimated by the eigengap of the graph by default.
    batch : int, default=3
        How many labels of an option are bought at a time; the forecasts are for one batch.
    neighbours : int, default=15
        Neighbours of each input in the graph.
    label_weight : float, default=1.0
        How much a label counts beside all neighbours of an input.
    seed : int, default=0
        Seed of the clustering and of the draw of inputs from an option.

    Returns
    -------
    Advice

    See Also
    --------
    offmap.theory.perturbation.measure_gradient : The derivative behind the forecast.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    >>> features = centres[np.arange(90) % 3] + rng.standard_normal((90, 2))
    >>> labels = np.where((np.arange(90) % 3 < 2) & (np.arange(90) < 20), np.arange(90) % 3, -1)
    >>> advice = label_advice(features, labels, budget=10, n_novel=1)
    >>> sorted(option.name for option in advice.options)
    ['class 0', 'class 1', 'cluster 0']
    """
    rows, given = as_array(features, "features"), as_array(labels, "labels")
    _check(rows, given, budget, batch, neighbours)
    n = len(rows)
    classes, place = np.unique(given, return_inverse=True)
    own = place - int(classes[0] < 0)  # known classes as 0, 1, …, unlabelled as -1
    classes = classes[classes >= 0].astype(np.int64)
    base = knn_graph(rows, min(neighbours, n - 1))
    base = base * (n / base.sum())  # a mean degree of 1, the scale labels are weighed against
    count = len(classes) + (estimate_novel_count(base, len(classes)) if n_novel is None else n_novel)
    if not len(classes) <= count < n:
        raise InputError(f"label_advice(n_novel={n_novel}): from 0 up, with fewer classes than the {n} inputs")
    spectrum = spectral_embedding(
        add_label_cliques(base, own, label_weight), min(max(3 * count, 24), n - 1), seed=seed, dense_nodes=300
    )
    width = _width(spectrum.values, count, neighbours)
    embedding = spectrum.features[:, :width]
    partition = cluster_around_labels(embedding, own, count, seed)
    whole = measure_gradient(spectrum, partition, width)
    parts = [
        _part(spectrum, np.where(mask, partition, -1), width)
        for mask in (partition < len(classes), partition >= len(classes))
    ]
    value = kmeans_measure(embedding, partition)
    unit = label_weight / value if value > 0 else label_weight  # clusters that are points cannot get tighter
    rng = np.random.default_rng(seed)
    options = []
    for j in range(count):
        free = np.flatnonzero((partition == j) & (own < 0))
        if not len(free):
            continue
        old = own == j
        items = rng.permutation(free)
        bought = old.copy()
        bought[items[:batch]] = True
        gain, gain_known, gain_novel = (
            np.nan if g is None else -unit * clique_change(g, old, bought) for g in (whole, *parts)
        )
        known = j < len(classes)
        name = f"class {classes[j]}" if known else f"cluster {j - len(classes)}"
        size = int((partition == j).sum())
        options.append(Option(name, known, size, int(old.sum()), gain, gain_known, gain_novel, items, 0))
    options.sort(key=lambda option: -option.gain)
    return Advice(_spend(options, budget, batch), budget, batch, partition, classes, value)


def add_label_cliques(base: Matrix, labels: IntArray, label_weight: float = 1.0) -> Graph:
    """Add every labelled class to a graph as a clique in which a node has degree `label_weight`.

    Parameters
    ----------
    base : matrix of shape (n_nodes, n_nodes)
        Adjacency without labels.
    labels : ndarray of int of shape (n_nodes,)
        Class indices, -1 where unlabelled.
    label_weight : float, default=1.0
        Degree of a node in its clique.

    Returns
    -------
    Graph

    Examples
    --------
    >>> add_label_cliques(np.zeros((3, 3)), np.array([0, 0, -1])).toarray()
    array([[0.5, 0.5, 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0. , 0. ]])
    """
    shares = label_connections(labels)
    sizes = np.unique(labels[labels >= 0], return_counts=True)[1]
    return Graph(base, shares @ sparse.diags_array(np.sqrt(label_weight * sizes)))


def estimate_novel_count(base: Matrix, n_known: int) -> int:
    """Estimate how many classes beyond the known ones the graph has, by the largest eigengap after `n_known`.

    Parameters
    ----------
    base : matrix of shape (n_nodes, n_nodes)
        Adjacency.
    n_known : int
        Number of known classes.

    Returns
    -------
    int

    Examples
    --------
    >>> estimate_novel_count(np.kron(np.eye(5), np.ones((4, 4))), n_known=3)
    2
    """
    largest = min(2 * n_known + 20, base.shape[0] - 2)
    values = spectral_embedding(base, largest + 1).values
    return eigengap(values, smallest=min(n_known + 1, largest), largest=largest)[0] - n_known


def cluster_around_labels(embedding: FloatArray, labels: IntArray, count: int, seed: int = 0) -> IntArray:
    """Cluster inputs from centres at the known classes' means and, for the rest, far from them; labels are kept.

    Parameters
    ----------
    embedding : ndarray of shape (n_inputs, n_dimensions)
        Spectral embedding.
    labels : ndarray of int of shape (n_inputs,)
        Known classes from 0 on, -1 where unlabelled.
    count : int
        Number of clusters, known classes included.
    seed : int, default=0
        Seed of the starting centres.

    Returns
    -------
    ndarray of int of shape (n_inputs,)

    Examples
    --------
    >>> cluster_around_labels(np.array([[0.0], [0.1], [5.0], [5.1]]), np.array([0, -1, -1, -1]), 2)
    array([0, 0, 1, 1])
    """
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(seed)
    known = np.unique(labels[labels >= 0])
    centres = [embedding[labels == c].mean(axis=0) for c in known]
    distance = np.min([((embedding - c) ** 2).sum(axis=1) for c in centres], axis=0)
    for _ in range(count - len(centres)):
        total = distance.sum()
        chance = distance / total if total > 0 else np.full(len(distance), 1 / len(distance))
        centres.append(embedding[rng.choice(len(embedding), p=chance)])
        distance = np.minimum(distance, ((embedding - centres[-1]) ** 2).sum(axis=1))
    found = KMeans(count, init=np.array(centres), n_init=1, max_iter=100).fit(embedding).labels_
    return np.where(labels >= 0, labels, found).astype(np.int64)


def _part(spectrum: Any, labels: IntArray, width: int) -> MeasureGradient | None:
    """Compute the gradient over a part of the classes; `None` when there are fewer than two."""
    return measure_gradient(spectrum, labels, width) if len(np.unique(labels[labels >= 0])) > 1 else None


def clique_change(gradient: MeasureGradient, old: npt.NDArray[np.bool_], new: npt.NDArray[np.bool_]) -> float:
    """Compute the first-order change of the measure when the labelled members of a class grow from `old` to `new`.

    The derivative is linear in the change of the adjacency, and the clique of n nodes is n·𝔩𝔩ᵀ with 𝔩 = 1/n.

    Parameters
    ----------
    gradient : MeasureGradient
        From `measure_gradient`.
    old, new : ndarray of bool of shape (n_nodes,)
        Labelled members before and after.

    Returns
    -------
    float

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> half = rng.random((12, 12))
    >>> gradient = measure_gradient(spectral_embedding(half @ half.T, 12), np.repeat([0, 1, 2], 4), 3)
    >>> clique_change(gradient, np.arange(12) < 2, np.arange(12) < 2)
    0.0
    """
    before = float(gradient(old / np.sqrt(old.sum()))) if old.any() else 0.0
    return float(gradient(new / np.sqrt(new.sum()))) - before


def _spend(options: list[Option], budget: int, batch: int) -> list[Option]:
    """Give a batch to each option in turn while labels are left: clusters without labels first, then by gain.

    A class without any label cannot be told from noise, so clusters come before known classes; among the latter those
    that should not gain get nothing.
    """
    turn = sorted(range(len(options)), key=lambda i: (options[i].known, -options[i].gain))
    turn = [i for i in turn if not options[i].known or options[i].gain > 0]
    spend = [0] * len(options)
    left = budget
    while left > 0 and turn:
        for i in list(turn):
            step = min(batch, left, len(options[i].items) - spend[i])
            spend[i] += step
            left -= step
            if spend[i] == len(options[i].items):
                turn.remove(i)
    return [replace(option, spend=spend[i]) for i, option in enumerate(options)]


def _width(values: FloatArray, count: int, neighbours: int) -> int:
    """Choose as many dimensions as classes, or the nearest number after which the spectrum has a gap."""
    gaps = values[:-1] - values[1:]
    usable = np.flatnonzero((gaps > 1e-9) & (values[:-1] > 1e-9)) + 1
    if not len(usable):
        raise InputError(
            f"label_advice(neighbours={neighbours}): the graph falls into too many separate pieces; take more "
            "neighbours"
        )
    return int(usable[np.argmin(np.abs(usable - count))])


def _check(rows: npt.NDArray[Any], labels: npt.NDArray[Any], budget: int, batch: int, neighbours: int) -> None:
    if rows.ndim != 2 or labels.shape != (len(rows),):
        raise InputError(f"label_advice: features {rows.shape} and labels {labels.shape}; one label per row")
    if labels.dtype.kind not in "iu":
        raise InputError(f"label_advice: labels of type {labels.dtype}; whole numbers, -1 where unlabelled")
    if labels.min() < -1:
        raise InputError(f"label_advice: a label is {labels.min()}; classes count from 0, -1 means unlabelled")
    if not (labels >= 0).any():
        raise InputError("label_advice: nothing is labelled yet; label a few inputs, or use offmap.discover")
    if not (labels < 0).any():
        raise InputError("label_advice: every input is labelled; mark those that are not with -1")
    if budget < 1:
        raise InputError(f"label_advice(budget={budget}): at least one label must be affordable")
    if batch < 1 or neighbours < 1:
        raise InputError(f"label_advice(batch={batch}, neighbours={neighbours}): both must be at least 1")
