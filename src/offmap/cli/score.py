"""`offmap score`: what a guard says about inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offmap.cli.options import Engine, InputOptions, Json, Workers, on_ray, show, with_inputs


@with_inputs
def score(
    guard: Annotated[Path, typer.Argument(help="A file that offmap fit or offmap guard wrote.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="Inputs: a folder of offmap extract, or .npz/.npy/.parquet/pictures with --model, or texts."
        ),
    ],
    inputs: InputOptions,
    out: Annotated[Path | None, typer.Option(help="Write the scores: .parquet or .csv.")] = None,
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

    Of texts the table also holds the text and the known text that it is most like.
    """
    import numpy as np

    from offmap.data import write_table
    from offmap.openworld import Deployment

    found = inputs.guard(guard)
    deployment = found if isinstance(found, Deployment) else None
    loaded = found if deployment is None else deployment.detector
    if on_ray(engine):
        _score_on_ray(loaded, data, inputs, out, workers, as_json)
        return
    acts = inputs.scored(data, loaded, deployment)
    columns: dict[str, Any] = {}
    if deployment is not None and deployment.encoder is not None:
        columns["text"] = np.array(inputs.read_texts(data), object)
    if loaded.calibration is None:
        columns["score"] = loaded.score(acts)
    else:
        verdicts = _judge(loaded, acts, fdr, stream)
        columns |= {"score": verdicts.score, "p_value": verdicts.p_value, "known": verdicts.known}
        if verdicts.predicted is not None:
            columns["predicted"] = verdicts.predicted
            if deployment is not None and deployment.class_names is not None:
                columns["class"] = np.array([deployment.class_name(int(label)) for label in verdicts.predicted])
    if deployment is not None and deployment.examples is not None:
        columns["nearest"] = np.array(deployment.examples.find_nearest_texts(acts.features), object)
    summary: dict[str, Any] = {"inputs": len(acts), "detector": loaded.chosen}
    words = f"{len(acts)} inputs"
    if "known" in columns:
        summary["unknown"] = int((~columns["known"]).sum())
        words += f", {summary['unknown']} of them unknown"
    if out is not None:
        write_table(out, columns)
        summary["out"] = str(out)
        words += f", scores in {out}"
    elif as_json:
        summary |= {name: column.tolist() for name, column in columns.items()}
    show(summary, as_json, words)


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
    show(result, as_json, f"{len(files)} shards scored into {out}")
