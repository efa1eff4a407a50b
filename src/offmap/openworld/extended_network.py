"""The outcome of learning: a larger head, a larger network, or a map from features to better ones with its head."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offmap import store
from offmap.activations import Activations, Head, as_array
from offmap.errors import InputError, StoreError
from offmap.extra_passes import Request, Requirements
from offmap.network import Backend, Network
from offmap.network.batches import update_digest
from offmap.openworld.inputs import LabeledInputs
from offmap.openworld.kernel_map import KernelMap
from offmap.typing import Array

if TYPE_CHECKING:
    from torch import nn

    from offmap.learning import OpenWorldModel

KIND = "learned-classes"
_MODULE = "module."


@dataclass(frozen=True)
class ClassifierUpdate:
    """How inputs become activations over all classes known by now.

    Parameters
    ----------
    class_names
        One per class.
    head
        Over the features of the network that was there at first (its encoder stays as it was).
    model
        A learned map from those features (or from the inputs, see `reads_inputs`) to others, with its own head.
    network
        A network that was trained further.
    reads_inputs
        Whether `model` reads the inputs themselves.
    feature_map
        What features go through before `head` reads them.
    """

    class_names: tuple[str, ...]
    head: Head | None = None
    model: OpenWorldModel | None = None
    network: Network | None = None
    reads_inputs: bool = False
    feature_map: KernelMap | None = None

    @property
    def kind(self) -> str:
        """Which of the three it is."""
        return "network" if self.network is not None else "model" if self.model is not None else "head"

    def activations(self, part: LabeledInputs, requirements: Requirements | None = None) -> Activations:
        """Return the activations of some inputs: features, logits over all classes, labels where all have one."""
        labels = part.labels if (part.labels >= 0).all() else None
        if self.network is not None:
            if part.inputs is None:
                raise InputError("a network that was trained further reads inputs, and there are only features")
            asked = None if requirements is None else replace(requirements, labels=False)
            return self.network.extract(part.inputs, asked, labels=labels, progress=False)
        if requirements is not None and requirements.extras:
            raise InputError(
                f"the detector reads {requirements.describe()}, which features do not tell; learn with 'finetune'"
            )
        if self.model is None:
            features = part.features if self.feature_map is None else self.feature_map(part.features)
            return Activations(features, self.head, None, labels)
        rows = part.rows("inputs") if self.reads_inputs else part.features
        return Activations(self.model.transform(rows), _head_of(self.model), None, labels)

    def predict(self, part: LabeledInputs) -> Array:
        """Return the class of each input."""
        return self.activations(part).predictions

    def lower_new(self, n_old: int, offsets: Array) -> ClassifierUpdate:
        """Return the update with the logits of the classes from `n_old` on lowered, each by its offset.

        A network or model was trained for this update alone, so its bias is changed in place.
        """
        if not offsets.any():
            return self
        if self.head is not None:
            bias = np.array(self.head.bias)
            bias[n_old:] -= offsets
            return replace(self, head=Head(self.head.weight, bias))
        import torch

        module: Any
        if self.network is not None:
            module = self.network.model
            layer = module.get_submodule(head_name(self.network))
        else:
            assert self.model is not None
            layer = self.model.net.classifier
        with torch.no_grad():
            layer.bias[n_old:] -= torch.as_tensor(offsets, dtype=layer.bias.dtype)
        return self

    def deployable(self, network: Network | None) -> Network | None:
        """The network to put in service beside a detector fitted on these activations; `network` is the one there now.

        `None` where there was none: then features are scored, which works while the features are what they were.
        """
        if self.network is not None:
            return self.network
        if isinstance(network, ExtendedNetwork) and network.reads_features:
            network = None  # it is what was learned before, which this update takes the place of
        if network is None and self.model is None and self.feature_map is None:
            return None
        return ExtendedNetwork(self, network)

    def head_arrays(self) -> dict[str, Array]:
        """Return the arrays of the head, and of the map before it, by name; none without a head."""
        if self.head is None:
            return {}
        return {**self.head.arrays(), **({} if self.feature_map is None else self.feature_map.arrays())}

    @classmethod
    def from_head_arrays(cls, class_names: tuple[str, ...], arrays: Mapping[str, Array]) -> ClassifierUpdate:
        """Make an update from what `head_arrays` gave."""
        return cls(class_names, Head(arrays["weight"], arrays["bias"]), feature_map=KernelMap.from_arrays(arrays))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``learned.offmap`` (and ``model.offmap``) into a folder."""
        config: dict[str, Any] = {
            "kind": self.kind,
            "class_names": list(self.class_names),
            "reads_inputs": self.reads_inputs,
        }
        tensors: dict[str, Array] = self.head_arrays()
        if self.network is not None:
            config["head"] = head_name(self.network)
            state = {} if self.network.model is None else self.network.model.state_dict()
            tensors = {_MODULE + name: value.detach().cpu().numpy() for name, value in state.items()}
        if self.model is not None:
            self.model.save(Path(folder) / "model.offmap")
        store.save(Path(folder) / "learned.offmap", KIND, config, tensors)

    @classmethod
    @store.restoring("learned version")
    def load(cls, folder: str | os.PathLike[str], network: Network | None = None) -> ClassifierUpdate:
        """Read it back; a network that was trained further is rebuilt from the one it began as."""
        stored = store.load(Path(folder) / "learned.offmap", KIND)
        names, kind = tuple(stored.config["class_names"]), stored.config["kind"]
        if kind == "head":
            return cls.from_head_arrays(names, stored.tensors)
        if kind == "model":
            from offmap.learning import OpenWorldModel

            model = OpenWorldModel.restore(store.load(Path(folder) / "model.offmap"))
            return cls(names, model=model, reads_inputs=stored.config["reads_inputs"])
        if network is None or network.model is None:
            raise StoreError(
                f"{folder}: a network trained further is here; the one it began as is needed to rebuild it"
            )
        import torch

        module = grow_head(network, len(names), name=stored.config["head"])
        state = {name.removeprefix(_MODULE): torch.from_numpy(a.copy()) for name, a in stored.tensors.items()}
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise StoreError(f"{folder}: its weights are not of this network ({first})") from error
        return cls(names, network=Network(module.eval(), network.layer))


class ExtendedBackend(Backend):
    """Runs a network and passes its features on into what was learned since; see `ExtendedNetwork`."""

    def __init__(self, update: ClassifierUpdate, base: Backend | None) -> None:
        self.update, self.base = update, base

    @property
    def torch_model(self) -> nn.Module | None:
        """The module of the network below."""
        return None if self.base is None else self.base.torch_model

    @property
    def tap(self) -> str | None:
        """The layer that is tapped in the network below."""
        return "inputs" if self.base is None else self.base.tap

    def head(self) -> Head | None:
        """Return the head over all classes."""
        return self.update.head if self.update.model is None else _head_of(self.update.model)

    def layers(self) -> dict[str, str]:
        """Return the layers of the network below."""
        return {} if self.base is None else self.base.layers()

    def fingerprint(self) -> str:
        """Return a checksum of the network below and of what was learned since."""
        digest = hashlib.blake2b(b"" if self.base is None else self.base.fingerprint().encode(), digest_size=16)
        arrays: Mapping[str, Any] = {} if self.update.model is None else self.update.model.net.state_dict()
        if self.update.head is not None:
            arrays = self.update.head_arrays()
        for name, array in arrays.items():
            update_digest(digest, name, array)
        return digest.hexdigest()

    def session(self, device: str | None) -> AbstractContextManager[None]:
        """Return the context of the network below."""
        return nullcontext() if self.base is None else self.base.session(device)

    def to(self, device: str) -> None:
        """Move the network below; what was learned on top of it is small and stays on the CPU."""
        if self.base is not None:
            self.base.to(device)

    def run(self, inputs: Any, requests: Sequence[Request], start: int) -> dict[str, Array]:
        """Run the network below, then what was learned, on one batch."""
        found: dict[str, Array] = {} if self.base is None else self.base.run(inputs, requests, start)
        rows = None if isinstance(inputs, Mapping) else as_array(inputs, "inputs")
        features = found.get("features", rows)
        if self.base is None and self.update.reads_inputs:
            features = np.zeros((len(inputs), 1), np.float32)
        acts = self.update.activations(LabeledInputs.of(features, None, rows))
        return {**found, "features": np.asarray(acts.features), "logits": np.asarray(acts.logits)}


class ExtendedNetwork(Network):
    """A network whose features go on into what was learned since, so that a service sees one network.

    Parameters
    ----------
    update
        A head or a model over the network's features, or over the inputs.
    network
        The network as it was before; `None` when `update` reads the inputs themselves, or features that come from
        elsewhere.
    """

    def __init__(self, update: ClassifierUpdate, network: Network | None) -> None:
        super().__init__(ExtendedBackend(update, None if network is None else network.backend))
        self.update, self.base = update, network

    def __repr__(self) -> str:
        return f"{self.base!r} with {len(self.update.class_names)} classes"

    @property
    def reads_features(self) -> bool:
        """Whether its inputs are features that come from elsewhere."""
        return self.base is None and not self.update.reads_inputs

    def merge(self, example: Any = None) -> Network:
        """Return one torch network with the new head in place of the old one, such as to export it.

        Parameters
        ----------
        example : array, optional
            A few inputs, where the network below was not run yet: its last layer is found by running it.
        """
        head, base = self.update.head, self.base
        if head is not None and base is None:
            return Network(_head_module(self.update))
        if head is None or base is None or base.model is None:
            raise InputError(f"{self}: only a head over a torch network becomes one network; learn with 'finetune'")
        if base.backend.tap is None:
            if example is None:
                raise InputError(f"{self}: it was not run yet; give an example of its inputs")
            base(example)
        module, name = copy.deepcopy(base.model), head_name(base)
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, _head_module(self.update))
        return Network(module, base.layer)


def grow_head(network: Network, n_classes: int, rows: Sequence[Array] = (), name: str | None = None) -> nn.Module:
    """Return a copy of the network's module whose last layer has `n_classes` outputs; those it had are as they were.

    Parameters
    ----------
    network
        Of a torch module with a linear head.
    n_classes
        At least as many as it has.
    rows
        Directions for the new classes, such as their mean features; each is scaled to the length of an average old row.
    name
        Of the linear layer, when the network was not run yet.
    """
    import torch
    from torch import nn

    model = network.model
    if model is None:
        raise InputError("an ONNX network cannot be trained further; learn with 'prototypes' instead")
    module = copy.deepcopy(model)
    name = head_name(network) if name is None else name
    try:
        old = module.get_submodule(name)
    except AttributeError as error:
        raise InputError(f"{network}: it has no layer {name!r}; another network was trained further") from error
    if not isinstance(old, nn.Linear):
        raise InputError(f"{network}: its layer {name!r} is not linear; another network was trained further")
    if n_classes < old.out_features:
        raise InputError(f"{n_classes} classes: the network already knows {old.out_features}")
    new = nn.Linear(old.in_features, n_classes)
    with torch.no_grad():
        new.weight.zero_()
        new.weight[: old.out_features] = old.weight
        bias = torch.zeros(old.out_features) if old.bias is None else old.bias
        new.bias.fill_(float(bias.mean()))
        new.bias[: old.out_features] = bias
        length = float(old.weight.norm(dim=1).mean())
        for place, row in enumerate(rows):
            direction = torch.as_tensor(row, dtype=torch.float32)
            new.weight[old.out_features + place] = length * direction / direction.norm().clamp(min=1e-12)
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, new)
    return module


def linear_module(head: Head) -> nn.Linear:
    """Return a head as a torch layer.

    Examples
    --------
    >>> linear_module(Head(np.eye(2, 3)))
    Linear(in_features=3, out_features=2, bias=True)
    """
    import torch
    from torch import nn

    layer = nn.Linear(head.weight.shape[1], head.weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.asarray(head.weight, np.float32)))
        layer.bias.copy_(torch.from_numpy(np.asarray(head.bias, np.float32)))
    return layer.requires_grad_(False)


def _head_module(update: ClassifierUpdate) -> nn.Module:
    """Return the head of an update, with the map before it where there is one, as a torch module."""
    from torch import nn

    assert update.head is not None
    linear = linear_module(update.head)
    return linear if update.feature_map is None else nn.Sequential(update.feature_map.module(), linear)


def head_name(network: Network) -> str:
    """Return the name of the linear layer that is the network's head."""
    from torch import nn

    head, model = network.head, network.model
    if head is None or model is None:
        raise InputError(
            f"{network}: it does not end in a linear layer, so no class can be added; name one with layer="
        )
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and np.array_equal(module.weight.detach().cpu().numpy(), head.weight)
    ]
    if not found or not found[-1]:
        raise InputError(
            f"{network}: its last linear layer is not a module of its own inside the model; wrap it in one"
        )
    return found[-1]


def _head_of(model: OpenWorldModel) -> Head:
    layer = model.net.classifier
    return Head(layer.weight.detach().numpy(), layer.bias.detach().numpy())
