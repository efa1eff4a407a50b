"""Whatever is asked, and however it ends, the user's model and the process are as they were."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from network_zoo import ConvNet, Restless, conv_net, images, picture

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


def _objective(features: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return logits.amax(1) + features.sum(1)


def _broken(features: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the objective fails")


REQUESTS: list[Request] = [
    Layer("block", "mean"),
    Layer("stem", "gram"),
    Layer("stem", "sketch"),
    Edited("block", Clamp(0.5)),
    Edited("block", RemoveRank1()),
    Perturbed(0.01, _objective, "test"),
    Passes(3),
    Members(),
    BatchStatistics(),
]


def _used(model: ConvNet) -> ConvNet:
    """A model in the middle of somebody's work: mixed modes, frozen parts, gradients, hooks of their own."""
    model.train()
    model.stem.eval()
    model.block[0].weight.requires_grad_(False)
    model(images()).sum().backward()
    model.block.register_forward_hook(lambda module, args, output: None)
    return model


def _failing() -> Iterator[torch.Tensor]:
    np.random.rand(3)  # noqa: NPY002 - a loader may draw from the global state
    torch.rand(3)
    yield images()
    raise ConnectionError("the disk is gone")


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.key)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_request_leaves_everything_as_it_was(request_: Request, seed: int) -> None:
    model, other = _used(conv_net(seed)), _used(conv_net(seed + 5))
    net = Network(model, ensemble=[other])
    before = picture(model), picture(other)
    net(images(), requirements=Requirements(extras=(request_,)))
    assert (picture(model), picture(other)) == before
    with pytest.raises(ConnectionError):
        net.extract(_failing(), requirements=Requirements(extras=(request_,)))
    assert (picture(model), picture(other)) == before


@pytest.mark.parametrize(
    "request_",
    [
        Perturbed(0.01, _broken, "broken"),
        Layer("nowhere", "mean"),
        Edited("fc", Clamp(1.0)),
        Edited("drop", RemoveRank1()),
    ],
    ids=lambda request: request.key,
)
def test_failing_requests_leave_everything_as_it_was(request_: Request) -> None:
    model = _used(conv_net())
    before = picture(model)
    with pytest.raises((RuntimeError, InputError)):
        Network(model)(images(), requirements=Requirements(extras=(request_,)))
    assert picture(model) == before


def test_a_model_that_fails_is_left_as_it_was() -> None:
    model = _used(conv_net())
    before = picture(model)
    with pytest.raises(InputError, match=r"does not take inputs of shape \(5, 8, 8\)"):
        Network(model)(torch.zeros(2, 5, 8, 8))
    with pytest.raises(InputError, match=r"does not take inputs of shape \(5, 8, 8\)"):
        Network(model, layer="block")(torch.zeros(2, 5, 8, 8))
    assert picture(model) == before


def test_buffers_written_in_evaluation_mode_are_put_back_and_randomness_is_by_place() -> None:
    model = Restless()
    before = picture(model)
    net = Network(model)
    first = net(torch.zeros(5, 4))
    assert picture(model) == before
    np.testing.assert_array_equal(first.logits, net(torch.zeros(5, 4)).logits)


def test_a_shuffled_loader_does_not_move_the_global_state() -> None:
    model = conv_net()
    data = torch.utils.data.TensorDataset(images(), torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    before = picture(model)
    Network(model).extract(loader)
    assert picture(model) == before


def test_the_very_storages_come_home_from_another_device() -> None:
    model = _used(conv_net())
    before = picture(model)
    with pytest.raises((RuntimeError, NotImplementedError)):
        Network(model)(images(), device="meta")  # a device every machine has, on which nothing can be read
    assert picture(model) == before
    assert len(Network(model)(images(), device="cpu")) == 10
    assert picture(model) == before


def test_training_goes_on_as_if_nothing_had_been_asked() -> None:
    disturbed, alone = conv_net(), conv_net()
    alone.load_state_dict(copy.deepcopy(disturbed.state_dict()))
    results = []
    for model, asked in ((disturbed, True), (alone, False)):
        torch.manual_seed(7)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            model(images(seed=step)).square().mean().backward()
            if asked:
                requirements = Requirements(extras=(Passes(2), Perturbed(0.1, _objective, "t"), BatchStatistics()))
                Network(model)(images(), requirements=requirements)
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*results)


def test_inside_inference_mode() -> None:
    model = conv_net()
    expected = Network(model)(images(), requirements=Requirements(extras=(Perturbed(0.01, _objective, "t"),)))
    with torch.inference_mode():
        acts = Network(model)(images(), requirements=Requirements(extras=(Perturbed(0.01, _objective, "t"),)))
    for name, value in expected.extras.items():
        np.testing.assert_array_equal(acts.extras[name], value)
