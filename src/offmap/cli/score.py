"""`offmap score`: what a guard says about inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from unicodedata import category

import typer

from offmap.cli.options import Engine, InputOptions, Json, Workers, on_ray, show, with_inputs
from offmap.cli.scored import load_guard, one_source, read_scored
from offmap.wording import format_count

if TYPE_CHECKING:
    from offmap.deploy import Scope

SHOWN = 20  # so many inputs are printed one by one when no file is named
WIDTH = 60  # characters of a text that are printed


@with_inputs
def score(
    guard: Annotated[Path, typer.Argument(help="A file that offmap fit, offmap guard or offmap scope fit wrote.")],
    data: Annotated[
        list[Path],
        typer.Argument(
            help="Inputs: a folder of offmap extract; .npz/.npy/.parquet, a folder of pictures, one picture or several "
            "(photos/*.jpg) for a network; or texts."
        ),
    ],
    inputs: InputOptions,
    out: Annotated[
        Path | None,
        typer.Option(help="Write path (or text), class, known, p_value and score of each input: .parquet or .csv."),
    ] = None,
    classes: Annotated[
        Path | None, typer.Option(help="Names of the classes, where the guard has none: a JSON list, or one per line.")
    ] = None,
    fdr: Annotated[
        float | None,
        typer.Option(help="Judge the inputs together: at most this share of those flagged is known."),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="With --fdr: judge the inputs one after the other, in their order.")
    ] = False,
    engine: Engine = "local",
    workers: Workers = 2,
    as_json: Json = False,
) -> None:
    """Score inputs, higher means known; a calibrated guard adds p-values and verdicts.

    Of texts the table also holds the text, the other columns of its file and the known text that it is most like.
    """
    from offmap.cli.checks import check_outputs
    from offmap.data import join_columns
    from offmap.deploy import Scope
    from offmap.errors import InputError
    from offmap.openworld import Deployment
    from offmap.service.loading import read_class_names

    if not on_ray(engine):
        check_outputs(table=out)
    names = None if classes is None else read_class_names(classes)
    found = load_guard(inputs, guard, scopes=True)
    if isinstance(found, Scope):
        if on_ray(engine) or fdr is not None or stream:
            raise InputError(f"{guard}: a scope judges each text by itself; leave out --fdr, --stream and --engine")
        _tell({"detector": repr(found)}, _judge_by_scope(found, one_source(data), inputs), out, as_json)
        return
    deployment = found if isinstance(found, Deployment) else None
    loaded = found if deployment is None else deployment.detector
    if on_ray(engine):
        _score_on_ray(loaded, data[0], inputs, out, workers, as_json)
        return
    acts, named = read_scored(inputs, data, loaded, deployment)
    columns: dict[str, Any] = {}
    if loaded.calibration is None:
        columns["score"] = loaded.score(acts)
    else:
        verdicts = _judge(loaded, acts, fdr, stream)
        own = None if deployment is None else deployment.class_names
        columns |= verdicts.columns(own if names is None else names)
        if verdicts.predicted is not None:
            columns["predicted"] = verdicts.predicted
    if deployment is not None and deployment.examples is not None:
        columns["nearest"] = deployment.examples.find_nearest_texts(acts.features)
    _tell({"detector": loaded.chosen}, join_columns(named, columns), out, as_json)


def _judge_by_scope(scope: Scope, source: Path, inputs: InputOptions) -> dict[str, Any]:
    """Return the verdicts of a scope on a file of texts, one row per text."""
    import numpy as np

    from offmap.data import join_columns

    texts = inputs.read_texts(source)
    found = scope.check_all(texts.texts)
    columns = {
        "known": np.array([verdict.on_topic for verdict in found]),
        "p_value": np.array([verdict.p_value for verdict in found]),
        "score": np.array([verdict.score for verdict in found]),
        "nearest": [verdict.nearest for verdict in found],
    }
    return join_columns(texts.named(), columns)


def _tell(summary: dict[str, Any], columns: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Write the table of scores, or say what is in it."""
    from offmap.data import write_table

    n = len(columns["score"])
    result: dict[str, Any] = {"inputs": n, **summary}
    words = format_count(n, "input")
    if "known" in columns:
        result["unknown"] = int((~columns["known"]).sum())
        words += f", {result['unknown']} of them unknown"
    if out is not None:
        write_table(out, columns)
        result["out"] = str(out)
        words += f", scores in {out}"
    elif as_json:
        result |= {
            name: list(getattr(column, "tolist", lambda kept=column: kept)()) for name, column in columns.items()
        }
    if out is None and n <= SHOWN:
        words = "\n".join([words, *_rows(columns)])
    show(result, as_json, words)


def _rows(columns: dict[str, Any]) -> list[str]:
    """A few inputs, one on each line."""
    shown = {name: column for name, column in columns.items() if name != "predicted"}
    texts = [
        [f"{value:.4g}" if isinstance(value, float) else _tidy(str(value)) for value in column]
        for column in shown.values()
    ]
    widths = [max(map(len, [name, *column])) for name, column in zip(shown, texts, strict=True)]
    lines = [list(shown), *map(list, zip(*texts, strict=True))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _tidy(text: str) -> str:
    """Bring a text to one short line without control characters, which a terminal would obey."""
    from offmap.report.cells import shorten

    return shorten("".join(" " if category(character) == "Cc" else character for character in text), WIDTH)


def _judge(guard: Any, acts: Any, fdr: float | None, stream: bool) -> Any:
    from offmap.errors import InputError

    if not stream:
        return guard.verdicts(acts, fdr=fdr)
    if fdr is None:
        raise InputError("--stream: say with --fdr which share of the flagged inputs may be known, such as --fdr 0.1")
    return guard.stream(fdr=fdr)(acts)


def _score_on_ray(guard: Any, data: Path, inputs: InputOptions, out: Path | None, workers: int, as_json: bool) -> None:
    from offmap import scale
    from offmap.errors import InputError

    if out is None:
        raise InputError("--engine ray: name a folder with --out; every shard's scores go there as Parquet")
    files = scale.score(guard, scale.shards_in(data), out, inputs.source(), workers)
    result = {"detector": guard.chosen, "files": [str(file) for file in files]}
    show(result, as_json, f"{format_count(len(files), 'shard')} scored into {out}")
