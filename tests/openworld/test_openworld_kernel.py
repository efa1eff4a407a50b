"""Heads over a kernel of the features: when they are chosen, and that a deployment with one is whole."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import offmap
from offmap.errors import InputError
from offmap.openworld import ClassifierUpdate, LabeledInputs, run
from offmap.openworld.kernel_map import fit_kernel_map
from offmap.openworld.preparation import begin

KNOWN, ALL = 3, 4


def spokes(n=900, seed=0):
    """Directions in a plane: three known classes take turns twice, which no linear head tells apart; one is new."""
    rng = np.random.default_rng(seed)
    spoke = rng.integers(0, 7, n)
    truth = np.array([0, 1, 2, 0, 1, 2, 3])[spoke]
    angle = spoke * 2 * np.pi / 7 + rng.normal(0, 0.05, n)
    flat = 5 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return np.concatenate([flat, rng.normal(0, 0.1, (n, 3))], axis=1).astype(np.float32), truth


@pytest.fixture(scope="module")
def world():
    rows, truth = spokes()
    labelled = (truth < KNOWN) & (np.arange(len(truth)) < 600)
    return rows, truth, run(rows[labelled], truth[labelled], rows[~labelled], rounds=1, n_new=1)


def test_dot_products_of_mapped_rows_are_the_kernel():
    rows = np.random.default_rng(0).normal(size=(40, 6))
    mapped = fit_kernel_map(rows)(rows).astype(np.float64)
    apart = cdist(rows, rows, "sqeuclidean")
    gamma = 2 / np.median(apart[np.triu_indices(40, 1)])
    np.testing.assert_allclose(mapped @ mapped.T, np.exp(-gamma * apart), atol=2e-3)


def test_columns_on_other_scales_are_standardised():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 1)) + 0.3 * rng.normal(size=(60, 5))
    stretched = rows * np.array([1, 1, 1, 1, 1000.0])
    one, other = fit_kernel_map(stretched), fit_kernel_map(stretched * 7)
    np.testing.assert_allclose(one.scale * 7, other.scale * 49, rtol=1e-4)
    assert one.scale.max() / one.scale.min() > 100


def test_a_curved_boundary_is_learned_where_a_linear_one_fails(world):
    rows, truth, done = world
    assert done.origin.learned.feature_map is not None
    assert done.rounds[0].round.settings["learner"] == "kernel"
    assert done.n_classes == ALL
    assert (done.predict(rows) == truth).mean() > 0.93
    linear = run(rows[truth < KNOWN], truth[truth < KNOWN], rows[:0], rounds=0, learner="linear")
    assert (linear.predict(rows) == truth)[truth < KNOWN].mean() < 0.7
    assert (done.predict(np.full((5, 5), 50.0, np.float32)) == -1).all()


def test_learners_are_compared_again_only_when_there_is_much_more_to_compare_on(monkeypatch):
    from offmap.openworld import rounds

    asked = []
    real = rounds.choose
    monkeypatch.setattr(rounds, "choose", lambda name, *others: asked.append(name) or real(name, *others))
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 1200)
    rows = (6 * np.eye(6)[truth] + rng.normal(size=(1200, 6))).astype(np.float32)
    labelled = (truth < KNOWN) & (np.arange(1200) < 400)
    stream = rows[~labelled]
    parts = [stream[:300], stream[300:600], stream[600:700], stream[700:800]]  # half as many again after two rounds
    run(rows[labelled], truth[labelled], parts, growth=1)
    assert asked == ["auto", "auto", "linear", "linear"]
    bent, truth = spokes()
    labelled = (truth < KNOWN) & (np.arange(len(truth)) < 600)
    asked.clear()
    done = run(bent[labelled], truth[labelled], bent[~labelled], rounds=2, n_new=1)
    assert asked == ["auto", "kernel"]
    assert [record.round.settings["learner"] for record in done.rounds] == ["kernel", "kernel"]


def test_features_that_a_linear_head_tells_apart_get_one():
    truth = np.arange(300) % 3
    rows = 4 * np.eye(5)[truth] + np.random.default_rng(0).normal(size=(300, 5))
    assert begin("knn(5)", truth, features=rows).learned.feature_map is None
    assert begin("knn(5)", truth, features=rows, learner="kernel").learned.feature_map is not None


def test_a_deployment_with_a_map_is_one_file(world, tmp_path):
    rows, _, done = world
    deployment = done.deployment
    assert deployment.width == rows.shape[1]
    deployment.save(tmp_path / "deployment.offmap")
    back = offmap.load(tmp_path / "deployment.offmap")
    for kind in ("features", "inputs"):
        np.testing.assert_array_equal(back.predict(rows, kind), done.predict(rows))
    assert back.network.fingerprint() == deployment.network.fingerprint()
    done.state.learned.save(tmp_path)
    part = LabeledInputs.of(rows)
    again = ClassifierUpdate.load(tmp_path)
    np.testing.assert_array_equal(again.predict(part), done.state.learned.predict(part))


def test_it_becomes_one_graph(world, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    rows, truth, _ = world
    inside = truth < KNOWN
    made = begin("energy", truth[inside], features=rows[inside], learner="kernel", tpr=0.9)
    exported = offmap.export(made.deployment, path=tmp_path / "spokes.onnx", example=rows[:8])
    session = onnxruntime.InferenceSession(str(exported.path))
    names = [output.name for output in session.get_outputs()]
    answers = session.run(None, {session.get_inputs()[0].name: rows[:100]})
    verdicts = made.deployment.verdicts(rows[:100], "features")
    np.testing.assert_allclose(answers[names.index("score")], verdicts.score, rtol=1e-3, atol=1e-3)


def test_a_model_learned_over_features_reads_features():
    rng = np.random.default_rng(0)
    truth = np.arange(480) % 4
    rows = (5 * np.eye(12)[truth] + rng.normal(size=(480, 12))).astype(np.float32)
    known = (truth < 3) & (np.arange(480) < 300)
    done = run(rows[known], truth[known], rows[~known], rounds=1, n_new=1, learner="opencon", epochs=3)
    part = LabeledInputs.of(rows)
    np.testing.assert_array_equal(
        done.deployment.verdicts(rows, "features").predicted, done.state.learned.predict(part)
    )


def test_a_service_keeps_features_as_they_were_sent(world, tmp_path):
    from offmap.service import Service, Settings

    rows, _, done = world
    far = np.full((3, rows.shape[1]), 50.0, np.float32)
    with Service(done.deployment, Settings(store=str(tmp_path))) as service:
        answers = service.score(features=np.concatenate([rows[:20], far]))
        assert [one["known"] for one in answers[-3:]] == [False] * 3
        kept = service.unknowns.get([one["id"] for one in answers[-3:]])
    np.testing.assert_array_equal(np.stack([one.features for one in kept]), far)


def test_a_setting_that_is_not_there_is_refused(world):
    rows, truth, _ = world
    known = truth < KNOWN
    with pytest.raises(InputError, match="there is no setting 'depth'"):
        run(rows[known], truth[known], rows[~known], rounds=1, learner="kernel", depth=3)
