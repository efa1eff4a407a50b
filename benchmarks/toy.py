"""The thesis' toy worlds with rendered solids: which labels help which novel classes (section 6.4.2; section 7.4.1;
appendix B.1.4; appendix B.2.5).

``python benchmarks/toy.py`` writes results/toy.json and docs/toy.svg. Smaller than the thesis': a small CNN instead of
a ResNet-18, 150 pictures of each type instead of 2,500, 24 pixels, 15 epochs instead of 40.

NSCL: red and blue cubes and spheres without labels, to be told apart by colour; labelled are red cylinders (case 1) or
grey ones (case 2). SORL: cubes known; spheres share their colours, cylinders are grey; with labels and without.

Whether colour is found without help depends on the views: SimSiam's never turn red into blue, so the two colours are
all but separate parts of the graph; views that shift the hue all round half of the time tie them together. Both are
run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.data.views import ImageViews
from offmap.discovery import KMeans
from offmap.learning import learn
from offmap.metrics.clustering import open_world_accuracy
from scatter import draw, flat
from thesis.shapes import COLOURS, SHAPES, nscl_toy, sorl_toy

HERE = Path(__file__).parent
VIEWS = {
    "SimSiam's": ImageViews.simsiam(24),
    "hue shifted half the time": ImageViews(scale=(0.6, 1.0), jitter=(0.4, 0.4, 0.4, 0.5), jitter_chance=0.5, grey=0.2),
}
COMMON: dict[str, Any] = {"projection": 64, "batch_size": 100, "learning_rate": 0.03, "progress": False}
INKS = {
    "red cube": "#c0392b",
    "red sphere": "#f1948a",
    "blue cube": "#1f4e9c",
    "blue sphere": "#85b0ee",
    "red cylinder": "#7b241c",
    "grey cylinder": "#707070",
}
FEW = 3  # principal components that a linear probe may read, as many as the classes of the toys
SHOWN = 45  # points of a type in the picture


def match_groups(features: npt.NDArray[Any], truth: npt.NDArray[Any], k: int, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows k-means puts into the group matched to their class."""
    found = KMeans(k, random_state=seed).fit(features).labels_
    table = np.zeros((k, k), int)
    np.add.at(table, (found, truth), 1)
    from scipy.optimize import linear_sum_assignment

    groups, classes = linear_sum_assignment(-table)
    return np.asarray(classes[np.argsort(groups)][found] == truth)


def residual(features: npt.NDArray[Any], target: npt.NDArray[Any]) -> float:
    """Share of a target's variance that a linear probe on the first principal components misses (R, section 6.4.1,
    lemma 6.2).
    """
    centred = features.astype(np.float64) - features.mean(axis=0)
    vectors = np.linalg.svd(centred, full_matrices=False)[0][:, :FEW]
    y = target - target.mean()
    return float(((y - vectors @ (vectors.T @ y)) ** 2).sum() / (y**2).sum())


def nscl(seed: int, per_type: int, epochs: int, views: ImageViews) -> tuple[dict[str, Any], dict[str, Any]]:
    """Colour and shape of the unlabelled solids after learning with red and with grey cylinders labelled."""
    out, panels = {}, {}
    for case, name in ((1, "red cylinders labelled"), (2, "grey cylinders labelled")):
        toy = nscl_toy(case, per_type, pixels=24, seed=seed)
        given = {"alpha": 0.04, "beta": 1.0, "epochs": epochs, **COMMON}
        model = learn(toy.inputs, toy.labels, 3, objective="nscl", seed=seed, views=views, **given)
        unlabelled = np.flatnonzero(toy.labels < 0)
        features = model.transform(toy.inputs[unlabelled])
        colour = (toy.arrays["colour"][unlabelled] > 0).astype(int)
        shape = toy.arrays["shape"][unlabelled]
        shape = (shape == shape.max()).astype(int)
        out[name] = {
            "2-means by colour": 100 * float(match_groups(features, colour, 2, seed).mean()),
            "2-means by shape": 100 * float(match_groups(features, shape, 2, seed).mean()),
            "residual of colour": residual(features, colour),
            "residual of shape": residual(features, shape),
        }
        panels[f"NSCL, {name}"] = points(model.transform(toy.inputs), toy)
        print(seed, name, out[name], flush=True)
    return out, panels


def sorl(seed: int, per_type: int, epochs: int, views: ImageViews) -> tuple[dict[str, Any], dict[str, Any]]:
    """How well three-means finds cubes, spheres and cylinders after learning without and with labels on cubes."""
    out, panels = {}, {}
    toy = sorl_toy(0.5, per_type, pixels=24, seed=seed)
    truth = toy.arrays["targets"]
    for name, weight in (("no labels", 0.0), ("cubes labelled", 0.2)):
        given = {"eta_l": weight, "eta_u": 1.0, "epochs": epochs, **COMMON}
        model = learn(toy.inputs, toy.labels, 3, objective="sorl", seed=seed, views=views, **given)
        features = model.transform(toy.inputs)
        right = match_groups(features, truth, 3, seed)
        free = toy.labels < 0
        whole = open_world_accuracy(truth[free], model.predict(toy.inputs[free]), [0])
        out[name] = {
            "3-means": 100 * float(right.mean()),
            **{f"3-means {kind}": 100 * float(right[truth == c].mean()) for c, kind in enumerate(toy.classes)},
            **{f"residual of {kind}": residual(features, (truth == c) * 1.0) for c, kind in enumerate(toy.classes)},
            "ss-k-means, v2 All": 100 * whole.all,
        }
        panels[f"SORL, {name}"] = points(features, toy)
        print(seed, name, out[name], flush=True)
    return out, panels


def points(features: npt.NDArray[Any], toy: Any) -> tuple[npt.NDArray[Any], list[str]]:
    """The first two principal components of some pictures of every type, and their types."""
    kinds = [
        f"{list(COLOURS)[colour]} {list(SHAPES)[shape]}"
        for colour, shape in zip(toy.arrays["colour"], toy.arrays["shape"], strict=True)
    ]
    names = np.array(kinds)
    few = np.concatenate([np.flatnonzero(names == kind)[:SHOWN] for kind in dict.fromkeys(kinds)])
    return flat(features)[few], names[few].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--per-type", type=int, default=150)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "toy.json")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "toy.svg")
    given = parser.parse_args()
    runs: list[dict[str, Any]] = []
    shown: dict[str, Any] = {}
    for seed in range(given.seeds):
        run: dict[str, Any] = {}
        for name, views in VIEWS.items():
            first, one = nscl(seed, given.per_type, given.epochs, views)
            second, two = sorl(seed, given.per_type, given.epochs, views)
            run[name] = {"nscl": first, "sorl": second}
            if not seed and "hue" in name:
                shown = {**one, **two}
        runs.append(run)
    setting = {"per_type": given.per_type, "epochs": given.epochs, "pixels": 24, "network": "cnn", **COMMON}
    given.out.write_text(json.dumps({"setting": setting, "seeds": runs}, indent=1) + "\n")
    draw(given.picture, "What the toys' features look like, first two principal components", shown, INKS)


if __name__ == "__main__":
    main()
