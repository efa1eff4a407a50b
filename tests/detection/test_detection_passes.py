"""Scores of other passes through a real network: ODIN, perturbed Mahalanobis, MC-dropout, ensembles, BatchNorm."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp, softmax
from torch import nn

import offmap
from offmap.detection.scores.passes import mean_log_probabilities, negative_predictive_entropy, odin_score
from offmap.errors import InputError, MissingError
from offmap.network import Network


def small_cnn(seed: int, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(32, 4),
        )
        with torch.no_grad():
            model(torch.randn(64, 1, 6, 6))  # running statistics that are not those of the start
    return model.eval()


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    return torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.arange(40) % 4


def head_of(model: nn.Module) -> tuple[nn.Module, nn.Linear]:
    return model[:-1], model[-1]


def step(x: torch.Tensor, objective, epsilon: float) -> torch.Tensor:
    """x - ε·sign(-∇ objective) with sign(0) = 1, one input at a time."""
    moved = []
    for one in x:
        leaf = one[None].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(leaf).sum(), leaf)
        moved.append(leaf.detach() - epsilon * torch.where(-gradient >= 0, 1.0, -1.0))
    return torch.cat(moved)


def fitted_and_scored(spec, net, inputs, labels):
    detector = offmap.detector(spec)
    detector.fit(net.extract(inputs, labels=labels, requirements=detector.requirements))
    return detector, detector.score(net.extract(inputs, requirements=detector.requirements))


def test_odin_score_keeps_its_digits_at_a_high_temperature():
    logits = np.array([[10.0, 0.0, 0.0], [10.0 + 1e-6, 0.0, 0.0]])
    scores = odin_score(torch.from_numpy(logits), 1000.0).numpy()
    np.testing.assert_allclose(scores, log_softmax(logits / 1000, axis=1).max(axis=1), rtol=1e-14)
    assert scores[1] > scores[0]


def test_odin_by_hand(inputs, labels):
    model = small_cnn(0)
    _, scores = fitted_and_scored("odin(epsilon=0.05)", Network(model), inputs, labels)
    moved = step(inputs, lambda x: torch.log_softmax(model(x) / 1000, dim=1).amax(dim=1), 0.05)
    with torch.no_grad():
        logits = model(moved).double().numpy()
    np.testing.assert_allclose(scores, log_softmax(logits / 1000, axis=1).max(axis=1), rtol=1e-8)


def test_odin_climbs_what_the_shaped_network_answers(inputs, labels):
    """ODIN+ReAct of the thesis (section 3.3.2, table 3.3)."""
    model = small_cnn(0)
    detector, scores = fitted_and_scored("react(70)|odin(epsilon=0.05)", Network(model), inputs, labels)
    body, head = head_of(model)
    with torch.no_grad():
        c = float(np.percentile(body(inputs).numpy(), 70))

    def shaped(x):
        return head(body(x).clamp(max=c))

    moved = step(inputs, lambda x: torch.log_softmax(shaped(x) / 1000, dim=1).amax(dim=1), 0.05)
    with torch.no_grad():
        logits = shaped(moved).double().numpy()
    np.testing.assert_allclose(scores, log_softmax(logits / 1000, axis=1).max(axis=1), rtol=1e-8)
    plain = offmap.detector("odin(epsilon=0.05)")
    assert detector.requirements.extras[0].key != plain.requirements.extras[0].key


def test_odin_behind_a_given_threshold_asks_for_its_pass_once_the_head_is_known(inputs):
    detector = offmap.detector("react(c=0.5)|odin(epsilon=0.05)")
    assert detector.requirements.extras == ()
    net = Network(small_cnn(0))
    detector.fit(net.extract(inputs, requirements=detector.requirements))
    assert np.isfinite(detector.score(net.extract(inputs, requirements=detector.requirements))).all()


def test_odin_without_a_step_needs_no_pass(inputs):
    detector = offmap.detector("odin(epsilon=0.0)")
    assert detector.requirements.extras == ()
    acts = Network(small_cnn(0)).extract(inputs)
    expected = log_softmax(acts.logits.astype(np.float64) / 1000, axis=1).max(axis=1)
    np.testing.assert_allclose(detector.fit(acts).score(acts), expected, rtol=1e-12)


def test_odin_divides_its_step_by_the_channels_deviations(inputs, labels):
    net = Network(small_cnn(0))
    _, scaled = fitted_and_scored("odin(epsilon=0.05, scale=[0.5])", net, inputs, labels)
    _, twice = fitted_and_scored("odin(epsilon=0.1)", net, inputs, labels)
    np.testing.assert_allclose(scaled, twice, rtol=1e-10)


def test_odin_without_its_pass_names_the_call(inputs):
    plain = Network(small_cnn(0)).extract(inputs)
    with pytest.raises(MissingError, match=r"net\.extract\(loader, requirements=detector\.requirements\)"):
        offmap.detector("odin").fit(plain).score(plain)


@pytest.mark.parametrize("spec", ["mahalanobis(0.0, epsilon=0.05)", "react(70)|mahalanobis(0.0, epsilon=0.05)"])
def test_perturbed_mahalanobis_by_hand(spec, inputs, labels):
    model = small_cnn(1)
    _, scores = fitted_and_scored(spec, Network(model), inputs, labels)
    body, _ = head_of(model)
    with torch.no_grad():
        raw = body(inputs)
    c = float(np.percentile(raw.numpy(), 70)) if "react" in spec else np.inf
    features = raw.clamp(max=c).double()
    means = torch.stack([features[labels == k].mean(dim=0) for k in range(4)])
    centred = features - means[labels]
    precision = torch.linalg.pinv(centred.T @ centred / len(features), hermitian=True)

    def closeness(x):
        away = body(x).clamp(max=c).double()[:, None] - means
        return -((away @ precision) * away).sum(dim=2).amin(dim=1)

    expected = closeness(step(inputs, closeness, 0.05)).detach().numpy()
    # a coordinate whose gradient is near 0 may step the other way in float32
    agree = np.isclose(scores, expected, rtol=1e-3)
    assert agree.mean() >= 0.9
    np.testing.assert_allclose(scores, expected, rtol=0.05)


def test_mean_of_probabilities_by_hand():
    logits = np.random.default_rng(0).normal(size=(5, 3, 4)) * 5
    expected = np.log(softmax(logits, axis=2).mean(axis=1))
    np.testing.assert_allclose(mean_log_probabilities(torch.from_numpy(logits)).numpy(), expected, rtol=1e-10)


def test_predictive_entropy_orders_confident_inputs():
    logits = torch.tensor([[[50.0, 0.0]] * 3, [[60.0, 0.0]] * 3])
    first, second = negative_predictive_entropy(logits)
    assert first < second < 0


def test_mc_dropout_by_hand(inputs, labels):
    net = Network(small_cnn(2, dropout=0.5))
    detector, scores = fitted_and_scored("mc_dropout(n=7)", net, inputs, labels)
    passes = net.extract(inputs, requirements=detector.requirements).extras["passes(7,0)/logits"].astype(np.float64)
    assert passes.shape == (40, 7, 4)
    assert not np.allclose(passes[:, 0], passes[:, 1])
    mean = softmax(passes, axis=2).mean(axis=1)
    np.testing.assert_allclose(scores, (mean * np.log(mean)).sum(axis=1), rtol=1e-9)


def test_ensemble_by_hand(inputs, labels):
    models = [small_cnn(seed) for seed in range(3)]
    _, scores = fitted_and_scored("ensemble", Network(models[0], ensemble=models[1:]), inputs, labels)
    with torch.no_grad():
        mean = np.mean([softmax(model(inputs).double().numpy(), axis=1) for model in models], axis=0)
    np.testing.assert_allclose(scores, (mean * np.log(mean)).sum(axis=1), rtol=1e-6)


def test_batchnorm_oracle_by_hand(inputs, labels):
    model = small_cnn(3)
    _, scores = fitted_and_scored("batchnorm_oracle", Network(model), inputs, labels)
    oracle = small_cnn(3)
    oracle[1].train()
    with torch.no_grad():
        expected = logsumexp(oracle(inputs).double().numpy(), axis=1)
        plain = logsumexp(model(inputs).double().numpy(), axis=1)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert not np.allclose(scores, plain, rtol=1e-3)


@pytest.mark.parametrize("score", ["mc_dropout", "ensemble"])
def test_a_shaper_that_would_do_nothing_is_refused(score):
    with pytest.raises(InputError, match="reads passes of its own only, so the shaper would do nothing"):
        offmap.detector(f"react(90)|{score}")


def test_two_passes_of_their_own_are_refused():
    with pytest.raises(InputError, match="pass of their own"):
        offmap.detector("react(90, layer='2')|odin")


@pytest.mark.parametrize("spec", ["adascale_a|energy", "adascale_l|energy"])
def test_classes_of_logits_that_another_pass_shapes(spec, inputs, labels):
    net = Network(small_cnn(0))
    detector, _ = fitted_and_scored(spec, net, inputs, labels)
    acts = net.extract(inputs, requirements=detector.requirements)
    found = detector.predict_classes(acts)
    assert found.shape == (len(inputs),)
    assert (found == acts.predictions).mean() > 0.5  # they scale activations and keep most answers


@pytest.mark.parametrize("spec", ["odin", "react(70)|odin", "mahalanobis(epsilon=0.01)", "batchnorm_oracle"])
def test_a_loaded_detector_asks_for_the_same_pass_and_gives_the_same_bits(spec, inputs, labels, tmp_path):
    net = Network(small_cnn(0))
    detector, scores = fitted_and_scored(spec, net, inputs, labels)
    detector.save(tmp_path / "guard.offmap")
    loaded = offmap.load(tmp_path / "guard.offmap")
    assert [r.key for r in loaded.requirements.extras] == [r.key for r in detector.requirements.extras]
    np.testing.assert_array_equal(loaded.score(net.extract(inputs, requirements=loaded.requirements)), scores)


@pytest.mark.parametrize("spec", ["odin(0.0)", "odin(epsilon=-1.0)", "odin(scale=[0.0])", "mc_dropout(0)"])
def test_nonsense_is_refused(spec):
    with pytest.raises(InputError, match=r"above 0|negative|positive|at least one"):
        offmap.detector(spec)
