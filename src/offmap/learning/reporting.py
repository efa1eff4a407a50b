"""Where a run writes: checkpoints and tables in a folder, a bar on a terminal, TensorBoard's event files."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from offmap.errors import DependencyError, InputError

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
        False for no bar; there is one on a terminal only.
    tensorboard : bool, default False
        Write event files to ``folder/tensorboard``.
    """

    folder: Path | None = None
    progress: bool | None = None
    tensorboard: bool = False

    @classmethod
    def create(cls, out: str | os.PathLike[str] | None, progress: bool | None, tensorboard: bool) -> Output:
        """Check the folder's name and make the folder."""
        if tensorboard and out is None:
            raise InputError("tensorboard=True: name a folder with out=; the event files go there")
        if out is None:
            return cls(None, progress)
        folder = Path(out)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"out={folder}: a file is there; name a folder")
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, progress, tensorboard)

    def checkpoint(self, name: str, identity: str) -> Checkpoint | None:
        """Name the checkpoint of a part of the run; None without a folder."""
        return None if self.folder is None else Checkpoint(self.folder / f"{name}.offmap", identity)

    @contextmanager
    def open(self, total: int, done: int) -> Iterator[Report]:
        """Open the bar and the event files, and give a function to call with the numbers of every epoch.

        Parameters
        ----------
        total, done : int
            Epochs in all, and those before a run was resumed.

        Examples
        --------
        >>> with Output(progress=False).open(total=1, done=0) as report:
        ...     report({"epoch": 1, "loss": 0.5})
        """
        with ExitStack() as stack:
            receivers: list[Report] = []
            if self.progress is not False and sys.stderr.isatty():
                receivers.append(stack.enter_context(_bar(total, done)))
            if self.tensorboard and self.folder is not None:
                receivers.append(stack.enter_context(_tensorboard(self.folder / "tensorboard")))

            def report(row: Mapping[str, float]) -> None:
                for receiver in receivers:
                    receiver(row)

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


@contextmanager
def _bar(total: int, done: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("learning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def report(row: Mapping[str, float]) -> None:
            bar.update(task, advance=1, description=format_epoch(row))

        yield report


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Report]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DependencyError(
            "tensorboard=True needs tensorboard, which is not installed: pip install 'offmap[tensorboard]'"
        ) from error
    writer = SummaryWriter(str(folder))

    def report(row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if name != "epoch":
                writer.add_scalar(name, value, int(row["epoch"]))
        writer.flush()

    try:
        yield report
    finally:
        writer.close()
