"""Things that are chosen by name: detection methods, objectives, discovery methods, learners, readers, metrics.

A `Registry` is filled by a decorator on each thing. The modules that hold them are imported when a name is first looked
up, so a new file in the right package is all that a new method takes. Other packages add theirs through entry points:

.. code-block:: toml

    [project.entry-points."offmap.methods"]
    anything = "their_package.their_module"

Loading the entry point imports that module, and its decorators register what it holds.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from offmap.errors import InputError

T = TypeVar("T")
F = TypeVar("F")
LISTED = 40  # longer lists are not spelled out in an error


class Registry(Generic[T]):
    """Things of one kind by name, in alphabetical order.

    Parameters
    ----------
    noun : str
        What one of them is called in errors, such as ``"objective"``.
    package : str, optional
        The module, or the package with all modules below it, that is imported at the first look-up.
    group : str, optional
        The group of entry points by which other packages add theirs, such as ``"offmap.objectives"``.

    Examples
    --------
    >>> greetings = Registry("greeting")
    >>> @greetings.register("hello")
    ... def hello(name):
    ...     return f"Hello, {name}!"
    >>> greetings.names()
    ('hello',)
    >>> greetings.get("hello")("world")
    'Hello, world!'
    >>> greetings.get("helo")
    Traceback (most recent call last):
    offmap.errors.InputError: there is no greeting 'helo'; did you mean hello?
    """

    def __init__(self, noun: str, *, package: str | None = None, group: str | None = None) -> None:
        self.noun = noun
        self.package = package
        self.group = group
        self._things: dict[str, T] = {}
        self._loaded = False
        self._loading = threading.RLock()

    def register(self, name: str) -> Callable[[F], F]:
        """Register the decorated function or class under a name.

        Parameters
        ----------
        name : str
            The name to choose it by.

        Returns
        -------
        callable
            A decorator that returns its argument as it is.

        Raises
        ------
        InputError
            If the name is taken by another thing.
        """

        def add(thing: F) -> F:
            self.add(name, thing)  # type: ignore[arg-type]  # a decorator must give back the very type it was given
            return thing

        return add

    def add(self, name: str, thing: T) -> None:
        """Register a thing; the same function or class may come again, as when its module is reloaded.

        Parameters
        ----------
        name : str
            The name to register it by.
        thing : T
            A function, a class or another value.
        """
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise InputError(f"{_place(thing)}: name = {name!r}; the name of a {self.noun} is one plain word")
        taken = self._things.get(name)
        if taken is not None and _place(taken) != _place(thing):
            raise InputError(f"the name {name!r} is taken by {_place(taken)}; choose another")
        self._things[name] = thing

    def remove(self, name: str) -> None:
        """Forget a name, such as one registered while trying something out; nothing happens if it is not there."""
        self._things.pop(name, None)

    def get(self, name: str, *, also: Iterable[str] = ()) -> T:
        """Return what is registered under a name.

        Parameters
        ----------
        name : str
            The name.
        also : iterable of str, optional
            Further names that the caller understands, such as ``"auto"``; the error lists them too.

        Raises
        ------
        InputError
            If there is no such name; the error suggests near ones, or lists all.
        """
        self._load()
        if name in self._things:
            return self._things[name]
        every = [*also, *self.names()]
        near = difflib.get_close_matches(str(name), every, n=3)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        else:
            hint = f"choose one of {', '.join(every)}" if len(every) <= LISTED else "`offmap methods` lists them all"
        raise InputError(f"there is no {self.noun} {name!r}; {hint}")

    def names(self) -> tuple[str, ...]:
        """Return all names, in alphabetical order."""
        self._load()
        return tuple(sorted(self._things))

    def items(self) -> list[tuple[str, T]]:
        """Return all names with what is registered under them, in the order of `names`."""
        return [(name, self._things[name]) for name in self.names()]

    def __getitem__(self, name: str) -> T:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __repr__(self) -> str:
        return f"Registry({self.noun!r}: {', '.join(self.names())})"

    def _load(self) -> None:
        """Import what registers itself, once; threads that come meanwhile wait for the whole of it."""
        with self._loading:
            if self._loaded:
                return
            self._loaded = True  # a module that looks a name up while it is imported sees what is there so far
            try:
                if self.package is not None:
                    _import_all(self.package)
            except BaseException:
                self._loaded = False
                raise
            for entry in entry_points(group=self.group) if self.group is not None else ():
                _load_entry(entry)


def _import_all(name: str) -> None:
    module = importlib.import_module(name)
    for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        importlib.import_module(inner.name)


def _load_entry(entry: EntryPoint) -> None:
    """Load another package's entry point; one that is broken must not take everything else with it."""
    try:
        entry.load()
    except Exception as error:
        of = "" if entry.dist is None else f" of the package {entry.dist.name} {entry.dist.version}"
        warnings.warn(
            f"the entry point {entry.group}: {entry.name} = {entry.value}{of} cannot be loaded and is left out: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )


def _place(thing: Any) -> str:
    """Where a function or class was written; other values stand for themselves."""
    name = getattr(thing, "__qualname__", None)
    return repr(thing) if name is None else f"{thing.__module__}.{name}"
