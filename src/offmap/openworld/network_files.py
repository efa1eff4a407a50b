"""Networks as plain numbers and settings, so that a deployment is one file that runs no code when it is read."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offmap import store
from offmap.errors import StoreError
from offmap.network import Network
from offmap.network.onnx_backend import OnnxBackend
from offmap.openworld.extended_network import ClassifierUpdate, ExtendedNetwork, grow_head, head_name
from offmap.typing import Array

if TYPE_CHECKING:
    from torch import nn

Parts = tuple[dict[str, Any], dict[str, Array]]
_GRAPH, _BASE, _MODEL = "graph", "base.", "model."


def network_parts(network: Network | None) -> Parts:
    """Return the settings and tensors from which `restore_network` builds a network again."""
    if network is None:
        return {"kind": "none"}, {}
    if isinstance(network, ExtendedNetwork):
        return _extended_parts(network)
    module = network.model
    if isinstance(network.backend, OnnxBackend):
        content = network.backend.model.SerializeToString()
        return {"kind": "onnx", "layer": network.layer}, {_GRAPH: np.frombuffer(content, np.uint8)}
    assert module is not None
    tensors = {name: value.detach().cpu().numpy() for name, value in module.state_dict().items()}
    common = {"layer": network.layer, "class": type(module).__name__}
    own = _cnn_settings(module)
    if own is not None:
        return {"kind": "cnn", **common, "settings": own}, tensors
    name = head_name(network)
    return {"kind": "module", **common, "head": name, "n_classes": len(tensors[f"{name}.weight"])}, tensors


def restore_network(config: Mapping[str, Any], tensors: Mapping[str, Array], given: Network | None) -> Network | None:
    """Build the network that `network_parts` described.

    Parameters
    ----------
    config, tensors : mapping of str to Any and mapping of str to ndarray
        What `network_parts` returned.
    given : Network or None
        The network to put the weights of a foreign torch module into; a copy is made.
    """
    kind = config["kind"]
    if kind == "none":
        return None
    if kind == "onnx":
        return _onnx_from_bytes(tensors[_GRAPH].tobytes(), config["layer"])
    if kind == "extended":
        return _extended_from(config, tensors, given)
    if kind == "cnn":
        from offmap.models.cnn import CNN

        return Network(_with_weights(CNN(**config["settings"]), tensors), config["layer"])
    if given is None or given.model is None:
        raise StoreError(
            f"it holds the weights of a {config['class']}, which is not offmap's own: name what makes one, --model "
            "package.module:factory (of export, the first argument); in Python, Deployment.load(path, "
            "network=offmap.Network(model))"
        )
    module = grow_head(given, config["n_classes"], name=config["head"])
    return Network(_with_weights(module, tensors), config["layer"])


def stored_parts(thing: Any) -> store.Stored:
    """Return what ``thing.save`` writes, to be kept inside another file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part.offmap"
        thing.save(file)
        return store.load(file)


def prefix_names(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Put a prefix before every name."""
    return {prefix + name: array for name, array in tensors.items()}


def select_prefix(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def _extended_parts(network: ExtendedNetwork) -> Parts:
    update = network.update
    base, tensors = network_parts(network.base)
    config: dict[str, Any] = {
        "kind": "extended",
        "base": base,
        "class_names": list(update.class_names),
        "reads_inputs": update.reads_inputs,
        "model": None,
    }
    arrays = prefix_names(tensors, _BASE)
    arrays |= update.head_arrays()
    if update.model is not None:
        inner = stored_parts(update.model)
        config["model"] = inner.config
        arrays |= prefix_names(inner.tensors, _MODEL)
    return config, arrays


def _extended_from(config: Mapping[str, Any], tensors: Mapping[str, Array], given: Network | None) -> Network:
    base = restore_network(config["base"], select_prefix(tensors, _BASE), given)
    names = tuple(config["class_names"])
    if config["model"] is None:
        update = ClassifierUpdate.from_head_arrays(names, tensors)
    else:
        from offmap.learning import OpenWorldModel

        inner = store.Stored("open-world-model", config["model"], select_prefix(tensors, _MODEL))
        update = ClassifierUpdate(names, model=OpenWorldModel.restore(inner), reads_inputs=bool(config["reads_inputs"]))
    return ExtendedNetwork(update, base)


def _cnn_settings(module: nn.Module) -> dict[str, int] | None:
    """Return the arguments that make a CNN of this form; `None` for any other module."""
    from offmap.models.cnn import CNN

    if type(module) is not CNN:
        return None
    first = module.features[0]
    return {
        "n_classes": module.head.out_features,
        "channels": int(first.in_channels),  # type: ignore[arg-type]
        "width": int(first.out_channels),  # type: ignore[arg-type]
    }


def _with_weights(module: nn.Module, tensors: Mapping[str, Array]) -> nn.Module:
    import torch

    state = {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise StoreError(f"the saved weights are not of this network ({first})") from error
    return module.requires_grad_(False).eval()


def _onnx_from_bytes(content: bytes, layer: str | None) -> Network:
    """Put a graph into a file that is removed together with the network that reads it.

    The file is alone in a folder of its own: a graph may name further files beside it, and in a folder that all
    programs share these would be anybody's.
    """
    folder = tempfile.mkdtemp()
    try:
        file = Path(folder) / "graph.onnx"
        file.write_bytes(content)
        network = Network.onnx(str(file), layer)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(network, shutil.rmtree, folder, ignore_errors=True)
    return network
