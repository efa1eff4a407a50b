"""`learn`: from inputs and some labels to a model of known and novel classes, in one call."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal, ParamSpec

from torch import nn

from offmap import store
from offmap.data.views import Views
from offmap.discovery.inputs import read_labels
from offmap.errors import InputError
from offmap.learning.closed_form import SPECTRAL, fit_closed_form
from offmap.learning.distributed import join_processes
from offmap.learning.inputs import as_inputs, as_tokens
from offmap.learning.loggers import MetricLogger, logging_to
from offmap.learning.model import OpenWorldModel
from offmap.learning.objectives import objective as get_objective
from offmap.learning.objectives.base import Kind
from offmap.learning.reporting import Output, format_csv
from offmap.learning.run import TrainingRun
from offmap.learning.self_training import fit_rounds
from offmap.learning.settings import Preset, published_encoder, resolve
from offmap.models.bert import BertEncoder

P = ParamSpec("P")

AUTO: dict[Kind, str] = {"embeddings": "self-training", "images": "opencon", "texts": "self-training"}


def _accept_objective_first(function: Callable[P, OpenWorldModel]) -> Callable[P, OpenWorldModel]:
    """Let a call name the objective before inputs and labels, as in ``learn("gcd", inputs, labels)``."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> OpenWorldModel:
        if args and isinstance(args[0], str):
            return function(*args[1:], **{**options, "objective": args[0]})  # type: ignore[arg-type]  # moved, not new
        return function(*args, **options)

    return call


@_accept_objective_first
def learn(
    inputs: Any,
    labels: Any,
    n_classes: int | Literal["auto"] | None = None,
    encoder: str | nn.Module = "auto",
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    *,
    objective: str = "auto",
    preset: Preset = "auto",
    progress: bool | None = None,
    log: str | MetricLogger | Sequence[str | MetricLogger] | None = None,
    views: Views | None = None,
    **settings: Any,
) -> OpenWorldModel:
    """Learn known and novel classes from some labels and unlabelled inputs.

    Parameters
    ----------
    inputs : array-like
        Embeddings, rows × columns; pictures, N × height × width (× channels), or with channels first; or texts, when
        the encoder is a `BertEncoder`.
    labels : array-like
        Class numbers with -1 where unlabelled, or names with `None`.
    n_classes : int or "auto", optional
        Known and novel classes together; estimated when `None` or ``"auto"``.
    encoder : str or nn.Module, default "auto"
        ``"auto"``: an adapter for embeddings, a small convolutional network for pictures; a name of
        `offmap.models.encoders`, such as ``"resnet18"``; your own module from inputs to features; or a `BertEncoder`,
        as `offmap.models.load_bert` gives it, which is fine-tuned on texts (a copy of it is).
    seed : int, default 0
        The same seed gives the same model.
    out : path, optional
        A folder for checkpoints, ``history.csv`` and ``model.offmap``. The same call resumes a run that was killed,
        and ends in the same weights, bit for bit, on the same machine with the same number of threads. Under
        ``torchrun`` all processes train one model; the first one writes.
    objective : str, default "auto"
        ``"auto"`` is ``"self-training"`` for embeddings and texts and ``"opencon"`` for pictures. Others are ``"gcd"``,
        ``"sorl"``, ``"nscl"``, ``"scl"``, ``"simclr"``, ``"supcon"``, ``"orca"``, ``"uno"``, ``"autonovel"``, ``"ce"``,
        ``"godin"``, and ``"sorl-spectral"``, which needs no training; `registered` lists them. It may also stand before
        the inputs: ``learn("gcd", inputs, labels)``.
    preset : str, default "auto"
        Where settings come from; see `offmap.learning.settings.resolve`.
    progress : bool, optional
        False for no progress: a bar on a terminal with the parts of the loss, elsewhere a line every half minute.
    log : str, MetricLogger or sequence of them, optional
        Where what the bar shows goes too: ``"tensorboard"`` (files in ``out/tensorboard``), ``"mlflow"``, ``"wandb"``,
        or any object with the three functions of `offmap.learning.MetricLogger`.
    views : Views, optional
        What makes two views of a batch, such as ``ImageViews(flip=0)`` for digits; SimCLR's for pictures and neighbours
        for embeddings by default.
    **settings : Any
        Settings of the objective and of training, by name; see `offmap.learning.Training`.

    Returns
    -------
    OpenWorldModel
        With ``predict``, ``transform``, ``novelty``, ``network``, ``history``, ``save``.

    See Also
    --------
    offmap.discover : Classes of unlabelled rows without training.
    offmap.learning.tune : Settings chosen on known classes that are hidden.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(4), 40)
    >>> rows = rng.normal(size=(4, 8))[truth] + 0.1 * rng.normal(size=(160, 8))
    >>> model = learn(rows, np.where((truth < 2) & (rng.random(160) < 0.5), truth, -1), 4, epochs=2)
    >>> model
    OpenWorldModel(self-training, 2 known classes, 2 novel)
    >>> bool((model.predict(rows)[truth == 1] == 1).all())
    True
    """
    data = as_tokens(inputs, encoder.tokenizer) if isinstance(encoder, BertEncoder) else as_inputs(inputs)
    if len(data) < 4:
        raise InputError(f"{len(data)} inputs: at least 4 are needed to learn anything")
    known = read_labels(labels, len(data))
    output = Output.create(out, progress, log)
    name = AUTO[data.kind] if objective == "auto" else objective
    if name == SPECTRAL:
        model, first = fit_closed_form(data, known, n_classes, seed, settings), True
    else:
        kind = get_objective(name)
        if kind.needs_labels and not len(known):
            raise InputError(f"{name}: it learns from labels, and no input has one; try simclr or scl")
        if data.kind not in kind.kinds:
            raise InputError(f"{name}: it learns from {' or '.join(kind.kinds)}, and these inputs are {data.kind}")
        chosen, training = resolve(kind, data.kind, preset, settings)
        encoder = published_encoder(preset) if encoder == "auto" else encoder
        ranks = join_processes(training.device)
        run = TrainingRun(kind, chosen, training, seed, output, ranks, views)
        facts = {"objective": name, "seed": seed, **asdict(training), **chosen}
        with logging_to(output.loggers if ranks.first else (), facts):
            model = (
                fit_rounds(run, data, known, n_classes, encoder)
                if kind.in_rounds
                else run.fit(data, known, n_classes, encoder)
            )
        first = ranks.first
    if output.folder is not None and first:
        store.write_atomically(output.folder / "history.csv", format_csv(model.history))
        model.save(output.folder / "model.offmap")
    return model
