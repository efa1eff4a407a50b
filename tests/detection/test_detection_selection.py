"""Choosing parameters on validation data only."""

from __future__ import annotations

import numpy as np
import pytest
from detection_zoo import blobs

import offmap
from offmap.detection.selection import candidates, gap
from offmap.detection.spec import parse
from offmap.errors import InputError
from offmap.metrics import auroc, fpr_at_tpr


def noise(n: int = 60, seed: int = 5) -> offmap.Activations:
    rng = np.random.default_rng(seed)
    return offmap.Activations(np.abs(rng.normal(size=(n, 6))).astype(np.float32) * 6, blobs().head)


@pytest.mark.parametrize("spec", ["react(auto)|energy", "lts(auto)|energy", "knn(auto)"])
def test_the_best_of_the_grid_is_chosen(spec: str) -> None:
    known, val, outliers = blobs(), blobs(60, seed=1), noise()
    made = offmap.detector(spec).fit(known, val=val, outliers=outliers)
    ranks = []
    for candidate in candidates(parse(spec).components, len(known)):
        single = offmap.detector("|".join(map(repr, candidate))).fit(known)
        inside, outside = single.score(val), single.score(outliers)
        ranks.append((fpr_at_tpr(inside, outside), -auroc(inside, outside), -gap(inside, outside), repr(single)))
    kept = [rank for rank, trial in zip(ranks, made.trials, strict=True) if not trial["refused"]]
    assert made.chosen == min(kept, key=lambda rank: rank[:3])[3]
    assert [trial["spec"] for trial in made.trials] == [rank[3] for rank in ranks]
    assert [trial["fpr95"] for trial in made.trials] == [rank[0] for rank in ranks]
    assert repr(made) == spec
    chosen = offmap.detector(made.chosen).fit(known)
    assert np.array_equal(made.score(val), chosen.score(val))


def test_grids_are_the_thesis() -> None:
    percentiles = [c[0].percentile for c in candidates(parse("react(auto)|energy").components, 100)]
    assert percentiles == [10, 65, 80, 85, 90, 95, 99]
    assert [c[0].p for c in candidates(parse("dice(auto)|energy").components, 100)] == [0.1, 0.3, 0.5, 0.7, 0.9, 0.99]
    assert [c[0].k for c in candidates(parse("knn(auto)").components, 60)] == [1, 10, 20, 50]
    assert [c[0].k for c in candidates(parse("knn(auto, alpha=0.1)").components, 1000)] == [
        1,
        10,
        20,
        50,
        100,
        200,
        500,
        1000,
    ]
    assert len(list(candidates(parse("react(auto)|dice(auto)|energy").components, 10))) == 42


def test_auto_is_chosen_without_outliers_and_refused_without_data() -> None:
    known, val = blobs(), blobs(60, seed=1)
    for given in ({}, {"val": val}, {"outliers": noise()}):
        made = offmap.detector("react(auto)|energy").fit(known, **given)
        assert made.chosen in [trial["spec"] for trial in made.trials if not trial["refused"]]
    with pytest.raises(InputError, match=r"auto is chosen from known inputs in hand; call fit\(known\)"):
        offmap.detector("knn(auto)").update(known)
    with pytest.raises(InputError, match="at least one validation input"):
        offmap.detector("knn(auto)").fit(known, val=val[:0], outliers=noise())


def test_a_chosen_detector_streams_no_further_and_chooses_again() -> None:
    known, val = blobs(), blobs(60, seed=1)
    made = offmap.detector("knn(auto)").fit(known, val=val, outliers=noise())
    with pytest.raises(InputError):
        made.update(known)
    again = made.fit(known[:30], val=val, outliers=noise())
    assert max(int(trial["spec"][4:-1]) for trial in again.trials) <= 30


def test_ties_are_broken_by_auroc_then_by_the_gap() -> None:
    assert gap(np.array([3.0, 5.0]), np.array([0.0, 2.0])) == pytest.approx(3.0)
    assert gap(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0.0
    assert gap(np.array([-np.inf]), np.array([0.0])) == np.inf
    far = offmap.Activations(np.full((20, 6), 1e4, np.float32) * np.eye(6)[0], blobs().head)
    made = offmap.detector("knn(auto)").fit(blobs(), val=blobs(60, seed=1), outliers=far)
    assert {trial["fpr95"] for trial in made.trials} == {0.0}
