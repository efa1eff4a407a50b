"""Every extra pass against plain loops written from its paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from network_zoo import Ending, Tokens, conv_net, images
from torch import nn

from offmap.activations import Activations
from offmap.errors import InputError
from offmap.extra_passes import (
    BatchStatistics,
    Clamp,
    Edited,
    Layer,
    Members,
    Passes,
    Perturbed,
    RemoveRank1,
    Request,
    Requirements,
)
from offmap.network import Network
from offmap.network.reductions import gram_row_sums, order_statistics, remove_rank1


def _extras(model: nn.Module, *requests: Request, x: torch.Tensor | None = None) -> dict[str, np.ndarray]:
    acts: Activations = Network(model)(images() if x is None else x, requirements=Requirements(extras=requests))
    assert set(acts.extras) == {name for request in requests for name in request.outputs}
    return acts.extras


def _block(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.block(model.stem(x))


def test_layers_reduced() -> None:
    model = conv_net()
    maps = _block(model, images()).numpy()
    extras = _extras(model, Layer("block", "mean"), Layer("block", "flat"), Layer("block", "sketch"))
    np.testing.assert_allclose(extras["layer(block,mean)"], maps.mean((2, 3)), atol=1e-6)
    np.testing.assert_array_equal(extras["layer(block,flat)"], maps.reshape(10, -1))
    np.testing.assert_array_equal(extras["layer(block,sketch)"], np.sort(maps.reshape(10, -1)))


def test_a_layer_before_an_in_place_one_is_read_before_it_is_overwritten() -> None:
    model = conv_net()
    extras = _extras(model, Layer("stem.1", "mean"))
    with torch.no_grad():
        expected = model.stem[1](model.stem[0](images())).mean((2, 3)).numpy()
    np.testing.assert_array_equal(extras["layer(stem.1,mean)"], expected)
    assert (expected < 0).any()


def test_a_sketch_gives_percentiles() -> None:
    values = torch.randn(3, 40, 10, 10, generator=torch.Generator().manual_seed(0))
    sketch = order_statistics(values)
    assert sketch.shape == (3, 512)
    for p in (0, 1, 50, 90, 99.5, 100):
        exact = np.percentile(values.reshape(3, -1).numpy(), p, axis=1)
        np.testing.assert_allclose(np.percentile(sketch.numpy(), p, axis=1), exact, atol=0.02)


def _gram_by_loops(maps: np.ndarray, powers: int) -> np.ndarray:
    count, channels = maps.shape[:2]
    flat = maps.reshape(count, channels, -1).astype(np.float64)
    result = np.zeros((count, powers, channels))
    for n in range(count):
        for p in range(1, powers + 1):
            for i in range(channels):
                for j in range(channels):
                    inner = sum(a**p * b**p for a, b in zip(flat[n, i], flat[n, j], strict=True))
                    result[n, p - 1, i] += np.sign(inner) * abs(inner) ** (1 / p)
    return result


@given(st.integers(0, 10_000), st.sampled_from([1e-6, 1.0, 1e4]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_gram_row_sums_against_loops_at_every_scale(seed: int, scale: float, signed: bool) -> None:
    maps = (np.random.default_rng(seed).standard_normal((2, 3, 2, 2)) * scale).astype(np.float32)
    maps[0, 1] = 0
    # a high root of a sum that cancels magnifies its rounding: signed maps are compared at low powers
    powers, tolerance = (2, 1e-3) if signed else (6, 1e-6)
    maps = maps if signed else np.abs(maps)
    ours = gram_row_sums(torch.from_numpy(maps), powers).numpy() / scale**2
    np.testing.assert_allclose(ours, _gram_by_loops(maps, powers) / scale**2, rtol=1e-4, atol=tolerance)


def test_gram_powers_do_not_overflow() -> None:
    maps = torch.rand(2, 4, 3, 3) * 1e5
    sums = gram_row_sums(maps, 10)
    assert torch.isfinite(sums).all()
    np.testing.assert_allclose(sums.numpy(), gram_row_sums(maps / 1e5, 10).numpy() * 1e10, rtol=1e-4)


@given(st.integers(0, 10_000), st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3)))
@settings(max_examples=25, deadline=None)
def test_removing_the_leading_component_against_svd(seed: int, shape: tuple[int, int, int]) -> None:
    maps = np.random.default_rng(seed).standard_normal((2, *shape))
    for one, ours in zip(maps, remove_rank1(torch.from_numpy(maps)).numpy(), strict=True):
        u, s, vt = np.linalg.svd(one.reshape(shape[0], -1))
        expected = one.reshape(shape[0], -1) - s[0] * np.outer(u[:, 0], vt[0])
        np.testing.assert_allclose(ours.reshape(shape[0], -1), expected, atol=1e-6)


@pytest.mark.parametrize("edit", [Clamp(0.3), RemoveRank1()])
def test_an_edited_layer_changes_what_comes_after_it(edit: Clamp | RemoveRank1) -> None:
    model = conv_net()
    maps = _block(model, images())
    edited = maps.clamp(max=0.3) if isinstance(edit, Clamp) else remove_rank1(maps)
    request = Edited("block", edit)
    extras = _extras(model, request)
    with torch.no_grad():
        features = edited.mean((2, 3))
        logits = model.fc(features)
    np.testing.assert_allclose(extras[f"{request.key}/features"], features.numpy(), atol=1e-6)
    np.testing.assert_allclose(extras[f"{request.key}/logits"], logits.numpy(), atol=1e-6)


def _log_probability(features: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return (logits / 1000).log_softmax(1).amax(1)


@pytest.mark.parametrize("scale", [None, (0.2, 0.5, 2.0)])
def test_the_step_of_odin_as_its_authors_wrote_it(scale: tuple[float, ...] | None) -> None:
    model, x = conv_net(), images().clone()
    x[0, 0] = 0
    request = Perturbed(0.05, _log_probability, "odin(1000)", scale=scale)
    extras = _extras(model, request, x=x)
    leaf = x.clone().requires_grad_()
    scores = model(leaf) / 1000
    torch.nn.functional.cross_entropy(scores, scores.argmax(1), reduction="sum").backward()
    sign = (leaf.grad >= 0).float() * 2 - 1
    if scale is not None:
        sign = sign / torch.tensor(scale).reshape(1, 3, 1, 1)
    with torch.no_grad():
        expected = model(x - 0.05 * sign).numpy()
    np.testing.assert_allclose(extras[f"{request.key}/logits"], expected, atol=1e-5)


def test_the_step_climbs_an_objective_on_features() -> None:
    def objective(features: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return -(features - 1).square().sum(1)

    model = conv_net()
    request = Perturbed(1e-3, objective, "towards one", sign_zero=0)
    acts = Network(model)(images(), requirements=Requirements(extras=(request,)))
    before = objective(torch.from_numpy(acts.features), torch.empty(0))
    after = objective(torch.from_numpy(acts.extras[f"{request.key}/features"]), torch.empty(0))
    assert (after > before).all()


@pytest.mark.parametrize(("zero", "moves"), [(0, 0.0), (1, -0.25)])
def test_a_coordinate_without_gradient_moves_as_sign_zero_says(zero: int, moves: float) -> None:
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight[:, 2:] = 0
    request = Perturbed(0.25, lambda features, logits: logits[:, 0], "first", sign_zero=zero)
    acts = Network(model)(torch.zeros(5, 4), requirements=Requirements(extras=(request,)))
    step = acts.extras[f"{request.key}/features"]
    np.testing.assert_array_equal(step[:, :2], np.tile(0.25 * model.weight[0, :2].sign().detach().numpy(), (5, 1)))
    np.testing.assert_array_equal(step[:, 2:], moves)


def test_dropout_passes_are_those_of_the_dropout_layers_alone() -> None:
    model, x = conv_net(), images(4000)
    logits = _extras(model, Passes(4, seed=3), x=x)["passes(4,3)/logits"]
    assert logits.shape == (4000, 4, 5)
    with torch.no_grad():
        pooled = _block(model, x).mean((2, 3))
        expected = model.fc(pooled).numpy()
        spread = (pooled[:, None] * model.fc.weight).square().sum(2).mul(0.3 / 0.7).numpy()
    means = logits.mean(1)
    np.testing.assert_allclose(means.mean(0), expected.mean(0), atol=0.03)
    np.testing.assert_allclose(logits.var(1, ddof=1).mean(0), spread.mean(0), rtol=0.1)
    again = _extras(model, Passes(4, seed=3), x=x)["passes(4,3)/logits"]
    np.testing.assert_array_equal(again, logits)
    assert not np.array_equal(_extras(model, Passes(4, seed=4), x=x)["passes(4,4)/logits"], logits)


def test_passes_differ_between_batches_of_one_extraction() -> None:
    one = images(1).repeat(8, 1, 1, 1)
    acts = Network(conv_net()).extract(one, requirements=Requirements(extras=(Passes(2),)), batch_size=4)
    passes = acts.extras["passes(2,0)/logits"]
    assert not np.array_equal(passes[:4], passes[4:])


def test_members_answer_each_for_themselves() -> None:
    models = [conv_net(seed) for seed in range(3)]
    acts = Network(models[0], ensemble=models[1:])(images(), requirements=Requirements(extras=(Members(),)))
    for i, model in enumerate(models):
        np.testing.assert_allclose(acts.extras["members/logits"][:, i], model(images()).detach().numpy(), atol=1e-6)


def test_batch_statistics_normalise_by_the_batch() -> None:
    model = conv_net()
    extras = _extras(model, BatchStatistics())
    with torch.no_grad():
        out = images()
        for stage in (model.stem, model.block):
            out = stage[0](out)
            mean, variance = out.mean((0, 2, 3), keepdim=True), out.var((0, 2, 3), unbiased=False, keepdim=True)
            shape = (1, -1, 1, 1)
            out = (out - mean) / (variance + stage[1].eps).sqrt()
            out = (out * stage[1].weight.reshape(shape) + stage[1].bias.reshape(shape)).relu()
        expected = out.mean((2, 3)).numpy()
    np.testing.assert_allclose(extras["batch_statistics/features"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "x", "request_", "says"),
    [
        (Ending("tuple"), torch.randn(3, 4), Passes(2), "no dropout layers"),
        (Ending("tuple"), torch.randn(3, 4), BatchStatistics(), "no BatchNorm layers"),
        (conv_net(), images(1), BatchStatistics(), "a batch of one input"),
        (conv_net(), images(), Members(), r"ensemble=\["),
        (conv_net(), images(), Layer("blok"), "no such layer"),
        (conv_net(), images(), Edited("blok", Clamp(1)), "no such layer"),
        (conv_net(), images(), Edited("drop", RemoveRank1()), "only a feature map"),
        (conv_net(), images(), Edited("fc", Clamp(1)), "is the head itself"),
        (conv_net(), images(), Perturbed(0.1, lambda f, z: torch.zeros(10), "zero"), "does not depend on the input"),
        (conv_net(), images(), Perturbed(0.1, _log_probability, "o", scale=(1.0, 2.0)), "one standard deviation per"),
        (Tokens(), torch.ones(2, 4, dtype=torch.long), Perturbed(0.1, _log_probability, "o"), "cannot be moved"),
    ],
)
def test_what_a_model_cannot_give_is_refused(model: nn.Module, x: torch.Tensor, request_: Request, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Network(model)(x, requirements=Requirements(extras=(request_,)))


def test_members_must_share_their_classes() -> None:
    net = Network(conv_net(), ensemble=[conv_net(classes=7)])
    with pytest.raises(InputError, match="5, 7 classes"):
        net(images(), requirements=Requirements(extras=(Members(),)))


def test_needs_unite() -> None:
    a = Requirements(logits=True, extras=(Layer("a"), Passes(3)))
    b = Requirements(features=True, labels=True, extras=(Passes(3), Members()))
    both = a | b
    assert both == Requirements(True, True, False, True, (Layer("a"), Passes(3), Members()))
    assert (both | both) == both
    assert both.describe() == "features, logits, labels, layer(a,mean), passes(3,0), members"
    assert Requirements().describe() == "nothing"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layer("a", "median"),
        lambda: Layer("a", "gram", powers=0),
        lambda: Passes(0),
        lambda: Perturbed(-1, _log_probability, "o"),
        lambda: Perturbed(1, _log_probability, "o", sign_zero=2),
        lambda: Perturbed(1, _log_probability, "o", scale=(0.0,)),
    ],
)
def test_impossible_requests_are_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()
