"""The bank behind k-NN: exact, approximate when asked, larger than memory, or in a database."""

from __future__ import annotations

from offmap.neighbors.bank import Bank

__all__ = ["Bank"]
