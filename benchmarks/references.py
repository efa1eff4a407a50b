"""Formulas in float64 NumPy, straight from the papers, for methods where float32 costs digits: who is right?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _log_sum_exp(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=1)
    return top + np.log(np.exp(logits - top[:, None]).sum(axis=1))


def _logits(a: Arrays, rows: np.ndarray) -> np.ndarray:
    return rows @ a["weight"].T + a["bias"]


def _squared_distance(rows: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> np.ndarray:
    away = rows - mean
    return ((away @ precision) * away).sum(axis=1)


def _class_distance(a: Arrays) -> np.ndarray:
    means = np.stack([a["known"][a["labels"] == c].mean(axis=0) for c in np.unique(a["labels"])])
    centred = a["known"] - means[a["labels"]]
    precision = np.linalg.pinv(centred.T @ centred / len(centred))
    return np.min([_squared_distance(a["test"], mean, precision) for mean in means], axis=0)


def gen(a: Arrays) -> np.ndarray:
    """Generalised entropy, Liu et al. 2023."""
    p = _softmax(_logits(a, a["test"]))
    return -((p * (1 - p)) ** 0.1).sum(axis=1)


def mahalanobis(a: Arrays) -> np.ndarray:
    """Lee et al. 2018, with the pseudo-inverse."""
    return -_class_distance(a)


def rmds(a: Arrays) -> np.ndarray:
    """Ren et al. 2021."""
    mean = a["known"].mean(axis=0)
    centred = a["known"] - mean
    precision = np.linalg.pinv(centred.T @ centred / len(centred))
    return _squared_distance(a["test"], mean, precision) - _class_distance(a)


def vim(a: Arrays) -> np.ndarray:
    """Wang et al. 2022, half of the directions set aside."""
    origin = -np.linalg.pinv(a["weight"]) @ a["bias"]
    known = a["known"] - origin
    width = known.shape[1]
    basis = np.linalg.eigh(known.T @ known / len(known)).eigenvectors[:, : width - width // 2]
    scale = _logits(a, a["known"]).max(axis=1).mean() / np.linalg.norm(known @ basis, axis=1).mean()
    return _log_sum_exp(_logits(a, a["test"])) - scale * np.linalg.norm((a["test"] - origin) @ basis, axis=1)


def pnml(a: Arrays) -> np.ndarray:
    """Bibas et al. 2021."""
    known, test = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a["known"], a["test"]))
    support = ((test @ np.linalg.pinv(known.T @ known)) * test).sum(axis=1)
    weakness = (support / (1 + support))[:, None]
    p = _softmax(_logits(a, test))
    return -np.log((p / (p + (1 - p) * p**weakness)).sum(axis=1))


REFERENCES = {function.__name__: function for function in (gen, mahalanobis, rmds, vim, pnml)}
