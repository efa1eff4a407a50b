"""What `guarantees.py` asks of crepes, nonconform, MAPIE and TorchCP, in processes of their own environments."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from worker import serve


def load(file: str) -> list[float]:
    """Read calibration sets, new scores and weights; higher = known, as offmap has it."""
    with np.load(file) as held:
        DATA.update({name: held[name] for name in held.files})
    return []


DATA: dict[str, Any] = {}


def crepes(file: str) -> None:
    """p-values of one column of nonconformity scores, without smoothing."""
    from crepes import ConformalClassifier

    found = []
    for calibration in DATA["calibration"]:
        fitted = ConformalClassifier()
        fitted.fit(-calibration)
        found.append(fitted.predict_p(-DATA["new"][:, None], smoothing=False)[:, 0])
    np.save(file, found)


def nonconform(file: str) -> None:
    """The classical empirical p-values."""
    from nonconform.scoring import calculate_p_val

    np.save(file, [calculate_p_val(-DATA["new"], -calibration) for calibration in DATA["calibration"]])


def nonconform_weighted(file: str) -> None:
    """The weighted p-values."""
    from nonconform.scoring import calculate_weighted_p_val

    parts = zip(DATA["calibration"], DATA["calibration_weights"], strict=True)
    np.save(file, [calculate_weighted_p_val(-DATA["new"], -c, DATA["new_weights"], w) for c, w in parts])


def nonconform_conditional(file: str, delta: float) -> None:
    """The p-values given the calibration set, by Simes' inequality."""
    from nonconform.scoring import calculate_p_val, calibrate_conditional_p_values

    found = []
    for calibration in DATA["calibration"]:
        values = calculate_p_val(-DATA["new"], -calibration)
        n = len(calibration)
        found.append(calibrate_conditional_p_values(values, n_calibration=n, delta=delta, method="simes")[0])
    np.save(file, found)


def mapie(file: str, tpr: float, confidence: float, method: str) -> None:
    """Thresholds by risk control: the recall of known inputs, over 201 candidates in the lower fifth of the ranks."""
    from mapie.risk_control import BinaryClassificationController

    found = []
    for calibration in DATA["calibration"]:
        candidates = np.quantile(calibration, np.linspace(0, 0.2, 201))

        def predict(rows: Any) -> Any:
            scores = np.asarray(rows)[:, 0]
            return np.stack([1 - scores, scores], axis=1)

        low, high = candidates.min(), calibration.max()
        scaled = (calibration - low) / (high - low)
        grid = (candidates - low) / (high - low)
        controller = BinaryClassificationController(
            predict, risk="recall", target_level=tpr, confidence_level=confidence, list_predict_params=grid,
            fwer_method=method,
        )  # fmt: skip
        controller.calibrate(scaled[:, None], np.ones(len(scaled), int))
        valid = np.asarray(controller.valid_predict_params)
        found.append(low + (high - low) * valid.max() if len(valid) else -np.inf)
    np.save(file, found)


def torchcp(file: str, tpr: float) -> None:
    """Thresholds of split conformal prediction."""
    # TorchCP imports it for a loss; it does not build where there is no compiler for GPUs
    sys.modules.setdefault("torchsort", SimpleNamespace(soft_rank=None, soft_sort=None))  # type: ignore[arg-type]
    import torch
    from torchcp.utils.common import calculate_conformal_value

    rows = torch.from_numpy(-DATA["calibration"])
    np.save(file, [-float(calculate_conformal_value(scores, 1 - tpr)) for scores in rows])


if __name__ == "__main__":
    serve(
        {
            "load": load,
            "crepes": crepes,
            "nonconform": nonconform,
            "nonconform weighted": nonconform_weighted,
            "nonconform conditional": nonconform_conditional,
            "mapie": mapie,
            "torchcp": torchcp,
        }
    )
