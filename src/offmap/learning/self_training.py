"""Rounds between a network and a clustering: each learns from the other, and both start from training-free discovery.

`discover` groups the rows by the eigenvectors of their neighbour graph; groups that are too large are split and parts
of one class merged, as the sizes of known classes suggest (`exchange_groups`). A network with a classifier over all
groups learns them; mixing rows in pairs keeps it from learning the groups' errors by heart. Its logits are a space in
which classes are rounder than in the inputs: the rows are grouped again in the logits of the last networks beside the
eigenvectors of the neighbour graph, labelled rows held in their classes, and the next network starts afresh with these.
docs/learning-results.md shows what that gains, and where it gains nothing.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from offmap.discovery import discover
from offmap.discovery.exchanging import exchange_groups
from offmap.discovery.inputs import KnownClasses
from offmap.errors import InputError
from offmap.graph import knn_graph, labelled_eigenvectors
from offmap.graph.features import PER_CLASS
from offmap.learning import building
from offmap.learning.grouping import group_rows
from offmap.learning.inputs import Inputs
from offmap.learning.model import OpenWorldModel, OpenWorldNet
from offmap.learning.objectives.self_training import SelfTraining
from offmap.learning.run import TrainingRun
from offmap.neighbors.vectors import unit, unit_and_length
from offmap.typing import Float32Array, IntArray

REMEMBERED = 3  # networks whose logits the rows are grouped in
GRAPH_WEIGHT = np.float32(0.5)  # of the eigenvectors beside the logits of one network
NEIGHBORS, FEWEST_NEIGHBORS = 30, 10
MOST_SHOWN = 5  # times that a labelled row is shown in an epoch
GRAPH_ROWS = 30_000  # with more rows the logits have to do: eigenvectors would cost more than the training


def fit_rounds(
    run: TrainingRun, data: Inputs, known: KnownClasses, n_classes: int | str | None, encoder: str | nn.Module
) -> OpenWorldModel:
    """Train a network on discovered groups, group the rows in what it learned, and so on.

    Parameters
    ----------
    run : TrainingRun
        The objective `SelfTraining` with its settings.
    data : Inputs
        Embeddings, or pictures whose features the pre-trained encoder gives.
    known : KnownClasses
        What is known of each row.
    n_classes : int or "auto", optional
        Known and novel classes together; estimated by discovery by default.
    encoder : str or nn.Module
        As for `learn`.

    Returns
    -------
    OpenWorldModel
        The network of the last round, with the losses of all rounds as its history.
    """
    if run.chosen["rounds"] < 1:
        raise InputError(f"rounds={run.chosen['rounds']}: at least one is needed; offmap.discover trains nothing")
    run = replace(run, training=replace(run.training, projection=0))
    codes, n_known, seed = known.codes, len(known), run.seed
    body, prepared = run.prepare(data, codes, n_known, encoder)
    first_body = copy.deepcopy(body.body)
    as_given = data.kind == "embeddings" and not isinstance(encoder, nn.Module)  # one's own module knows better
    rows = data.tensor if as_given else building.compute_features(body.body, prepared)
    run = _slow_down(run, rows.shape[1]) if as_given else run
    groups = _discover(rows.numpy(), known, n_classes, seed)
    k = max(int(groups.max()) + 1, n_classes if isinstance(n_classes, int) else 0)
    links = _Links.build(rows, codes, k, seed)
    groups = links.exchange(groups)
    remembered: list[Float32Array] = []
    history: list[dict[str, float]] = []
    config = run.describe(k)
    shown = _show_labelled_more(codes, run.chosen["label_weight"])
    for number in range(1, run.chosen["rounds"] + 1):
        body.body.load_state_dict(first_body.state_dict())
        loss = SelfTraining(run.task(body, codes, k, n_known), run.chosen)
        features = building.compute_features(body.body, prepared)
        loss.start(features, torch.from_numpy(groups), _means(features, groups, k))
        trainer = run.trainer(f"round-{number}", body.body, loss, data, prepared, groups, body, config)
        output = replace(run.output, earlier=(number - 1) * run.training.epochs)
        history += [{"round": float(number), **row} for row in trainer.fit(prepared, groups, output, shown)]
        body.body.cpu()
        loss.cpu()
        if number == run.chosen["rounds"]:
            break
        remembered = [*remembered, _logits(loss, building.compute_features(body.body, prepared))][-REMEMBERED:]
        groups, _ = group_rows(np.concatenate([*links.weighed, *remembered], axis=1), k, codes, n_known, seed)
        groups = links.exchange(groups)
    features = building.compute_features(body.body, prepared)
    weight, bias, used = building.find_class_vectors(loss, features, known, seed)
    net = OpenWorldNet(body, nn.Identity(), body.width, len(used))
    return building.assemble_model(net, weight, bias, used, known, history, config)


def _slow_down(run: TrainingRun, columns: int) -> TrainingRun:
    """Return the run with the learning rate for embeddings of so many columns; see `SelfTraining`."""
    most = run.chosen["rate_columns"]
    if not 0 < most < columns:
        return run
    return replace(run, training=replace(run.training, learning_rate=run.training.learning_rate * most / columns))


def _show_labelled_more(codes: IntArray, weight: int) -> IntArray:
    """Return the rows of an epoch: each once, labelled ones as often as `weight` says.

    With 0 they are shown up to five times, as long as they stay a third of all: few labels would else count for little
    beside groups that are partly wrong.
    """
    labelled = np.flatnonzero(codes >= 0)
    if not weight:
        weight = min(max((len(codes) - len(labelled)) // max(2 * len(labelled), 1), 1), MOST_SHOWN)
    return np.concatenate([np.arange(len(codes)), np.repeat(labelled, weight - 1)])


def _discover(rows: Float32Array, known: KnownClasses, n_classes: int | str | None, seed: int) -> IntArray:
    """Group the rows without training; known class i is group i, novel groups follow."""
    k: int | Literal["auto"] = "auto"
    if n_classes is not None and n_classes != "auto":
        k = building.check_count(n_classes, known)
    method = "spectral" if len(rows) <= GRAPH_ROWS else "ss-kmeans"
    found = discover(rows, known.codes, k, method, seed)
    if method == "spectral" and count_neighbors(len(rows), found.n_classes) < NEIGHBORS:
        found = discover(rows, known.codes, k, "graph", seed)  # it looks at fewer neighbours where classes are small
    return found.labels


def count_neighbors(n: int, k: int) -> int:
    """Return of how many neighbours the graph of so many rows is made: most should be of the same of `k` classes.

    Examples
    --------
    >>> count_neighbors(10_000, 77), count_neighbors(5000, 100), count_neighbors(1200, 50)
    (30, 16, 10)
    """
    return max(FEWEST_NEIGHBORS, min(NEIGHBORS, n // (3 * k)))


@dataclass(frozen=True)
class _Links:
    """The neighbour graph of the rows and its eigenvectors; none for many rows, or for hardly any."""

    codes: IntArray
    seed: int
    graph: Any = None
    features: Float32Array | None = None

    @classmethod
    def build(cls, rows: Tensor, codes: IntArray, k: int, seed: int) -> _Links:
        """Build the graph and find its eigenvectors."""
        if not k < len(rows) <= GRAPH_ROWS:
            return cls(codes, seed)
        graph = knn_graph(unit(rows).numpy(), min(count_neighbors(len(rows), k), len(rows) - 1))
        vectors = labelled_eigenvectors(graph, codes, math.ceil(PER_CLASS * k), seed=seed)
        return cls(codes, seed, graph, unit_and_length(vectors)[0])

    @property
    def weighed(self) -> list[Float32Array]:
        """The eigenvectors as they stand beside logits."""
        return [] if self.features is None else [GRAPH_WEIGHT * self.features]

    def exchange(self, groups: IntArray) -> IntArray:
        """Return the groups with some exchanged; without a graph as they are."""
        if self.features is None:
            return groups
        return exchange_groups(groups, self.features, self.graph, self.codes, int(self.codes.max()) + 1, self.seed)


def _logits(loss: SelfTraining, features: Tensor) -> Float32Array:
    """Return centred logits, rows of length 1."""
    with torch.no_grad():
        logits = loss.logits(features)
        return unit(logits - logits.mean(dim=1, keepdim=True)).numpy()


def _means(features: Tensor, groups: IntArray, k: int) -> Tensor:
    return torch.zeros(k, features.shape[1]).index_add_(0, torch.from_numpy(groups), features)
