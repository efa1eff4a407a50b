"""Methods of 2022 to 2025 against loops over inputs, written from their papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detection_zoo import blobs
from scipy import stats

import offmap
from offmap.detection.scores.combood import likeliest_powers
from offmap.errors import InputError


@pytest.fixture(scope="module")
def known() -> offmap.Activations:
    return blobs(150)


@pytest.fixture(scope="module")
def test() -> offmap.Activations:
    return blobs(25, seed=3)


def scores(spec: str, known: offmap.Activations, test: offmap.Activations) -> np.ndarray:
    return offmap.detector(spec).fit(known).score(test)


def unit(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def test_mahalanobis_pp_and_rmds_pp(known: offmap.Activations, test: offmap.Activations) -> None:
    rows, queries = unit(known.features), unit(test.features)
    means = [rows[known.labels == c].mean(axis=0) for c in range(3)]
    centred = np.concatenate([rows[known.labels == c] - means[c] for c in range(3)])
    tied, whole = centred.T @ centred / len(rows), np.cov(rows.T, bias=True)
    nearest = [min((q - m) @ np.linalg.solve(tied, q - m) for m in means) for q in queries]
    background = [(q - rows.mean(0)) @ np.linalg.solve(whole, q - rows.mean(0)) for q in queries]
    np.testing.assert_allclose(scores("mahalanobis_pp", known, test), -np.array(nearest), rtol=1e-3)
    np.testing.assert_allclose(scores("rmds_pp", known, test), np.array(background) - nearest, rtol=1e-4, atol=1e-4)


def test_length_does_not_matter_to_directions(known: offmap.Activations, test: offmap.Activations) -> None:
    longer = offmap.Activations(test.features * 7, head=test.head, labels=test.labels)
    for spec in ("mahalanobis_pp", "rmds_pp"):
        np.testing.assert_allclose(scores(spec, known, longer), scores(spec, known, test), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dimension", [1, 2])
def test_neco(known: offmap.Activations, test: offmap.Activations, dimension: int) -> None:
    rows = known.features.astype(np.float64)
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    _, _, directions = np.linalg.svd((rows - mean) / scale, full_matrices=False)
    wanted = []
    for row, logits in zip(test.features, test.logits, strict=True):
        z = (row - mean) / scale
        wanted.append(np.linalg.norm(directions[:dimension] @ z) / np.linalg.norm(z) * logits.max())
    np.testing.assert_allclose(scores(f"neco(dimension={dimension})", known, test), wanted, rtol=1e-3)


def test_neco_refuses_more_directions_than_features(known: offmap.Activations) -> None:
    with pytest.raises(InputError, match="choose a dimension of at most"):
        offmap.detector("neco(dimension=1000)").fit(known)


def test_cadref(known: offmap.Activations, test: offmap.Activations) -> None:
    def energy(logits: np.ndarray) -> float:
        return max(float(np.log(np.exp(logits.astype(np.float64)).sum())), 1e-6)

    means = [known.features[known.labels == c].mean(axis=0, dtype=np.float64) for c in range(3)]
    average = np.mean([energy(logits) for logits in known.logits])
    wanted = []
    for row, logits in zip(test.features.astype(np.float64), test.logits, strict=True):
        top = int(np.argmax(logits))
        moved = (row - means[top]) * np.sign(test.head.weight[top])
        size = np.abs(row).sum()
        rising, falling = moved[moved > 0].sum() / size, -moved[moved < 0].sum() / size
        wanted.append(-(rising / energy(logits) + falling / average))
    np.testing.assert_allclose(scores("cadref", known, test), wanted, rtol=1e-4)


def test_nac_states_are_real_gradients(test: offmap.Activations) -> None:
    from offmap.detection.scores.nac import neuron_states

    features = torch.tensor(test.features, requires_grad=True)
    weight, bias = torch.tensor(test.head.weight), torch.tensor(test.head.bias)
    logits = features @ weight.T + bias
    uniform = torch.full_like(logits, 1 / logits.shape[1])
    divergence = (uniform * (uniform.log() - torch.log_softmax(logits, dim=1))).sum()
    (gradient,) = torch.autograd.grad(divergence, features)
    wanted = torch.sigmoid(3 * features * gradient)
    torch.testing.assert_close(neuron_states(features, logits, weight, 3.0), wanted)


def test_nac_counts_states(known: offmap.Activations, test: offmap.Activations) -> None:
    from offmap.detection.scores.nac import neuron_states

    def places(acts: offmap.Activations) -> np.ndarray:
        states = neuron_states(
            torch.tensor(acts.features), torch.tensor(acts.logits), torch.tensor(acts.head.weight), 2.0
        )
        return np.minimum((states.numpy() * 5).astype(int), 4)

    seen, asked = places(known), places(test)
    wanted = [
        np.mean([min((seen[:, j] == asked[i, j]).sum() / 9, 1) for j in range(seen.shape[1])]) for i in range(len(test))
    ]
    np.testing.assert_allclose(scores("nac(alpha=2.0, bins=5, full=9)", known, test), wanted, rtol=1e-5)


def test_weiper(known: offmap.Activations, test: offmap.Activations) -> None:
    from offmap.detection.scores.weiper import perturb_weights

    weights = perturb_weights(torch.tensor(known.head.weight), 1.5, 4, seed=2).numpy()
    bins, smoothing, smoothing_perturbed = 12, 3, 4

    def shares(values: np.ndarray, low: float, high: float) -> np.ndarray:
        places = np.floor((values - low) / (high - low) * bins)
        return np.array([(places == b).mean() for b in range(bins)])

    def running(density: np.ndarray, width: int) -> np.ndarray:
        left = (width - 1) // 2
        padded = np.concatenate([[density[0]] * left, density, [density[-1]] * (width - 1 - left)])
        return np.array([padded[b : b + width].mean() for b in range(bins)])

    def divergence(density: np.ndarray, reference: np.ndarray, epsilon: float) -> float:
        q, p = density + epsilon, reference + epsilon
        q, p = q / q.sum(), p / p.sum()
        return float((p * np.log(p / q)).sum() + (q * np.log(q / p)).sum())

    def perturbed(row: np.ndarray) -> np.ndarray:
        return np.stack([weight @ row + known.head.bias for weight in weights])

    all_perturbed = np.stack([perturbed(row) for row in known.features])
    bounds = known.features.min(), known.features.max()
    bounds_perturbed = all_perturbed.min(), all_perturbed.max()
    mean = np.mean([shares(row, *bounds) for row in known.features], axis=0)
    mean_perturbed = np.mean([shares(row, *bounds_perturbed) for row in all_perturbed], axis=0)
    wanted = []
    for row in test.features:
        logits = perturbed(row)
        probability = np.mean([softmax(part.astype(np.float64)).max() for part in logits])
        near = divergence(running(shares(row, *bounds), smoothing), mean, 0.01)
        near_perturbed = divergence(
            running(shares(logits, *bounds_perturbed), smoothing_perturbed), mean_perturbed, 0.025
        )
        wanted.append(-(near + 2 * near_perturbed - 0.5 * probability))
    spec = (
        "weiper(delta=1.5, repeats=4, bins=12, smoothing=3, smoothing_perturbed=4, weight=2.0, weight_msp=0.5, seed=2)"
    )
    np.testing.assert_allclose(scores(spec, known, test), wanted, rtol=2e-3, atol=2e-4)


def test_weiper_refuses_heads_that_do_not_fit() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2048))
    acts = offmap.Activations(rows, head=offmap.Head(np.ones((1000, 2048), np.float32)))
    with pytest.raises(InputError, match="choose repeats=131"):
        offmap.detector("weiper(repeats=200)").fit(acts)


def test_grood_gradient_is_the_real_one(known: offmap.Activations, test: offmap.Activations) -> None:
    from offmap.detection.scores.grood import prototype_gradients

    prototypes = torch.stack([torch.tensor(known.features[known.labels == c].mean(axis=0)) for c in range(3)])
    outside = prototypes.mean(dim=0).requires_grad_()
    for row in test.features[:5]:
        feature = torch.tensor(row)
        distances = torch.cat([(feature - prototypes).norm(dim=1), (feature - outside).norm()[None]])
        loss = torch.nn.functional.cross_entropy(-distances[None], torch.tensor([1]))
        (wanted,) = torch.autograd.grad(loss, outside)
        got = prototype_gradients(feature[None], prototypes, outside.detach())[0]
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


def test_grood_is_the_nearest_gradient(known: offmap.Activations, test: offmap.Activations) -> None:
    from offmap.detection.scores.grood import prototype_gradients

    prototypes = torch.stack([torch.tensor(known.features[known.labels == c].mean(axis=0)) for c in range(3)])
    outside = prototypes.mean(dim=0)
    bank = prototype_gradients(torch.tensor(known.features), prototypes, outside).numpy()
    asked = prototype_gradients(torch.tensor(test.features), prototypes, outside).numpy()
    wanted = [-np.linalg.norm(bank - row, axis=1).min() for row in asked]
    np.testing.assert_allclose(scores("grood", known, test), wanted, rtol=1e-3, atol=1e-5)


def test_mcm_and_neglabel() -> None:
    rng = np.random.default_rng(0)
    images, names, negatives = rng.normal(size=(9, 6)), rng.normal(size=(3, 6)), rng.normal(size=(5, 6))
    acts = offmap.Activations(images, head=offmap.Head(names))
    near = unit(images) @ unit(names).T
    wanted = [np.log(softmax(row / 0.5).max()) for row in near]
    np.testing.assert_allclose(scores("mcm(temperature=0.5)", acts, acts), wanted, rtol=1e-5)

    both = offmap.Activations(images, head=offmap.Head(np.concatenate([names, negatives])))
    far = unit(images) @ unit(negatives).T
    wanted = []
    for a, b in zip(np.exp(near / 0.1), np.exp(far / 0.1), strict=True):
        wanted.append(np.mean([a.sum() / (a.sum() + part.sum()) for part in (b[:3], b[3:])]))
    got = scores("neglabel(3, temperature=0.1, groups=2)", both, both)
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_neglabel_names_what_is_missing() -> None:
    acts = offmap.Activations(np.eye(3), head=offmap.Head(np.eye(3)))
    with pytest.raises(InputError, match="negative labels are needed"):
        offmap.detector("neglabel(3)").fit(acts).score(acts)


def test_adascale_against_a_loop() -> None:
    """Real pictures through a real network: gradient, masked step, percentile and ratio, input by input."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
    weight, bias = net[3].weight.detach(), net[3].bias.detach()
    known, test = torch.randn(30, 3, 2, 2), torch.randn(6, 3, 2, 2)

    def quality(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        leaf = x[None].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(net(leaf).max(), leaf)
        moved, flat = x.clone().reshape(-1), gradient.reshape(-1)
        for place in flat.abs().argsort()[:3]:  # a quarter of 12 values
            moved[place] += 0.5 * flat[place].sign()
        h, perturbed = net[:3](x[None])[0].detach(), net[:3](moved.reshape(1, 3, 2, 2))[0].detach()
        order = h.argsort(descending=True, stable=True)
        return h, float(perturbed[order[:2]].sum() + 4 * (h - perturbed)[order[:3]].abs().sum())

    fitted = sorted(quality(x)[1] for x in known)
    wanted = []
    for x in test:
        h, q = quality(x)
        percentile = 60 + (1 - sum(f <= q for f in fitted) / len(fitted)) * 30
        kept = 20 - round(20 * percentile / 100)
        ratio = float(h.sum() / h.sort(descending=True).values[:kept].sum())
        wanted.append(float(torch.logsumexp(weight @ (h * np.exp(ratio)) + bias, 0)))
    made = offmap.detector("adascale_a(60.0, 90.0, 10.0, 15.0, 4.0, 0.25)|energy")
    network = offmap.Network(net)
    made.fit(network(known, made.requirements))
    np.testing.assert_allclose(made.score(network(test, made.requirements)), wanted, rtol=1e-4)


@pytest.mark.parametrize(("k", "ridge"), [(1, 1.0), (5, 0.1)])
def test_combood(known: offmap.Activations, test: offmap.Activations, k: int, ridge: float) -> None:
    """Against scikit-learn's scaler and power transform, and distances input by input."""
    from sklearn.preprocessing import PowerTransformer, StandardScaler

    scaler, power = StandardScaler().fit(known.features), PowerTransformer()
    reshaped = power.fit_transform(scaler.transform(known.features.astype(np.float64)))
    inverse = np.linalg.inv(np.cov(reshaped.T) + ridge * np.eye(reshaped.shape[1]))
    rows = unit(known.features)
    wanted = []
    others = power.transform(scaler.transform(test.features.astype(np.float64)))
    for query, row in zip(unit(test.features), others, strict=True):
        squared = np.sort(((rows - query) ** 2).sum(axis=1))[k - 1]
        wanted.append(-np.sqrt(rows.shape[1]) * np.log(squared) - row @ inverse @ row)
    np.testing.assert_allclose(scores(f"combood({k}, ridge={ridge})", known, test), wanted, rtol=1e-3, atol=1e-3)


def test_powers_are_those_that_scipy_finds_column_by_column() -> None:
    rng = np.random.default_rng(0)
    kinds = [rng.normal(size=400), rng.exponential(size=400), -rng.exponential(size=400), rng.standard_cauchy(400)]
    kinds += [
        np.maximum(rng.normal(size=400), 0),
        np.eye(400)[0],
        rng.integers(0, 2, 400),
        np.exp(3 * rng.normal(size=400)),
    ]
    columns = np.column_stack([(column - column.mean()) / column.std() for column in kinds])
    found = likeliest_powers(torch.from_numpy(columns)).numpy()
    wanted = np.array([stats.yeojohnson(column)[1] for column in columns.T])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_combood_of_a_known_input_and_of_constant_features(known: offmap.Activations) -> None:
    wide = np.column_stack([known.features, np.ones(len(known))]).astype(np.float32)
    made = offmap.detector("combood(1)").fit(wide)
    assert np.isfinite(made.score(wide[:5])).all()
    assert np.isfinite(made.score(1e6 * wide[:5])).all()


def test_combood_asks_for_as_many_inputs_as_neighbours() -> None:
    with pytest.raises(InputError, match=r"combood\(50\): the bank holds 20 inputs; choose k at most 20"):
        offmap.detector("combood(50)").fit(blobs(20))
