"""Scores of named inner layers, end to end through a real network: Gram, RankFeat, and ReAct on an inner layer."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

import offmap
from offmap.detection.registry import example_specs
from offmap.detection.scores.layers import deviation, fill_bounds, halves
from offmap.errors import InputError, MissingError
from offmap.models.cnn import CNN
from offmap.network import Network

GRAM = "gram(['features.2', 'features.5'], powers=3)"


@pytest.fixture(scope="module")
def model() -> CNN:
    return CNN(4, width=4).eval()


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    return torch.randn(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def others() -> torch.Tensor:
    return 3 * torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def outputs_of(model: CNN, layer: int, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.features[: layer + 1](x)


def gram_rows(maps: np.ndarray, powers: int) -> np.ndarray:
    """Row sums of (F^p F^pᵀ)^(1/p), one input and power at a time."""
    return np.stack(
        [
            np.concatenate(
                [(np.sign(g := (f**p) @ (f**p).T) * np.abs(g) ** (1 / p)).sum(axis=1) for p in range(1, powers + 1)]
            )
            for f in maps.reshape(*maps.shape[:2], -1).astype(np.float64)
        ]
    )


def test_deviation_by_plain_loops():
    rng = np.random.default_rng(0)
    values, low = rng.normal(size=(6, 5)), rng.normal(size=(6, 5)) - 0.5
    high = low + rng.random((6, 5))
    expected = []
    for v, a, b in zip(values, low, high, strict=True):
        total = 0.0
        for i in range(5):
            if v[i] < a[i]:
                total += (a[i] - v[i]) / (abs(a[i]) + 1e-6)
            elif v[i] > b[i]:
                total += (v[i] - b[i]) / (abs(b[i]) + 1e-6)
        expected.append(total)
    found = deviation(*map(torch.from_numpy, (values, low, high)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_gram_by_plain_loops(model, inputs, others):
    net, detector = Network(model), offmap.detector(GRAM)
    known = net.extract(inputs, requirements=detector.requirements)
    detector.fit(known)
    scores = detector.score(net.extract(others, requirements=detector.requirements))

    expected = np.zeros(len(others))
    with torch.no_grad():
        predicted, asked = model(inputs).argmax(1).numpy(), model(others).argmax(1).numpy()
    for layer in (2, 5):
        rows = gram_rows(outputs_of(model, layer, inputs).numpy(), 3)
        queries = gram_rows(outputs_of(model, layer, others).numpy(), 3)
        stored = known.extras[f"layer(features.{layer},gram,3)"].reshape(len(inputs), -1)
        np.testing.assert_allclose(stored, rows, rtol=1e-4)
        half = halves(torch.from_numpy(stored), seed=1).numpy()
        assert 60 < half.sum() < 140

        def outside(row, c, chosen, rows=rows):
            mine = rows[chosen & (predicted == c)]
            if len(mine) == 0:  # never predicted there: the widest bounds of all classes
                mine = rows[chosen]
            low, high = mine.min(axis=0), mine.max(axis=0)
            below, above = np.maximum(low - row, 0), np.maximum(row - high, 0)
            return (below / (np.abs(low) + 1e-6) + above / (np.abs(high) + 1e-6)).sum()

        mean = np.mean([outside(rows[i], predicted[i], half != half[i]) for i in range(len(rows))])
        assert mean > 0
        everyone = np.full(len(rows), True)
        expected -= np.array([outside(row, c, everyone) for row, c in zip(queries, asked, strict=True)]) / mean
    np.testing.assert_allclose(scores, expected, rtol=2e-3)


def test_gram_is_the_same_in_blocks_shards_and_files(model, inputs, others, tmp_path):
    net = Network(model)
    requirements = offmap.detector(GRAM).requirements
    known, asked = net.extract(inputs, requirements=requirements), net.extract(others, requirements=requirements)
    whole = offmap.detector(GRAM).fit(known)
    merged = offmap.detector(GRAM).update(known[:50]).update(known[50:60])
    merged.merge(offmap.detector(GRAM).update(known[60:])).finalize()
    np.testing.assert_array_equal(merged.score(asked), whole.score(asked))
    whole.save(tmp_path / "guard.offmap")
    np.testing.assert_array_equal(offmap.load(tmp_path / "guard.offmap").score(asked), whole.score(asked))


def test_a_class_never_predicted_takes_the_widest_bounds():
    inf = torch.inf
    low, high = fill_bounds(torch.tensor([[1.0], [inf], [3.0]]), torch.tensor([[2.0], [-inf], [4.0]]))
    assert low.tolist() == [[1.0], [1.0], [3.0], [1.0]]
    assert high.tolist() == [[2.0], [4.0], [4.0], [4.0]]


def test_gram_fits_few_inputs(model, inputs, others):
    net, detector = Network(model), offmap.detector(GRAM)
    detector.fit(net.extract(inputs[:3], requirements=detector.requirements))
    assert np.isfinite(detector.score(net.extract(others, requirements=detector.requirements))).all()


def test_rankfeat_by_hand(model, inputs):
    detector = offmap.detector("rankfeat('features.5')")
    net = Network(model)
    acts = net.extract(inputs[:20], requirements=detector.requirements)
    scores = detector.fit(acts).score(acts)
    maps = outputs_of(model, 5, inputs[:20])
    rest = []
    for f in maps.numpy().astype(np.float64):
        u, s, v = np.linalg.svd(f.reshape(f.shape[0], -1), full_matrices=False)
        rest.append((f.reshape(f.shape[0], -1) - s[0] * np.outer(u[:, 0], v[0])).reshape(f.shape))
    with torch.no_grad():
        logits = model.head(model.features[6:](torch.from_numpy(np.stack(rest)).float()))
    np.testing.assert_allclose(scores, logsumexp(logits.double().numpy(), axis=1), rtol=1e-5)


def test_react_on_an_inner_layer_by_hand(model, inputs, others):
    detector = offmap.detector("react(80, layer='features.5')|energy")
    net = Network(model)
    detector.fit(net.extract(inputs, requirements=detector.requirements))
    scores = detector.score(net.extract(others, requirements=detector.requirements))
    c = np.percentile(outputs_of(model, 5, inputs).numpy(), 80)
    assert c > 0
    with torch.no_grad():
        logits = model.head(model.features[6:](outputs_of(model, 5, others).clamp(max=float(c))))
    np.testing.assert_allclose(scores, logsumexp(logits.double().numpy(), axis=1), rtol=1e-3)


def test_react_on_an_inner_layer_before_a_bank(model, inputs, others):
    """The bank must hold features of the cut pass, as the queries do."""
    detector = offmap.detector("react(c=0.3, layer='features.5')|knn(3, normalize=false)")
    net = Network(model)
    detector.fit(net.extract(inputs, requirements=detector.requirements))
    scores = detector.score(net.extract(others, requirements=detector.requirements))
    cut = [model.features[6:](outputs_of(model, 5, x).clamp(max=0.3)).detach().double() for x in (others, inputs)]
    expected = -torch.cdist(*cut).kthvalue(3, dim=1).values
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", ["gram", "rankfeat"])
def test_a_missing_layer_is_refused_with_an_example_that_works(spec):
    with pytest.raises(InputError, match=r"net\.layers\(\)"):
        offmap.detector(spec)
    example = next(text for text in example_specs() if text.startswith(spec))
    assert repr(offmap.detector(example)) == example


def test_missing_layers_name_the_call(model, inputs):
    plain = Network(model).extract(inputs[:5])
    with pytest.raises(MissingError, match=r"net\.extract\(loader, requirements=detector\.requirements\)"):
        offmap.detector(GRAM).fit(plain)


def test_nonsense_is_refused():
    with pytest.raises(InputError, match="highest power"):
        offmap.detector("gram(['a'], powers=0)")
    with pytest.raises(InputError, match="above 0"):
        offmap.detector("rankfeat('a', temperature=0.0)")
