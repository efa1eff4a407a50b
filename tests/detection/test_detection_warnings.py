"""What would make a threshold say nothing is said: fitting data again, equal scores, standardised tables."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import offmap
from offmap.errors import OffmapWarning

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(400, 6)) + 3


@pytest.mark.parametrize("again", [ROWS, ROWS[::-1], ROWS[::4], np.concatenate([ROWS[:50], ROWS[:150] + 1])])
def test_calibrating_on_the_fitting_data_is_warned_of(again: np.ndarray) -> None:
    with pytest.warns(OffmapWarning, match="were fitted on"):
        offmap.detector("knn(1)").fit(ROWS).calibrate(again)


def test_held_out_inputs_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector("knn(5)").fit(ROWS[:200]).calibrate(ROWS[200:])
        offmap.detector("energy").fit(offmap.Activations(None, logits=ROWS)).calibrate(
            offmap.Activations(None, logits=ROWS)
        )


def test_equal_scores_are_warned_of() -> None:
    acts = offmap.Activations(None, logits=np.ones((50, 3)))
    with pytest.warns(OffmapWarning, match="all 50 calibration inputs score"):
        offmap.detector("maxlogit").fit(acts).calibrate(acts)


def test_neighbours_by_angle_in_a_standardised_table_are_warned_of() -> None:
    table = RNG.normal(size=(300, 8))
    with pytest.warns(OffmapWarning, match="normalize=false"):
        offmap.detector("knn(5)").fit(table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector("knn(5, normalize=false)").fit(table)
        offmap.detector("knn(5)").fit(table / np.linalg.norm(table, axis=1, keepdims=True))
