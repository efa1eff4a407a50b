"""Heads over known classes that a detector reads after training: GODIN's, LogitNorm's, CSI's, the groups of MOS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.errors import InputError, StoreError


class Cosines(nn.Module):
    """The cosine of each row with a vector for each class, h of DeConf-C.

    Parameters
    ----------
    width, n_classes : int
        Columns of the features; classes.

    Examples
    --------
    >>> made = Cosines(2, 2)
    >>> with torch.no_grad():
    ...     _ = made.weight.copy_(torch.eye(2))
    >>> made(torch.tensor([[3.0, 4.0]])).detach()
    tensor([[0.6000, 0.8000]])
    """

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_classes, width))

    def forward(self, features: Tensor) -> Tensor:
        """Compute cosines, rows × classes."""
        return functional.normalize(features, dim=1) @ functional.normalize(self.weight, dim=1).T


class Gate(nn.Module):
    """A number in (0, 1) per row: a linear map, batch normalisation and a sigmoid, g of GODIN.

    Parameters
    ----------
    width : int
        Columns of the features.

    Examples
    --------
    >>> Gate(2).eval()(torch.zeros(1, 2)).detach()
    tensor([[0.5000]])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, features: Tensor) -> Tensor:
        """Compute the gate, rows × 1."""
        return torch.sigmoid(self.norm(self.linear(features)))


class DeConf(nn.Module):
    """GODIN's head (Hsu et al. 2020): h(x) / g(x), cosines over a learned gate with batch normalisation.

    Parameters
    ----------
    width, n_classes : int
        Columns of the features; known classes.
    """

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.config = {"kind": "deconf", "width": width, "n_classes": n_classes}
        self.h, self.g = Cosines(width, n_classes), Gate(width)

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits, rows × known classes."""
        logits: Tensor = self.h(features) / self.g(features).clamp(min=1e-6)
        return logits


class Linear(nn.Linear):
    """A linear head over known classes, the one that LogitNorm trains (Wei et al. 2022).

    Parameters
    ----------
    width, n_classes : int
        Columns of the features; known classes.
    """

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__(width, n_classes)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.config = {"kind": "linear", "width": width, "n_classes": n_classes}


class RotatedLinear(nn.Module):
    """CSI's head (Tack et al. 2020): a linear layer over pairs of a known class and a quarter turn of the picture.

    Parameters
    ----------
    width, n_classes : int
        Columns of the features; known classes.

    Examples
    --------
    >>> RotatedLinear(4, 3).joint(torch.ones(2, 4)).shape, RotatedLinear(4, 3)(torch.ones(2, 4), turn=1).shape
    (torch.Size([2, 12]), torch.Size([2, 3]))
    """

    turns = 4

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.config = {"kind": "rotated", "width": width, "n_classes": n_classes}
        self.n_classes = n_classes
        self.joint = Linear(width, self.turns * n_classes)

    def forward(self, features: Tensor, turn: int = 0) -> Tensor:
        """Compute logits of pictures turned so often, rows × known classes."""
        start = turn * self.n_classes
        logits: Tensor = self.joint(features)[:, start : start + self.n_classes]
        return logits


def turn_pictures(pictures: Tensor, quarters: int) -> Tensor:
    """Turn pictures by quarters of a circle.

    Parameters
    ----------
    pictures : Tensor of shape (n, channels, side, side)
        The pictures.
    quarters : int
        How often.

    Returns
    -------
    Tensor
        Of the same shape.

    Examples
    --------
    >>> turn_pictures(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 1)
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    if pictures.ndim != 4 or pictures.shape[2] != pictures.shape[3]:
        raise InputError(f"pictures of shape {tuple(pictures.shape)}: turned by quarters they must be square")
    return torch.rot90(pictures, quarters, (2, 3))


class Others(nn.Module):
    """Logits of the category "others", one for each group of classes (MOS).

    Parameters
    ----------
    width, n_groups : int
        Columns of the features; groups.
    """

    def __init__(self, width: int, n_groups: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, n_groups)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits, rows × groups."""
        logits: Tensor = self.linear(features)
        return logits


class OthersProbability(nn.Module):
    """Passes on the probability of "others" in each group, so that a detector can look at it."""

    def forward(self, probabilities: Tensor) -> Tensor:
        """Return what it is given."""
        return probabilities


class GroupSoftmax(nn.Module):
    """MOS' head (Huang & Li 2021): classes in groups, each with a softmax of its own and a category "others".

    Parameters
    ----------
    width : int
        Columns of the features.
    groups : sequence of int
        The group of each known class.

    Examples
    --------
    >>> classes, others, norms = GroupSoftmax(2, [0, 0, 1]).parts(torch.zeros(1, 2))
    >>> norms.exp().detach()  # 3 and 2 categories, all alike
    tensor([[3., 2.]])
    """

    groups: Tensor

    def __init__(self, width: int, groups: list[int]) -> None:
        super().__init__()
        if not groups:
            raise InputError("GroupSoftmax: there are no known classes to group")
        self.n_groups = max(groups) + 1
        self.config = {"kind": "groups", "width": width, "n_classes": len(groups), "n_groups": self.n_groups}
        self.register_buffer("groups", torch.tensor(groups))
        self.linear = nn.Linear(width, len(groups))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.others_logits, self.others = Others(width, self.n_groups), OthersProbability()

    def parts(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute logits of classes, logits of "others", and the logarithm of each group's sum of exponentials."""
        classes, others = self.linear(features), self.others_logits(features)
        norms = [
            torch.logsumexp(torch.cat([classes[:, self.groups == group], others[:, [group]]], dim=1), dim=1)
            for group in range(self.n_groups)
        ]
        return classes, others, torch.stack(norms, dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Compute the logarithm of each class' probability in its group, rows × known classes."""
        classes, others, norms = self.parts(features)
        self.others((others - norms).exp())
        found: Tensor = classes - norms[:, self.groups]
        return found


def build_known_head(config: Mapping[str, Any]) -> nn.Module:
    """Build the head that a saved model had, without its numbers.

    Parameters
    ----------
    config : mapping of str to Any
        The head's ``config``.

    Returns
    -------
    nn.Module
        The head.

    Examples
    --------
    >>> build_known_head({"kind": "deconf", "width": 4, "n_classes": 3})(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """
    kind, width, n_classes = config.get("kind"), config.get("width"), config.get("n_classes")
    if not isinstance(width, int) or not isinstance(n_classes, int) or not 0 < min(width, n_classes) <= 1 << 24:
        raise StoreError(f"a head of known classes with {width!r} columns and {n_classes!r} classes is not possible")
    if kind == "deconf":
        return DeConf(width, n_classes)
    if kind == "linear":
        return Linear(width, n_classes)
    if kind == "rotated":
        return RotatedLinear(width, n_classes)
    n_groups = config.get("n_groups")
    if kind == "groups" and isinstance(n_groups, int) and 0 < n_groups <= n_classes:
        return GroupSoftmax(width, [*range(n_groups), *([0] * (n_classes - n_groups))])
    raise StoreError(f"a head of known classes of the kind {kind!r} is not known to this version")
