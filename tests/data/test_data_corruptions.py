"""Corruptions change pictures more the stronger they are, the same way every time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from offmap.data.corruptions import CORRUPTIONS, LEVELS, corrupt
from offmap.errors import InputError


@pytest.fixture
def pictures() -> np.ndarray:
    x, y = np.meshgrid(np.linspace(0, 8, 48), np.linspace(0, 8, 48))
    waves = 110 + 60 * np.sin(x * 3) * np.cos(y * 2)
    return np.stack([np.stack([waves, waves[::-1], waves.T], axis=-1)] * 3).astype(np.uint8)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_stronger_is_further_from_the_picture(kind: str, pictures: np.ndarray) -> None:
    away = [np.abs(corrupt(pictures, kind, strength) - pictures.astype(float)).mean() for strength in range(1, 6)]
    assert all(near < far for near, far in itertools.pairwise(away)), away
    assert away[0] > 0
    assert corrupt(pictures, kind, 3).shape == pictures.shape
    np.testing.assert_array_equal(corrupt(pictures, kind, 3), corrupt(pictures, kind, 3))
    np.testing.assert_array_equal(corrupt(pictures, kind, 3)[:1], corrupt(pictures[:1], kind, 3))
    assert corrupt(pictures[..., :1], kind, 3).shape == (3, 48, 48, 1)


def test_every_corruption_has_five_strengths() -> None:
    assert set(LEVELS) == set(CORRUPTIONS)
    assert {len(levels) for levels in LEVELS.values()} == {5}


def test_what_makes_no_sense_is_refused(pictures: np.ndarray) -> None:
    with pytest.raises(InputError, match="did you mean blur"):
        corrupt(pictures, "blurr", 1)
    for strength in (0, 6, True):
        with pytest.raises(InputError, match="from 1 to 5"):
            corrupt(pictures, "blur", strength)
    with pytest.raises(InputError, match="uint8 pictures"):
        corrupt(pictures.astype(float), "blur", 1)
