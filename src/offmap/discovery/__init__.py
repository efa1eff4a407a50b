"""Find the classes among unlabelled rows: how many there are, which rows belong to each, what they look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offmap.discovery.choosing import choose_space
from offmap.discovery.counting import ClassCount, count_classes
from offmap.discovery.naming import suggest_names
from offmap.discovery.pipeline import discover
from offmap.discovery.result import Discovery
from offmap.discovery.space import Space, whitening

if TYPE_CHECKING:
    from offmap.discovery.estimators import KMeans, SemiSupervisedKMeans

__all__ = [
    "ClassCount",
    "Discovery",
    "KMeans",
    "SemiSupervisedKMeans",
    "Space",
    "choose_space",
    "count_classes",
    "discover",
    "suggest_names",
    "whitening",
]


def __getattr__(name: str) -> Any:
    """Return the estimators load scikit-learn, so they are imported when they are asked for."""
    if name in ("KMeans", "SemiSupervisedKMeans"):
        from offmap.discovery import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
