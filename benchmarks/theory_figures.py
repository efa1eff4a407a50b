"""Draw the pictures of docs/theory as SVG, from the formulas and from the committed results.

Run: ``python benchmarks/theory_figures.py`` after `theory.py` and `advice.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "theory"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "12 4")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 680, 380, 70, 46, 16, 54


def round_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers between two limits."""
    size = 10 ** np.floor(np.log10((high - low) / 4))
    step = next(s for s in (size, 2 * size, 5 * size, 10 * size) if (high - low) / s <= 8)
    return [float(t) + 0.0 for t in np.arange(np.ceil(low / step), np.floor(high / step + 1e-9) + 1) * step]


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
    xs = np.concatenate([np.asarray(x, float) for x, _ in series.values()])
    ys = np.concatenate([np.asarray(y, float) for _, y in series.values()])
    ys = np.log10(ys) if log else ys
    low, high = float(ys.min()), float(ys.max())
    pad = 0.06 * (high - low or 1)
    low, high = low - pad, high + pad
    left, right = float(xs.min()), float(xs.max())
    if names:
        left, right = left - 0.5, right + 0.5

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 18 * len(series)}" '
        f'font-family="sans-serif" font-size="13" role="img"><title>{escape(title)}</title>',
        '<rect width="100%" height="100%" rx="6" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for tick in range(round(low + pad), round(high - pad) + 1) if log else round_ticks(low, high):
        _, y = place(left, float(tick))
        label = f"10^{tick:.0f}" if log else f"{tick:.3g}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{label}</text>')
    marks = [(float(i), name) for i, name in enumerate(names)]
    for tick, label in marks or [(float(t), f"{t:.3g}") for t in round_ticks(left, right)]:
        x, _ = place(tick, low)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#444">{escape(label)}</text>'
        )
    for vertical in verticals:
        x, _ = place(vertical, low)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#999" stroke-dasharray="3 3"/>'
        )
    for i, (name, (x_values, y_values)) in enumerate(series.items()):
        ink, dash = PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)]
        heights = np.log10(np.asarray(y_values, float)) if log else np.asarray(y_values, float)
        points = [place(float(x), float(y)) for x, y in zip(x_values, heights, strict=True)]
        if dots or names or not lines:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{ink}"/>' for x, y in points]
        if lines and not names:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2" stroke-dasharray="{dash}"/>'
            )
        row = HEIGHT + 18 * i
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + 30}" y1="{row}" y2="{row}" stroke="{ink}" stroke-width="3" '
            f'stroke-dasharray="{dash}"/><text x="{LEFT + 38}" y="{row + 4}">{escape(name)}</text>'
        )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text></svg>'
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("\n".join(parts) + "\n")


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
