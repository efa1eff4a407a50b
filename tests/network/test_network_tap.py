"""The tap: which layer is found, what is refused, what is said then."""

from __future__ import annotations

import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from network_zoo import ConvHead, ConvNet, Ending, FunctionalHead, Tokens, conv_net, images
from torch import nn

from offmap.errors import InputError, MissingError, OffmapWarning
from offmap.extra_passes import Requirements
from offmap.network import Network


def test_features_and_logits_are_those_of_the_model() -> None:
    model, x = conv_net(), images()
    acts = Network(model)(x)
    with torch.no_grad():
        expected = model.drop(model.block(model.stem(x)).mean((2, 3)))
    np.testing.assert_array_equal(acts.features, expected.numpy())
    np.testing.assert_array_equal(acts.logits, model(x).detach().numpy())
    assert acts.head is not None
    np.testing.assert_allclose(acts.head(acts.features), acts.logits, atol=1e-5)


def test_a_model_in_training_mode_is_run_in_evaluation_mode() -> None:
    model = conv_net()
    expected = model(images()).detach().numpy()
    np.testing.assert_array_equal(Network(model.train())(images()).logits, expected)


@pytest.mark.parametrize("picks", [True, False])
def test_a_head_on_tokens_is_tapped_at_the_token_the_model_picks(picks: bool) -> None:
    torch.manual_seed(0)
    model = Tokens(picks).eval()
    ids = torch.randint(1, 20, (6, 7))
    ids[2, 4:] = 0
    ids[5, 2:] = 0
    acts = Network(model)({"input_ids": ids, "labels": torch.zeros(6, dtype=torch.long)})
    with torch.no_grad():
        hidden = model.encoder(model.embed(ids))
    last = (ids != 0).sum(1) - 1 if picks else torch.zeros(6, dtype=torch.long)
    np.testing.assert_allclose(acts.features, hidden[torch.arange(6), last].numpy(), atol=1e-5)
    assert acts.labels is not None
    np.testing.assert_array_equal(acts.head.bias, np.zeros(3))


@pytest.mark.parametrize("ending", ["tuple", "list", "double"])
def test_logits_are_found_in_what_models_return(ending: str) -> None:
    assert Network(Ending(ending))(torch.randn(3, 4)).logits.shape == (3, 3)


def test_logits_are_found_in_an_object() -> None:
    class Answering(Ending):
        def forward(self, x: torch.Tensor) -> types.SimpleNamespace:
            return types.SimpleNamespace(logits=self.fc(self.body(x)), loss=None)

    assert Network(Answering(""))(torch.randn(3, 4)).features.shape == (3, 6)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (ConvHead(), images()),
        (FunctionalHead(), torch.randn(3, 4)),
        (Ending("softmax"), torch.randn(3, 4)),
        (Ending("in place"), torch.randn(3, 4)),
    ],
)
def test_a_head_that_is_no_last_linear_layer_is_found(model: nn.Module, x: torch.Tensor) -> None:
    net = Network(model)
    acts = net(x)
    assert net.head is not None
    np.testing.assert_allclose(net.head(acts.features), acts.logits, atol=1e-5)


def test_a_named_head_before_a_softmax_gives_true_logits() -> None:
    model, x = Ending("softmax"), torch.randn(3, 4)
    acts = Network(model, layer="fc")(x)
    np.testing.assert_allclose(acts.logits, model.fc(model.body(x)).detach().numpy(), atol=1e-6)
    assert acts.head is not None


def test_a_named_head_whose_output_is_changed_in_place_is_refused() -> None:
    net = Network(Ending("in place"), layer="fc")
    for _ in range(2):
        with pytest.raises(InputError, match="cannot serve as a head"):
            net(torch.randn(3, 4))


@pytest.mark.parametrize("layer", ["body", "body.0"])
def test_any_other_layer_gives_features_without_a_head(layer: str) -> None:
    model, x = ConvHead(), images()
    acts = Network(model, layer=layer)(x)
    expected = model.get_submodule(layer)(x).mean((2, 3)).detach().numpy()
    np.testing.assert_allclose(acts.features, expected, atol=1e-6)
    assert acts.head is None
    np.testing.assert_array_equal(acts.logits, model(x).detach().numpy())


def test_a_tapped_layer_is_read_before_the_next_one_works_in_place() -> None:
    model = conv_net()
    acts = Network(model, layer="block.1")(images())
    with torch.no_grad():
        expected = model.block[1](model.block[0](model.stem(images()))).mean((2, 3))
    np.testing.assert_allclose(acts.features, expected.numpy(), atol=1e-6)
    assert (acts.features < 0).any()


def test_an_inner_linear_layer_is_not_mistaken_for_the_head() -> None:
    model, x = Ending("tuple"), torch.randn(3, 4)
    acts = Network(model, layer="body.0")(x)
    np.testing.assert_array_equal(acts.features, model.body[0](x).detach().numpy())
    assert acts.head is None


def test_an_unknown_layer_is_refused_with_near_names() -> None:
    with pytest.raises(InputError, match=r"no such layer; close are .*'block'"):
        Network(ConvNet(), layer="blok")(images())


def test_a_detector_that_needs_the_head_is_told_when_there_is_none() -> None:
    with pytest.raises(MissingError, match="needs a linear head"):
        Network(ConvHead(), layer="body")(images(), requirements=Requirements(head=True))


def test_the_head_is_a_copy_and_follows_further_training() -> None:
    model = conv_net()
    net = Network(model)
    with pytest.raises(MissingError, match="call net"):
        _ = net.head
    acts = net(images())
    before = acts.head.weight.copy()
    with torch.no_grad():
        model.fc.weight += 1
    np.testing.assert_array_equal(acts.head.weight, before)
    np.testing.assert_array_equal(net.head.weight, before + 1)


def test_arrays_share_no_memory_with_the_inputs() -> None:
    x = torch.randn(3, 4)
    acts = Network(nn.Linear(4, 2))(x)
    acts.features[:] = 7
    assert not (x == 7).any()


def test_numpy_in_double_precision_and_half_precision_models_work() -> None:
    model = conv_net()
    acts = Network(model)(images().double().numpy())
    np.testing.assert_array_equal(acts.logits, model(images()).detach().numpy())
    half = Network(conv_net().to(torch.bfloat16))(images())
    assert half.features.dtype == np.float32
    np.testing.assert_allclose(half.logits, acts.logits, atol=0.2)


def test_wrappers_are_looked_through() -> None:
    model = conv_net()
    expected = Network(model)(images()).features
    np.testing.assert_array_equal(Network(nn.DataParallel(model))(images()).features, expected)
    np.testing.assert_array_equal(Network(torch.compile(model))(images()).features, expected)


def test_torchscript_is_refused_with_the_way_out() -> None:
    scripted = torch.jit.trace(conv_net(), images())
    with pytest.raises(InputError, match=r"Network\.onnx"):
        Network(scripted)(images())


@pytest.mark.parametrize("bad", ["model.pt", np.zeros(3)])
def test_things_that_are_no_module_are_refused(bad: object) -> None:
    with pytest.raises(InputError, match=r"torch\.nn\.Module is needed"):
        Network(bad)


def test_outputs_that_are_no_class_logits_are_refused() -> None:
    with pytest.raises(InputError, match="one row of logits per input"):
        Network(nn.Conv2d(3, 4, 3))(images())
    with pytest.raises(InputError, match="returns str"):
        Network(_Talking())(torch.zeros(2, 2))


class _Talking(nn.Module):
    def forward(self, x: torch.Tensor) -> str:
        return "hello"


def test_layers_and_noise() -> None:
    net = Network(conv_net())
    assert net.layers()["fc"] == "Linear"
    small, large = net.noise(10, (3, 8, 8), seed=3, batch_size=4), net.noise(10, (3, 8, 8), seed=3)
    np.testing.assert_allclose(small.features, large.features, rtol=1e-5, atol=1e-6)
    assert not np.allclose(net.noise(10, (3, 8, 8), seed=4).features, large.features)


def test_print_says_what_is_tapped() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    net = Network(model)
    assert str(net) == "Network(Sequential)"
    net(torch.zeros(2, 4))
    assert str(net) == "Network(Sequential), 8 features from before '2', 3 classes"
    inner = Network(model, layer="1")
    inner(torch.zeros(2, 4))
    assert str(inner) == "Network(Sequential, layer='1'), features from the output of '1', no linear head"


def test_probabilities_are_warned_of() -> None:
    for ending, kind in ((nn.Softmax(1), " probabilities"), (nn.LogSoftmax(1), "log-probabilities")):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), ending)
        with pytest.warns(OffmapWarning, match=f"its outputs are ?{kind}, not logits"):
            Network(model, layer="1")(torch.randn(5, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Network(model, layer="2")(torch.randn(5, 4))


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_model_with_sparse_weights_is_refused(layout: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    model[2].weight = nn.Parameter(getattr(model[2].weight.detach(), layout)(), requires_grad=False)
    net = Network(model)
    with pytest.raises(InputError, match=r"the weights '2\.weight' are of the layout torch\.sparse"):
        net(torch.rand(2, 6))
    with pytest.raises(InputError, match=r"the weights '2\.weight' are of the layout torch\.sparse"):
        net.extract(torch.rand(2, 6), to=tmp_path / "acts")
