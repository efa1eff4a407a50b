"""Mahalanobis on several layers, weighed on known inputs and attacked copies, against an independent computation."""

import numpy as np
import pytest
import torch
from detection_zoo import World

import offmap
from offmap.errors import InputError
from offmap.extra_passes import Layer

SPEC = "mahalanobis(layers=['features.2', 'features.5'])"


@pytest.fixture(scope="module")
def world() -> World:
    return World(400, 60)


def plain_distances(fit: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    means = {c: fit[labels == c].mean(axis=0) for c in np.unique(labels)}
    centred = np.stack([row - means[c] for row, c in zip(fit, labels, strict=True)])
    inverse = np.linalg.pinv(centred.T @ centred / len(fit))
    away = [[(row - mean) @ inverse @ (row - mean) for mean in means.values()] for row in rows]
    return np.min(away, axis=1)


def test_scores_are_the_weighed_sum_of_plain_distances(world: World) -> None:
    detector, test = world.fitted(SPEC)
    unfitted = offmap.detector(SPEC)
    known = world.acts("known", unfitted.requirements)
    state = detector.fitted.states[0]
    held_out = [row for row in range(len(known)) if not _in_moments(known.features[row])]
    assert 0.1 < len(held_out) / len(known) < 0.3
    fit = np.setdiff1d(np.arange(len(known)), held_out)
    total = np.zeros(len(test))
    columns = [Layer("features.2").key, Layer("features.5").key, None]
    for weight, key in zip(state["weights"].numpy(), columns, strict=True):
        of = [np.asarray(a.features if key is None else a.extras[key], np.float64) for a in (known, test)]
        total -= weight * plain_distances(of[0][fit], known.labels[fit], of[1])
    assert detector.score(test) == pytest.approx(total, rel=1e-3, abs=1e-3)


def _in_moments(row: np.ndarray) -> bool:
    from offmap.sampling import priorities

    return bool(priorities(row[None], 1)[0] >= np.uint64(0.2 * 2.0**64))


def test_weights_tell_known_inputs_from_attacked_ones(world: World) -> None:
    detector, _ = world.fitted(SPEC)
    x = torch.from_numpy(world.x["test"]).requires_grad_()
    logits = world.net.model(x)
    (gradient,) = torch.autograd.grad((logits.logsumexp(dim=1) - logits.amax(dim=1)).sum(), x)
    struck = (x + 0.5 * gradient.sign()).detach()
    strong = offmap.detector("mahalanobis(layers=['features.2', 'features.5'], attack=0.5)")
    strong.fit(world.acts("known", strong.requirements))
    scores = [strong.score(world.net(part, requirements=strong.requirements)) for part in (x.detach(), struck)]
    assert offmap.metrics.auroc(*scores) > 0.6
    assert repr(detector) == SPEC


def test_scoring_asks_for_no_attack_and_files_keep_everything(world: World, tmp_path) -> None:
    detector, test = world.fitted(SPEC)
    assert "perturbed" not in detector.requirements.describe()
    detector.save(tmp_path / "d.offmap")
    again = offmap.load(tmp_path / "d.offmap")
    assert np.array_equal(again.score(test), detector.score(test))
    halves = offmap.detector(SPEC)
    known = world.acts("known", offmap.detector(SPEC).requirements)
    parts = [known[:150], known[150:]]
    for part in parts:
        halves.update(part)
    assert halves.finalize().score(test) == pytest.approx(detector.score(test), rel=1e-4, abs=1e-4)


def test_bad_parameters_and_too_few_inputs_are_refused(world: World) -> None:
    with pytest.raises(InputError, match="with layers there is no input step"):
        offmap.detector("mahalanobis(layers=['features.2'], epsilon=0.01)")
    with pytest.raises(InputError, match="above 0"):
        offmap.detector("mahalanobis(layers=['features.2'], attack=0)")
    detector = offmap.detector(SPEC)
    known = world.acts("known", detector.requirements)
    with pytest.raises(InputError, match="weighs the layers"):
        detector.fit(known[:30])
