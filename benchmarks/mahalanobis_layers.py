"""Why Mahalanobis' figures differ from the printed ones: how the covariance is inverted, which layers it reads.

Two measurements on the DenseNets of the thesis, both to explain, neither to choose anything by.

*Inverted how?* The usual code for this method (Lee et al.'s, by scikit-learn's estimator) takes a pseudo-inverse of the
covariance in float32, which leaves out directions whose variance is under 342 · 2⁻²³ of the largest. The same 10,000
training features are scored with more and more directions left out.

*Which layers?* The thesis' Mahalanobis trains a classifier (section 3.3.1, table 3.1), after Lee et al. (2018):
distances at four layers, weighed by a logistic regression that tells known pictures from attacked copies of them (a
step of 0.05 up the loss). Fitted on known *test* pictures, because there are no training pictures of CIFAR-100 at hand,
and measured on others.

``python benchmarks/mahalanobis_layers.py`` writes ``results/mahalanobis_layers.json``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from at_hand import keep_sets_at_hand
from offmap.bench.cache import locate_cache
from offmap.bench.networks import make_network
from offmap.bench.sets import load_set
from offmap.bench.suites import Suite, load_suite
from offmap.data import scale_images
from offmap.extra_passes import Layer, Requirements
from offmap.metrics.detection import detection_report
from react_dice import report_scores

Array = np.ndarray[Any, np.dtype[Any]]
RESULTS = Path(__file__).with_name("results") / "mahalanobis_layers.json"
SUITES = ("cifar10-densenet", "cifar100-densenet")
LAYERS = ("conv1", "trans1", "trans2", "block3")
WEIGHED = ("conv1", "trans1", "trans2", "penultimate")  # those that the authors' network hands out
FLOAT32 = 342 * 2.0**-23  # what a pseudo-inverse in float32 leaves out, as a share of the largest variance
CUTS = (0.0, 1e-6, FLOAT32, 1e-3, 1e-2)
ATTACK = 0.05  # of pixels in [0, 1]
BATCH = 16


@dataclass(frozen=True)
class Sizes:
    """How many pictures are sent through the network: known ones to fit on, to weigh on and in all, unknown ones."""

    fitted: int = 1000
    weighed: int = 150
    known: int = 1600
    unknown: int = 400


@dataclass(frozen=True)
class Gaussians:
    """Class means and one precision, a pseudo-inverse of the tied covariance."""

    means: Array
    precision: Array
    kept: int

    @classmethod
    def fit(cls, features: Array, labels: Array, cut: float) -> Gaussians:
        """Directions with less than `cut` of the largest variance are left out."""
        rows = features.astype(np.float64)
        means = np.stack([rows[labels == label].mean(axis=0) for label in range(int(labels.max()) + 1)])
        centred = rows - means[labels]
        variances, directions = np.linalg.eigh(centred.T @ centred / len(rows))
        kept = variances > max(cut, 1e-12) * variances[-1]
        precision = (directions[:, kept] / variances[kept]) @ directions[:, kept].T
        return cls(means, precision, int(kept.sum()))

    def score(self, features: Array) -> Array:
        """Minus the squared distance to the nearest mean."""
        rows = features.astype(np.float64)
        turned = rows @ self.precision
        squares = (turned * rows).sum(axis=1)[:, None] - 2 * turned @ self.means.T
        return -(squares + ((self.means @ self.precision) * self.means).sum(axis=1)).min(axis=1)


def inverted(suite: Suite, data: Path) -> list[dict[str, Any]]:
    """The stored penultimate features, with fewer and fewer directions."""
    known = load_set(suite.known, data)
    assert known.stored is not None
    assert known.samples.labels is not None
    features, labels = known.stored.features(), known.samples.labels
    sets = {"id": load_set(suite.test, data)} | {ood.name: load_set(ood, data) for ood in suite.ood}
    stored = {name: part.stored.features() for name, part in sets.items() if part.stored is not None}
    found = []
    for cut in CUTS:
        made = Gaussians.fit(features, labels, cut)
        scores = {name: made.score(part) for name, part in stored.items()}
        found.append({"cut": cut, "directions": made.kept, **report_scores(scores)})
    return found


def layers(suite: Suite, data: Path, sizes: Sizes) -> dict[str, Any]:
    """Every layer by itself, their sum, and Lee et al.'s weighing of them."""
    from sklearn.linear_model import LogisticRegressionCV

    network = make_network(suite.networks[0], None, data, locate_cache())
    requirements = Requirements(extras=tuple(Layer(layer) for layer in LAYERS))
    sets = {ood.name: load_set(ood, data).part(sizes.unknown) for ood in suite.ood}
    sets["id"] = load_set(suite.test, data).part(sizes.known)
    acts = {
        key: network.net.extract(
            network.batches(part, 32),
            requirements,
            to=locate_cache() / f"layers-{suite.name}-{key}-{len(part)}",
            progress=False,
        )
        for key, part in sets.items()
    }
    order = np.random.default_rng(0).permutation(sizes.known)
    parts = np.split(order, [sizes.fitted, sizes.fitted + sizes.weighed])
    rows = dict(zip(("fit", "weigh", "id"), map(np.sort, parts), strict=True))
    pictures = torch.from_numpy(scale_images(sets["id"].samples.inputs[rows["weigh"]], network.mean, network.std))
    labels = acts["id"].labels
    assert labels is not None
    step = ATTACK / torch.tensor(network.std).reshape(1, 3, 1, 1)
    struck = attacked(network.net.model, pictures, torch.from_numpy(np.asarray(labels[rows["weigh"]])), step)
    seen = {name: acts["id"][part] for name, part in rows.items()}
    seen |= {ood.name: acts[ood.name] for ood in suite.ood}
    seen["attacked"] = network.net.extract(struck.numpy(), requirements=requirements, batch_size=BATCH, progress=False)

    tests = ("id", *(ood.name for ood in suite.ood))
    scores = {layer: {} for layer in (*LAYERS, "penultimate")}
    for layer, found in scores.items():
        of = {
            key: part.features if layer == "penultimate" else part.extras[Layer(layer).key]
            for key, part in seen.items()
        }
        made = Gaussians.fit(of["fit"], np.asarray(seen["fit"].labels), FLOAT32)
        found.update({key: made.score(values) for key, values in of.items()})
    result = {layer: report_scores({key: found[key] for key in tests}) for layer, found in scores.items()}
    columns = {key: np.stack([scores[layer][key] for layer in WEIGHED], axis=1) for key in seen}
    scale = np.abs(columns["weigh"]).mean(axis=0)
    result["sum"] = report_scores({key: (columns[key] / scale).sum(axis=1) for key in tests})
    both = np.concatenate([columns["weigh"], columns["attacked"]]) / scale
    truth = np.repeat([1, 0], sizes.weighed)
    regression = LogisticRegressionCV(Cs=10, max_iter=1000, scoring="neg_log_loss").fit(both, truth)
    result["weighed"] = report_scores({key: regression.decision_function(columns[key] / scale) for key in tests})
    told = regression.decision_function(both)
    attack = detection_report(told[truth == 1], told[truth == 0])
    return {
        "inputs": asdict(sizes) | {"known": len(rows["id"])},
        "layers": result,
        "weights": dict(zip(WEIGHED, regression.coef_[0].round(3).tolist(), strict=True)),
        "auroc on attacks": round(100 * attack.auroc, 2),
    }


def attacked(model: nn.Module, inputs: Tensor, labels: Tensor, step: Tensor) -> Tensor:
    """One signed step up the loss, in units of the network's input (Goodfellow et al. 2015)."""
    made = []
    for rows, true in zip(inputs.split(BATCH), labels.split(BATCH), strict=True):
        ready = rows.clone(memory_format=torch.channels_last).requires_grad_(True)
        loss = nn.functional.cross_entropy(model(ready), true, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, ready)
        made.append(rows + step * gradient.sign())
    return torch.cat(made)


def chosen(names: list[str] | None, data: Path) -> Iterator[Suite]:
    """The suites to measure, with the sets at hand."""
    for name in names or SUITES:
        yield keep_sets_at_hand(load_suite(name), data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fitted", type=int, default=Sizes.fitted, help="known test pictures to fit on")
    parser.add_argument("--weighed", type=int, default=Sizes.weighed, help="known test pictures to weigh the layers on")
    parser.add_argument("--known", type=int, default=Sizes.known, help="known test pictures in all")
    parser.add_argument("--unknown", type=int, default=Sizes.unknown, help="pictures of each unknown set")
    parser.add_argument("--only", choices=SUITES, action="append")
    parser.add_argument("--part", choices=("inverted", "layers"), help="one of the two measurements; both by default")
    options = parser.parse_args()
    data = os.environ.get("OFFMAP_DATA")
    if data is None:
        raise SystemExit("OFFMAP_DATA must name the folder with the data sets")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {"float32 cut": FLOAT32}
    for suite in chosen(options.only, Path(data)):
        case = results.setdefault(suite.name, {})
        if options.part != "layers":
            case["inverted"] = inverted(suite, Path(data))
        if options.part != "inverted":
            sizes = Sizes(options.fitted, options.weighed, options.known, options.unknown)
            case |= {"attack": ATTACK, **layers(suite, Path(data), sizes)}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
