"""What would make a threshold say nothing is said: fitting data again, equal scores, standardised tables."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import offmap
from offmap.errors import InputError, OffmapWarning

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


@pytest.mark.parametrize("spec", ["knn(5)", "knn(5, normalize=false)"])
def test_columns_that_one_of_them_drowns_are_warned_of(spec: str) -> None:
    table = RNG.normal(size=(300, 8)) + 3
    with pytest.warns(OffmapWarning, match="most columns vary less than 1% of the widest one.*StandardScaler"):
        offmap.detector(spec).fit(table * np.r_[1000, np.ones(7)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector(spec).fit(table * np.r_[5, np.ones(6), 0])  # scales of embeddings, and a dead unit
        offmap.detector(f"{spec} + mahalanobis").fit(table * np.r_[1000, np.ones(7)], np.arange(300) % 3)


def test_one_logit_for_two_classes_is_warned_of() -> None:
    one = RNG.normal(size=(60, 1))
    labels = (one[:, 0] > 0).astype(int)
    for acts in (
        offmap.Activations(None, logits=one),
        offmap.Activations(one, offmap.Head([[1.0]]), labels=labels),
    ):
        with pytest.warns(OffmapWarning, match="column_stack"):
            offmap.detector("energy").fit(acts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector("energy").fit(offmap.Activations(None, logits=np.column_stack([-one / 2, one / 2])))
        offmap.detector("energy").fit(offmap.Activations(one, offmap.Head([[1.0]]), labels=np.zeros(60, int)))


def test_texts_that_come_again_by_nature_are_not_warned_of(tmp_path) -> None:
    """Greetings and thanks are in every sample of messages; that is not the fitting data again."""
    rng = np.random.default_rng(3)
    kinds = rng.normal(size=(4000, 6)) + 3
    usual = 1 / np.arange(1, 4001) ** 1.1
    drawn = rng.choice(4000, 2400, p=usual / usual.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector("knn(5)").fit(kinds[drawn[:1200]]).calibrate(kinds[drawn[1200:]])


@pytest.mark.parametrize("kind", ["probabilities", "log-probabilities"])
def test_probabilities_given_as_logits_are_warned_of(kind: str) -> None:
    shares = np.exp(ROWS) / np.exp(ROWS).sum(axis=1, keepdims=True)
    acts = offmap.Activations(ROWS, logits=shares if kind == "probabilities" else np.log(shares))
    with pytest.warns(OffmapWarning, match=f"the logits given are {kind}"):
        offmap.detector("energy").fit(acts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector("knn(5)").fit(acts)  # reads no logits


def test_columns_in_another_order_are_refused(tmp_path) -> None:
    import pandas

    frame = pandas.DataFrame(ROWS, columns=list("abcdef"))
    made = offmap.detector("knn(5, normalize=false)").fit(frame)
    made.save(tmp_path / "d.offmap")
    for one in (made, offmap.load(tmp_path / "d.offmap")):
        with pytest.raises(InputError, match="another order"):
            one.score(frame[list("fedcba")])
        with pytest.raises(InputError, match="without 'f' and with 'g'"):
            one.score(frame.rename(columns={"f": "g"}))
        np.testing.assert_array_equal(one.score(frame[list(one.columns)]), one.score(ROWS))


def test_auto_gives_no_advice_on_methods_that_nobody_named() -> None:
    labels = np.arange(300) % 3
    rows = np.column_stack([RNG.normal(size=(300, 4)) + 4 * np.eye(4)[labels], np.zeros((300, 3))])  # dead units
    known = offmap.Activations(rows, offmap.Head(np.eye(3, 7)), labels=labels)
    with pytest.warns(OffmapWarning, match="the covariance is singular: 3 of 7"):
        offmap.detector("mahalanobis").fit(known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = offmap.detector("auto(fast)").fit(known).chosen
    assert "mahalanobis" in chosen
