"""Rank methods on a network's activations, and check the assumptions of the thesis' theory on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from offmap.activations import Activations, Head
from offmap.errors import InputError, OffmapWarning
from offmap.theory.findings import Figure, Finding, Findings, Section, Table, Verdict
from offmap.typing import FloatArray

FIT = ("mu", "sigma", "epsilon")


def explain(
    known: Activations | npt.ArrayLike,
    unknown: Activations | npt.ArrayLike | None = None,
    *,
    labels: npt.ArrayLike | None = None,
    clip: float | None = None,
    budget: int = 0,
    most: int = 4000,
    seed: int = 0,
) -> Findings:
    """Rank methods, and check the assumptions of ReAct, DICE, k-NN, Mahalanobis and spectral learning.

    Methods are ranked by the trials of ``auto``, which needs no unknown input. The assumptions are checked on the
    unknown inputs given, and hold or fail for these: noise can say the opposite of pictures, so none of them says which
    method to take. ReAct and DICE need unknown inputs and, for the effect on scores, a head; normality and advice need
    labels.

    Parameters
    ----------
    known : Activations or array_like of shape (n_inputs, n_units)
        Activations of known inputs, or plain features. Labels -1 mark unlabelled inputs.
    unknown : Activations or array_like, optional
        Activations of unknown inputs, or of noise.
    labels : array_like of int, optional
        Labels of `known`, when it is a plain array.
    clip : float, optional
        ReAct's threshold c; several percentiles of the known activations are compared by default.
    budget : int, default=0
        Labels that could be bought; above 0, and with some labels and some -1, advice is given.
    most : int, default=4000
        Inputs of each kind that are looked at, evenly spaced.
    seed : int, default=0
        Seed of the trials and of the clustering behind the advice.

    Returns
    -------
    Findings

    See Also
    --------
    offmap.detection.auto.choose_sum : The trials.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known = Activations(np.maximum(rng.normal(0.5, 0.3, (300, 8)), 0), labels=np.arange(300) % 3)
    >>> unknown = Activations(np.maximum(rng.gamma(1.0, 0.8, (200, 8)), 0))
    >>> [(finding.topic, finding.verdict) for finding in explain(known, unknown).findings][:2]
    [('methods', 'ranked'), ('rectified', 'holds')]
    """
    inside = _activations(known, labels)
    outside = None if unknown is None else _activations(unknown, None)
    features = _sample(inside, most)
    others = None if outside is None else _sample(outside, most)
    head = inside.head
    checks: list[Callable[[], tuple[list[Finding], Section] | None]] = [
        lambda: _methods(inside[_even(len(inside), most)], seed),
        lambda: _rectified(features, others, head, clip),
        lambda: _sparsified(features, others, head),
        lambda: _neighbours(features, others),
        lambda: _normality(inside),
        lambda: _graph(inside, most),
        lambda: _advice(inside, budget, most, seed),
    ]
    findings: list[Finding] = []
    sections: list[Section] = []
    for check in checks:
        result = check()
        if result is not None:
            findings += result[0]
            sections.append(result[1])
    return Findings(findings, sections)


def _activations(given: Activations | npt.ArrayLike, labels: npt.ArrayLike | None) -> Activations:
    if isinstance(given, Activations):
        return given if labels is None else Activations(given.features, given.head, labels=labels)
    return Activations(np.asarray(given), labels=labels)


def _sample(acts: Activations, most: int) -> FloatArray:
    return np.asarray(acts.features[_even(len(acts), most)], dtype=np.float64)


def _even(n: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most this many row indices, evenly spaced: the same ones each time."""
    if most < 10:
        raise InputError(f"explain(most={most}): at least 10 inputs are needed to say anything")
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def _methods(known: Activations, seed: int) -> tuple[list[Finding], Section] | None:
    """Rank the candidates of ``auto`` by how well they tell known inputs from pseudo-unknown ones."""
    if known.labels is not None and (known.labels < 0).any():
        known = known[np.flatnonzero(known.labels >= 0)]
    from offmap.detection.auto import Auto, choose_sum
    from offmap.detection.evidence import Evidence

    if len(known) == 0:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffmapWarning)  # what data do not allow stands in the table
        plan, trials = choose_sum(Auto(seed=seed), known)
    tried = [Evidence(**trial) for trial in trials]
    ranked = sorted((each for each in tried if each.separation), key=lambda each: -each.separation)
    if not ranked:
        return None
    best = ranked[0]
    share = {each.spec: each.weight / sum(one.weight for one in tried) for each in tried}
    sentence = (
        f"of {len(ranked)} methods `{best.spec}` tells known from pseudo-unknown inputs best "
        f"(AUROC {_percent(best.left_out)} with classes left out, {_percent(best.crossed)} with crossed inputs); "
        f"auto adds up {len(plan.terms)}: `{plan}`"
    )
    table = Table(
        ["method", "family", "AUROC, classes left out", "AUROC, crossed", "share in auto", "why"],
        [[one.spec, one.family, one.left_out, one.crossed, share[one.spec], one.why] for one in ranked]
        + [[one.spec, one.family, None, None, share[one.spec], one.why] for one in tried if not one.separation],
        digits=3,
    )
    values = {
        "names": [one.spec for one in ranked],
        "left_out": [one.left_out for one in ranked],
        "crossed": [one.crossed for one in ranked],
        "chosen": [one.weight > 0 for one in ranked],
    }
    text = (
        "Pseudo-unknown inputs are made from known ones: inputs of classes that are left out, and inputs that take "
        "each feature from one of two classes. They are evidence, not proof: with unknown inputs of the kind that you "
        "expect, `offmap compare` measures the methods on them."
    )
    figure = Figure("method_ranking", values, "AUROC against both kinds of pseudo-unknown inputs; filled: in the sum.")
    numbers = {"methods": float(len(ranked)), "chosen": float(len(plan.terms)), "separation": best.separation}
    numbers["best_area"] = max(area for area in (best.left_out, best.crossed) if area is not None)
    section = Section("Which method? (the trials of auto)", text, [table], [figure])
    return [Finding("methods", "ranked", sentence, numbers)], section


def _percent(area: float | None) -> str:
    return "none" if area is None else f"{100 * area:.1f} %"


def _rectified(
    known: FloatArray, unknown: FloatArray | None, head: Head | None, clip: float | None
) -> tuple[list[Finding], Section] | None:
    if unknown is None or known.min() < 0 or unknown.min() < 0:
        return None
    from offmap.theory.clipping import clip_report
    from offmap.theory.rectified import reduction_surface

    weight, bias = (None, None) if head is None else (head.weight, head.bias)
    report = clip_report(known, unknown, weight, bias, clip)
    fits = {"known": report.known_fit, "unknown": report.unknown_fit}
    mu, sigma, epsilon = ({name: float(getattr(fit, part)) for name, fit in fits.items()} for part in FIT)
    c = float(report.levels[report.best])
    numbers = {
        "c": c,
        "known_reduction": float(report.known_loss[report.best]),
        "unknown_reduction": float(report.unknown_loss[report.best]),
        "known_predicted": float(report.known_predicted[report.best]),
        "unknown_predicted": float(report.unknown_predicted[report.best]),
        **{f"sigma_{name}": value for name, value in sigma.items()},
        **{f"epsilon_{name}": value for name, value in epsilon.items()},
    }
    skewed = float((report.unknown_units[2] > report.known_units[2]).mean())
    spread = float((report.unknown_units[1] > report.known_units[1]).mean())
    text = (
        "The theory expects clipping to help when unknown activations lose more than known ones, which they do "
        "when they are more chaotic (σ) and skewed further to the right (ε < 0). Here known activations fit "
        f"μ = {mu['known']:.3g}, σ = {sigma['known']:.3g}, ε = {epsilon['known']:.2f}, unknown ones "
        f"μ = {mu['unknown']:.3g}, σ = {sigma['unknown']:.3g}, ε = {epsilon['unknown']:.2f}; "
        f"{spread:.0%} of units are more chaotic and {skewed:.0%} more skewed on unknown inputs."
    )
    energies = [None] * len(report.levels) if report.auroc is None else report.auroc.tolist()
    columns = ["c", "known loses", "unknown loses", "known, predicted", "unknown, predicted", "AUROC of energy"]
    losses = (report.known_loss, report.unknown_loss, report.known_predicted, report.unknown_predicted)
    rows = [list(row) for row in zip(report.levels.tolist(), *(x.tolist() for x in losses), energies, strict=True)]
    grid = np.linspace(0.05, max(1.0, 1.5 * max(sigma.values())), 40), np.linspace(-1.0, 0.4, 29)
    sigmas, epsilons, surface = reduction_surface(max(mu["known"], 0.0), max(c, 1e-6), *grid)
    places = {name: (sigma[name], epsilon[name]) for name in fits}
    figures = [
        Figure(
            "reduction_surface",
            {"sigmas": sigmas, "epsilons": epsilons, "surface": surface, "points": places},
            "What clipping takes, by chaoticness σ and skew ε; the dots are this network.",
        ),
        Figure(
            "unit_moments",
            {"known": report.known_units[:2], "unknown": report.unknown_units[:2], "clip": c},
            "Mean and spread of every unit, and the threshold.",
        ),
    ]
    section = Section("Clipping activations (ReAct)", text, [Table(columns, rows, digits=4)], figures)
    return [Finding("rectified", "holds" if report.theory_says else "fails", str(report), numbers)], section


def _sparsified(
    known: FloatArray, unknown: FloatArray | None, head: Head | None
) -> tuple[list[Finding], Section] | None:
    if unknown is None or head is None:
        return None
    from offmap.theory.sparsified import sparsity_profile

    profile = sparsity_profile(known, unknown, head.weight, head.bias)
    best = int(np.argmax(profile.separation))
    numbers = {"sparsity": float(profile.sparsity[best]), "separation": float(profile.separation[best])}
    rows = [
        [float(p), float(np.median(a)), float(np.median(b)), float((b < 0).mean()), float(g), float(s)]
        for p, a, b, g, s in zip(
            profile.sparsity, profile.predicted, profile.measured, profile.gap, profile.separation, strict=True
        )
    ]
    columns = ["p", "variance gone, if independent", "variance gone, measured", "classes where it grew", "Δ", "Δ / sd"]
    figure = Figure(
        "sparsity_curves",
        {"sparsity": profile.sparsity, "predicted": np.median(profile.predicted, axis=1),
         "measured": np.median(profile.measured, axis=1), "separation": profile.separation},
        "Share of the logits' variance on unknown inputs that sparsity takes (medians over classes).",
    )  # fmt: skip
    text = "Units are correlated, so the variance that goes is not the sum over dropped units; the sign can turn."
    section = Section("Dropping weights (DICE)", text, [Table(columns, rows)], [figure])
    return [Finding("sparsified", "holds" if best > 0 else "fails", str(profile), numbers)], section


def _neighbours(known: FloatArray, unknown: FloatArray | None) -> tuple[list[Finding], Section] | None:
    from offmap.theory.density import neighbour_report

    if len(known) < 60 or known.shape[1] < 2:
        return None
    report = neighbour_report(known.astype(np.float32), None if unknown is None else unknown.astype(np.float32))
    numbers = {"intrinsic": report.intrinsic, "ambient": float(report.ambient)}
    verdict: Verdict = "holds"
    if report.unknown_log_density is not None:
        apart = float(np.median(report.known_log_density) - np.median(report.unknown_log_density))
        numbers["log_density_gap"] = apart
        verdict = "holds" if apart > 0 else "fails"
    values = {"known": report.known_log_density, "unknown": report.unknown_log_density}
    section = Section(
        "Neighbour distances as densities (k-NN)",
        str(report),
        figures=[Figure("log_densities", values, "Estimated log density of known and unknown inputs.")],
    )
    return [Finding("neighbours", verdict, str(report), numbers)], section


def _normality(acts: Activations) -> tuple[list[Finding], Section] | None:
    labels = acts.labels
    if labels is None or np.unique(labels[labels >= 0], return_counts=True)[1].max(initial=0) < 8:
        return None
    from offmap.theory.normality import normality_by_class

    found = normality_by_class(acts.features, labels)
    table = Table(
        ["class", "statistic", "p-value"],
        [[int(c), float(s), float(p)] for c, s, p in zip(found.classes, found.statistics, found.p_values, strict=True)],
        digits=4,
    )
    text = "Mahalanobis and other Gaussian scores take every class for one Gaussian; this is the test of that."
    verdict: Verdict = "fails" if found.rejected > 0.5 else "unclear"
    finding = Finding("normality", verdict, str(found), {"rejected": found.rejected})
    return [finding], Section("Are classes Gaussian? (Henze–Zirkler)", text, [table])


def _graph(acts: Activations, most: int) -> tuple[list[Finding], Section] | None:
    rows = _even(len(acts), min(most, 3000))
    if len(rows) < 60:
        return None
    from offmap.graph import eigengap, knn_graph, spectral_embedding
    from offmap.metrics.kmeans_measure import kmeans_measure

    labels = None if acts.labels is None else np.asarray(acts.labels)[rows]
    classes = 0 if labels is None else len(np.unique(labels[labels >= 0]))
    pairs = min(max(2 * classes + 5, 20), len(rows) - 2)
    spectrum = spectral_embedding(knn_graph(acts.features[rows], 15), pairs, dense_nodes=300)
    count, gap = eigengap(spectrum.values, smallest=2)
    sentence = f"the k-NN graph breaks most clearly into {count} groups (eigengap {gap:.3f})"
    numbers = {"groups": float(count), "gap": gap}
    verdict: Verdict = "unclear"
    if labels is not None and classes > 1:
        measure = kmeans_measure(spectrum.features[:, :classes], labels)
        verdict = "holds" if measure < 1 else "fails"
        sentence += (
            f"; in as many dimensions as classes ({classes}) the scatter inside classes is {measure:.2f} times "
            "that between them"
        )
        numbers["kmeans_measure"] = measure
    figure = Figure("spectrum", {"values": spectrum.values, "gap": count}, "Eigenvalues of the k-NN graph.")
    section = Section("The graph of the features (spectral learning)", sentence + ".", figures=[figure])
    return [Finding("graph", verdict, sentence, numbers)], section


def _advice(acts: Activations, budget: int, most: int, seed: int) -> tuple[list[Finding], Section] | None:
    if budget < 1 or acts.labels is None:
        return None
    rows = _even(len(acts), most)
    labels = np.asarray(acts.labels)[rows]
    if (labels >= 0).all() or (labels < 0).all():
        return None
    from offmap.theory.advice import label_advice

    advice = label_advice(acts.features[rows], labels, budget, seed=seed)
    columns = ["option", "members", "labelled", "gain %", "known %", "novel %", "hurts", "buy"]
    harmful = sum(option.gain < 0 for option in advice.options)
    section = Section(
        "What to label next",
        f"{advice}.",
        [Table(columns, advice.rows())],
        [
            Figure(
                "advice_bars",
                {
                    "names": [option.name for option in advice.options],
                    "known": np.array([option.gain_known for option in advice.options]),
                    "novel": np.array([option.gain_novel for option in advice.options]),
                },
                "Predicted change of the K-means measure, over known classes and over novel clusters.",
            )
        ],
    )
    finding = Finding(
        "advice",
        "advised" if len(advice.items) else "unclear",
        str(advice),
        {"options": float(len(advice.options)), "harmful": float(harmful)},
    )
    return [finding], section
