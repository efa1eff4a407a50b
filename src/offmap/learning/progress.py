"""What is told after every epoch: a bar on a terminal, and TensorBoard's event files where they are wanted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from offmap.errors import DependencyError

Tell = Callable[[Mapping[str, float]], None]


@contextmanager
def telling(progress: bool | None, total: int, done: int, events: Path | None = None) -> Iterator[Tell]:
    """A function to call with the numbers of every epoch.

    Parameters
    ----------
    progress
        `False` for no bar; there is one on a terminal only.
    total, done
        Epochs in all, and those before a run was resumed.
    events
        A folder for TensorBoard; `None` writes nothing there.

    Examples
    --------
    >>> with telling(False, total=1, done=0) as tell:
    ...     tell({"epoch": 1, "loss": 0.5})
    """
    with ExitStack() as stack:
        to: list[Tell] = []
        if progress is not False and sys.stderr.isatty():
            to.append(stack.enter_context(_bar(total, done)))
        if events is not None:
            to.append(stack.enter_context(_tensorboard(events)))

        def tell(row: Mapping[str, float]) -> None:
            for one in to:
                one(row)

        yield tell


@contextmanager
def _bar(total: int, done: int) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("learning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def tell(row: Mapping[str, float]) -> None:
            bar.update(task, advance=1, description=as_words(row))

        yield tell


def as_words(row: Mapping[str, float]) -> str:
    """The numbers of an epoch in one line; what is estimated is marked ≈.

    Examples
    --------
    >>> as_words({"epoch": 3, "loss": 1.25, "novel": 0.25, "novel_estimate": 0.5})
    'loss 1.250 novel 0.250 · novel ≈ 50 %'
    """
    parts, guesses = [], []
    for name, value in row.items():
        if name.endswith("_estimate"):
            guesses.append(f"{name.removesuffix('_estimate')} ≈ {100 * value:.0f} %")
        elif name != "epoch":
            parts.append(f"{name} {value:.3f}")
    return " · ".join([" ".join(parts), *guesses])


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Tell]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DependencyError(
            "tensorboard=True needs tensorboard, which is not installed: pip install 'offmap[tensorboard]'"
        ) from error
    writer = SummaryWriter(str(folder))

    def tell(row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if name != "epoch":
                writer.add_scalar(name, value, int(row["epoch"]))
        writer.flush()

    try:
        yield tell
    finally:
        writer.close()
