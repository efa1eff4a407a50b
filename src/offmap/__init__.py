"""offmap tells you when your model is off the map, and redraws the map.

Importing it is fast: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, dataclass_transform

__version__ = "0.1.0"

_HOMES = {
    "Activations": "offmap.activations",
    "Head": "offmap.activations",
    "TextEncoder": "offmap.text",
    "Network": "offmap.network",
    "Detector": "offmap.detection",
    "detector": "offmap.detection",
    "boxes": "offmap.openworld",
    "compare": "offmap.detection.comparison",
    "discover": "offmap.discovery",
    "export": "offmap.deploy",
    "guard": "offmap.deploy",
    "learn": "offmap.learning",
    "scope": "offmap.deploy",
}
_PACKAGES = (
    "activation_files", "activations", "bench", "cli", "data", "deploy", "detection", "discovery", "errors",
    "extra_passes", "graph", "learning", "metrics", "models", "neighbors", "network", "openworld", "plots", "progress",
    "registry", "report", "sampling", "scale", "service", "sklearn", "store", "text", "theory",
)  # fmt: skip
_KINDS = {
    "detector": "offmap.detection:Detector",
    "deployment": "offmap.openworld:Deployment",
    "discovery": "offmap.discovery:Discovery",
    "open-world-model": "offmap.learning:OpenWorldModel",
    "scope": "offmap.deploy.scopes:Scope",
}

__all__ = [
    "Activations", "Detector", "Head", "Network", "TextEncoder", "boxes", "compare", "detector", "discover", "export",
    "guard", "learn", "load", "register", "scope",
]  # fmt: skip

if TYPE_CHECKING:
    from offmap.activations import Activations as Activations
    from offmap.activations import Head as Head
    from offmap.deploy import export as export
    from offmap.deploy import guard as guard
    from offmap.deploy import scope as scope
    from offmap.detection import Detector as Detector
    from offmap.detection import detector as detector
    from offmap.detection.comparison import compare as compare
    from offmap.discovery import discover as discover
    from offmap.learning.learn import learn as learn
    from offmap.network import Network as Network
    from offmap.openworld import boxes as boxes
    from offmap.text import TextEncoder as TextEncoder


def load(path: str | os.PathLike[str]) -> Any:
    """Read back what `save` wrote: a detector, a deployment, a discovery or a learned model, as the file says.

    Examples
    --------
    >>> import offmap, tempfile, numpy as np
    >>> file = tempfile.mkdtemp() + "/guard.offmap"
    >>> offmap.detector("msp").fit(offmap.Activations(None, logits=np.eye(3))).save(file)
    >>> offmap.load(file)
    msp
    """
    from offmap import store
    from offmap.errors import StoreError

    stored = store.load(path)
    if stored.kind not in _KINDS:
        raise StoreError(f"{path}: holds a {stored.kind}, which offmap.load does not read")
    module, name = _KINDS[stored.kind].split(":")
    return getattr(importlib.import_module(module), name).restore(stored)


@dataclass_transform(frozen_default=True)
def register(thing: Any) -> Any:
    """Make a score, a shaper, an objective or a reader of files known by its name: a decorator for your own code.

    Parameters
    ----------
    thing : type or str
        A subclass of `Score` or `Shaper` (see `offmap.detection.register`) or of `Objective` (see
        `offmap.learning.register`), each with a `name`; or, before a function from a path and a size limit to
        `Samples`, the ending of the files that it reads, such as ``"tsv"``.

    Returns
    -------
    type or callable
        The class, scores and shapers as frozen dataclasses; or a decorator that gives back the function.

    Raises
    ------
    InputError
        If it is something else, or if the name is taken.

    Examples
    --------
    >>> import offmap
    >>> @offmap.register
    ... class LastLogit(offmap.detection.Score):
    ...     '''The last logit.'''
    ...     name = "last_logit"
    ...     reads = ("logits",)
    ...     def score(self, block, ready):
    ...         return block.logits[:, -1]
    >>> offmap.detector("react(90)|last_logit")
    react(90)|last_logit
    """
    from offmap.errors import InputError

    if isinstance(thing, str):
        from offmap.data import READERS

        return READERS.register(thing.removeprefix("."))
    if isinstance(thing, type):
        from offmap import detection

        if issubclass(thing, detection.Score | detection.Shaper):
            return detection.register(thing)
        from offmap import learning

        if issubclass(thing, learning.Objective):
            return learning.register(thing)
    raise InputError(
        f"register({thing!r}): it takes a subclass of Score, Shaper or Objective, or, before a function that reads "
        "files, their ending, such as 'tsv'; docs/contributing.md shows how everything else is registered"
    )


def __getattr__(name: str) -> Any:
    """Load a public name, a package, or a method's class (``offmap.ReAct``) when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"offmap.{name}")
    if name[:1].isupper():
        from offmap.detection import methods

        for kind in methods().values():
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module 'offmap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, "__version__"})
