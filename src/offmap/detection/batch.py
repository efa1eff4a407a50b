"""A block of activations as tensors, on its way through a pipeline: shapers change it, the score reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from offmap.activations import Activations, Head
from offmap.errors import InputError, MissingError
from offmap.extra_passes import Request
from offmap.typing import Array


@dataclass(frozen=True)
class TensorHead:
    """The last linear layer as tensors."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, head: Head, device: str | torch.device = "cpu") -> TensorHead:
        """Put a head's weights on a device.

        Parameters
        ----------
        head : Head
            The network's last linear layer.
        device : str or torch.device, default="cpu"
            Where to put them.

        Returns
        -------
        TensorHead
            The head as tensors.
        """
        weight, bias = (np.require(one, requirements="W") for one in (head.weight, head.bias))  # torch warns of others
        return cls(torch.from_numpy(weight).to(device), torch.from_numpy(bias).to(device))

    def __call__(self, features: Tensor) -> Tensor:
        """Return the logits of these features."""
        return torch.addmm(self.bias, features, self.weight.T)


@dataclass(frozen=True)
class ActivationBatch:
    """Features, head and logits of some inputs. Logits follow from the other two unless the network gave them."""

    given_features: Tensor | None = None
    given_logits: Tensor | None = None
    head: TensorHead | None = None
    labels: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        acts: Activations,
        head: TensorHead | None = None,
        device: str | torch.device = "cpu",
        extras: tuple[str, ...] = (),
    ) -> ActivationBatch:
        """Return tensors of a block of activations, checked to be finite.

        Parameters
        ----------
        acts : Activations
            The activations; `head` takes the place of theirs when given.
        head : TensorHead or None, default=None
            The head that the detector was fitted with.
        device : str or torch.device, default="cpu"
            Where the tensors go.
        extras : tuple of str, default=()
            Which of the extras to bring along.
        """
        given = acts.given_logits
        own = head if head is not None or acts.head is None else TensorHead.of(acts.head, device)
        return cls(
            _tensor(acts.features, device, "the features") if acts.has_features else None,
            _tensor(given, device, "the logits") if given is not None else None,
            own,
            None if acts.labels is None else torch.from_numpy(acts.labels.astype(np.int64)).to(device),
            {name: _tensor(acts.extras[name], device, name) for name in extras if name in acts.extras},
        )

    def select(self, rows: Tensor) -> ActivationBatch:
        """Take some inputs, by a boolean per input."""
        return replace(
            self,
            given_features=None if self.given_features is None else self.given_features[rows],
            given_logits=None if self.given_logits is None else self.given_logits[rows],
            labels=None if self.labels is None else self.labels[rows],
            extras={name: value[rows] for name, value in self.extras.items()},
        )

    def __len__(self) -> int:
        array = self.given_features if self.given_features is not None else self.given_logits
        return 0 if array is None else len(array)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        array = self.given_features if self.given_features is not None else self.given_logits
        return torch.device("cpu") if array is None else array.device

    @property
    def features(self) -> Tensor:
        """Penultimate features, perhaps shaped."""
        if self.given_features is None:
            raise MissingError("features are needed, but the activations hold logits only")
        return self.given_features

    @cached_property  # several scores of a sum may read them
    def logits(self) -> Tensor:
        """The network's logits, or those of the shaped features through the shaped head."""
        if self.given_logits is not None:
            return self.given_logits
        if self.head is None:
            raise MissingError("logits are needed: pass logits=... or head=offmap.Head(weight, bias) to Activations")
        if self.features.shape[1] != self.head.weight.shape[1]:
            raise InputError(
                f"{self.features.shape[1]} features per input, but the head reads {self.head.weight.shape[1]}"
            )
        return self.head(self.features)

    def require_head(self) -> TensorHead:
        """Return the head, or an error that says how to give one."""
        if self.head is None:
            raise MissingError("the head's weights are needed: pass head=offmap.Head(weight, bias) to Activations")
        return self.head

    def extra(self, name: str) -> Tensor:
        """Return an extra by name, or an error that names the call that makes it."""
        if name not in self.extras:
            raise MissingError(
                f"the activations lack {name!r}; make them with net.extract(loader, requirements=detector.requirements)"
            )
        return self.extras[name]

    def with_features(self, features: Tensor) -> ActivationBatch:
        """Replace the features; logits are then computed from the head when asked for."""
        return replace(self, given_features=features, given_logits=None)

    def with_head(self, weight: Tensor, bias: Tensor) -> ActivationBatch:
        """Replace the head; the logits are computed from it again.

        Parameters
        ----------
        weight, bias : Tensor
            Weight and bias of the new head.

        Returns
        -------
        ActivationBatch
            A copy.
        """
        return replace(self, head=TensorHead(weight, bias), given_logits=None)

    def with_logits(self, logits: Tensor) -> ActivationBatch:
        """Return the block with other logits over the same features."""
        return replace(self, given_logits=logits)

    def seen_in(self, request: Request) -> ActivationBatch:
        """Return the block as another pass of the network saw it, one that gives features and logits."""
        features, logits = request.outputs
        return replace(self, given_features=self.extra(features), given_logits=self.extra(logits))


def _tensor(array: Array, device: str | torch.device, name: str) -> Tensor:
    values = np.asarray(array)
    if values.dtype != np.float32 or not values.flags.writeable or not values.flags.c_contiguous:
        with np.errstate(over="ignore"):  # what overflows float32 is refused below
            values = np.array(values, dtype=np.float32, order="C")
    tensor = torch.from_numpy(values).to(device)
    # The sum of finite float32 numbers can overflow, so a bad sum only asks for the slow check.
    if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        bad = (~torch.isfinite(tensor.reshape(len(tensor), -1)).all(dim=1)).nonzero()
        raise InputError(
            f"{name} hold NaN or infinity (first in row {int(bad[0])} of the block); remove or mend these inputs"
        )
    return tensor
