"""Is the labelling advice any good? Its forecast against what happens when the labels are really bought.

Per data set and seed: half of the classes are known, a tenth of their inputs labelled. Every option of
`label_advice` is then tried alone: its batch is labelled with the truth, the graph embedded anew, and the K-means
measure over the true classes and the clustering accuracy compared with before. Reported is Spearman's correlation over
options between forecast and outcome, beside the same for simple rules. Then one budget is spent by advice, at random,
by margin and by entropy, and the outcomes compared on the same inputs, none of which any rule bought.

Run: ``OFFMAP_DATA=… python benchmarks/advice.py``; writes ``benchmarks/results/advice.json``.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from offmap.graph import knn_graph, spectral_embedding
from offmap.metrics.clustering import open_world_accuracy
from offmap.metrics.kmeans_measure import kmeans_measure
from offmap.theory.advice import add_label_cliques, clique_change, cluster_around_labels, label_advice
from offmap.theory.perturbation import measure_gradient, rank_correlation

OUT = Path(__file__).parent / "results" / "advice.json"
FILES = {
    "clinc150": ("text/clinc150_minilm.npz", "train_features", "train_labels"),
    "banking77": ("text/banking77_minilm.npz", "train_features", "train_labels"),
    "cifar10": ("features/cifar10-densenet__cifar10_test.npz", "features", "labels"),
    "cifar100": ("features/cifar100-densenet__cifar100_test.npz", "features", "labels"),
}
MOST_CLASSES, INPUTS, BUDGET, NEIGHBOURS = 30, 1500, 60, 15


def load(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Unit features and classes from 0, at most 30 classes and 1,500 inputs, drawn with the seed."""
    if name == "digits":
        from sklearn.datasets import load_digits

        features, labels = load_digits(return_X_y=True)
    else:
        file, first, second = FILES[name]
        with np.load(Path(os.environ["OFFMAP_DATA"]) / file) as stored:
            features, labels = stored[first], stored[second].astype(int)
    kept = rng.permutation(labels.max() + 1)[:MOST_CLASSES]
    rows = rng.permutation(np.flatnonzero(np.isin(labels, kept)))[:INPUTS]
    features = features[rows].astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features, np.unique(labels[rows], return_inverse=True)[1]


class World:
    """One data set with hidden truth: embeds, clusters and scores any set of labels in the same way."""

    def __init__(self, name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.features, self.truth = load(name, rng)
        self.count = int(self.truth.max()) + 1
        known = rng.permutation(self.count)[: self.count // 2]
        self.labels = np.full(len(self.truth), -1)
        for c in known:
            members = rng.permutation(np.flatnonzero(self.truth == c))
            chosen = members[: max(2, len(members) // 10)]
            self.labels[chosen] = c
        self.base = knn_graph(self.features, NEIGHBOURS)
        self.base = self.base * (len(self.truth) / self.base.sum())

    def spectrum(self, labels: np.ndarray, pairs: int) -> Any:
        """The leading eigenpairs of the graph with these labels mixed in."""
        return spectral_embedding(add_label_cliques(self.base, labels), pairs, dense_nodes=300)

    def bought(self, items: np.ndarray) -> np.ndarray:
        """The labels so far and the true ones of these inputs."""
        labels = self.labels.copy()
        labels[items] = self.truth[items]
        return labels

    def outcome(self, labels: np.ndarray, on: np.ndarray) -> tuple[float, float]:
        """The measure over the true classes, and the accuracy (v2, all) on these inputs, mean of three seeds."""
        embedding = self.spectrum(labels, self.count).features
        dense = np.unique(labels, return_inverse=True)[1] - int((labels < 0).any())
        accuracy = []
        for seed in range(3):
            found = cluster_around_labels(embedding, dense, self.count, seed)
            accuracy.append(open_world_accuracy(self.truth[on], found[on]).all)
        return kmeans_measure(embedding, self.truth), float(np.mean(accuracy))


def uncertainty(world: World, partition: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Entropy and (negative) margin of every input, from distances to the centres of the believed partition."""
    embedding = world.spectrum(world.labels, world.count).features
    centres = np.array([embedding[partition == j].mean(axis=0) for j in np.unique(partition)])
    distances = ((embedding[:, None] - centres[None]) ** 2).sum(axis=2)
    spread = max(distances.min(axis=1).mean() / embedding.shape[1], 1e-12)
    scores = -(distances - distances.min(axis=1, keepdims=True)) / (2 * spread)
    chance = np.exp(scores)
    chance /= chance.sum(axis=1, keepdims=True)
    entropy = -(chance * np.log(chance + 1e-12)).sum(axis=1)
    ordered = np.sort(chance, axis=1)
    return entropy, ordered[:, -2] - ordered[:, -1]


def one(name: str, seed: int) -> dict[str, Any]:
    world = World(name, seed)
    advice = label_advice(
        world.features,
        world.labels,
        BUDGET,
        n_novel=world.count - len(np.unique(world.labels[world.labels >= 0])),
        neighbours=NEIGHBOURS,
        seed=seed,
    )
    entropy, margin = uncertainty(world, advice.partition)
    free = np.flatnonzero(world.labels < 0)
    measure, accuracy = world.outcome(world.labels, free)
    spectrum = world.spectrum(world.labels, 3 * world.count)
    oracle = measure_gradient(spectrum, world.truth, world.count)
    forecast, told, by_entropy, by_margin, gained, improved = [], [], [], [], [], []
    for option in advice.options:
        items = option.items[: advice.batch]
        labels = world.bought(items)
        after, now = world.outcome(labels, free)
        gained.append((measure - after) / measure)
        improved.append(now - accuracy)
        forecast.append(option.gain)
        told.append(-sum(clique_change(oracle, world.labels == c, labels == c) for c in np.unique(world.truth[items])))
        by_entropy.append(entropy[items].mean())
        by_margin.append(margin[items].mean())
    rng = np.random.default_rng(seed)
    picks = {
        "advice": advice.items,
        "random": rng.permutation(free)[:BUDGET],
        "margin": free[np.argsort(-margin[free], kind="stable")][:BUDGET],
        "entropy": free[np.argsort(-entropy[free], kind="stable")][:BUDGET],
    }
    judged = np.setdiff1d(free, np.concatenate(list(picks.values())))
    spent = {"nothing": world.outcome(world.labels, judged)}
    spent |= {rule: world.outcome(world.bought(items), judged) for rule, items in picks.items()}
    wrong = [g < 0 for g, f in zip(gained, forecast, strict=True) if f < 0]
    return {
        "options": len(advice.options),
        "batch": advice.batch,
        "correlation_with_measure": {
            "advice": rank_correlation(forecast, gained),
            "true partition": rank_correlation(told, gained),
            "entropy": rank_correlation(by_entropy, gained),
            "margin": rank_correlation(by_margin, gained),
            "random": rank_correlation(rng.random(len(gained)), gained),
        },
        "correlation_with_accuracy": {
            "advice": rank_correlation(forecast, improved),
            "entropy": rank_correlation(by_entropy, improved),
            "margin": rank_correlation(by_margin, improved),
            "measure itself": rank_correlation(gained, improved),
        },
        "flagged_harmful": len(wrong),
        "flagged_and_harmful": int(sum(wrong)),
        "share_harmful": float(np.mean(np.array(gained) < 0)),
        "spent": {rule: {"measure": m, "accuracy": a} for rule, (m, a) in spent.items()},
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, with the standard error of each."""

    def spread(values: list[float]) -> dict[str, float]:
        array = np.array(values)
        return {
            "mean": round(float(array.mean()), 4),
            "standard_error": round(float(array.std(ddof=1) / np.sqrt(len(array))), 4) if len(array) > 1 else 0.0,
        }

    out: dict[str, Any] = {}
    for key in ("correlation_with_measure", "correlation_with_accuracy"):
        out[key] = {rule: spread([run[key][rule] for run in runs]) for rule in runs[0][key]}
    for what in ("measure", "accuracy"):
        out[f"{what}_after"] = {rule: spread([run["spent"][rule][what] for run in runs]) for rule in runs[0]["spent"]}
    flagged = sum(run["flagged_harmful"] for run in runs)
    out["flagged_harmful"] = flagged
    out["flagged_and_harmful"] = sum(run["flagged_and_harmful"] for run in runs)
    out["share_harmful"] = round(float(np.mean([run["share_harmful"] for run in runs])), 4)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=["digits", *FILES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    kept = json.loads(given.out.read_text())["sets"] if given.out.exists() else {}
    for name in given.sets:
        runs = [one(name, seed) for seed in range(given.seeds)]
        kept[name] = {"summary": summary(runs), "runs": runs}
        print(name, json.dumps(kept[name]["summary"]["correlation_with_measure"]), flush=True)
        settings = {
            "inputs": INPUTS, "most_classes": MOST_CLASSES, "budget": BUDGET,
            "neighbours": NEIGHBOURS, "seeds": given.seeds,
        }  # fmt: skip
        given.out.parent.mkdir(exist_ok=True)
        given.out.write_text(json.dumps({"settings": settings, "sets": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
