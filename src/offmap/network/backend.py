"""The interface of whatever runs a network: PyTorch, ONNX Runtime, or a network with learned classes on top."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from offmap.activations import Head
from offmap.extra_passes import Request
from offmap.typing import Array

if TYPE_CHECKING:
    from torch import nn


class Backend(ABC):
    """Runs batches of inputs through a network and returns features, logits and what else is asked.

    `offmap.Network` reads loaders, checks labels, writes folders and shows progress over any backend; a new way to run
    networks is a subclass of this one, used as ``Network(backend)``.
    """

    layer: str | None = None

    @property
    def torch_model(self) -> nn.Module | None:
        """The PyTorch module inside, where there is one."""
        return None

    @property
    @abstractmethod
    def tap(self) -> str | None:
        """The layer that features are taken from; `None` before the first inputs."""

    @property
    def has_head(self) -> bool:
        """Whether features are what goes into a linear head; known after the first inputs."""
        return self.head() is not None

    @abstractmethod
    def head(self) -> Head | None:
        """Return the linear head as it is now; `None` when features are not what goes into one."""

    @abstractmethod
    def layers(self) -> dict[str, str]:
        """Return every layer that can be tapped, by name, and its kind."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a checksum of the weights."""

    @abstractmethod
    def session(self, device: str | None) -> AbstractContextManager[None]:
        """Return a context in which all runs happen; afterwards everything is as it was."""

    @abstractmethod
    def to(self, device: str) -> None:
        """Stay on a device from now on, for every session that names none."""

    @abstractmethod
    def run(self, inputs: Any, requests: Sequence[Request], start: int) -> dict[str, Array]:
        """Run one batch whose first input stands at place `start` of the data.

        Parameters
        ----------
        inputs : Any
            One batch, as the model takes it.
        requests : sequence of Request
            Extra passes and layers.
        start : int
            Place of the first input in the data.

        Returns
        -------
        dict of str to array
            ``features``, ``logits`` and ``extra.<key>`` of every request, as float32.
        """
