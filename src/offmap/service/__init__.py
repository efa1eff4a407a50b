"""The scoring service, its durable store of unknown inputs, and the page on which people name them.

Its parts load when they are used: the web parts need ``pip install 'offmap[serve]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offmap.errors import DependencyError

_MODULES = {
    "Deployment": "offmap.openworld",
    "DriftMonitor": "offmap.detection.drift",
    "ScoringRequest": "offmap.service.requests",
    "Service": "offmap.service.service",
    "Settings": "offmap.service.settings",
    "StoreLimits": "offmap.service.unknown_inputs",
    "UnknownInput": "offmap.service.unknown_inputs",
    "UnknownStore": "offmap.service.unknowns",
    "bind_socket": "offmap.service.run",
    "create_app": "offmap.service.app",
    "open_unknown_store": "offmap.service.stores",
    "serve": "offmap.service.run",
    "store_unknown_boxes": "offmap.service.unknown_boxes",
}

__all__ = [
    "Deployment",
    "DriftMonitor",
    "ScoringRequest",
    "Service",
    "Settings",
    "StoreLimits",
    "UnknownInput",
    "UnknownStore",
    "bind_socket",
    "create_app",
    "open_unknown_store",
    "serve",
    "store_unknown_boxes",
]

if TYPE_CHECKING:
    from offmap.detection.drift import DriftMonitor as DriftMonitor
    from offmap.openworld import Deployment as Deployment
    from offmap.service.app import create_app as create_app
    from offmap.service.requests import ScoringRequest as ScoringRequest
    from offmap.service.run import bind_socket as bind_socket
    from offmap.service.run import serve as serve
    from offmap.service.service import Service as Service
    from offmap.service.settings import Settings as Settings
    from offmap.service.stores import open_unknown_store as open_unknown_store
    from offmap.service.unknown_boxes import store_unknown_boxes as store_unknown_boxes
    from offmap.service.unknown_inputs import StoreLimits as StoreLimits
    from offmap.service.unknown_inputs import UnknownInput as UnknownInput
    from offmap.service.unknowns import UnknownStore as UnknownStore


def __getattr__(name: str) -> Any:
    """Load a part when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'offmap.service' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "offmap":
            raise
        raise DependencyError(
            f"the service needs {error.name}, which is not installed: pip install 'offmap[serve]'"
        ) from error
