"""Reading weights: plain numbers from files in the forms in which people keep them, nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from offmap.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

# Training scripts often keep more in a file than the weights; DINO keeps the network that is used as "teacher".
_NESTED = ("state_dict", "model_state_dict", "model", "net", "teacher")

# The names of timm, DINO and the original JAX port, in torchvision's words.
_TIMM = (
    (r"cls_token$", "class_token"),
    (r"pos_embed$", "encoder.pos_embedding"),
    (r"patch_embed\.proj\.", "conv_proj."),
    (r"(^|\.)norm\.(weight|bias)$", r"\1encoder.ln.\2"),
    (r"(^|\.)head\.(weight|bias)$", r"\1heads.head.\2"),
    (r"blocks\.(\d+)\.norm([12])\.", r"encoder.layers.encoder_layer_\1.ln_\2."),
    (r"blocks\.(\d+)\.attn\.qkv\.", r"encoder.layers.encoder_layer_\1.self_attention.in_proj_"),
    (r"blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.encoder_layer_\1.self_attention.out_proj."),
    (r"blocks\.(\d+)\.mlp\.fc1\.", r"encoder.layers.encoder_layer_\1.mlp.0."),
    (r"blocks\.(\d+)\.mlp\.fc2\.", r"encoder.layers.encoder_layer_\1.mlp.3."),
)

# The names of residual networks for small pictures, as OpenOOD and many training scripts for CIFAR have them.
_SMALL = ((r"\.shortcut\.", ".downsample."), (r"(^|\.)linear\.(weight|bias)$", r"\1fc.\2"))


class Loaded(NamedTuple):
    """Which parameters a file filled, which it left as they were, and what it held besides."""

    filled: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def load_weights(model: nn.Module, file: str | os.PathLike[str], partial: bool = False) -> Loaded:
    """Fill a model with the weights of a file; all of them or, when that is asked for, those that fit.

    What wrappers put in front of names (``module.``, ``backbone.``, ``encoder_q.`` …) is taken off where that makes
    them fit, vision transformers may be named as by timm and DINO, residual networks as in scripts for CIFAR.

    Parameters
    ----------
    model : nn.Module
        Filled in place. Nothing is changed if the file is refused.
    file : str or path
        ``.safetensors``, or what ``torch.save`` wrote of a state dict, alone or inside a training script's
        dictionary. Never unpickled: weights run nothing.
    partial : bool, default=False
        Load what agrees in name and shape and report the rest: for an encoder with another head.

    Returns
    -------
    Loaded
        What was filled, what is missing in the file, what the file holds besides.

    Examples
    --------
    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"module.weight": torch.ones(1, 2)}, folder + "/w.safetensors")
    ...     model = torch.nn.Linear(2, 1)
    ...     load_weights(model, folder + "/w.safetensors", partial=True)
    Loaded(filled=('weight',), missing=('bias',), unused=())
    """
    path = Path(file)
    own = _tensors(model.state_dict())
    state = _fitting_names(_tensors(read_weights(path)), own)
    fits = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    # counts of batches are of later torch than many files, and nothing depends on them
    missing = tuple(name for name in own if name not in fits and not name.endswith("num_batches_tracked"))
    unused = tuple(name for name in state if name not in fits)
    if not partial and (missing or unused):
        raise InputError(
            f"{path}: not the weights of this {type(model).__name__}: {_difference(state, own)}; "
            "partial=True loads what agrees"
        )
    for name, value in fits.items():
        if value.layout != own[name].layout or value.is_complex() != own[name].is_complex():
            kind = value.dtype if value.is_complex() else value.layout
            raise InputError(f"{path}: {name} is {kind} in the file; save the weights as dense real numbers")
    if not fits:
        raise InputError(f"{path}: none of its weights fits this {type(model).__name__}: {_difference(state, own)}")
    model.load_state_dict(fits, strict=False)
    return Loaded(tuple(fits), missing, unused)


def read_weights(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what a file of weights holds, by name; nested dictionaries are kept.

    Parameters
    ----------
    file : str or path
        As for `load_weights`.

    Returns
    -------
    dict of str to Any
        Tensors by name.

    Examples
    --------
    >>> read_weights("none.pt")
    Traceback (most recent call last):
    offmap.errors.InputError: none.pt: there is no such file of weights
    """
    import torch
    from safetensors.torch import load_file

    path = Path(file)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file of weights")
    try:
        state = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # a damaged file can make the unpickler raise almost anything
        raise InputError(
            f"{path}: not readable as weights alone, nothing else is ever loaded ({type(error).__name__}); if it holds "
            "a whole model, load that where you trust it and save torch.save(model.state_dict(), ...)"
        ) from error
    if not isinstance(state, dict):
        raise InputError(f"{path}: holds a {type(state).__name__}; a state dict is needed")
    return state


def read_tensors(file: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the tensors of a file of weights by name, out of whatever dictionary they are kept in.

    Parameters
    ----------
    file : str or path
        As for `load_weights`.

    Returns
    -------
    dict of str to Tensor
        Without step counts, optimizers and the like.

    Examples
    --------
    >>> import tempfile, torch
    >>> file = tempfile.mkdtemp() + "/checkpoint.pth.tar"
    >>> torch.save({"epoch": 3, "state_dict": {"weight": torch.ones(2)}}, file)
    >>> read_tensors(file)
    {'weight': tensor([1., 1.])}
    """
    return _tensors(read_weights(file))


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    import torch

    for key in _NESTED:
        if isinstance(state.get(key), dict):
            return _tensors(state[key])
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _fitting_names(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names of the model, by whichever naming and prefix most of them are found."""
    best, most = state, sum(name in own for name in state)
    namings: tuple[tuple[tuple[str, str], ...], ...] = ((), _TIMM, _SMALL)
    for words in namings:
        names = [_rename(name, words) for name in state]
        renamed = dict(zip(names, state.values(), strict=True))
        for prefix in ("", *_prefixes(names, own)):
            cut = {name.removeprefix(prefix): value for name, value in renamed.items() if name.startswith(prefix)}
            found = sum(name in own for name in cut)
            if found > most:
                others = {name: value for name, value in renamed.items() if not name.startswith(prefix)}
                best, most = {**others, **cut}, found
    return best


def _prefixes(names: Iterable[str], own: Mapping[str, Tensor]) -> list[str]:
    """List what stands in front of names that end as the model's first parameter does, in order of appearance."""
    first = next(iter(own), "")
    return list(dict.fromkeys(name.removesuffix(first) for name in names if name.endswith(first)))


def _rename(name: str, words: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in words:
        name = re.sub(pattern, replacement, name)
    return name


def _difference(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """Describe the first disagreement."""
    for name, value in state.items():
        if name in own and own[name].shape != value.shape:
            return f"{name} is {tuple(value.shape)} in the file, {tuple(own[name].shape)} in the model"
    missing = [name for name in own if name not in state]
    unused = [name for name in state if name not in own]
    parts = [f"{len(missing)} are missing, such as {missing[0]}"] if missing else []
    return ", ".join(parts + ([f"{len(unused)} are not known here, such as {unused[0]}"] if unused else []))
