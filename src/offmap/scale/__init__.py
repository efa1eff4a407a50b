"""Fitting and scoring on many machines: shards are read where the workers are, statistics are merged."""

from __future__ import annotations

from offmap.scale.engine import fit, score
from offmap.scale.source import Source, shards_in

__all__ = ["Source", "fit", "score", "shards_in"]
