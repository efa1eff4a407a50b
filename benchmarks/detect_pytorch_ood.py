"""pytorch-ood's side of `detect.py` and `agree.py`; runs in the peers' environment."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from worker import THREADS, serve

# torchvision has no build for this torch without CUDA: with these two names declared, its Python part imports.
OPERATORS = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    OPERATORS.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

from pytorch_ood import detector as peer  # noqa: E402  # after the operators
from pytorch_ood.benchmark import Benchmark  # noqa: E402  # the same

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from offmap.models.densenet import DenseNet  # noqa: E402  # the same network, in plain torch, for both sides

logging.disable(logging.WARNING)
torch.set_num_threads(THREADS)
HELD: dict[str, Any] = {}


class Maps(nn.Module):
    """A head over feature maps of one position, which is how pooled features are given to methods on maps."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, maps: Tensor) -> Tensor:
        """The logits."""
        return self.head(maps.flatten(1))


def linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    """A head of given weights."""
    head = nn.Linear(weight.shape[1], weight.shape[0])
    head.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    return head


def make(name: str, head: nn.Linear, model: Any = None, encoder: Any = None) -> Any:
    """A detector by offmap's text form. Methods on maps cut at the pooled features, as the thesis does."""
    weight, bias = head.weight.detach(), head.bias.detach()
    ash = partial(peer.ASH, encoder, Maps(head))
    makers = {
        "msp": lambda: peer.MaxSoftmax(model),
        "maxlogit": lambda: peer.MaxLogit(model),
        "energy": lambda: peer.EnergyBased(model),
        "entropy": lambda: peer.Entropy(model),
        "gen": lambda: peer.GEN(model, gamma=0.1, M=100),
        "kl_matching": lambda: peer.KLMatching(model),
        "temperature_scaling|msp": lambda: peer.TemperatureScaling(model),
        "openmax(tail=25)": lambda: peer.OpenMax(model),
        "mahalanobis": lambda: peer.Mahalanobis(encoder),
        "rmds": lambda: peer.RMD(encoder),
        "gmm": lambda: peer.GMM(encoder),
        "knn(50)": lambda: peer.KNN(encoder, k=50),
        "nnguide(10, alpha=1.0)": lambda: peer.NNGuide(encoder, head, k=10),
        "vim": lambda: peer.ViM(encoder, weight.shape[1] // 2, weight, bias),
        "she": lambda: peer.SHE(encoder, head),
        "fdbd": lambda: peer.fDBD(encoder, head),
        "nci": lambda: peer.NCI(encoder, head, alpha=0.001),
        "pnml": lambda: peer.PNML(encoder, head),
        "gradnorm": lambda: peer.GradNorm(head, param_filter=lambda parameter: parameter == "weight"),
        "dice(0.7)|energy": lambda: peer.DICE(encoder, weight, bias, p=0.7),
        "react(90)|energy": lambda: peer.ReAct(encoder, head, percentile=0.9),
        "vra(60, 95)|energy": lambda: peer.VRA(encoder, head, 0.60, 0.95),
        "ash_p(65)|energy": lambda: ash("ash-p", 0.65),
        "ash_b(65)|energy": lambda: ash("ash-b", 0.65),
        "ash_s(90)|energy": lambda: ash("ash-s", 0.90),
        "scale(85)|energy": lambda: peer.SCALE(encoder, Maps(head), 0.85),
        "lts(95)|energy": lambda: peer.LTS(encoder, head, 0.05),
        "mcm": lambda: peer.MCM(encoder, weight),
        "odin": lambda: peer.ODIN(model),
    }  # fmt: skip
    return makers[name]()


def load(folder: str) -> None:
    """Read the arrays of a case: features and labels to fit on, features to score, the head."""
    arrays = {file.stem: np.load(file) for file in Path(folder).glob("*.npy")}
    HELD.update({name: torch.from_numpy(array) for name, array in arrays.items()})
    HELD["head"] = linear(arrays["weight"], arrays["bias"])


@torch.no_grad()
def _logits(features: Tensor) -> Tensor:
    return torch.cat([HELD["head"](part) for part in features.split(4096)])


def fit(method: str) -> None:
    """Fit on the features (or their logits)."""
    made = HELD[method] = make(method, HELD["head"])
    if not made.requires_fit:
        return
    if hasattr(made, "fit_logits"):
        made.fit_logits(_logits(HELD["known"]), HELD["labels"])
    elif hasattr(made, "fit_feature_maps"):
        made.fit_feature_maps(HELD["known"], HELD["labels"])
    else:
        made.fit_features(HELD["known"], HELD["labels"])


def score(method: str, batch: int | None = None) -> None:
    """Score the test features, all at once or in batches; the answer stays here until `write`."""
    made, test = HELD[method], HELD["test"]
    parts = test.split(batch or len(test))
    if hasattr(made, "predict_logits"):
        call = lambda part: made.predict_logits(_logits(part))  # noqa: E731  # one of four, side by side
    elif hasattr(made, "predict_feature_maps"):
        maps = type(made).__name__ in ("ASH", "SCALE")
        call = lambda part: made.predict_feature_maps(part[:, :, None, None] if maps else part)  # noqa: E731
    elif hasattr(made, "predict_features"):
        call = made.predict_features
    else:
        call = made.predict
    HELD["scores"] = torch.cat([call(part) for part in parts])


def forget(method: str) -> None:
    """Give up a fitted detector, so that its memory does not count for the next one."""
    del HELD[method]


def write(file: str) -> None:
    """Save the last scores, higher = known as offmap has it."""
    np.save(file, -HELD["scores"].detach().double().numpy())


class Sets(Benchmark):
    """Pictures as pytorch-ood's benchmarks hold them: the known test set joined to each unknown one."""

    def __init__(self, folder: str) -> None:
        pictures = {file.stem: torch.from_numpy(np.load(file)) for file in Path(folder).glob("*.npy")}
        self.known = TensorDataset(pictures["known"], pictures["labels"])
        self.test = TensorDataset(pictures["test"], pictures["test_labels"])
        unknown = {name: rows for name, rows in pictures.items() if name.startswith("ood-")}
        self.ood_names = [name.removeprefix("ood-") for name in sorted(unknown)]
        self.oods = [TensorDataset(unknown[name], torch.full((len(unknown[name]),), -1)) for name in sorted(unknown)]

    def train_set(self) -> TensorDataset:
        """What to fit on."""
        return self.known

    def test_sets(self, known: bool = True, unknown: bool = True) -> list[Any]:
        """Known and unknown together, one per unknown set."""
        return [self.test + ood for ood in self.oods]


def compare(methods: list[str], folder: str, weights: str, batch: int) -> dict[str, dict[str, dict[str, float]]]:
    """Fit all methods on the known pictures and evaluate them together, the way its documentation shows."""
    model = DenseNet.load(weights)
    sets = Sets(folder)
    loader = DataLoader(sets.train_set(), batch_size=batch)
    encoder = model.features  # one object: its cache tells encoders apart by identity
    made = {name: make(name, model.fc, model, encoder) for name in methods}
    with torch.no_grad():
        for detector in made.values():
            detector.fit(loader)
        rows = sets.evaluate(list(made.values()), loader_kwargs={"batch_size": batch})
    table: dict[str, dict[str, dict[str, float]]] = {name: {} for name in methods}
    for name, row in zip(methods * len(sets.ood_names), rows, strict=True):
        table[name][row["Dataset"]] = {"fpr95": row["FPR95TPR"], "auroc": row["AUROC"]}
    return table


def compare_by_hand(methods: list[str], folder: str, weights: str, batch: int) -> None:
    """The same by someone who extracts features once and calls the methods on them, around its benchmarks."""
    model = DenseNet.load(weights)
    sets = Sets(folder)

    @torch.no_grad()
    def features(data: Any) -> Tensor:
        return torch.cat([model.features(rows) for rows, _ in DataLoader(data, batch_size=batch)])

    HELD.update(head=model.fc, known=features(sets.known), labels=sets.known.tensors[1])
    tests = {name: features(data) for name, data in zip(["id", *sets.ood_names], [sets.test, *sets.oods], strict=True)}
    from pytorch_ood.metrics import OODMetrics

    for name in methods:
        fit(name)
        scores = {}
        for where, HELD["test"] in tests.items():
            score(name)
            scores[where] = HELD["scores"]
        for where in sets.ood_names:
            labels = torch.cat([torch.zeros(len(scores["id"])), torch.full((len(scores[where]),), -1)]).long()
            OODMetrics().update(torch.cat([scores["id"], scores[where]]), labels).compute()


def odin(folder: str, weights: str, file: str, epsilon: float) -> None:
    """ODIN's scores of pictures."""
    made = peer.ODIN(DenseNet.load(weights), eps=epsilon)
    HELD["scores"] = made.predict(torch.from_numpy(np.load(Path(folder) / "test.npy")))
    write(file)


if __name__ == "__main__":
    serve({f.__name__: f for f in (load, fit, score, forget, write, compare, compare_by_hand, odin)})
