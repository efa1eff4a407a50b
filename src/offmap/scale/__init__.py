"""Fitting, scoring and serving on many machines: shards are read where the workers are, statistics are merged."""

from __future__ import annotations

from offmap.scale.engine import fit, score
from offmap.scale.serving import make_serve_app
from offmap.scale.source import Source, shards_in

__all__ = ["Source", "fit", "make_serve_app", "score", "shards_in"]
