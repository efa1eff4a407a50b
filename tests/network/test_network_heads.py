"""Heads as people have them: tied, cosine, convolutional, one logit, softmax at the end, several outputs, ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import offmap
from offmap import Network
from offmap.errors import InputError
from offmap.network.linear_calls import LinearCalls, find_functional_head

X = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Body(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
        self.weight = nn.Parameter(torch.randn(classes, 6))

    def features(self, x):
        return self.body(x).mean((2, 3))


class Tied(Body):
    def forward(self, x):
        return self.features(x) @ self.weight.T + 0.5


class Cosine(Body):
    def forward(self, x):
        return 16 * functional.linear(functional.normalize(self.features(x)), functional.normalize(self.weight))


class Convolution(Body):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(6, 5, 1)

    def forward(self, x):
        return self.head(self.body(x)).mean((2, 3))


class OneLogit(Body):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 1)

    def forward(self, x):
        return self.fc(self.features(x))


class Probabilities(Body):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(self.features(x)).log_softmax(1)


class Several(Body):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.other = nn.Linear(6, 5), nn.Linear(6, 2)

    def forward(self, x):
        found = self.features(x)
        return {"boxes": self.other(found), "classes": self.fc(found)}


@pytest.mark.parametrize("kind", [Tied, Cosine, Convolution, OneLogit, Probabilities])
def test_the_head_is_found_and_gives_the_logits(kind) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    net = Network(model)
    acts = net.extract(X)
    assert net.head is not None
    assert acts.features.shape == (12, 6)
    np.testing.assert_allclose(net.head(acts.features), acts.logits, atol=1e-4)
    if kind is OneLogit:
        assert acts.n_classes == 2
        with torch.no_grad():
            np.testing.assert_allclose(
                torch.from_numpy(acts.logits).softmax(1)[:, 1], model(X).sigmoid()[:, 0], atol=1e-5
            )
    guard = offmap.detector("react(90)|energy").fit(acts).calibrate(net.extract(X.flip(3)), tpr=0.5)
    assert len(np.unique(guard.score(acts))) > 1
    assert "6 features" in str(net)


@pytest.mark.parametrize("kind", [Tied, Cosine, Convolution, OneLogit, Probabilities])
def test_such_a_model_is_exported_with_its_guard(kind, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Network(kind().eval())
    acts = net.extract(X)
    guard = offmap.detector("energy").fit(acts).calibrate(net.extract(X.flip(3)), tpr=0.5)
    made = offmap.export(net, guard, tmp_path / "guarded.onnx", X.numpy())
    assert made.checked >= len(X)


def test_an_output_is_chosen_and_a_missing_one_says_what_there_is() -> None:
    net = Network(Several().eval(), output="classes")
    assert net(X).n_classes == 5
    assert Network(Several().eval(), output=lambda found: found["boxes"])(X).n_classes == 2
    with pytest.raises(InputError, match=r"output='clases'.*'boxes', 'classes'"):
        Network(Several(), output="clases")(X)
    with pytest.raises(InputError, match="output="):
        Network(Several())(X)


def test_what_goes_into_a_named_head_is_tapped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    )
    assert Network(model)(X).features.shape == (12, 8)
    net = Network(model, head="3")
    acts = net(X)
    assert acts.features.shape == (12, 16)
    assert net.head is None
    with pytest.raises(InputError, match="name one of them"):
        Network(model, layer="1", head="3")


def test_a_model_without_a_linear_end_lists_where_to_tap() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, 4), nn.ReLU())
    with pytest.raises(InputError, match=r"'2' \(Linear 4\), '3' \(ReLU 4\)"):
        Network(model)(X)


def test_a_factor_is_not_guessed_from_two_inputs() -> None:
    rows, weight = torch.randn(2, 4), torch.randn(3, 4)
    with LinearCalls() as noted:
        answered = rows @ weight.T
    assert find_functional_head(noted.calls, answered) is not None
    assert find_functional_head(noted.calls, 3 * answered + 1) is None


def _sklearn_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    return (rng.normal(size=(90, 4)) + 3 * np.eye(3, 4)[labels]).astype(np.float32), labels


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("zipmap", [False, True])
def test_scikit_learn_models_from_onnx(classes: int, zipmap: bool, tmp_path: Path) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression

    rows, labels = _sklearn_data()
    rows, labels = rows[labels < classes], labels[labels < classes]
    fitted = LogisticRegression().fit(rows, labels)
    made = skl2onnx.to_onnx(fitted, rows[:1], options={id(fitted): {"zipmap": zipmap}})
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    net = Network.onnx(tmp_path / "model.onnx")
    acts = net.extract(rows)
    assert acts.n_classes == classes
    probabilities = torch.from_numpy(acts.logits).softmax(1).numpy()
    np.testing.assert_allclose(probabilities, fitted.predict_proba(rows), atol=1e-4)
    with pytest.raises(InputError, match="output='logit': the graph has the outputs"):
        Network.onnx(tmp_path / "model.onnx", output="logit").extract(rows)
