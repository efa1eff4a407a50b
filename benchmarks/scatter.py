"""Clouds of points side by side as one small SVG, for pictures of what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIDE, GAP, TOP, LEGEND = 250, 20, 30, 26
Points = tuple[npt.NDArray[Any], Sequence[str]]  # two columns, and the group of each point


def flat(features: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The first two principal components."""
    centred = features.astype(np.float64) - features.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return np.asarray(centred @ vectors[:, ::-1][:, :2])


def draw(file: Path, title: str, panels: Mapping[str, Points], inks: Mapping[str, str]) -> None:
    """One panel per cloud, each scaled to its own extent."""
    width, height = len(panels) * (SIDE + GAP) + GAP, TOP + SIDE + GAP + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13" role="img"><title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
    ]
    for place, (name, (points, groups)) in enumerate(panels.items()):
        left = GAP + place * (SIDE + GAP)
        low, high = points.min(axis=0), points.max(axis=0)
        spots = (points - low) / np.maximum(high - low, 1e-12) * (SIDE - 12) + 6
        parts.append(f'<text x="{left}" y="{TOP - 10}">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>')
        for group, ink in inks.items():
            chosen = spots[np.asarray(groups) == group]
            if len(chosen):
                dots = "".join(f"M{left + x:.0f} {TOP + y:.0f}h0" for x, y in chosen)
                parts.append(f'<path d="{dots}" stroke="{ink}" stroke-width="5" stroke-linecap="round" opacity=".7"/>')
    across = GAP
    for group, ink in inks.items():
        parts.append(f'<circle cx="{across + 5}" cy="{height - 14}" r="5" fill="{ink}"/>')
        parts.append(f'<text x="{across + 15}" y="{height - 9}">{escape(group)}</text>')
        across += 34 + 7 * len(group)
    file.write_text("\n".join([*parts, "</svg>"]) + "\n")
