"""Models by name: an import path to a Python object, or an ONNX file."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offmap.errors import InputError
from offmap.models.weights import load_weights

if TYPE_CHECKING:
    from torch import nn

    from offmap.network import Network


def load_network(reference: str, weights: str | os.PathLike[str] | None = None, layer: str | None = None) -> Network:
    """Load a `Network` from an ``.onnx`` file or from an import path as `load_model` takes it.

    Parameters
    ----------
    reference : str
        Such as ``"model.onnx"`` or ``"package.module:factory"``.
    weights : str, path or None, default=None
        For an import path: a file of weights to load into the model.
    layer : str or None, default=None
        Where to tap; see `Network`.

    Returns
    -------
    Network
        Ready to extract.

    Examples
    --------
    >>> load_network("model.onnx")
    Network.onnx('model.onnx')
    """
    from offmap.network import Network

    if not reference.endswith(".onnx"):
        return Network(load_model(reference, weights), layer)
    if weights is not None:
        raise InputError(f"{reference}: an ONNX file holds its weights; leave out {os.fspath(weights)}")
    return Network.onnx(reference, layer)


def load_model(reference: str, weights: str | os.PathLike[str] | None = None) -> nn.Module:
    """Load the ``nn.Module`` that an import path names, in evaluation mode.

    Importing a module runs its code: name only what you trust. Weights are plain numbers and run nothing.

    Parameters
    ----------
    reference : str
        ``"package.module:name"``, where the name is a module, or a class or function that makes one without
        arguments. The current folder is searched too.
    weights : str, path or None, default=None
        A ``.safetensors`` file, or one that ``torch.save`` wrote of a state dict; see `offmap.models.weights`.

    Returns
    -------
    nn.Module
        In evaluation mode.

    Examples
    --------
    >>> load_model("torch.nn:Identity")
    Identity()
    """
    from torch import nn

    made = import_object(reference)
    if not isinstance(made, nn.Module) and callable(made):
        try:
            made = made()
        except TypeError as error:
            raise InputError(
                f"{reference}: it cannot be called without arguments ({error}); name one that can"
            ) from error
    if not isinstance(made, nn.Module):
        raise InputError(f"{reference}: gives a {type(made).__name__}; a torch.nn.Module is needed")
    if weights is not None:
        load_weights(made, weights)
    return made.eval()


def import_object(reference: str) -> Any:
    """Import what a path such as ``"package.module:name"`` names. Importing runs code: name only what you trust.

    Parameters
    ----------
    reference : str
        ``"package.module:name"``.

    Returns
    -------
    Any
        What it names.

    Raises
    ------
    InputError
        If there is no such module or name.

    Examples
    --------
    >>> import_object("math:pi")
    3.141592653589793
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise InputError(f"{reference!r}: {_advise(reference)}")
    if module_name.endswith(".py"):
        module = ".".join(Path(module_name).with_suffix("").parts)
        raise InputError(f"{reference}: a module is named without .py, and dots stand for folders: {module}:{name}")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"{reference}: {module_name} cannot be imported ({error})") from error
    finally:
        if added:
            sys.path.remove(here)
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"{reference}: {getattr(found, '__name__', found)} has no {part!r}")
        found = getattr(found, part)
    return found


def _advise(reference: str) -> str:
    """Say how a model is named, and what to do with a file of weights or a pickled one."""
    usual = "name a model as package.module:factory, or an .onnx file"
    if Path(reference).suffix in (".pt", ".pth", ".bin", ".ckpt", ".safetensors"):
        return (
            f"such a file holds weights, and never a network; {usual}. With a function build() in my_model.py that "
            f"makes the network: --model my_model:build --weights {reference}"
        )
    return usual
