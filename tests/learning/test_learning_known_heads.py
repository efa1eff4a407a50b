"""Heads over known classes that are trained for detection, kept, saved and read by detectors: GODIN, MOS, CSI, …"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from learning_blobs import blobs
from torch.nn import functional

import offmap
from offmap import store
from offmap.errors import InputError, StoreError
from offmap.learning import learn, losses
from offmap.learning.objectives import Task, objective
from offmap.metrics.detection import auroc
from offmap.models.known_heads import DeConf, GroupSoftmax, build_known_head

READ = [("godin", "godin_h"), ("godin", "godin_g"), ("mos", "mos"), ("logitnorm", "msp"), ("logitnorm", "energy")]


@pytest.mark.parametrize(("name", "method"), READ)
def test_the_head_comes_back_from_a_file_and_detectors_read_it(name: str, method: str, tmp_path: Path) -> None:
    rows, truth, labels = blobs()
    model = learn(rows, labels, 6, objective=name, seed=1, epochs=4, batch_size=64, neighbours=5)
    model.save(tmp_path / "model.offmap")
    again = offmap.load(tmp_path / "model.offmap")
    detector = offmap.detector(method)
    known = model.known_network.extract(rows[labels >= 0], detector.requirements, progress=False)
    detector.fit(known)
    first, second = (made.known_network.extract(rows, detector.requirements, progress=False) for made in (model, again))
    assert first.logits.shape == (len(rows), 3)
    scores = detector.score(first)
    assert np.array_equal(scores, detector.score(second))
    if method != "godin_g":  # on blobs the gate has nothing to learn: all labelled rows are easy
        assert auroc(scores[truth < 3], scores[truth >= 3]) > 0.9


def test_godins_scores_are_the_heads_own_numbers() -> None:
    rows, _, labels = blobs()
    model = learn(rows, labels, 6, objective="godin", epochs=2, batch_size=64, neighbours=5)
    net, head = model.net, model.net.known_head
    assert isinstance(head, DeConf)
    assert head.g.norm.num_batches_tracked > 0
    with torch.no_grad():
        features = net.encoder(torch.from_numpy(rows))
        cosines = functional.normalize(features, dim=1) @ functional.normalize(head.h.weight, dim=1).T
        line = features @ head.g.linear.weight[0] + head.g.linear.bias
        norm = head.g.norm
        gate = torch.sigmoid(
            (line - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        )
    for method, expected in (("godin_h", cosines.amax(dim=1)), ("godin_g", gate)):
        detector = offmap.detector(method)
        acts = model.known_network.extract(rows, detector.requirements, progress=False)
        assert detector.fit(acts).score(acts) == pytest.approx(expected.numpy(), abs=1e-5)
        assert acts.logits == pytest.approx((cosines / gate[:, None]).numpy(), abs=1e-3)


def upright(n: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of three classes that stand upright: dots and a bar of their own, light above and dark below."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % 3
    out = np.linspace(90, 0, 8)[:, None] + rng.integers(0, 30, size=(n, 8, 8))
    for i, c in enumerate(truth):
        out[i, 5:7, 1 + 2 * c : 3 + 2 * c] += 120
    return np.clip(out, 0, 255).astype(np.uint8), truth


def test_csi_averages_its_head_over_turns_and_comes_back_from_a_file(tmp_path: Path) -> None:
    images, truth = upright()
    labels = np.where((truth < 2) & (np.arange(len(truth)) % 4 > 0), truth, -1)
    views = offmap.data.views.ImageViews(scale=(0.7, 1.0), flip=0.0)
    settings = {"epochs": 30, "batch_size": 30, "learning_rate": 0.1, "contrasted": 16, "views": views, "seed": 1}
    model = learn(images, labels, 3, objective="csi", **settings)
    assert model.history[-1]["contrast"] < model.history[0]["contrast"]
    net, head = model.net, model.net.known_head
    with torch.no_grad():
        inputs = torch.from_numpy(images)[:, None].float() / 255
        turned = [net.encoder(torch.from_numpy(np.rot90(inputs.numpy(), k, (2, 3)).copy())) for k in range(4)]
        logits = sum(head.joint(rows)[:, 2 * k : 2 * k + 2] for k, rows in enumerate(turned)) / 4
    acts = model.known_network.extract(inputs, progress=False)
    assert acts.logits == pytest.approx(logits.numpy(), abs=1e-4)
    assert acts.features == pytest.approx(turned[0].numpy(), abs=1e-5)  # those of the picture as it is
    assert (acts.logits.argmax(axis=1) == truth)[truth < 2].mean() > 0.9
    model.save(tmp_path / "model.offmap")
    again = offmap.load(tmp_path / "model.offmap").known_network.extract(inputs, progress=False)
    assert np.array_equal(again.logits, acts.logits)
    twice = learn(images, labels, 3, objective="csi", **{**settings, "epochs": 2})
    same = learn(images, labels, 3, objective="csi", **{**settings, "epochs": 2})
    assert all(torch.equal(value, same.net.state_dict()[name]) for name, value in twice.net.state_dict().items())


@pytest.mark.parametrize("name", ["csi", "dualrank"])
def test_what_needs_pictures_says_so(name: str) -> None:
    rows, _, labels = blobs(size=10)
    with pytest.raises(InputError, match=f"{name}: it learns from images, and these inputs are embeddings"):
        learn(rows, labels, 6, objective=name)
    if name == "csi":
        with pytest.raises(InputError, match="must be square"):
            learn(np.zeros((8, 6, 4), np.uint8), [0, 1, -1, -1] * 2, 3, objective=name, epochs=1)


def test_group_softmax_by_plain_loops() -> None:
    rng = torch.Generator().manual_seed(0)
    head = GroupSoftmax(5, [0, 1, 0, 2])
    with torch.no_grad():
        for value in head.parameters():
            value.copy_(torch.randn(value.shape, generator=rng))
    rows, labels = torch.randn(7, 5, generator=rng), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    seen = []
    head.others.register_forward_hook(lambda module, given, out: seen.append(out))
    logs = head(rows)
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        classes, others = head.linear(row).detach(), head.others_logits(row).detach()
        for group in range(3):
            members = [c for c, g in enumerate([0, 1, 0, 2]) if g == group]
            p = torch.softmax(torch.stack([*classes[members], others[group]]), dim=0)
            total -= float(p[members.index(int(label))].log() if int(label) in members else p[-1].log())
    loss = losses.group_softmax(*head.parts(rows), head.groups, labels)
    assert float(loss) == pytest.approx(total / 7, rel=1e-5)
    inside = logs.exp()[:, [0, 2]].sum(dim=1) + seen[0][:, 0]
    assert inside.detach().numpy() == pytest.approx(np.ones(7), abs=1e-5)


def test_mos_groups_neighbouring_classes() -> None:
    kind = objective("mos")
    made = kind(Task(2, 4, 4, (0.25,) * 4, 0.5), {"groups": 2})
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    made.start(centres, torch.arange(4), centres)
    groups = made.known_head().groups.tolist()
    assert groups[0] == groups[2] != groups[1] == groups[3]


def test_what_keeps_no_head_says_which_do(tmp_path: Path) -> None:
    rows, _, labels = blobs(size=10)
    with pytest.raises(InputError, match="csi, godin, logitnorm and mos do"):
        _ = learn(rows, labels, 6, objective="ce", epochs=1).known_network
    with pytest.raises(StoreError, match="not possible"):
        build_known_head({"kind": "deconf", "width": -1, "n_classes": 2})
    with pytest.raises(StoreError, match="'other' is not known"):
        build_known_head({"kind": "other", "width": 1, "n_classes": 2})
    model = learn(rows, labels, 6, objective="mos", epochs=1)
    model.save(tmp_path / "model.offmap")
    stored = store.load(tmp_path / "model.offmap")
    stored.tensors["net.known_head.groups"] = np.full(3, 99)
    with pytest.raises(StoreError):
        offmap.learning.OpenWorldModel.restore(stored)
