"""How far long work is: a bar on a terminal, a line now and then where there is none, with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

EVERY = 30.0  # seconds between lines where there is no terminal; shorter work says nothing
_BAR_SHOWN: ContextVar[bool] = ContextVar("bar_shown", default=False)  # a terminal holds one bar: the outermost


class Advance(Protocol):
    """Called when a part of the work is done."""

    def __call__(self, count: float = 1, note: str = "") -> None:
        """Add to what is done; a note stands beside it until the next one."""


@contextmanager
def show_progress(what: str, total: float | None, wanted: bool | None = None, *, done: float = 0) -> Iterator[Advance]:
    """Give a function to call when a part of the work is done.

    Parameters
    ----------
    what : str
        What is being done: ``"extracting"``.
    total : float or None
        How many parts there are, where that is known.
    wanted : bool, optional
        False for silence.
    done : float, default 0
        Parts that were done before, in an earlier run.

    Yields
    ------
    Advance
        Draws a bar on a terminal, and writes a line to the standard error every half minute elsewhere. Work within
        other work draws no bar of its own.

    Examples
    --------
    >>> with show_progress("counting", 2, wanted=False) as advance:
    ...     advance()
    """
    if wanted is False:
        yield say_nothing
    elif not sys.stderr.isatty():
        yield Lines(what, total, done=done)
    elif _BAR_SHOWN.get():
        yield say_nothing
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(f"{what}{{task.description}}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total, completed=int(done))

            def advance(count: float = 1, note: str = "") -> None:
                bar.update(task, advance=count, description=f" {note}" if note else None)

            before = _BAR_SHOWN.set(True)
            try:
                yield advance
            finally:
                _BAR_SHOWN.reset(before)


def say_nothing(count: float = 1, note: str = "") -> None:
    """Advance without a word."""


class Lines:
    """Writes how far the work is, at most every half minute: for logs, where a bar cannot be drawn.

    Parameters
    ----------
    what : str
        What is being done.
    total : float or None
        How many parts there are.
    done : float, default 0
        Parts that were done before.
    clock : callable, default=time.monotonic
        Seconds.

    Examples
    --------
    >>> seconds = iter([0.0, 20.0, 40.0])
    >>> advance = Lines("extracting", 10, clock=lambda: next(seconds))
    >>> sys.stderr, kept = sys.stdout, sys.stderr
    >>> advance(3); advance(2)
    offmap: extracting 5 of 10, about 40 s left
    >>> sys.stderr = kept
    """

    def __init__(
        self, what: str, total: float | None, *, done: float = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.what, self.total, self.done, self.clock = what, total, done, clock
        self.before = done
        self.started = self.said = clock()

    def __call__(self, count: float = 1, note: str = "") -> None:
        """Add to what is done, and say it when half a minute has gone."""
        self.done += count
        now = self.clock()
        if now - self.said < EVERY:
            return
        self.said = now
        far = f"{self.done:,.0f}"
        if self.total is not None and self.done > self.before:
            left = (now - self.started) * max(self.total - self.done, 0) / (self.done - self.before)
            far += f" of {self.total:,.0f}, about {format_duration(left)} left"
        print(f"offmap: {self.what} {far}{f'; {note}' if note else ''}", file=sys.stderr, flush=True)


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that leaves a whole number worth reading.

    Parameters
    ----------
    seconds : float
        Not negative.

    Returns
    -------
    str
        In seconds, minutes or hours.

    Examples
    --------
    >>> format_duration(40), format_duration(400), format_duration(9000)
    ('40 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
