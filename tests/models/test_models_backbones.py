"""Backbones have the published shapes and names, start from their seed alone, and learn; heads and freezing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offmap.errors import InputError
from offmap.models.encoders import ENCODERS, make_encoder, remove_last_layer
from offmap.models.freezing import freeze, train_mode
from offmap.models.heads import MLP, Adapter, spectral_head
from offmap.models.mobilenet import MobileNetV2
from offmap.models.resnet import ResNet
from offmap.models.vit import ViT
from offmap.network import Network

PUBLISHED = [  # parameters of torchvision's networks with 1,000 classes, and some of their names and shapes
    (
        lambda: ResNet(1000, 18, "imagenet"),
        11_689_512,
        {"conv1.weight": (64, 3, 7, 7), "layer2.0.downsample.0.weight": (128, 64, 1, 1), "layer4.1.bn2.bias": (512,)},
    ),
    (
        lambda: ResNet(1000, 50, "imagenet"),
        25_557_032,
        {"layer1.0.downsample.1.running_var": (256,), "layer4.2.conv3.weight": (2048, 512, 1, 1), "fc.bias": (1000,)},
    ),
    (
        lambda: MobileNetV2(1000),
        3_504_872,
        {"features.1.conv.1.weight": (16, 32, 1, 1), "features.2.conv.1.0.weight": (96, 1, 3, 3),
         "features.18.1.weight": (1280,), "classifier.1.weight": (1000, 1280)},
    ),
    (
        lambda: ViT(1000, 224, 16, 768, 12, 12),
        86_567_656,
        {"class_token": (1, 1, 768), "encoder.pos_embedding": (1, 197, 768),
         "encoder.layers.encoder_layer_11.self_attention.in_proj_weight": (2304, 768),
         "encoder.layers.encoder_layer_0.mlp.3.weight": (768, 3072), "heads.head.bias": (1000,)},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "count", "shapes"), PUBLISHED)
def test_published_sizes_and_names(make, count, shapes):
    with torch.device("meta"):
        model = make()
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    state = model.state_dict()
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


def small_nets(seed=0):
    return {
        "resnet18": ResNet(4, 18, width=4, seed=seed),
        "resnet50": ResNet(4, 50, "imagenet", width=4, seed=seed),
        "mobilenet": MobileNetV2(4, small=True, width=0.1, seed=seed),
        "vit": ViT(4, width=16, depth=2, n_heads=2, seed=seed),
    }


def test_weights_follow_from_the_seed_and_torch_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again, other = small_nets(), small_nets(), small_nets(1)
    assert torch.equal(torch.get_rng_state(), before)
    for name, net in first.items():
        vectors = [nn.utils.parameters_to_vector(nets[name].parameters()) for nets in (first, again, other)]
        assert torch.equal(vectors[0], vectors[1]), name
        assert not torch.equal(vectors[0], vectors[2]), name
        assert net(torch.rand(2, 3, 32, 32)).shape == (2, 4)


def test_batches_do_not_mix_and_every_parameter_learns():
    for name, net in small_nets().items():
        x = torch.rand((3, 3, 32, 32), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            net.eval()
            assert torch.allclose(net(x)[1:2], net(x[1:2]), atol=1e-4), name
        net.train()
        net(x).square().sum().backward()
        still = [key for key, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        assert still == [], name


def test_the_cifar_stem_keeps_small_pictures_large():
    x = torch.rand(2, 3, 32, 32)
    net = ResNet(2, width=4)
    assert net.layer1(net.maxpool(net.conv1(x))).shape[2:] == (32, 32)
    assert MobileNetV2(2, small=True, width=0.1).features(x).shape[2:] == (4, 4)
    assert MobileNetV2(2, width=0.1).features(x).shape[2:] == (1, 1)


def test_attention_is_the_sum_over_tokens():
    net = ViT(2, size=8, width=6, depth=1, n_heads=2).eval()
    layer = net.encoder.layers[0]
    tokens = torch.rand(1, 5, 6)
    x = layer.ln_1(tokens)[0]
    attention = layer.self_attention
    q, k, v = (attention.in_proj_weight @ x.T + attention.in_proj_bias[:, None]).T.split(6, dim=1)
    heads = []
    for head in (slice(0, 3), slice(3, 6)):
        rows = []
        for i in range(5):
            weights = torch.softmax(torch.stack([q[i, head] @ k[j, head] for j in range(5)]) / 3**0.5, dim=0)
            rows.append(sum(weights[j] * v[j, head] for j in range(5)))
        heads.append(torch.stack(rows))
    middle = tokens[0] + attention.out_proj(torch.cat(heads, dim=1))
    assert torch.allclose(layer(tokens)[0], middle + layer.mlp(layer.ln_2(middle)), atol=1e-5)


@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_gives_as_many_features_as_it_says(name):
    pictures = name not in ("linear", "mlp", "identity")
    shape = (3, 32, 32) if pictures else (12,)
    small = {"vit": {"width": 12, "depth": 1}, "densenet": {"layers": 1}, "mobilenetv2": {"width": 0.1}}
    settings = small.get(name, {"width": 4} if pictures else {})
    encoder, width = make_encoder(name, shape, **settings)
    x = torch.rand(2, *shape)
    assert encoder.eval()(x).shape == (2, width)
    if not pictures:
        assert torch.equal(encoder(x), x)
    with pytest.raises(InputError, match="it takes"):
        make_encoder(name, (7, 7))


def test_encoders_fit_the_size_of_pictures():
    assert make_encoder("resnet18", (3, 224, 224), width=4)[0].conv1.stride == (2, 2)
    assert make_encoder("resnet18", (1, 28, 28), width=4)[0].conv1.weight.shape == (4, 1, 3, 3)
    assert make_encoder("vit", (1, 96, 96), width=6, depth=1)[0].conv_proj.kernel_size == (16, 16)
    assert make_encoder("linear", (6,), outputs=4)[1] == 4
    for name, shape, message in [("resnet34", (3, 8, 8), "resnet18"), ("vit", (3, 32, 16), "square"),
                                 ("densenet", (1, 32, 32), "takes 3")]:  # fmt: skip
        with pytest.raises(InputError, match=message):
            make_encoder(name, shape)


def test_an_encoder_with_a_new_head_is_a_network_for_detectors():
    encoder, width = make_encoder("resnet18", (3, 16, 16), width=4)
    known = Network(nn.Sequential(encoder, nn.Linear(width, 7)).eval())(torch.rand(3, 3, 16, 16))
    assert known.logits.shape == (3, 7)
    assert known.features.shape == (3, width)
    with pytest.raises(InputError, match="no last linear"):
        remove_last_layer(nn.ReLU())


def test_heads_are_those_of_the_papers():
    x = torch.rand(5, 512)
    assert torch.allclose(MLP([512, 512, 128], normalize=True)(x).norm(dim=1), torch.ones(5))
    spectral = spectral_head()
    assert [p.shape[0] for p in spectral.parameters() if p.ndim == 2] == [2048, 1000]
    out = spectral(x)
    assert torch.allclose(out.mean(dim=0), torch.zeros(1000), atol=1e-5)
    same = [MLP([3, 4, 2], seed=seed).layers[0].weight for seed in (1, 1, 2)]
    assert torch.equal(same[0], same[1])
    assert not torch.equal(same[0], same[2])


def test_an_adapter_starts_as_nothing_and_learns_everywhere():
    x = torch.rand(6, 5)
    adapter = Adapter(5, hidden=7)
    assert torch.equal(adapter(x), x)
    for _ in range(2):  # the layer behind the zero layer learns from the second step on
        adapter.zero_grad()
        adapter(x).pow(3).sum().backward()
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter -= 0.01 * parameter.grad
    assert all(parameter.grad.abs().sum() > 0 for parameter in adapter.parameters())


def test_only_the_kept_parts_train():
    net = ResNet(3, width=4)
    left = freeze(net, keep=["layer4", "fc"])
    assert {name.partition(".")[0] for name in left} == {"layer4", "fc"}
    train_mode(net)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.5)
    net(torch.rand(4, 3, 16, 16)).square().sum().backward()
    optimizer.step()
    changed = {name.partition(".")[0] for name, value in net.state_dict().items() if not value.equal(before[name])}
    assert changed == {"layer4", "fc"}
    assert freeze(net) == ()
    assert freeze(net, "layer1.0.bn1.weight") == ("layer1.0.bn1.weight",)
    with pytest.raises(InputError, match="conv1, bn1, layer1"):
        freeze(net, "layer")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNet(0), "at least 1"),
        (lambda: ResNet(3, 34), "18 or 50"),
        (lambda: ResNet(3, stem="svhn"), "'imagenet'"),
        (lambda: MobileNetV2(3, width=0), "above 0"),
        (lambda: ViT(3, size=30), "multiple"),
        (lambda: ViT(3)(torch.zeros(1, 3, 28, 28)), "28×28"),
        (lambda: MLP([3]), "input and output"),
        (lambda: Adapter(0), "at least 1"),
    ],
)
def test_impossible_networks_are_refused_with_the_rule(make, message):
    with pytest.raises(InputError, match=message):
        make()
