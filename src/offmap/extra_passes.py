"""Passes that a method asks of a network beyond features and logits: detectors declare it, `Network` provides it.

A request is a small frozen value with a `key`, the canonical text that names its result in the extras of
`Activations`. Nothing here knows a detector or runs a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from offmap.errors import InputError

if TYPE_CHECKING:
    import torch

    Objective = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
else:
    Objective = Callable

Reduce = Literal["mean", "flat", "sketch", "gram"]
REDUCTIONS: tuple[Reduce, ...] = ("mean", "flat", "sketch", "gram")


class Request(Protocol):
    """One extra thing to compute for every input."""

    @property
    def key(self) -> str:
        """Canonical text; equal keys mean equal results."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names under which the results stand in `Activations.extras`."""
        ...


@dataclass(frozen=True)
class Layer:
    """The output of a named layer, reduced per input.

    Parameters
    ----------
    name : str
        As in ``model.named_modules()``; ``net.layers()`` lists them. Of a layer that runs several times in one
        pass the last output counts.
    reduce : Reduce, default="mean"
        ``"mean"`` averages over positions (H × W of a feature map, tokens of a sequence), ``"flat"`` keeps
        everything, ``"sketch"`` keeps 512 equally spaced order statistics of all values of an input (all of
        them, sorted, when there are fewer), ``"gram"`` gives the row sums of the Gram matrices
        G_p = (F^p F^pᵀ)^(1/p), p = 1 … `powers`, with signed roots (Sastry & Oore 2020), powers × channels.
    powers : int, default=10
        The highest power of ``"gram"``; unused by the others.

    Examples
    --------
    >>> Layer("block3", "mean").key, Layer("block3", "gram", powers=5).key
    ('layer(block3,mean)', 'layer(block3,gram,5)')
    """

    name: str
    reduce: Reduce = "mean"
    powers: int = 10

    def __post_init__(self) -> None:
        if self.reduce not in REDUCTIONS:
            raise InputError(f"Layer(reduce={self.reduce!r}): choose one of {', '.join(REDUCTIONS)}")
        if self.powers < 1:
            raise InputError(f"Layer(powers={self.powers}): the highest power of the Gram matrices is at least 1")

    @property
    def key(self) -> str:
        """Return ``layer(name,reduce)``."""
        powers = f",{self.powers}" if self.reduce == "gram" else ""
        return f"layer({self.name},{self.reduce}{powers})"

    @property
    def outputs(self) -> tuple[str, ...]:
        """One array, named by the key."""
        return (self.key,)


@dataclass(frozen=True)
class Clamp:
    """Cut every value above `c` (ReAct on an inner layer, thesis, appendix A.1.2)."""

    c: float

    @property
    def key(self) -> str:
        """Return ``clamp(c)``."""
        return f"clamp({float(self.c)!r})"


@dataclass(frozen=True)
class RemoveRank1:
    """Subtract the leading singular component of each C × HW feature map (RankFeat, Song et al. 2022)."""

    @property
    def key(self) -> str:
        """Return ``rank1``."""
        return "rank1"


Edit = Clamp | RemoveRank1


@dataclass(frozen=True)
class Edited:
    """A pass in which the output of a named layer is edited before the rest of the network reads it.

    Examples
    --------
    >>> Edited("block3", Clamp(1.0)).outputs
    ('edited(block3,clamp(1.0))/features', 'edited(block3,clamp(1.0))/logits')
    """

    layer: str
    edit: Edit

    @property
    def key(self) -> str:
        """Return ``edited(layer,edit)``."""
        return f"edited({self.layer},{self.edit.key})"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Features and logits of that pass."""
        return _both(self.key)


@dataclass(frozen=True)
class Perturbed:
    """A pass on inputs moved one signed gradient step up an objective: x' = x − ε·sign(−∇ₓ objective).

    Parameters
    ----------
    epsilon : float
        The length of the step in every coordinate, in units of the network's input.
    objective : Objective
        Takes features and logits of a batch, gives one number per input; the detector supplies it.
    name : str
        Makes the request unique; a detector whose objective has fitted state puts a digest of it in here.
    sign_zero : int, default=1
        What sign(0) is, +1 as in the ODIN authors' code (Liang et al. 2018), or 0. The sign is that of the
        *descended* loss −objective, so a coordinate without gradient moves by −ε.
    scale : tuple of float or None, default=None
        One standard deviation per channel by which the step is divided, for networks fed standardised inputs.
    share : float, default=1.0
        Move only this share of an input's values, those with the smallest gradients; 1 moves all.
    layers : tuple of Layer, default=()
        Inner layers to look at in the perturbed pass as well.

    Examples
    --------
    >>> Perturbed(0.004, lambda features, logits: logits.amax(1), "odin(1000)").key
    'perturbed(odin(1000),0.004)'
    """

    epsilon: float
    objective: Objective = field(compare=False, repr=False)
    name: str
    sign_zero: int = 1
    scale: tuple[float, ...] | None = None
    share: float = 1.0
    layers: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"Perturbed(share={self.share}): the share of values to move is above 0 and at most 1")
        if not self.epsilon >= 0:
            raise InputError(f"Perturbed(epsilon={self.epsilon}): the step is a length, it must not be negative")
        if self.sign_zero not in (0, 1):
            raise InputError(f"Perturbed(sign_zero={self.sign_zero}): sign(0) is taken as 1 or 0")
        if self.scale is not None and not all(std > 0 for std in self.scale):
            raise InputError(f"Perturbed(scale={self.scale}): standard deviations are positive")

    @property
    def key(self) -> str:
        """Return ``perturbed(name,epsilon)``, with what differs from the defaults."""
        zero = "" if self.sign_zero == 1 else f",sign_zero={self.sign_zero}"
        scale = "" if self.scale is None else f",scale={'x'.join(repr(float(std)) for std in self.scale)}"
        share = "" if self.share == 1 else f",share={float(self.share)!r}"
        return f"perturbed({self.name},{float(self.epsilon)!r}{zero}{scale}{share})"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Features and logits of the perturbed inputs, then what was asked of inner layers."""
        return (*_both(self.key), *map(self.layer_output, self.layers))

    def layer_output(self, layer: Layer) -> str:
        """Return the name under which what a layer says of the perturbed inputs stands."""
        return f"{self.key}/{layer.key}"


@dataclass(frozen=True)
class Passes:
    """`n` stochastic passes with only the dropout layers active (MC-dropout, Gal & Ghahramani 2016).

    Examples
    --------
    >>> Passes(20).outputs
    ('passes(20,0)/logits',)
    """

    n: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"Passes({self.n}): at least one pass is needed")

    @property
    def key(self) -> str:
        """Return ``passes(n,seed)``."""
        return f"passes({self.n},{self.seed})"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Logits, inputs × passes × classes."""
        return (f"{self.key}/logits",)


@dataclass(frozen=True)
class Members:
    """The logits of every member of ``Network(model, ensemble=[...])`` (Lakshminarayanan et al. 2017)."""

    @property
    def key(self) -> str:
        """Return ``members``."""
        return "members"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Logits, inputs × members × classes."""
        return (f"{self.key}/logits",)


@dataclass(frozen=True)
class BatchStatistics:
    """A pass in which BatchNorm uses the statistics of the batch itself, the oracle of the thesis, appendix A.1.3.

    The result depends on how the inputs were batched, by its definition.
    """

    @property
    def key(self) -> str:
        """Return ``batch_statistics``."""
        return "batch_statistics"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Features and logits of that pass."""
        return _both(self.key)


@dataclass(frozen=True)
class Requirements:
    """Everything a detector reads; unite the needs of several with ``|``.

    Examples
    --------
    >>> both = Requirements(logits=True) | Requirements(features=True, extras=(Layer("block3", "mean"),))
    >>> both.describe()
    'features, logits, layer(block3,mean)'
    """

    features: bool = False
    logits: bool = False
    head: bool = False
    labels: bool = False
    extras: tuple[Request, ...] = ()

    def __or__(self, other: Requirements) -> Requirements:
        """Return what both need; a request with the same key is kept once, in order of first mention."""
        extras = {request.key: request for request in (*self.extras, *other.extras)}
        return Requirements(
            self.features or other.features,
            self.logits or other.logits,
            self.head or other.head,
            self.labels or other.labels,
            tuple(extras.values()),
        )

    def describe(self) -> str:
        """Return one line for messages."""
        parts = {
            "features": self.features,
            "logits": self.logits,
            "the head": self.head,
            "labels": self.labels,
        }
        names = [name for name, needed in parts.items() if needed]
        return ", ".join([*names, *(request.key for request in self.extras)]) or "nothing"


def _both(key: str) -> tuple[str, ...]:
    return (f"{key}/features", f"{key}/logits")
