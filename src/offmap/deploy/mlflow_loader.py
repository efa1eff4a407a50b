"""Load a guard's ONNX file as a model of MLflow; it keeps a copy of this module, so no offmap is needed there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
}


class GuardModel:
    """Answers `predict` with a class, -1 where the input is unknown, a p-value, a score and the name of the class."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        facts = self.session.get_modelmeta().custom_metadata_map
        self.names = json.loads(facts["offmap.classes"]) if "offmap.classes" in facts else None

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Score inputs: an array, a DataFrame of one column per feature, or a dict of arrays by the graph's names."""
        outputs = ["logits", "score", "p_value", "known"]
        logits, score, p_value, known = self.session.run(outputs, self.as_feeds(model_input))
        label = np.where(known, logits.argmax(axis=1), -1)
        answer = {"class": label, "known": known, "p_value": p_value, "score": score}
        if self.names is not None:
            answer["name"] = np.array(["unknown" if one < 0 else self.names[one] for one in label], dtype=object)
        return answer

    def as_feeds(self, given: Any) -> dict[str, Any]:
        """Turn what MLflow hands over into the graph's inputs, in its types."""
        wanted = self.session.get_inputs()
        if not isinstance(given, dict):
            if len(wanted) > 1:
                raise ValueError(f"the model takes several inputs: give a dict with {[one.name for one in wanted]}")
            given = {wanted[0].name: given.to_numpy() if hasattr(given, "to_numpy") else given}
        missing = [one.name for one in wanted if one.name not in given]
        if missing:
            raise ValueError(f"the inputs {missing} are missing; given are {sorted(given)}")
        return {one.name: np.ascontiguousarray(given[one.name], TYPES.get(one.type)) for one in wanted}


def _load_pyfunc(data_path: str) -> GuardModel:
    """Open the graph; MLflow calls this with the file, or with the folder that holds it and its weights."""
    path = Path(data_path)
    return GuardModel(path if path.is_file() else next(path.glob("*.onnx")))
