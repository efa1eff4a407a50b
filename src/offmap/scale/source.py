"""Where a worker gets activations from: a shard that holds them, or a network it runs over the shard."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offmap import data
from offmap.activations import Activations, Head
from offmap.requests import Needs

if TYPE_CHECKING:
    from offmap.network import Network


@dataclass(frozen=True)
class Source:
    """How a shard becomes activations; plain values, so that it travels to workers.

    Parameters
    ----------
    head
        The last linear layer, for shards of features alone.
    model
        Run this network over the shards: ``package.module:factory`` or a file ``.onnx``. Without it, shards are
        activations: folders of `Activations.save`, ``.parquet``, ``.npz`` or ``.npy``.
    weights, layer
        Of that network, as `offmap.nets.load_network` takes them.
    batch_size
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

    def activations(self, shard: str, needs: Needs) -> Activations:
        """What a network says about the shard, or said when it was extracted."""
        if self.model is None:
            return data.read_activations(shard, self.head)
        network = _network(self.model, self.weights, self.layer)
        return network.extract(data.batches(shard, size=self.batch_size), needs=needs)


@functools.lru_cache(maxsize=1)
def _network(model: str, weights: str | None, layer: str | None) -> Network:
    """Once per worker, however many shards it reads."""
    from offmap.nets import load_network

    return load_network(model, weights, layer)
