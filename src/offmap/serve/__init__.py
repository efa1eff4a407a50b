"""The scoring service, its durable pile of unknown inputs, and the page on which people name them.

Its parts load when they are used: the web parts need ``pip install 'offmap[serve]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offmap.errors import DependencyError

_HOMES = {
    "Bounds": "offmap.serve.pile",
    "Drift": "offmap.serve.drift",
    "Pile": "offmap.serve.pile",
    "Service": "offmap.serve.service",
    "Settings": "offmap.serve.settings",
    "Unknown": "offmap.serve.pile",
    "bind": "offmap.serve.run",
    "create_app": "offmap.serve.app",
    "open_pile": "offmap.serve.stores",
    "serve": "offmap.serve.run",
}

__all__ = [
    "Bounds",
    "Drift",
    "Pile",
    "Service",
    "Settings",
    "Unknown",
    "bind",
    "create_app",
    "open_pile",
    "serve",
]

if TYPE_CHECKING:
    from offmap.serve.app import create_app as create_app
    from offmap.serve.drift import Drift as Drift
    from offmap.serve.pile import Bounds as Bounds
    from offmap.serve.pile import Pile as Pile
    from offmap.serve.pile import Unknown as Unknown
    from offmap.serve.run import bind as bind
    from offmap.serve.run import serve as serve
    from offmap.serve.service import Service as Service
    from offmap.serve.settings import Settings as Settings
    from offmap.serve.stores import open_pile as open_pile


def __getattr__(name: str) -> Any:
    """Load a part when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'offmap.serve' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "offmap":
            raise
        raise DependencyError(
            f"the service needs {error.name}, which is not installed: pip install 'offmap[serve]'"
        ) from error
