"""The thesis' statements, measured: the numbers quoted in docs/theory, from real networks and random instances.

Run: ``OFFMAP_DATA=… python benchmarks/theory.py``; writes ``benchmarks/results/theory.json``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offmap.activations import Activations, Head

OUT = Path(__file__).parent / "results" / "theory.json"


def network(name: str) -> tuple[Activations, dict[str, Activations]]:
    """Known test inputs of a CIFAR DenseNet, and unknown sets, with its head."""
    from safetensors.numpy import load_file

    folder = Path(os.environ["OFFMAP_DATA"])
    tensors = load_file(folder / "weights" / f"densenet100bc_{name}.safetensors")
    head = Head(tensors["fc.weight"], tensors["fc.bias"])

    def read(part: str) -> Activations:
        with np.load(folder / "features" / f"{name}-densenet__{part}.npz") as stored:
            return Activations(stored["features"].astype(np.float32), head, labels=stored["labels"].astype(int))

    return read(f"{name}_test"), {"svhn": read("svhn_test10k"), "textures": read("dtd10")}


def clipping(name: str) -> dict[str, Any]:
    """ReAct: predicted and measured losses, fits, and AUROC with and without clipping."""
    from offmap.theory import clip_report

    known, unknown = network(name)
    out = {}
    for label, other in unknown.items():
        head = known.head
        assert head is not None
        report = clip_report(known.features[:4000], other.features[:4000], head.weight, head.bias)
        assert report.auroc is not None
        out[label] = {
            "levels": report.levels.round(4).tolist(),
            "known_loss": report.known_loss.round(4).tolist(),
            "unknown_loss": report.unknown_loss.round(4).tolist(),
            "known_predicted": report.known_predicted.round(4).tolist(),
            "unknown_predicted": report.unknown_predicted.round(4).tolist(),
            "auroc": report.auroc.round(4).tolist(),
            "plain_auroc": round(float(report.plain_auroc or 0), 4),
            "sigma": [round(float(fit.sigma), 4) for fit in (report.known_fit, report.unknown_fit)],
            "epsilon": [round(float(fit.epsilon), 4) for fit in (report.known_fit, report.unknown_fit)],
            "theory_says": report.theory_says,
            "helps": report.helps,
            "units_more_chaotic": round(float((report.unknown_units[1] > report.known_units[1]).mean()), 4),
            "units_more_skewed": round(float((report.unknown_units[2] > report.known_units[2]).mean()), 4),
        }
    return out


def row_sums(name: str) -> dict[str, Any]:
    """ReAct's condition W·1 > 0: where it fails, and energy with a constant added to W so that it holds."""
    from offmap.theory import make_row_sums_positive, output_reduction_gap
    from offmap.theory.clipping import PERCENTILES, energy_auroc

    known, unknown = network(name)
    head = known.head
    assert head is not None
    weight, bias = (np.asarray(part, dtype=np.float64) for part in (head.weight, head.bias))
    shifted = make_row_sums_positive(weight)
    out: dict[str, Any] = {"classes with W·1 ≤ 0": int((weight.sum(axis=1) <= 0).sum()), "classes": len(weight)}
    inside = np.asarray(known.features[:4000], dtype=np.float64)
    levels = np.percentile(inside, PERCENTILES)
    for label, other in unknown.items():
        outside = np.asarray(other.features[:4000], dtype=np.float64)
        gaps = [output_reduction_gap(shifted, inside, outside, float(c))[0] for c in levels]
        out[label] = {
            "percentiles": list(PERCENTILES),
            "auroc": [round(energy_auroc(inside, outside, weight, bias, float(c)), 4) for c in levels],
            "plain_auroc": [round(energy_auroc(inside, outside, w, bias, np.inf), 4) for w in (weight, shifted)],
            "auroc, W·1 > 0": [round(energy_auroc(inside, outside, shifted, bias, float(c)), 4) for c in levels],
            "share of classes whose logits fall further, W·1 > 0": [round(float((gap > 0).mean()), 4) for gap in gaps],
        }
    return out


def sparsity(name: str) -> dict[str, Any]:
    """DICE: variance gone by independence and measured, its sign, Δ and the separation."""
    from offmap.theory import sparsity_profile

    known, unknown = network(name)
    head = known.head
    assert head is not None
    out = {}
    for label, other in unknown.items():
        profile = sparsity_profile(known.features[:4000], other.features[:4000], head.weight, head.bias)
        out[label] = {
            "sparsity": profile.sparsity.tolist(),
            "independent": np.median(profile.predicted, axis=1).round(4).tolist(),
            "measured": np.median(profile.measured, axis=1).round(4).tolist(),
            "share_negative": (profile.measured < 0).mean(axis=1).round(4).tolist(),
            "gap": profile.gap.round(3).tolist(),
            "separation": profile.separation.round(3).tolist(),
        }
    return out


def neighbours(name: str) -> dict[str, Any]:
    """k-NN: the intrinsic dimension, the density gap; and normality of classes."""
    from offmap.theory import neighbour_report, normality_by_class

    known, unknown = network(name)
    report = neighbour_report(known.features, unknown["svhn"].features)
    assert report.unknown_log_density is not None
    apart = float(np.median(report.known_log_density) - np.median(report.unknown_log_density))
    normal = normality_by_class(known.features, known.labels)
    return {
        "ambient": report.ambient,
        "intrinsic": round(report.intrinsic, 2),
        "orders_of_magnitude_with_ambient": round(report.ambient_range, 1),
        "log10_density_ratio_known_to_svhn": round(apart / np.log(10), 2),
        "classes_not_gaussian": round(normal.rejected, 4),
        "dimensions_tested": normal.dimensions,
    }


def toys(cases: int = 400) -> dict[str, Any]:
    """NSCL's toy theorems over a grid: how often each statement holds."""
    from thesis.toy_graphs import nscl_residual, nscl_threshold, nscl_toy

    rng = np.random.default_rng(0)
    held = {"t = 0: 1": 0, "below: r(t)": 0, "above: 0": 0, "harmful: 1": 0, "largest error of r(t)": 0.0}
    for _ in range(cases):
        tau_c = rng.uniform(0.05, 0.3)
        tau_s = tau_c * rng.uniform(1.02, 1.48)
        bar = nscl_threshold(tau_s, tau_c)
        weak, strong = bar * rng.uniform(0.02, 0.98), bar * rng.uniform(1.01, 1.5)
        error = abs(nscl_toy(tau_s, tau_c, weak).residual - nscl_residual(tau_s, tau_c, weak))
        held["largest error of r(t)"] = max(held["largest error of r(t)"], float(error))
        held["t = 0: 1"] += abs(nscl_toy(tau_s, tau_c, 0).residual - 1) < 1e-9
        held["below: r(t)"] += error < 1e-7
        held["above: 0"] += nscl_toy(tau_s, tau_c, strong).residual < 1e-9
        held["harmful: 1"] += abs(nscl_toy(tau_c, tau_s, tau_c, known="shape").residual - 1) < 1e-9
    return {"cases": cases, **{name: int(v) if isinstance(v, int | np.integer) else v for name, v in held.items()}}


def bounds(cases: int = 400) -> dict[str, Any]:
    """NSCL's bounds on random augmentation graphs: gaps, and how often assumptions hold."""
    from offmap.graph import augmentation_graph, normalized_adjacency
    from offmap.theory import discovery_bound
    from offmap.theory.residuals import weighted_cosine_floor

    rng = np.random.default_rng(0)
    gaps, wide, positive, printed_fails, floor_fails = [], 0, 0, 0, 0
    for _ in range(cases):
        n, labelled = int(rng.integers(8, 20)), int(rng.integers(1, 4))
        T = rng.random((n, n)) ** 3 + 2 * np.eye(n)
        labels = np.where(np.arange(n) < labelled, 0, -1)
        matrix = normalized_adjacency(augmentation_graph(T, labels, setting="nscl")).toarray()
        y = (rng.random(n - labelled) < 0.5).astype(float)
        y[0] = 1
        found = discovery_bound(matrix, y, labelled, int(rng.integers(1, 5)))
        gaps.append(abs(found.residual - found.identity))
        wide += found.gap_assumption
        positive += found.coverage_floor is not None
        w, v = rng.uniform(0.05, 5, size=4), rng.standard_normal(4)
        cosine = (v @ (w * v)) / (np.linalg.norm(w * v) * np.linalg.norm(v))
        low, high = w.min(), w.max()
        pairs = [2 * np.sqrt(a * b) / (np.sqrt(a) + np.sqrt(b)) for a in w for b in w]
        printed_fails += cosine < min(pairs)
        floor_fails += cosine < weighted_cosine_floor([low, high]) - 1e-12
    return {
        "cases": cases,
        "largest_gap_of_the_identity": float(max(gaps)),
        "spectral_gap_assumption_holds": int(wide),
        "positive_omega_assumption_holds": int(positive),
        "printed_floor_violated": int(printed_fails),
        "corrected_floor_violated": int(floor_fails),
    }


def perturbation(cases: int = 200) -> dict[str, Any]:
    """SORL's derivative on random unit-degree graphs: exact and closed form against finite differences."""
    from offmap.graph import spectral_embedding
    from offmap.theory import intuitive_bound, kmeans_measure, kmeans_measure_derivative

    rng = np.random.default_rng(0)
    exact_error, closed_error, positive, violated, kept = [], [], 0, 0, 0
    while kept < cases:
        n, k = 15, 3
        A = rng.random((n, n))
        A = A @ A.T + 2 * np.eye(n)
        for _ in range(500):
            scale = 1 / np.sqrt(A.sum(axis=1))
            A = scale[:, None] * A * scale[None, :]
        values = np.linalg.eigvalsh(A)[::-1]
        if values[k - 1] - values[k] < 1e-2:
            continue
        kept += 1
        labels, bond = np.repeat([0, 1, 2], 5), rng.random(n)
        bond /= bond.sum()

        def measure(delta: float, A: Any = A, bond: Any = bond, labels: Any = labels) -> float:
            return kmeans_measure(spectral_embedding(A + delta * np.outer(bond, bond), 3).features, labels)

        h = 1e-5
        numeric = (measure(h) - measure(-h)) / (2 * h)
        exact = float(kmeans_measure_derivative(A, bond, labels, k))
        closed = float(kmeans_measure_derivative(A, bond, labels, k, closed_form=True))
        size = max(abs(numeric), 1e-9)
        exact_error.append(abs(exact - numeric) / size)
        closed_error.append(abs(closed - numeric) / size)
        bound = intuitive_bound(spectral_embedding(A, k).features, bond, labels)
        positive += bound > 0
        violated += -exact < bound
    return {
        "cases": cases,
        "exact_relative_error_median": float(np.median(exact_error)),
        "closed_relative_error_quartiles": np.percentile(closed_error, [25, 50, 75]).round(4).tolist(),
        "intuitive_bound_positive": int(positive),
        "intuitive_bound_violated_outside_its_assumptions": int(violated),
    }


def real_perturbation(name: str, inputs: int = 600) -> dict[str, Any]:
    """SORL on real embeddings: label half of one class at a time; forecast and outcome over classes."""
    from scipy import sparse

    from advice import NEIGHBOURS, load
    from offmap.graph import knn_graph, label_connections
    from offmap.theory import perturbation_report
    from offmap.theory.perturbation import rank_correlation

    rng = np.random.default_rng(0)
    features, truth = load(name, rng)
    features, truth = features[:inputs], np.unique(truth[:inputs], return_inverse=True)[1]
    base = knn_graph(features, NEIGHBOURS)
    base = base * (inputs / base.sum())
    walk = (base @ sparse.diags_array(1 / base.sum(axis=0)) + sparse.eye_array(inputs)) * 0.5
    bonds = label_connections(np.where(rng.random(inputs) < 0.5, truth, -1), walk).toarray()
    classes = int(truth.max()) + 1
    out: dict[str, Any] = {"classes": classes, "connections": bonds.shape[1]}
    for delta in (0.1, 1.0, 10.0):
        report = perturbation_report(base, truth, classes, bonds, delta)
        out[f"delta {delta:g}"] = {
            "exact": round(report.correlation, 4),
            "closed_form": round(rank_correlation(report.closed, report.actual), 4),
            "share_harmful": round(float((report.actual < 0).mean()), 4),
            "predicted": report.predicted.round(6).tolist(),
            "actual": report.actual.round(6).tolist(),
        }
    return out


def on_networks(part: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """One part for both networks."""
    return {name: part(name) for name in ("cifar10", "cifar100")}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "toys": toys,
    "bounds": bounds,
    "perturbation": perturbation,
    "real perturbation": lambda: {name: real_perturbation(name) for name in ("digits", "clinc150", "banking77")},
    "clipping": lambda: on_networks(clipping),
    "row sums": lambda: on_networks(row_sums),
    "sparsity": lambda: on_networks(sparsity),
    "neighbours": lambda: on_networks(neighbours),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="the file keeps the others"
    )
    given = parser.parse_args()
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for part in given.parts:
        found = PARTS[part]()
        if found.keys() == {"cifar10", "cifar100"}:
            for name, of_network in found.items():
                results.setdefault(name, {})[part] = of_network
        else:
            results[part] = found
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
