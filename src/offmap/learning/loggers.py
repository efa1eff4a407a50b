"""Where the numbers of a run are sent: one small protocol, and adapters to TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from offmap.errors import DependencyError, InputError


@runtime_checkable
class MetricLogger(Protocol):
    """A receiver of the numbers of every epoch of `learn`; any object with these three functions will do.

    Under ``torchrun`` only the first process calls it.
    """

    def start(self, settings: Mapping[str, Any]) -> None:
        """Begin: the objective, its settings, those of training, and the seed."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the numbers of an epoch; `step` counts epochs from 1 through all rounds, also after a resumption."""
        ...

    def close(self) -> None:
        """End; also called when training fails."""
        ...


class TensorBoardLogger:
    """Write TensorBoard's event files.

    Parameters
    ----------
    folder : path
        Where the files go.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder

    def start(self, settings: Mapping[str, Any]) -> None:
        """Open the files; the settings are their first text."""
        self._writer = _need("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(self.folder))
        self._writer.add_text("settings", "\n".join(f"- {name}: {value}" for name, value in settings.items()))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one point per number."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class MLflowLogger:
    """Log to the run of MLflow that is active, or to a new one.

    Parameters
    ----------
    **options : Any
        For ``mlflow.start_run``, such as `run_name`, where no run is active.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def start(self, settings: Mapping[str, Any]) -> None:
        """Log the settings as parameters."""
        self._mlflow = _need("mlflow", "mlflow")
        self._own = self._mlflow.active_run() is None
        self.run = self._mlflow.start_run(**self.options) if self._own else self._mlflow.active_run()
        self._mlflow.log_params(dict(settings))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the numbers."""
        self._mlflow.log_metrics(dict(metrics), step=step)

    def close(self) -> None:
        """End the run if it was begun here."""
        if self._own:
            self._mlflow.end_run()


class WandbLogger:
    """Log to a run of Weights & Biases.

    Parameters
    ----------
    **options : Any
        For ``wandb.init``, such as `project`, or ``mode="offline"``.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def start(self, settings: Mapping[str, Any]) -> None:
        """Begin a run with the settings as its config."""
        self.run = _need("wandb", "wandb").init(config=dict(settings), **self.options)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the numbers."""
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        """End the run."""
        self.run.finish()


LOGGERS: dict[str, Callable[[Path], MetricLogger]] = {
    "tensorboard": lambda folder: TensorBoardLogger(folder / "tensorboard"),
    "mlflow": lambda folder: MLflowLogger(),
    "wandb": lambda folder: WandbLogger(dir=str(folder)),
}


def find_loggers(given: Any, folder: Path | None) -> tuple[MetricLogger, ...]:
    """Return loggers given as such or by name.

    Parameters
    ----------
    given : MetricLogger, str, sequence of them, or None
        Names are ``"tensorboard"``, ``"mlflow"`` and ``"wandb"``.
    folder : Path, optional
        The folder of the run, which loggers by name write to, or leave their own files in.

    Raises
    ------
    InputError
        If it is neither, or a name comes without a folder.

    Examples
    --------
    >>> find_loggers("tensorbord", None)
    Traceback (most recent call last):
    offmap.errors.InputError: log='tensorbord': choose one of tensorboard, mlflow, wandb, or give an object with ...
    """
    if given is None:
        return ()
    every = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found: list[MetricLogger] = []
    for one in every:
        if isinstance(one, str) and one in LOGGERS:
            if folder is None:
                raise InputError(f"log={one!r}: name a folder with out=; files of the run go there")
            found.append(LOGGERS[one](folder))
        elif isinstance(one, MetricLogger) and not isinstance(one, type):
            found.append(one)
        else:
            raise InputError(
                f"log={one!r}: choose one of {', '.join(LOGGERS)}, or give an object with start, log and close"
            )
    return tuple(found)


@contextmanager
def logging_to(loggers: Sequence[MetricLogger], settings: Mapping[str, Any]) -> Iterator[None]:
    """Start the loggers, and close in the end those that had started, whatever happens."""
    started: list[MetricLogger] = []
    try:
        for one in loggers:
            one.start(settings)
            started.append(one)
        yield
    finally:
        for one in reversed(started):
            one.close()


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DependencyError(
            f"log={package!r} needs {package}, which is not installed: pip install 'offmap[{package}]'"
        ) from error
