"""Draw the pictures of docs/theory as SVG, from the formulas and from the committed results.

Run: ``python benchmarks/theory_figures.py`` after `theory.py` and `advice.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from offmap.plots.style import apply_style, colour, dash, graph_objects
from offmap.plots.svg import draw_svg

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "theory"


def chart(
    file: str,
    title: str,
    x_name: str,
    y_name: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    verticals: Sequence[float] = (),
    log: bool = False,
    dots: bool = False,
    lines: bool = True,
    names: Sequence[str] = (),
    folder: Path = DOCS,
) -> None:
    """A line chart; with `names` the x axis has words instead of numbers, with `log` the y axis is logarithmic."""
    go = graph_objects()
    mode = "markers" if not lines else "lines+markers" if dots else "lines"
    figure = go.Figure()
    for i, (name, (x, y)) in enumerate(series.items()):
        places = [names[int(place)] for place in x] if names else [float(place) for place in x]
        line = {"color": colour(i), "dash": dash(i)}
        figure.add_trace(go.Scatter(x=places, y=[float(one) for one in y], name=name, mode=mode, line=line))
    for vertical in verticals:
        figure.add_vline(x=vertical, line={"color": "#999", "width": 1, "dash": "dash"})
    apply_style(figure, x=x_name, y=y_name, title=title)
    if log:
        figure.update_yaxes(type="log")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(draw_svg(figure, label=title, paper="white") + "\n")


def main() -> None:
    from offmap.theory import (
        cap_area,
        esn_reduction,
        simclr_loss,
        simclr_matrix,
    )
    from thesis.toy_graphs import nscl_threshold, nscl_toy

    sigmas = np.linspace(0.1, 1.2, 60)
    chart(
        "rectified.svg", "What clipping at c = 1 takes from an activation with mode 0.5",
        "chaoticness σ", "mean reduction",
        {f"skew ε = {e:g}": (sigmas, esn_reduction(0.5, sigmas, e, 1.0)) for e in (-0.8, -0.4, 0.0, 0.4)},
    )  # fmt: skip
    measured = json.loads((RESULTS / "theory.json").read_text())
    profile = measured["cifar100"]["sparsity"]["textures"]
    chart(
        "sparsified.svg", "CIFAR-100 network on textures: logit variance that sparsity takes",
        "sparsity p", "share of the variance (median over classes)",
        {"if units were independent": (profile["sparsity"], profile["independent"]),
         "measured": (profile["sparsity"], profile["measured"])}, dots=True,
    )  # fmt: skip
    real = measured["real perturbation"]
    chart(
        "perturbation.svg", "Label half of one class: forecast and outcome, one dot per class (δ = 1)",
        "predicted gain, in the set's largest", "realised gain",
        {name: (np.array(found["delta 1"]["predicted"]) / np.abs(found["delta 1"]["predicted"]).max(),
                np.array(found["delta 1"]["actual"]) / np.abs(found["delta 1"]["predicted"]).max())
         for name, found in real.items()},
        lines=False,
    )  # fmt: skip
    distances = np.linspace(0.05, 2.0, 120)
    chart(
        "neighbours.svg", "Share of the unit sphere within distance r of a point",
        "distance r", "share",
        {f"{m} dimensions": (distances, cap_area(distances, m) / cap_area(2.0, m)) for m in (3, 12, 100, 342)},
    )  # fmt: skip
    bonds = np.linspace(0, 0.3, 301)
    pairs = [(0.26, 0.25), (0.3, 0.25), (0.35, 0.25)]
    chart(
        "graph.svg", "Residual of the novel class against its bond to the known class (τ_c = 0.25)",
        "bond t", "residual R(U*, y)",
        {f"τ_s = {s:g}": (bonds, [nscl_toy(s, c, t).residual for t in bonds]) for s, c in pairs},
        verticals=[nscl_threshold(s, c) for s, c in pairs if nscl_threshold(s, c) < 0.3],
    )  # fmt: skip
    rng = np.random.default_rng(0)
    A = rng.random((12, 12))
    A = A + A.T
    A /= A.sum()
    Z = rng.standard_normal((12, 3))
    temperatures = np.logspace(0, 4, 25)
    flat = simclr_loss(np.zeros_like(Z), A, 1.0)
    limit = -np.trace(Z.T @ simclr_matrix(A) @ Z)
    errors = [abs(t * (simclr_loss(Z, A, t) - flat) - limit) for t in temperatures]
    chart(
        "contrast.svg", "SimCLR-like loss against its eigenproblem, by temperature",
        "log10 τ", "difference", {"|τ (L(Z) − L(0)) + Tr(ZᵀMZ)|": (np.log10(temperatures), errors)}, log=True,
    )  # fmt: skip
    advice = json.loads((RESULTS / "advice.json").read_text())["sets"]
    rules = {"forecast over the true partition": "true partition", "label_advice": "advice", "entropy": "entropy",
             "random": "random"}  # fmt: skip
    chart(
        "advice.svg", "Forecast against outcome: rank correlation over options (mean of 5 seeds)",
        "", "Spearman correlation with the realised gain",
        {name: (range(len(advice)), [s["summary"]["correlation_with_measure"][rule]["mean"] for s in advice.values()])
         for name, rule in rules.items()},
        names=list(advice),
    )  # fmt: skip


if __name__ == "__main__":
    main()
