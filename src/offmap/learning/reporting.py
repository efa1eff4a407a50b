"""Where a run writes: checkpoints and tables in a folder, progress, loggers of metrics."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offmap.errors import InputError
from offmap.learning.loggers import MetricLogger, find_loggers
from offmap.progress import show_progress

Report = Callable[[Mapping[str, float]], None]


@dataclass(frozen=True)
class Checkpoint:
    """A file that a run continues from.

    Parameters
    ----------
    file : Path
        Rewritten after every epoch; resumed when it exists.
    identity : str
        A digest of data and settings, which must be the same for the file to be continued.
    """

    file: Path
    identity: str


@dataclass(frozen=True)
class Output:
    """The files and displays of a run.

    Parameters
    ----------
    folder : Path, optional
        For checkpoints, ``history.csv`` and ``model.offmap``; nothing is written without one.
    progress : bool, optional
        False for no progress: a bar on a terminal, elsewhere a line every half minute.
    loggers : tuple of MetricLogger, optional
        Told the numbers of every epoch; started and closed by `learn`.
    earlier : int, default 0
        Epochs of earlier rounds, for loggers count through all rounds.
    """

    folder: Path | None = None
    progress: bool | None = None
    loggers: tuple[MetricLogger, ...] = ()
    earlier: int = 0

    @classmethod
    def create(cls, out: str | os.PathLike[str] | None, progress: bool | None, log: Any = None) -> Output:
        """Check the folder's name and make the folder."""
        folder = None if out is None else Path(out)
        loggers = find_loggers(log, folder)
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise InputError(f"out={folder}: a file is there; name a folder")
            folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, progress, loggers)

    def checkpoint(self, name: str, identity: str) -> Checkpoint | None:
        """Name the checkpoint of a part of the run; None without a folder."""
        return None if self.folder is None else Checkpoint(self.folder / f"{name}.offmap", identity)

    @contextmanager
    def open(self, total: int, done: int) -> Iterator[Report]:
        """Open the bar, and give a function to call with the numbers of every epoch, which tells the loggers too.

        Parameters
        ----------
        total, done : int
            Epochs in all, and those before a run was resumed.

        Examples
        --------
        >>> with Output(progress=False).open(total=1, done=0) as report:
        ...     report({"epoch": 1, "loss": 0.5})
        """
        with show_progress("learning", total, self.progress, done=done) as advance:

            def report(row: Mapping[str, float]) -> None:
                advance(note=format_epoch(row))
                metrics = {name: value for name, value in row.items() if name != "epoch"}
                for one in self.loggers:
                    one.log(metrics, self.earlier + int(row["epoch"]))

            yield report


def format_epoch(row: Mapping[str, float]) -> str:
    """Format the numbers of an epoch as one line.

    Parameters
    ----------
    row : mapping of str to float
        Numbers by name.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> format_epoch({"epoch": 3, "loss": 1.25, "novel": 0.25})
    'loss 1.250 novel 0.250'
    """
    return " ".join(f"{name} {value:.3f}" for name, value in row.items() if name not in ("epoch", "round"))


def format_csv(history: list[dict[str, float]]) -> bytes:
    """Format a history as a table with one line per epoch.

    Parameters
    ----------
    history : list of dict of str to float
        One entry per epoch.

    Returns
    -------
    bytes
        The table.

    Examples
    --------
    >>> print(format_csv([{"epoch": 1.0, "loss": 0.5}]).decode().rstrip())
    epoch,loss
    1.0,0.5
    """
    text = io.StringIO()
    if history:
        writer = csv.DictWriter(text, list(history[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
    return text.getvalue().encode()
