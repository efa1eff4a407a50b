"""The children of `quantiles.py`: the histogram runs in our environment, the sketches in the peers'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from worker import THREADS, serve

HELD: dict[str, Any] = {}


def load(file: str, ranks: list[float], block: int) -> None:
    """Read the numbers."""
    HELD.update(values=np.load(file), ranks=ranks, block=block)


class Histogram:
    """offmap's quantile with the calls of a sketch."""

    def __init__(self) -> None:
        import torch

        from offmap.detection.quantiles import Quantile

        torch.set_num_threads(THREADS)
        self.as_tensor = torch.from_numpy
        self.quantile = Quantile(tuple(100 * rank for rank in HELD["ranks"]))

    def update(self, block: np.ndarray) -> None:
        """Count."""
        self.quantile.update(self.as_tensor(block))

    def merge(self, other: Histogram) -> None:
        """Add counts."""
        self.quantile.merge(other.quantile)

    def answers(self) -> list[float]:
        """The percentiles."""
        return self.quantile.values()

    def sizes(self) -> dict[str, int]:
        """Bytes in memory and saved: only bins that are not empty are saved."""
        saved = sum(array.nbytes for array in self.quantile.state().values())
        return {"memory": self.quantile.coarse.nbytes, "saved": saved}


class Sketch:
    """A sketch of datasketches."""

    def __init__(self, kind: str) -> None:
        import datasketches

        self.sketch = datasketches.req_floats_sketch(12, True) if kind == "req" else datasketches.kll_floats_sketch(200)

    def update(self, block: np.ndarray) -> None:
        """Take in."""
        self.sketch.update(block)

    def merge(self, other: Sketch) -> None:
        """Join."""
        self.sketch.merge(other.sketch)

    def answers(self) -> list[float]:
        """The percentiles."""
        return [self.sketch.get_quantile(rank) for rank in HELD["ranks"]]

    def sizes(self) -> dict[str, int]:
        """Bytes saved; in memory a sketch is about as large."""
        return {"saved": len(self.sketch.serialize())}


def _blocks(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _read(kind: str, values: np.ndarray, size: int) -> Any:
    summary = Histogram() if kind == "histogram" else Sketch(kind)
    for block in _blocks(values, size):
        summary.update(block)
    return summary


def stream(kind: str, block: int | None = None) -> list[float]:
    """Read all numbers once and answer."""
    return _read(kind, HELD["values"], block or HELD["block"]).answers()


def merged(kind: str, order: list[int]) -> list[float]:
    """Read four shards apart, merge them in the given order and answer."""
    shards = np.array_split(HELD["values"], 4)
    first, *others = (_read(kind, shards[place], HELD["block"]) for place in order)
    for other in others:
        first.merge(other)
    return first.answers()


def sizes(kind: str) -> dict[str, int]:
    """How many bytes it takes to remember all numbers."""
    return _read(kind, HELD["values"], HELD["block"]).sizes()


def exact() -> list[float]:
    """What offmap answers after a second reading."""
    histogram = _read("histogram", HELD["values"], HELD["block"])
    histogram.quantile.narrow()
    for block in _blocks(HELD["values"], HELD["block"]):
        histogram.update(block)
    return histogram.answers()


if __name__ == "__main__":
    tasks: tuple[Callable[..., Any], ...] = (load, stream, merged, sizes, exact)
    serve({task.__name__: task for task in tasks})
