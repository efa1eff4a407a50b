"""The scoring service, its durable pile of unknown inputs, and the page on which people name them.

Its parts load when they are used: the web parts need ``pip install 'offmap[serve]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offmap.errors import DependencyError

_HOMES = {
    "Bounds": "offmap.service.unknowns",
    "Drift": "offmap.service.drift",
    "Pile": "offmap.service.unknowns",
    "Service": "offmap.service.service",
    "Settings": "offmap.service.settings",
    "Unknown": "offmap.service.unknowns",
    "bind": "offmap.service.run",
    "create_app": "offmap.service.app",
    "open_pile": "offmap.service.stores",
    "serve": "offmap.service.run",
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
    from offmap.service.app import create_app as create_app
    from offmap.service.drift import Drift as Drift
    from offmap.service.run import bind as bind
    from offmap.service.run import serve as serve
    from offmap.service.service import Service as Service
    from offmap.service.settings import Settings as Settings
    from offmap.service.stores import open_pile as open_pile
    from offmap.service.unknowns import Bounds as Bounds
    from offmap.service.unknowns import Unknown as Unknown
    from offmap.service.unknowns import UnknownStore as UnknownStore


def __getattr__(name: str) -> Any:
    """Load a part when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'offmap.service' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "offmap":
            raise
        raise DependencyError(
            f"the service needs {error.name}, which is not installed: pip install 'offmap[serve]'"
        ) from error
