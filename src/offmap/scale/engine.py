"""The bridge to Ray Data: shards go to workers, readings and scores come back.

A worker that dies is replaced and its shard read again. A reading depends on the shard alone and readings are
merged in the order of the shards, so the result is the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offmap.detection.detectors import Detector
from offmap.errors import DependencyError, InputError
from offmap.extra_passes import Requirements
from offmap.scale import readings
from offmap.scale.source import Source

Shards = Sequence[str | os.PathLike[str]]


def fit(spec: str | Detector, shards: Shards, source: Source | None = None, workers: int = 2) -> Detector:
    """Fit a detector on shards that many workers read.

    Every shard is read as often as the detector needs; its statistics are merged. Where they are counts, extremes
    or hashed samples, the detector has the bits of one fitted in one process; where they are sums of floats, it
    agrees to rounding.

    Parameters
    ----------
    spec : str or Detector
        The detector, or its text form. Parameters given as ``auto`` must be chosen before.
    shards : sequence of paths
        Files or folders that every worker can read.
    source : Source, optional
        How a shard becomes activations; as activations it holds, by default.
    workers : int, default=2
        How many read at a time. Ray places them on the machines of the cluster that `ray.init` joined; without
        one, on this machine.

    Returns
    -------
    Detector
        Fitted.
    """
    paths = _paths(shards)
    items = [{"number": number, "shard": path} for number, path in enumerate(paths)]

    def read_all(start: bytes, requirements: Requirements) -> list[Detector]:
        rows = _run(items, _Reader, (start, source or Source(), requirements), workers)
        return [readings.unpack(row["part"]) for row in rows]

    return readings.fit(spec, read_all)


def score(
    guard: Detector,
    shards: Shards,
    out: str | os.PathLike[str],
    source: Source | None = None,
    workers: int = 2,
) -> list[Path]:
    """Score shards into a folder of Parquet files, one per shard, and say where they are, in the shards' order.

    Parameters
    ----------
    guard : Detector
        A fitted detector; a calibrated one adds p-values and verdicts.
    shards : sequence of paths
        Files or folders that every worker can read.
    out : path
        A folder that every worker can write.
    source : Source, optional
        How a shard becomes activations; as activations it holds, by default.
    workers : int, default=2
        How many score at a time.

    Returns
    -------
    list of Path
        One file per shard.
    """
    paths, folder = _paths(shards), Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(folder / name) for name in readings.names(paths)]
    items = [{"number": n, "shard": p, "file": f} for n, (p, f) in enumerate(zip(paths, files, strict=True))]
    _run(items, _Scorer, (readings.pack(guard), source or Source()), workers)
    return [Path(file) for file in files]


class _Reader:
    """A worker that reads shards for fitting."""

    def __init__(self, start: bytes, source: Source, requirements: Requirements) -> None:
        self.start, self.source, self.requirements = start, source, requirements

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shard = str(batch["shard"][0])
        part = readings.read(readings.unpack(self.start), self.source.activations(shard, self.requirements))
        return {"number": batch["number"], "part": np.array([readings.pack(part)], dtype=object)}


class _Scorer:
    """A worker that scores shards; detector and network are made once."""

    def __init__(self, guard: bytes, source: Source) -> None:
        self.guard, self.source = readings.unpack(guard), source

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        acts = self.source.activations(str(batch["shard"][0]), self.guard.requirements)
        unknown = readings.write_scores(self.guard, acts, Path(str(batch["file"][0])))
        return {"number": batch["number"], "unknown": np.array([unknown])}


def _run(items: list[dict[str, Any]], worker: type, arguments: tuple[Any, ...], workers: int) -> list[dict[str, Any]]:
    """One shard at a time to each worker; the answers in the order of the shards."""
    if workers < 1:
        raise InputError(f"workers={workers}: at least one must read")
    ray = _ray()
    found = (
        ray.data.from_items(items, override_num_blocks=len(items))
        .map_batches(worker, fn_constructor_args=arguments, batch_size=1, concurrency=min(workers, len(items)))
        .take_all()
    )
    rows: list[dict[str, Any]] = sorted(found, key=lambda row: int(row["number"]))
    return rows


def _paths(shards: Shards) -> list[str]:
    paths = [str(Path(shard).resolve()) for shard in shards]
    if not paths:
        raise InputError("no shards; give at least one file or folder")
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise InputError(f"{missing[0]}: no such shard ({len(missing)} of {len(paths)} are missing)")
    return paths


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise DependencyError("fitting on many machines needs Ray: pip install offmap[ray]") from error
    return ray
