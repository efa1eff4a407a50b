"""Full-spectrum measurement: known inputs under a covariate shift are reported apart, and count as known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from offmap.bench.results import SuiteRow
from offmap.metrics.detection import detection_report
from offmap.typing import Array


def separate_shifted(
    rows: Sequence[SuiteRow], scores: Mapping[str, Array], shifted: Sequence[str]
) -> tuple[list[SuiteRow], list[SuiteRow]]:
    """Separate the rows of shifted known inputs, and add to the others how they are with these counted as known.

    A detector of unknown classes should leave a known input alone that is merely blurred or dark. The full-spectrum
    figures of OpenOOD v1.5 (Zhang et al. 2023) take all known inputs together, plain and shifted.

    Parameters
    ----------
    rows : sequence of SuiteRow
        One per set.
    scores : mapping of str to ndarray
        Scores of the known test inputs (``"id"``) and of each set.
    shifted : sequence of str
        Names of the sets of shifted known inputs.

    Returns
    -------
    rows, shifted : list of SuiteRow
        Rows of unknown sets, and of shifted ones.

    Examples
    --------
    >>> rows = [SuiteRow("energy", "energy", name, 0, 0, 0, 0, None, 0, 0) for name in ("far", "blurred")]
    >>> scores = {"id": np.array([2.0, 3.0]), "far": np.array([1.0]), "blurred": np.array([0.0, 0.5])}
    >>> found, apart = separate_shifted(rows, scores, ["blurred"])
    >>> found[0].full_spectrum["auroc"], apart[0].ood
    (0.5, 'blurred')
    """
    here = [name for name in shifted if name in scores]
    if not here:
        return list(rows), []
    known = np.concatenate([scores["id"], *(scores[name] for name in here)])
    found = []
    for row in rows:
        if row.ood not in here:
            report = detection_report(known, scores[row.ood])
            found.append(replace(row, full_spectrum={"fpr95": report.fpr95, "auroc": report.auroc}))
    return found, [row for row in rows if row.ood in here]
