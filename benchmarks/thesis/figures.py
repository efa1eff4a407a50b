"""The plots of `benchmarks/thesis_detection.py`: one per sweep, and the figures that the thesis itself shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offmap.bench.runner import Bench
from offmap.detection import detector
from offmap.metrics.detection import threshold_at_tpr
from offmap.plots import activation_pattern, grouped_bars
from offmap.report import Page
from thesis.plots import (
    contribution_curves,
    covariance_heat,
    embedding_scatter,
    grid_heat,
    shaded_densities,
    sweep_lines,
    unit_means,
)
from thesis.results import Finding, ThesisResult
from thesis.sweeps import Sweep

SHOWN = 1500  # inputs in a scatter plot, or behind a covariance
CLASS = 0


def draw_sweep(sweep: Sweep, points: Sequence[Finding]) -> Any:
    """Draw one sweep."""
    if sweep.kind == "grid":
        values: dict[str, dict[str, float]] = {}
        for point in points:
            values.setdefault(point.series, {})[str(point.x)] = point.fpr95
        return grid_heat(values, x=sweep.x, y="α", metric="FPR95")
    if sweep.kind == "bars":
        groups: dict[str, dict[str, float]] = {}
        for point in points:
            groups.setdefault(str(point.x), {})[point.series] = point.fpr95
        return grouped_bars(groups, y="FPR95")
    series: dict[str, dict[Any, float]] = {}
    for point in points:
        series.setdefault(f"FPR95, {point.series}", {})[point.x] = point.fpr95
        if point.id_accuracy is not None:
            series.setdefault(f"ID accuracy, {point.series}", {})[point.x] = point.id_accuracy
    return sweep_lines(series, x=sweep.x, y="per cent", logarithmic=sweep.logarithmic)


def add_figures(page: Page, result: ThesisResult) -> None:
    """Add noise validation, the mean gap of DICE and the figures of the three chapters to a report."""
    if result.validation:
        _validation(page, result.validation)
    if result.gaps:
        page.section("What does sparsity do to the output?").text(
            "The thesis: the gap between the mean outputs grows or stays, the variance on unknown inputs falls "
            "(section 4.4, figure 4.3; section 4.5, table 4.5)."
        ).figure(
            sweep_lines(
                {
                    "mean gap Δ": {row["p"]: row["gap"] for row in result.gaps},
                    "spread of energy on unknown inputs, over the known mean": {
                        row["p"]: row["spread"] for row in result.gaps
                    },
                },
                x="share of weights dropped",
                y="",
            ),
            "Δ = E[max f] on known less on unknown inputs, mean over the sets.",
        )
    if not result.benches:
        return
    bench = next(iter(result.benches.values()))
    ood = next(name for name in bench.acts if name != "id")
    _activations(page, bench, ood)
    _contributions(page, bench, ood)
    _distances(page, bench, ood)
    _embedding(page, bench, ood)


def _validation(page: Page, trials: Sequence[dict[str, Any]]) -> None:
    page.section("Does noise choose well?").text(
        "The thesis: parameters chosen on Gaussian noise are near those that are best on the unknown sets "
        "(appendix A.2.2)."
    )
    for method in dict.fromkeys(trial["method"] for trial in trials):
        own = [trial for trial in trials if trial["method"] == method]
        chosen = next(trial for trial in own if trial["chosen"])
        best = min(own, key=lambda trial: trial["ood fpr95"])
        page.figure(
            sweep_lines(
                {
                    "on noise": {trial["candidate"]: trial["noise fpr95"] for trial in own},
                    "on the unknown sets": {trial["candidate"]: trial["ood fpr95"] for trial in own},
                },
                x="candidate",
                y="FPR95",
            ),
            f"{method}: noise chooses {chosen['candidate']}, {chosen['ood fpr95']:.1f} % on the unknown sets; the best "
            f"there would be {best['candidate']}, {best['ood fpr95']:.1f} %.",
        )


def _activations(page: Page, bench: Bench, ood: str) -> None:
    known, unknown = bench.acts["id"].features, bench.acts[ood].features
    page.section("Activations").figure(
        activation_pattern(known, unknown),
        f"Mean and deviation of each unit: known inputs above, {ood} below (section 3.1, figure 3.1).",
    ).figure(
        unit_means(known, unknown),
        "How the units' means spread; ReAct's theory asks for positive skew (section 3.4, figure 3.2).",
    )
    for spec in ("energy", "react(95)|energy"):
        made = detector(spec).fit(bench.known)
        inside, outside = made.score(bench.acts["id"]), made.score(bench.acts[ood])
        page.figure(
            shaded_densities(inside, outside, x=f"score of {spec}", threshold=threshold_at_tpr(inside)),
            f"{spec}: the dark area are inputs of {ood} taken for known at 95 % of known inputs accepted.",
        )


def _contributions(page: Page, bench: Bench, ood: str) -> None:
    head = bench.known.head
    if head is None:
        return
    test, classes = bench.acts["id"], bench.tests["id"].samples.classes
    of_class = test if test.labels is None else test[test.labels == CLASS]
    known, unknown = (part.features[:SHOWN] * head.weight[CLASS] for part in (of_class, bench.acts[ood]))
    name = classes[CLASS] if classes else f"class {CLASS}"
    order = np.argsort(known.mean(axis=0), kind="stable")
    page.section("Contributions").figure(
        contribution_curves(known, unknown),
        f"Contribution of each unit to the output for {name}: known inputs of that class, and {ood} "
        "(section 4.1, figure 4.1).",
    ).figure(
        covariance_heat(unknown, order.tolist()),
        f"Covariance of the contributions on {ood}, every few units in the same order (appendix A.2.1, figure A.3).",
    )


def _distances(page: Page, bench: Bench, ood: str) -> None:
    page.section("Norms and distances")
    norms = {name: np.linalg.norm(bench.acts[name].features, axis=1) for name in ("id", ood)}
    page.figure(
        shaded_densities(norms["id"], norms[ood], x="length of the feature vector"),
        "The thesis: known inputs have longer features than unknown ones (section 5.4, figure 5.4).",
    )
    for spec in ("knn(50, normalize=false)", "knn(50)"):
        made = detector(spec).fit(bench.known)
        page.figure(
            shaded_densities(-made.score(bench.acts["id"]), -made.score(bench.acts[ood]), x=f"distance, {spec}"),
            "Distance to the 50th neighbour, " + ("as they are." if "false" in spec else "normalised."),
        )


def _embedding(page: Page, bench: Bench, ood: str) -> None:
    test, far = bench.acts["id"][:SHOWN], bench.acts[ood][: SHOWN // 3]
    features = np.concatenate([test.features, far.features])
    labels = [f"class {label}" for label in (test.labels if test.labels is not None else test.predictions)]
    if len(set(labels)) > 10:
        labels = ["known"] * len(labels)
    points, name = project_to_plane(features)
    page.section("Features in the plane").figure(
        embedding_scatter(points, [*labels, *[ood] * len(far)]),
        f"{name} of known test inputs and of {ood} (section 5.3.1, table 5.1).",
    )


def project_to_plane(features: Any, seed: int = 0) -> tuple[Any, str]:
    """Project features to two dimensions by UMAP, or by t-SNE without umap-learn; return the points and its name."""
    rows = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    try:
        import umap
    except ImportError:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE

        few = PCA(min(30, *rows.shape), random_state=seed).fit_transform(rows)
        perplexity = min(30, (len(few) - 1) / 3)
        return TSNE(2, perplexity=perplexity, max_iter=300, random_state=seed).fit_transform(few), "t-SNE"
    return umap.UMAP(random_state=seed).fit_transform(rows), "UMAP"
