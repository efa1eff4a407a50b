"""The thesis' questions about ImageNet, asked of the stored features of Keras' ResNet-50 against textures.

    OFFMAP_DATA=/path/to/data python benchmarks/imagenet.py

ReAct's percentile, DICE's sparsity, both together, k-NN's k and share of known inputs, k-NN after ReAct, ReAct with
other scores, how unit means of unknown inputs are distributed, and how few weights carry a class. Fitted on half of
5,000 validation pictures, 2.5 a class on average, and tested on the other half against 1,200 pictures of 10 of DTD's 47
classes; nothing is chosen here. Results go to ``benchmarks/results/imagenet.json``, two figures to ``docs``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import spearmanr

import kept
import offmap
from offmap.metrics.detection import detection_report
from offmap.plots import activation_pattern
from offmap.plots.svg import draw_svg
from thesis.plots import contribution_curves

RESULTS = Path(__file__).parent / "results" / "imagenet.json"
EVERY, SHOWN = 8, 0  # units between two that are drawn; the class whose contributions are
PERCENTILES = (10, 65, 80, 85, 90, 95, 99)
SPARSITIES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
SWEEPS: dict[str, list[str]] = {
    "react": ["energy", *(f"react({p})|energy" for p in PERCENTILES)],
    "react with other scores": ["msp", "react(90)|msp", "maxlogit", "react(90)|maxlogit", "gen", "react(90)|gen"],
    "dice": [f"dice({p})|energy" for p in SPARSITIES],
    "dice and react": [f"react({p})|dice({s})|energy" for p in (90, 95, 99) for s in (0.1, 0.3, 0.5, 0.7)],
    "other sparsifications": [
        "weight_pruning(0.7)|energy", "unit_pruning(0.7)|energy", "random_k(0.7)|energy", "bottom_k(0.7)|energy"
    ],
    "knn": [f"knn({k})" for k in (1, 5, 10, 20, 50, 100, 200, 500)],
    # k counts in the whole set and is scaled with the share: 50 at a tenth are the 5 nearest of a tenth of the inputs
    "knn share": [
        "knn(1, alpha=0.01)", "knn(1, alpha=0.1)", "knn(5, alpha=0.5)", "knn(5, alpha=0.1)", "knn(10, alpha=0.1)",
        "knn(20, alpha=0.5)", "knn(100, alpha=0.1)", "knn(500, alpha=0.1)", "knn(500, alpha=0.02)",
    ],
    "below chance": ["nac", "iforest", "react(90)|gen", "neglabel(1)"],
    "knn and react": ["react(90)|knn(10)", "react(95)|knn(10)", "react(99)|knn(10)"],
}  # fmt: skip


def load() -> tuple[offmap.Activations, offmap.Activations, offmap.Activations]:
    """Known inputs to fit on and to test, and textures, with the network's head."""
    data = Path(os.environ["OFFMAP_DATA"])
    with np.load(data / "weights" / "resnet50_imagenet_head.npz") as arrays:
        head = offmap.Head(arrays["weight"], arrays["bias"])
    with np.load(data / "features" / "resnet50__imagenet_val5k.npz") as arrays:
        rows, labels = arrays["features"].astype(np.float32), arrays["classes"].astype(int)[arrays["labels"]]
    with np.load(data / "features" / "resnet50__dtd10.npz") as arrays:
        textures = arrays["features"].astype(np.float32)
    order = np.random.default_rng(0).permutation(len(rows))  # as the suite imagenet-resnet50 divides them
    halves = np.sort(order[: len(rows) // 2]), np.sort(order[len(rows) // 2 :])
    known, test = (offmap.Activations(rows[half], head, labels=labels[half]) for half in halves)
    return known, test, offmap.Activations(textures, head)


def sweep(specs: list[str], acts: tuple[offmap.Activations, ...]) -> list[dict[str, Any]]:
    """FPR95, AUROC and accuracy of some methods, in per cent."""
    known, test, textures = acts
    found = []
    for spec in specs:
        fitted = offmap.detector(spec).fit(known)
        report = detection_report(fitted.score(test), fitted.score(textures))
        right = float(np.mean(fitted.predict_classes(test) == test.labels))
        numbers = {"fpr95": report.fpr95, "auroc": report.auroc, "accuracy": right}
        found.append({"method": spec} | {name: round(100 * value, 2) for name, value in numbers.items()})
        print(f"{spec:<34}{100 * report.fpr95:8.2f}{100 * report.auroc:8.2f}{100 * right:8.2f}", flush=True)
    return found


def patterns(acts: tuple[offmap.Activations, ...]) -> dict[str, Any]:
    """Unit means before the last layer, of known test inputs and of textures (the thesis' first figure)."""
    found = {}
    for name, part in (("known", acts[1]), ("textures", acts[2])):
        means = part.features.mean(axis=0)
        centred = means - means.mean()
        found[name] = {
            "mean": round(float(means.mean()), 4),
            "deviation between units": round(float(means.std()), 4),
            "skewness": round(float((centred**3).mean() / means.std() ** 3), 3),
            "largest": round(float(means.max()), 3),
            "mean deviation within a unit": round(float(part.features.std(axis=0).mean()), 4),
        }
    return found


def contributions(acts: tuple[offmap.Activations, ...]) -> dict[str, Any]:
    """How few of a class's weights carry its logit: the share that the largest contributions have of all positive."""
    known, _, _ = acts
    assert known.head is not None
    mean = known.features.mean(axis=0, dtype=np.float64)
    each = np.sort(known.head.weight * mean, axis=1)[:, ::-1]
    positive = np.clip(each, 0, None).sum(axis=1)
    tops = {
        f"{share:.0%}": each[:, : round(share * each.shape[1])].sum(axis=1) / positive for share in (0.01, 0.1, 0.3)
    }
    return {name: round(100 * float(values.mean()), 2) for name, values in tops.items()}


def explanations(acts: tuple[offmap.Activations, ...]) -> dict[str, Any]:
    """Rank correlations over known test inputs and textures that say why some methods are below chance."""
    known, test, textures = acts
    head = known.head
    assert head is not None
    both = offmap.Activations(np.concatenate([test.features, textures.features]), head)
    logits = both.features @ head.weight.T + head.bias
    top = softmax(logits, axis=1).max(axis=1)
    sizes = both.features.mean(axis=1)
    return {
        "nac with the largest probability": _correlate(offmap.detector("nac").fit(known).score(both), top),
        "iforest with the mean activation": _correlate(offmap.detector("iforest").fit(known).score(both), sizes),
    }


def class_sizes(acts: tuple[offmap.Activations, ...]) -> dict[str, int]:
    """How many classes have no, one, two … inputs to fit on."""
    known = acts[0]
    assert known.labels is not None
    assert known.head is not None
    sizes = np.bincount(known.labels, minlength=known.head.n_classes)
    return {str(size): int(count) for size, count in enumerate(np.bincount(sizes))}


def draw(acts: tuple[offmap.Activations, ...], folder: Path) -> None:
    """The thesis' first figure and its figure of contributions, every eighth unit, so that the files stay small."""
    known, test, textures = acts
    assert known.head is not None
    some = slice(None, None, EVERY)
    cut = float(np.percentile(known.features, 90))
    pattern = activation_pattern(
        test.features[:, some], textures.features[:, some], clip=cut, title="Units of Keras' ResNet-50, mean and spread"
    )
    weight = known.head.weight[SHOWN, some]
    curves = contribution_curves(
        test.features[:, some] * weight, textures.features[:, some] * weight, title=f"Contributions to class {SHOWN}"
    )
    for name, figure in (("activations", pattern), ("contributions", curves)):
        label = str(figure.layout.title.text)
        (folder / f"imagenet-{name}.svg").write_text(draw_svg(figure, label=label, paper="white") + "\n")


def _correlate(first: np.ndarray, second: np.ndarray) -> float:
    return round(float(spearmanr(first, second).statistic), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sweeps", nargs="*", choices=list(SWEEPS), default=list(SWEEPS))
    chosen = parser.parse_args().sweeps
    acts = load()
    draw(acts, RESULTS.parents[2] / "docs")
    kept.add(RESULTS, {"why below chance": explanations(acts), "classes by inputs to fit on": class_sizes(acts)})
    kept.add(RESULTS, {"unit means": patterns(acts), "contributions": contributions(acts)})
    for name in chosen:
        print(name, flush=True)
        kept.add(RESULTS, {"sweeps": {name: sweep(SWEEPS[name], acts)}})


if __name__ == "__main__":
    main()
