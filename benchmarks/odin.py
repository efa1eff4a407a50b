"""Why ODIN's figures differ from the printed ones: which step, divided by what, on which pictures.

For both DenseNets of the thesis this script takes the sign of the gradient of each picture once and follows it for
steps of several lengths ε. It answers three questions: which ε the printed figures would need, which ε validation on
Gaussian noise chooses, and how much the answer hangs on the finest detail of the pictures: the SVHN crops at hand were
cut and resized anew, so slightly smoothed and slightly sharpened copies stand beside them. Dividing the step by the
channels' standard deviations, as the paper's own code does, is a step about five times as long: 1/0.2. Looking at
several ε on the unknown test sets is an explanation, never a way to choose one.

``python benchmarks/odin.py`` writes ``results/odin.json``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import offmap
from at_hand import keep_sets_at_hand
from offmap.bench.cache import locate_cache
from offmap.bench.networks import BenchNetwork, make_network
from offmap.bench.runner import bootstrap_errors
from offmap.bench.sets import LoadedSet, load_set
from offmap.bench.suites import load_suite
from offmap.data import Samples
from offmap.detection.scores.passes import odin_score
from offmap.metrics.detection import detection_report

RESULTS = Path(__file__).with_name("results") / "odin.json"
EPSILONS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.2)
AUTHORS = {"cifar10-densenet": 0.01, "cifar100-densenet": 0.04}
TEMPERATURE = 1000.0
BATCH = 16
CHANGED = 0.25  # share of the smoothed picture that is mixed in, or taken out, to smooth or sharpen


def scores_by_step(model: nn.Module, batches: Iterator[Tensor], epsilons: tuple[float, ...]) -> dict[float, np.ndarray]:
    """ODIN's score of every input for each length of the step, from one gradient."""
    found: dict[float, list[Tensor]] = {epsilon: [] for epsilon in epsilons}
    for inputs in batches:
        ready = inputs.clone(memory_format=torch.channels_last).requires_grad_(True)
        score = odin_score(model(ready), TEMPERATURE)
        (gradient,) = torch.autograd.grad(score.sum(), ready)
        direction = torch.where(gradient > 0, 1.0, -1.0)  # sign(0) as in the authors' code: away from −∇
        with torch.no_grad():
            for epsilon in epsilons:
                stepped = score if epsilon == 0 else odin_score(model(inputs + epsilon * direction), TEMPERATURE)
                found[epsilon].append(stepped.detach())
    return {epsilon: torch.cat(parts).numpy() for epsilon, parts in found.items()}


def smoothed(inputs: np.ndarray, share: float) -> np.ndarray:
    """Pictures with so much of their 3 × 3 binomial average mixed in; a negative share sharpens."""
    padded = np.pad(inputs.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    rows = (padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]) / 4
    average = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 4
    return np.clip(np.rint((1 - share) * inputs + share * average), 0, 255).astype(np.uint8)


def tensors(network: BenchNetwork, loaded: LoadedSet) -> Iterator[Tensor]:
    """Batches as the network takes them."""
    for batch in network.batches(loaded, BATCH):
        yield torch.from_numpy(batch[0] if isinstance(batch, tuple) else batch)


def figures(known: np.ndarray, unknown: np.ndarray) -> dict[str, float]:
    """Per cent, with the standard error of FPR95."""
    report = detection_report(known, unknown)
    error = 100 * bootstrap_errors(known, unknown).get("fpr95", 0.0)
    return {name: round(value, 2) for name, value in
            {"fpr95": 100 * report.fpr95, "auroc": 100 * report.auroc, "error": error}.items()}  # fmt: skip


def measure_suite(name: str, data: Path, n: int, n_val: int) -> dict[str, object]:
    """All three answers for one network."""
    suite = keep_sets_at_hand(load_suite(name), data)
    network = make_network(suite.networks[0], None, data, locate_cache())
    model = network.net.model
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    whole = load_set(suite.test, data)
    order = np.random.default_rng(2).permutation(len(whole))
    known, val = (LoadedSet("id", whole.samples[np.sort(rows)]) for rows in (order[:n], order[n : n + n_val]))
    sets = {ood.name: load_set(ood, data).part(n if ood.name == "svhn" else n // 2) for ood in suite.ood}
    own = AUTHORS[name]

    same_as_library(network, known, own)
    steps = {
        key: scores_by_step(model, tensors(network, part), EPSILONS) for key, part in {"id": known, **sets}.items()
    }
    by_step = {str(e): {ood: figures(steps["id"][e], steps[ood][e]) for ood in sets} for e in EPSILONS}

    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((n_val, 3, 32, 32), dtype=np.float32))
    val_steps = scores_by_step(model, tensors(network, val), EPSILONS)
    noise_steps = scores_by_step(model, iter(noise.split(BATCH)), EPSILONS)
    by_noise = {str(e): figures(val_steps[e], noise_steps[e]) for e in EPSILONS}
    chosen = min(by_noise, key=lambda e: (by_noise[e]["fpr95"], -by_noise[e]["auroc"]))

    pictures = {}
    for words, share in (("as they are", 0.0), ("smoothed", CHANGED), ("sharpened", -CHANGED)):
        changed = LoadedSet("svhn", Samples({"inputs": smoothed(sets["svhn"].samples.inputs, share)}))
        both = scores_by_step(model, tensors(network, changed), (0.0, own)) if share else steps["svhn"]
        pictures[words] = {
            "without a step": figures(steps["id"][0.0], both[0.0]), "odin": figures(steps["id"][own], both[own]),
        }  # fmt: skip
    thesis = {ood: suite.thesis[ood][f"odin(epsilon={own})"] for ood in sets}
    return {
        "authors' epsilon": own, "thesis": thesis, "by epsilon": by_step, "on noise": by_noise,
        "chosen on noise": float(chosen), "svhn pictures": pictures,
    }  # fmt: skip


def same_as_library(network: BenchNetwork, known: LoadedSet, epsilon: float) -> None:
    """The loop above must say what ``odin`` says."""
    few = LoadedSet("few", known.samples[:BATCH])
    made = offmap.detector(f"odin(epsilon={epsilon})").fit(network.net.extract(network.batches(few, BATCH)))
    theirs = made.score(
        network.net.extract(network.batches(few, BATCH), requirements=made.requirements, progress=False)
    )
    mine = scores_by_step(network.net.model, tensors(network, few), (epsilon,))[epsilon]
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000, help="known pictures and SVHN pictures; half for textures")
    parser.add_argument("--validation", type=int, default=250, help="known pictures and noise to choose on")
    parser.add_argument("--only", choices=AUTHORS, action="append")
    options = parser.parse_args()
    data = os.environ.get("OFFMAP_DATA")
    if data is None:
        raise SystemExit("OFFMAP_DATA must name the folder with the data sets")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {"temperature": TEMPERATURE, "inputs": options.inputs, "validation": options.validation}
    results |= {"changed": CHANGED, "epsilons": EPSILONS}
    for name in options.only or AUTHORS:
        results[name] = measure_suite(name, Path(data), options.inputs, options.validation)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
