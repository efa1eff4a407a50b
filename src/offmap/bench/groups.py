"""Means over groups of unknown sets, such as near and far ones, in the conventions of OpenOOD v1.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offmap.bench.suites import SPECTRUM
from offmap.metrics.detection import auroc, fpr_at_tpr, fpr_at_tpr_ood_positive
from offmap.typing import Array

MEAN = "mean over networks"
METRICS: dict[str, Callable[[Any, Any], float]] = {
    "auroc": auroc,
    "fpr95": fpr_at_tpr,
    "fpr95_unknown": fpr_at_tpr_ood_positive,
}


@dataclass(frozen=True)
class GroupRow:
    """One method on a group of unknown sets: means over the sets, as shares.

    Attributes
    ----------
    network, method : str
        What was measured; the network may be ``"mean over networks"``.
    group : str
        As the suite names it, such as ``"near"``; with ``", full spectrum"`` where shifted known inputs count as known.
    sets : tuple of str
        The sets that the mean is over.
    auroc, fpr95 : float
        As everywhere: FPR95 is the share of unknown inputs that are accepted when 95 % of the known are.
    fpr95_unknown : float
        The other convention, which is OpenOOD's: the share of known inputs flagged when 95 % of the unknown are.
    published : float or None
        The AUROC that was published for it, of the same networks and sets.
    """

    network: str
    method: str
    group: str
    sets: tuple[str, ...]
    auroc: float
    fpr95: float
    fpr95_unknown: float
    published: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain values in per cent."""
        names = ("auroc", "fpr95", "fpr95_unknown", "published")
        numbers = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {
            "network": self.network,
            "method": self.method,
            "group": self.group,
            "sets": list(self.sets),
            **{name: round(100 * value, 3) for name, value in numbers.items()},
        }


def summarise_groups(
    scores: Mapping[str, Mapping[str, Mapping[str, Array]]],
    groups: Mapping[str, str],
    shifted: Sequence[str] = (),
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> list[GroupRow]:
    """Average every method over each group of unknown sets, plain and full-spectrum, and over the networks.

    OpenOOD v1.5 (Zhang et al. 2023) reports near and far unknown sets by their means, and full-spectrum figures with
    all known inputs, plain and shifted, taken together.

    Parameters
    ----------
    scores : mapping
        By network, method and set; the known test inputs are ``"id"``.
    groups : mapping of str to str
        The group of each unknown set; sets without one are in no mean.
    shifted : sequence of str, default=()
        Sets of known inputs under a covariate shift.
    published : mapping, optional
        AUROCs to compare with, as shares: by group, then by method.

    Returns
    -------
    list of GroupRow
        By network, group and method; with several networks their means come last.

    Examples
    --------
    >>> scores = {"net": {"msp": {"id": np.array([2.0, 3.0]), "a": np.array([1.0]), "b": np.array([2.5])}}}
    >>> [(row.group, row.sets, row.auroc) for row in summarise_groups(scores, {"a": "near", "b": "near"})]
    [('near', ('a', 'b'), 0.75)]
    """
    figures = published or {}
    rows = []
    for network, methods in scores.items():
        for method, found in methods.items():
            known = {"": found["id"]}
            if here := [found[name] for name in shifted if name in found]:
                known[SPECTRUM] = np.concatenate([found["id"], *here])
            for group in dict.fromkeys(groups.values()):
                sets = tuple(name for name, of in groups.items() if of == group and name in found)
                for more, inputs in known.items() if sets else ():
                    means = {
                        metric: float(np.mean([compute(inputs, found[name]) for name in sets]))
                        for metric, compute in METRICS.items()
                    }
                    beside = figures.get(group + more, {}).get(method)
                    rows.append(GroupRow(network, method, group + more, sets, **means, published=beside))
    return rows + (_over_networks(rows) if len(scores) > 1 else [])


def _over_networks(rows: Sequence[GroupRow]) -> list[GroupRow]:
    """Mean of each method and group over the networks, where all have it."""
    cells: dict[tuple[str, str], list[GroupRow]] = {}
    for row in rows:
        cells.setdefault((row.group, row.method), []).append(row)
    most = max((len(found) for found in cells.values()), default=0)
    return [
        replace(
            found[0],
            network=MEAN,
            auroc=float(np.mean([row.auroc for row in found])),
            fpr95=float(np.mean([row.fpr95 for row in found])),
            fpr95_unknown=float(np.mean([row.fpr95_unknown for row in found])),
        )
        for found in cells.values()
        if len(found) == most
    ]


def list_groups(rows: Sequence[GroupRow]) -> list[str]:
    """List the rows as lines of a table, a block for each network and group, the highest AUROC first.

    Parameters
    ----------
    rows : sequence of GroupRow
        From `summarise_groups`.

    Returns
    -------
    list of str
        Lines; none without rows.
    """
    lines: list[str] = []
    for network, group in dict.fromkeys((row.network, row.group) for row in rows):
        here = sorted((r for r in rows if (r.network, r.group) == (network, group)), key=lambda row: -row.auroc)
        width = max(len(row.method) for row in here) + 2
        printed = any(row.published is not None for row in here)
        lines += ["", f"{group}: mean over {', '.join(here[0].sets)}; {network}"]
        heads = ("AUROC", "FPR95", "FPR95, unknown", *(("published", "(Δ)") if printed else ()))
        lines.append(f"{'method':<{width}}" + "".join(f"{head:>16}" for head in heads))
        for row in here:
            cells = [f"{100 * getattr(row, name):.2f}" for name in METRICS]
            if row.published is not None:
                cells += [f"{100 * row.published:.2f}", f"({100 * (row.auroc - row.published):+.2f})"]
            lines.append(f"{row.method:<{width}}" + "".join(f"{cell:>16}" for cell in cells))
    return lines
