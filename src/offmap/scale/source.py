"""Where a worker gets activations from: a shard that holds them, or a network it runs over the shard."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offmap import data
from offmap.activation_files import META
from offmap.activations import Activations, Head
from offmap.errors import InputError
from offmap.extra_passes import Requirements

if TYPE_CHECKING:
    from offmap.network import Network


SHARDS = (".parquet", ".npz", ".npy")


@dataclass(frozen=True)
class Source:
    """A recipe that turns a shard into activations; plain values, so that it travels to workers.

    Parameters
    ----------
    head : Head or None, default=None
        The last linear layer, for shards of features alone.
    model : str or None, default=None
        Run this network over the shards: ``package.module:factory`` or a file ``.onnx``. Without it, shards are
        activations: folders of `Activations.save`, ``.parquet``, ``.npz`` or ``.npy``.
    weights, layer : str or None, default=None
        Weights and layer of that network, as `offmap.models.load_network` takes them.
    batch_size : int, default=128
        Inputs per pass of the network.

    Examples
    --------
    >>> Source().model is None
    True
    """

    head: Head | None = None
    model: str | None = None
    weights: str | None = None
    layer: str | None = None
    batch_size: int = 128

    def activations(self, shard: str, requirements: Requirements) -> Activations:
        """Read the activations of a shard, or run the network over it.

        Parameters
        ----------
        shard : str
            Path of the shard.
        requirements : Requirements
            What the detector reads.

        Returns
        -------
        Activations
            Activations of the shard.
        """
        if self.model is None:
            return data.read_activations(shard, self.head)
        network = _network(self.model, self.weights, self.layer)
        return network.extract(data.batches(shard, size=self.batch_size), requirements=requirements)


def shards_in(path: str | os.PathLike[str]) -> list[Path]:
    """List the shards of a folder by name, or the path itself.

    Shards are files of arrays and folders of activations.

    Parameters
    ----------
    path : str or path
        A folder, or one shard.

    Returns
    -------
    list of Path
        In order.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("b", "a"):
    ...     np.save(folder / f"{name}.npy", np.eye(2))
    >>> [shard.name for shard in shards_in(folder)]
    ['a.npy', 'b.npy']
    """
    source = Path(path)
    if not source.is_dir() or (source / META).exists():
        return [source]
    found = [item for item in sorted(source.iterdir()) if item.suffix in SHARDS or (item / META).exists()]
    if not found:
        raise InputError(f"{source}: no shards here; {', '.join(SHARDS)} files or folders of activations are read")
    return found


@functools.lru_cache(maxsize=1)
def _network(model: str, weights: str | None, layer: str | None) -> Network:
    """Once per worker, however many shards it reads."""
    from offmap.models import load_network

    return load_network(model, weights, layer)
