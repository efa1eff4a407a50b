"""Shapers against loops from their papers, element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detection_zoo import blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import offmap
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.shapers.dice import contribution, largest, n_kept
from offmap.detection.spec import parse
from offmap.errors import InputError

ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.floats(0, 50, width=32))


def shaped(spec: str, features: np.ndarray) -> np.ndarray:
    head = TensorHead(torch.ones(2, features.shape[1]), torch.zeros(2))
    return parse(spec).components[0].shape(ActivationBatch(torch.from_numpy(features), head=head), {}).features.numpy()


def kept_places(row: np.ndarray, percentile: float) -> list[int]:
    """The places that ASH keeps: n - round(n·p/100) largest, at least one."""
    n = len(row)
    k = max(1, n - int(np.round(n * percentile / 100)))
    return sorted(range(n), key=lambda place: -row[place])[:k]


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0, 10, 50, 65, 90, 100]))
def test_ash_and_scale_against_loops(features: np.ndarray, percentile: float) -> None:
    found = {name: shaped(f"{name}({percentile})", features) for name in ("ash_p", "ash_b", "ash_s", "scale")}
    for r, row in enumerate(features):
        places = kept_places(row, percentile)
        total, top = float(row.sum()), float(sum(row[place] for place in places))
        ratio = np.exp(total / top) if top > 0 else np.e
        # among equal activations any may be kept: compare what does not depend on which
        assert np.allclose(sorted(found["ash_p"][r])[::-1][: len(places)], sorted(row)[::-1][: len(places)])
        assert (found["ash_p"][r] > 0).sum() <= len(places)
        binary = found["ash_b"][r]
        assert binary.sum() == pytest.approx(total, rel=1e-4, abs=1e-6)
        assert np.allclose(binary[binary > 0], total / len(places), rtol=1e-4)
        assert np.allclose(found["ash_s"][r], found["ash_p"][r] * ratio, rtol=1e-4)
        assert np.allclose(found["scale"][r], row * ratio, rtol=1e-4)


def test_lts_scales_the_logits_by_the_square_of_the_ratio() -> None:
    known = blobs()
    made = offmap.detector("lts(50)|maxlogit").fit(known)
    wanted = []
    for row, logits in zip(known.features, known.logits, strict=True):
        top = sum(sorted(row, reverse=True)[:3])
        wanted.append(max(logits) * (sum(row) / top) ** 2)
    np.testing.assert_allclose(made.score(known), wanted, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([1.0, -1.0]))
def test_power_against_a_loop(features: np.ndarray, exponent: float, sign: float) -> None:
    wanted = [[sign * float(value) ** exponent for value in row] for row in features]
    np.testing.assert_allclose(shaped(f"power({exponent})|energy", np.float32(sign) * features), wanted, rtol=1e-5)


def test_power_comes_before_what_is_fitted_and_needs_no_head() -> None:
    known = blobs()
    roots = np.sign(known.features) * np.sqrt(np.abs(known.features))
    for spec in ("plda", "knn(3, normalize=false, standardize=true)", "slof(5)"):
        made = offmap.detector(f"power|{spec}").fit(offmap.Activations(known.features, labels=known.labels))
        wanted = offmap.detector(spec).fit(offmap.Activations(roots, labels=known.labels))
        np.testing.assert_allclose(made.score(known.features), wanted.score(roots), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exponent", ["0", "-1", "2"])
def test_an_exponent_that_makes_no_sense_is_refused(exponent: str) -> None:
    with pytest.raises(InputError, match="above 0 and at most 1"):
        offmap.detector(f"power({exponent})|energy")


@settings(max_examples=40, deadline=None)
@given(ROWS, st.floats(-5, 60))
def test_react_cuts(features: np.ndarray, c: float) -> None:
    head = TensorHead(torch.ones(2, features.shape[1]), torch.zeros(2))
    block = ActivationBatch(torch.from_numpy(features), head=head)
    found = (
        parse(f"react(c={c!r})|energy").components[0].shape(block, {"c": torch.tensor(c, dtype=torch.float64)}).features
    )
    wanted = [[min(value, np.float32(c)) for value in row] for row in features]
    np.testing.assert_array_equal(found.numpy(), np.array(wanted, dtype=np.float32))


def test_react_takes_the_percentile_over_all_units_and_inputs() -> None:
    known = blobs()
    for percentile in (0, 37.5, 90, 100):
        made = offmap.detector(f"react({percentile})|energy").fit(known)
        c = np.percentile(known.features.astype(np.float64).reshape(-1), percentile)
        assert float(made.states[0]["c"]) == pytest.approx(c, rel=1e-12)
        wanted = []
        for row in known.features[:5]:
            cut = np.array([min(value, c) for value in row])
            logits = [cut @ w + b for w, b in zip(known.head.weight, known.head.bias, strict=True)]
            wanted.append(np.log(np.sum(np.exp(logits))))
        np.testing.assert_allclose(made.score(known[:5]), wanted, rtol=1e-5)


def test_vra_suppresses_and_cuts() -> None:
    known = blobs()
    made = offmap.detector("vra(40, 80)|maxlogit").fit(known)
    low, high = np.percentile(known.features.astype(np.float64), [40, 80])
    shaped_rows = [[0 if v < low else min(v, high) for v in row] for row in known.features]
    wanted = np.max(np.array(shaped_rows) @ known.head.weight.T + known.head.bias, axis=1)
    np.testing.assert_allclose(made.score(known), wanted, rtol=1e-5, atol=1e-5)


def kept(spec: str, known: offmap.Activations) -> np.ndarray:
    return offmap.detector(f"{spec}|energy").fit(known).states[0]["mask"].numpy()


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_sparsifiers_against_sorting(p: float) -> None:
    known = blobs(width=10, classes=4)
    weight, mean = known.head.weight.astype(np.float64), known.features.astype(np.float64).mean(axis=0)
    values = [(weight[c, u] * mean[u], c, u) for c in range(4) for u in range(10)]
    k = round((1 - p) * 40)
    top = {(c, u) for _, c, u in sorted(values, key=lambda v: (-v[0], v[1], v[2]))[:k]}
    bottom = {(c, u) for _, c, u in sorted(values, key=lambda v: (v[0], v[1], v[2]))[:k]}
    both = {(c, u) for _, c, u in sorted(values, key=lambda v: -v[0])[: k - k // 2]}
    both |= {(c, u) for _, c, u in sorted(values, key=lambda v: v[0])[: k // 2]}
    magnitude = {(c, u) for _, c, u in sorted([(-abs(weight[c, u]), c, u) for _, c, u in values])[:k]}
    for spec, wanted in {"dice": top, "bottom_k": bottom, "top_bottom_k": both, "weight_pruning": magnitude}.items():
        assert {tuple(map(int, place)) for place in np.argwhere(kept(f"{spec}({p})", known))} == wanted, spec
    units = n_kept(p, 10)
    longest = sorted(range(10), key=lambda u: -sum(weight[c, u] ** 2 for c in range(4)))[:units]
    assert set(np.flatnonzero(kept(f"unit_pruning({p})", known)[0])) == set(longest)
    assert (kept(f"random_k({p})", known).sum(axis=1) == units).all()
    assert kept(f"weight_dropout({p})", known).sum() == k
    dropped = kept(f"unit_dropout({p})", known)
    assert (dropped == dropped[0]).all()
    assert dropped[0].sum() == units


def test_dice_scores_through_the_masked_head_with_its_bias() -> None:
    known = blobs()
    made = offmap.detector("dice(0.5)|energy").fit(known)
    mask = made.states[0]["mask"].numpy()
    logits = known.features @ (known.head.weight * mask).T + known.head.bias
    np.testing.assert_allclose(made.score(known), np.log(np.exp(logits.astype(np.float64)).sum(axis=1)), rtol=1e-5)
    nothing = offmap.detector("dice(1.0)|energy").fit(known).score(known)
    np.testing.assert_allclose(nothing, np.log(np.exp(known.head.bias.astype(np.float64)).sum()), rtol=1e-6)
    everything = offmap.detector("dice(0.0)|energy").fit(known).score(known)
    np.testing.assert_allclose(everything, offmap.detector("energy").fit(known).score(known), rtol=1e-6)


def test_contributions_are_signed_and_ties_go_to_the_lower_index() -> None:
    assert contribution(torch.tensor([2.0, -1.0]), torch.tensor([[1.0, 1.0], [-1.0, 3.0]])).tolist() == [
        [2.0, -1.0],
        [-2.0, -3.0],
    ]
    assert largest(torch.zeros(2, 3), 4).tolist() == [[True] * 3, [True, False, False]]
    assert not largest(torch.ones(2, 2), 0).any()


def test_seeds_choose_other_weights() -> None:
    known = blobs(width=12)
    for name in ("random_k", "weight_dropout", "unit_dropout"):
        first, again, other = (kept(f"{name}(0.5, seed={seed})", known) for seed in (0, 0, 1))
        assert np.array_equal(first, again), name
        assert not np.array_equal(first, other), name
