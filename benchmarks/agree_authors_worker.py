"""The authors' side of `agree_authors.py`: loads single files of their clones and calls them on saved arrays.

It runs in the peers' environment. Packages around the files are never imported: an empty package with the path of
their folder stands in, so that relative imports work and nothing else is run.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worker import THREADS, serve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from offmap.models.cnn import CNN  # the same network, in plain torch, for both sides

torch.set_num_threads(THREADS)
if not torch.cuda.is_available():  # their code moves everything to a GPU
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
BATCH = 100


def package(name: str, folder: Path) -> None:
    """An empty package that finds its modules in a folder; the names above it are packages too."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        made = ModuleType(".".join(parts[:end]))
        made.__path__ = [str(folder)] if end == len(parts) else []
        sys.modules[made.__name__] = made


def openood(clone: Path, module: str) -> Any:
    """One module of a copy of OpenOOD."""
    for part in ("utils", "postprocessors", "networks"):
        package(f"openood.{part}", clone / "openood" / part)
    sys.modules["openood.preprocessors.transform"] = ModuleType("transform")
    sys.modules["openood.preprocessors.transform"].normalization_dict = {}  # type: ignore[attr-defined]
    return importlib.import_module(f"openood.{module}")


class Features(nn.Module):
    """A network whose inputs are features already."""

    def __init__(self, arrays: dict[str, Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(arrays["weight"].shape[1], len(arrays["weight"]))
        self.fc.load_state_dict({"weight": arrays["weight"], "bias": arrays["bias"]})

    def forward(self, rows: Tensor, return_feature: bool = False, return_feature_list: bool = False) -> Any:
        """Logits, with the features where they are asked for."""
        if return_feature_list:
            return self.fc(rows), [rows]
        return (self.fc(rows), rows) if return_feature else self.fc(rows)

    def get_feature(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features."""
        return self.fc(rows), rows


class Pictures(nn.Module):
    """A small convolutional network, as OpenOOD's networks are called."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.inner = CNN(len(weights["head.bias"]), channels=3).eval()
        self.inner.load_state_dict(weights)
        self.feature_size = weights["head.weight"].shape[1]

    def forward(self, pictures: Tensor, return_feature: bool = False, return_feature_list: bool = False) -> Any:
        """Logits, with the features where they are asked for."""
        found = self.inner.features(pictures)
        return (self.inner.head(found), found) if return_feature else self.inner.head(found)

    def get_fc_layer(self) -> nn.Module:
        """The head."""
        return self.inner.head


def loader(arrays: dict[str, Tensor], name: str = "known") -> list[dict[str, Tensor]]:
    """Known inputs in equal batches."""
    rows = zip(arrays[name].split(BATCH), arrays["labels"].split(BATCH), strict=True)
    return [{"data": data.clone(), "label": labels} for data, labels in rows]


def normalized(arrays: dict[str, Tensor], clone: Path, kind: str) -> Tensor:
    """Mahalanobis++ and its relative form, from the authors' copy of OpenOOD."""
    made = openood(clone / "OpenOOD", f"postprocessors.{kind.lower()}_postprocessor")
    made.num_classes_dict["here"] = len(arrays["weight"])
    method = getattr(made, f"{kind}Postprocessor")(SimpleNamespace(dataset=SimpleNamespace(name="here")))
    net = Features(arrays)
    method.setup(net, {"train": loader(arrays)}, {})
    return method.postprocess(net, arrays["test"])[1]


def cadref(arrays: dict[str, Tensor], clone: Path) -> Tensor:
    """CADRef with the energy as the logit score, as in the paper's main tables."""
    net = Features(arrays)
    package("utils", clone / "utils")
    mapping = ModuleType("utils.linear_mapping")
    mapping.get_linear_layer_mapping = lambda *_: net.fc  # type: ignore[attr-defined]
    sys.modules["utils.linear_mapping"] = mapping
    package("ood_methods", clone / "ood_methods")
    args = SimpleNamespace(logit_method="Energy", model="", ind_dataset="")
    method = importlib.import_module("ood_methods.CADRef").CADRef(net, args, "cpu")
    logits = net(arrays["known"]).detach()
    answers = logits.argmax(dim=1)
    grouped = [answers == label for label in range(logits.shape[1])]
    state = method.get_state([arrays["known"][rows] for rows in grouped], [logits[rows] for rows in grouped])
    method.set_state(*state)
    return torch.from_numpy(method.eval([(arrays["test"], None)]))


def weiper(arrays: dict[str, Tensor], clone: Path) -> Tensor:
    """WeiPer+KLD with the given perturbations in place of its own random ones."""
    made = openood(clone / "Weiper" / "OpenOOD", "postprocessors.weiper_kldiv_postprocessor")
    args = SimpleNamespace(
        lambda_1=2.5, lambda_2=0.1, exact_minmax=True, smoothing=4, smoothing_perturbed=15, n_bins=100,
        perturbation_distance=1.8, n_repeats=len(arrays["noise"]), n_samples_for_setup=1000,
    )  # fmt: skip
    config = SimpleNamespace(postprocessor=SimpleNamespace(postprocessor_args=args, postprocessor_sweep=None))
    method, net = made.WeiPerKLDivPostprocessor(config), Features(arrays)
    drawn, place = torch.randn_like, [0]

    def given(_: Tensor) -> Tensor:
        place[0] += 1
        return arrays["noise"][(place[0] - 1) % len(arrays["noise"])]

    torch.randn_like = given  # type: ignore[assignment]
    try:
        method.setup(net, {"train": loader(arrays)}, {})
        return method.postprocess(net, arrays["test"])[1]
    finally:
        torch.randn_like = drawn


def adascale(arrays: dict[str, Tensor], clone: Path, kind: str) -> Tensor:
    """AdaSCALE from pictures, with 10 and 20 per cent of the units so that a narrow network has some."""
    made = openood(clone, "postprocessors.adascale_postprocessor")
    wrap = getattr(openood(clone, "networks.adascale_net"), f"AdaScale{kind}Net")
    weights = {name.removeprefix("cnn."): value for name, value in arrays.items() if name.startswith("cnn.")}
    net = wrap(Pictures(weights))
    args = SimpleNamespace(percentile=(80, 85), k1=10, k2=20, lmbda=10, o=0.05)
    config = SimpleNamespace(postprocessor=SimpleNamespace(postprocessor_args=args, postprocessor_sweep=None))
    method = made.AdaScalePostprocessor(config)
    method.setup(net, {"val": loader(arrays, "pictures")}, {})
    method.set_hyperparam([(80, 85), 10, 20, 10, 0.05])
    return method.postprocess(net, arrays["test_pictures"].clone())[1]


def grood(arrays: dict[str, Tensor], clone: Path) -> Tensor:
    """GROOD's gradients by autograd, with the mean of the prototypes as the unknown one; an exact nearest search."""
    sys.modules["torchvision"] = ModuleType("torchvision")  # for noise pictures only, which are not made here
    made = openood(clone, "postprocessors.grood")
    method = made.GrOODPostprocessor.__new__(made.GrOODPostprocessor)
    method.device, method.network = "cpu", Features(arrays)
    flags = ("distance_loss", "no_gradients", "use_pseudo_prototype", "use_direct_grad")
    for flag in flags:
        setattr(method, flag, False)
    labels = arrays["labels"]
    means = torch.stack([arrays["known"][labels == label].mean(dim=0) for label in labels.unique()])
    method._prototypes_tensors, method.noise_proto = means, means.mean(dim=0)
    known, test = (method._compute_grad(arrays[name], data_alone=True)["grads"] for name in ("known", "test"))
    away = torch.cdist(torch.from_numpy(test).double(), torch.from_numpy(known).double())
    return -away.min(dim=1).values


def nac(arrays: dict[str, Tensor], clone: Path) -> Tensor:
    """NAC's states and counts, with 50 bins of equal width, as in the paper; the code's own are narrow around 1/2."""
    for part in ("", ".nac"):
        package(f"openood.postprocessors{part}", clone / "openood" / "postprocessors" / part.strip("."))
    coverage = importlib.import_module("openood.postprocessors.nac.coverage")
    state_of = importlib.import_module("openood.postprocessors.nac.utils").get_state_func(
        method="sigmoid(o*g_kl)", sig_alpha=100
    )
    net, bins = Features(arrays), 50

    def states(rows: Tensor) -> Tensor:
        leaf = rows.clone().requires_grad_()
        with torch.enable_grad():
            gradient = coverage.kl_grad(leaf, net(leaf))
        return state_of(leaf.detach(), torch.ones(len(rows), dtype=torch.bool), gradient)

    width = arrays["known"].shape[1]
    estimator = coverage.Estimator(width, bins, 50, "cpu")
    edges = torch.linspace(0, 1, bins + 1)
    edges[-1] = 1.01
    estimator.M, estimator.thresh = bins + 1, edges[:, None].repeat(1, width)  # it counts edges
    estimator.t_act = torch.zeros(bins, width)
    estimator.update(states(arrays["known"]))
    estimator.get_score()
    return estimator.ood_test(states(arrays["test"]))


def neglabel(arrays: dict[str, Tensor], clone: Path) -> Tensor:
    """NegLabel over cosines: two known names, three negative labels in three groups."""
    package("mmcls.models.ood", clone / "mmcls" / "models" / "ood")
    around: dict[str, Any] = {
        "mmcv.runner": {"BaseModule": nn.Module},
        "mmcls.models.builder": {"OOD": SimpleNamespace(register_module=lambda: lambda kind: kind)},
        "mmcls.models.ood.utils": {"add_noise": None},
    }
    for name, held in around.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(held)
    sys.modules["mmcls.models"].build_classifier = None  # type: ignore[attr-defined]
    made = importlib.import_module("mmcls.models.ood.clip_ood").ScalableClassifier
    method = made.__new__(made)
    nn.Module.__init__(method)
    method.t = 0.1
    unit = nn.functional.normalize
    cosines = unit(arrays["test"]) @ unit(arrays["weight"]).T
    return method.grouping(cosines[:, :2], cosines[:, 2:], None, ngroup=3)


METHODS: dict[str, Any] = {
    "mahalanobis_pp": lambda arrays, clones: normalized(arrays, clones / "maha-norm", "MDSN"),
    "rmds_pp": lambda arrays, clones: normalized(arrays, clones / "maha-norm", "RMDSN"),
    "cadref": lambda arrays, clones: cadref(arrays, clones / "CADRef"),
    "weiper": lambda arrays, clones: weiper(arrays, clones / "weiper"),
    "adascale_a": lambda arrays, clones: adascale(arrays, clones / "OpenOOD", "A"),
    "adascale_l": lambda arrays, clones: adascale(arrays, clones / "OpenOOD", "L"),
    "grood": lambda arrays, clones: grood(arrays, clones / "OpenOOD"),
    "nac": lambda arrays, clones: nac(arrays, clones / "weiper" / "Weiper" / "OpenOOD"),
    "neglabel": lambda arrays, clones: neglabel(arrays, clones / "NegLabel"),
}


def scores(method: str, folder: str, clones: str) -> None:
    """Score the saved arrays by one method and save the answer, higher = known."""
    arrays = {file.stem: torch.from_numpy(np.load(file)) for file in Path(folder).glob("*.npy")}
    found = METHODS[method](arrays, Path(clones))
    np.save(Path(folder) / "answer.npy", found.detach().double().numpy())


if __name__ == "__main__":
    serve({"scores": scores})
