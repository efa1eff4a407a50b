"""The base of every method: a frozen set of parameters that declares its statistics; the `Detector` holds the state.

A *shaper* changes what goes by (features, head or logits), a *score* turns it into one number per input, higher =
known.
A new method is a subclass with `register` on it: text form, saving, streaming, sharding, comparison and the common
tests follow from the declaration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.parameters import conforms, describe_type, plain, read_type_hints
from offmap.detection.statistics import Statistic
from offmap.errors import InputError
from offmap.extra_passes import Request

if TYPE_CHECKING:
    from offmap.activations import Activations
    from offmap.detection.detectors import Detector

AUTO = "auto"

State = dict[str, Tensor]
Statistics = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """The network's head and the shapers before a component, when its statistics are solved.

    `shapers` is a short text that changes with any of these shapers or their state, empty when there are none.

    Parameters
    ----------
    head : TensorHead or None
        The network's last linear layer, where it is known.
    shape : callable
        Applies the shapers before the component to a batch.
    shapers : str, default=""
        A short text that changes with any of these shapers or their state; empty when there are none.
    """

    head: TensorHead | None
    shape: Callable[[ActivationBatch], ActivationBatch]
    shapers: str = ""


@dataclass(frozen=True)
class Component:
    """Parameters of one method.

    Class attributes declare it: `name` in the text form; `paper` it comes from; `reads` what scoring needs of
    ``features``, ``logits``, ``head``; `fits` what fitting needs of the same and ``labels``; `shown` the parameters
    that the text form always prints; `grid` the values that ``auto`` tries; `example` a text form that can be made,
    where the bare name cannot.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ()
    fits: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...]] = ()
    grid: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    example: ClassVar[str] = ""
    keeps_rows: ClassVar[bool] = False
    """Its statistics are rows as the network gave them, shaped when solved: one reading is enough after any shaper."""
    fits_unshaped: ClassVar[bool] = False
    """Its statistics are of activations as the network gave them, whatever shapers stand before it."""

    def __post_init__(self) -> None:
        hints = read_type_hints(type(self))
        for field in fields(self):
            value = plain(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            given, hint = f"{self.name}({field.name}={value!r})", hints.get(field.name, Any)
            if isinstance(value, str) and value == AUTO:
                if field.name not in self.grid:
                    raise InputError(f"{given}: auto is offered for {_listed(self.grid)} only")
            elif not conforms(value, hint):
                raise InputError(f"{given}: {describe_type(hint)} is needed")
        self.check()

    def check(self) -> None:
        """Raise an `InputError` for parameters that make no sense."""

    def require(self, holds: bool, field: str, rule: str) -> None:
        """Raise ``name(field=value): rule`` unless it holds; a value of ``auto`` is decided later.

        Parameters
        ----------
        holds : bool
            Whether the rule holds.
        field : str
            Name of the parameter.
        rule : str
            The rule, as a clause.
        """
        value = getattr(self, field)
        if value != AUTO and not holds:
            raise InputError(f"{self.name}({field}={value!r}): {rule}")

    def number(self, field: str, low: float, high: float, rule: str, open_low: bool = False) -> None:
        """Raise an `InputError` unless a parameter is a number between two bounds.

        Parameters
        ----------
        field : str
            Name of the parameter.
        low, high : float
            The bounds; `high` is included.
        rule : str
            The rule, as a clause.
        open_low : bool, default=False
            Whether `low` itself is excluded.
        """
        value = getattr(self, field)
        if value == AUTO:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.name}({field}={value!r}): {rule}")
        self.require((low < value if open_low else low <= value) and value <= high, field, rule)

    def statistics(self) -> Mapping[str, Statistic]:
        """Return new, empty statistics; none when there is nothing to fit."""
        return {}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add a batch to the statistics.

        Parameters
        ----------
        statistics : dict of str to Statistic
            What `statistics` returned; changed in place.
        block : ActivationBatch
            Activations of known inputs.
        """

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Compute the tensors that scoring reads from the statistics.

        Parameters
        ----------
        statistics : dict of str to Statistic
            After all known inputs were added.
        context : Context
            The head and the shapers before this component.

        Returns
        -------
        dict of str to Tensor
            The fitted state, as it is saved.
        """
        return {}

    def statistics_key(self) -> Hashable:
        """Say what the statistics depend on: methods with equal keys and the same `observe` share them in a sum.

        By default the method with all its parameters. A method of which only some parameters bear on them returns
        those; a family that fits the same statistics inherits `observe` and the key.
        """
        return self

    def prepare(self, state: State) -> Any:
        """Turn the fitted tensors into what scoring uses; by default the tensors themselves."""
        return state

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """List what must be asked of the network beyond features and logits.

        Parameters
        ----------
        state : dict of str to Tensor or None
            The fitted state; `None` before fitting.
        shape : callable
            Applies the shapers before this component to a batch.

        Returns
        -------
        tuple of Request
            The extra passes or layers.
        """
        return ()

    @property
    def own_pass(self) -> bool:
        """Whether `view` takes another pass than the plain one; only one part of a detector can."""
        return False

    def view(self, block: ActivationBatch, state: State) -> ActivationBatch:
        """Return the batch as the extra pass that this method asked for saw it; by default the plain pass.

        Parameters
        ----------
        block : ActivationBatch
            With the outputs of the extra pass.
        state : dict of str to Tensor
            The fitted state.

        Returns
        -------
        ActivationBatch
            Features and logits of that pass.
        """
        return block

    def choices(self, field: str, n_known: int) -> tuple[Any, ...]:
        """List the values that ``auto`` tries for a parameter.

        Parameters
        ----------
        field : str
            Name of the parameter.
        n_known : int
            Number of known inputs.

        Returns
        -------
        tuple
            The values.
        """
        return self.grid[field]

    def text_arguments(self) -> dict[str, Any]:
        """Return the parameters that the text form prints: shown ones, and others that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name in self.shown or getattr(self, field.name) != field.default
        }

    def __repr__(self) -> str:
        from offmap.detection.spec import text

        return text(self)


@dataclass(frozen=True, repr=False)
class Shaper(Component):
    """Changes features, head or logits; `shapes` says which."""

    shapes: ClassVar[str] = "features"

    def shape(self, block: ActivationBatch, ready: Any) -> ActivationBatch:
        """Change a batch.

        Parameters
        ----------
        block : ActivationBatch
            Activations of some inputs.
        ready : Any
            What `prepare` returned.

        Returns
        -------
        ActivationBatch
            A changed copy.
        """
        return block

    def __or__(self, other: Component | Detector) -> Any:
        """Put before another shaper or a score: ``ReAct(90) | Energy()``."""
        return Chain((self,)) | other


@dataclass(frozen=True, repr=False)
class Score(Component):
    """Turns a block into one number per input, higher = known."""

    invariant_to_shift: ClassVar[bool | None] = None
    """Whether adding a constant to all logits leaves the score as it is; `None` where the score reads no logits."""

    def score(self, block: ActivationBatch, ready: Any) -> Tensor:
        """Score a batch, higher means known.

        Parameters
        ----------
        block : ActivationBatch
            Activations of some inputs.
        ready : Any
            What `prepare` returned.

        Returns
        -------
        Tensor of shape (n,)
            One number per input.
        """
        raise NotImplementedError

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Return `score` as a function of tensor operations alone, from which `offmap.export` draws a graph.

        By default `score` itself. A method that scores with something else, such as a bank or scikit-learn, says here
        how tensors do it.

        Parameters
        ----------
        state : dict of str to Tensor
            The fitted state.

        Returns
        -------
        callable
            From a batch to one number per input.
        """
        ready = self.prepare(state)
        return lambda block: self.score(block, ready)

    def fit(self, known: Activations, **options: Any) -> Detector:
        """Fit a detector of this one score; see `Detector.fit`."""
        return self._detector().fit(known, **options)

    def __add__(self, other: Any) -> Any:
        """Add another score or detector: ``KNN(10) + Energy()``."""
        return self._detector() + other

    def __radd__(self, other: Any) -> Any:
        """Let ``sum([KNN(10), Energy()])`` begin with 0."""
        return other + self._detector()

    def __mul__(self, weight: Any) -> Any:
        """Give it a weight in a sum: ``0.5 * KNN(10) + Energy()``."""
        return self._detector() * weight

    __rmul__ = __mul__

    def _detector(self) -> Detector:
        from offmap.detection.detectors import Detector

        return Detector((self,))


@dataclass(frozen=True)
class Chain:
    """Shapers that wait for a score."""

    shapers: tuple[Shaper, ...]

    def __or__(self, other: Any) -> Any:
        """Add another shaper, or a score to make a detector."""
        from offmap.detection.detectors import Detector

        if isinstance(other, Shaper):
            return Chain((*self.shapers, other))
        if isinstance(other, Score):
            return Detector((*self.shapers, other))
        if isinstance(other, Detector):
            return other.behind(self.shapers)
        return NotImplemented

    def __repr__(self) -> str:
        return "|".join(map(repr, self.shapers))


def digest(state: State) -> str:
    """Compute a short text that changes with any of the tensors.

    Parameters
    ----------
    state : dict of str to Tensor
        The tensors by name.

    Returns
    -------
    str
        Twelve hexadecimal characters.
    """
    hashed = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        hashed.update(name.encode())
        hashed.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()[:12]


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "no parameter of it"
