"""`offmap score`: what a guard says about inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offmap.cli.options import Inputs, Json, show, wanted, with_inputs


@with_inputs
def score(
    guard: Annotated[Path, typer.Argument(help="A file that offmap fit wrote.")],
    data: Annotated[
        Path, typer.Argument(help="Inputs: a folder of offmap extract, or .npz/.npy/.parquet/pictures with --model.")
    ],
    inputs: Inputs,
    out: Annotated[Path | None, typer.Option(help="Write the scores: .parquet or .csv.")] = None,
    fdr: Annotated[
        float | None,
        typer.Option(help="Judge the inputs together: at most this share of those flagged is known."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Score inputs, higher means known; a calibrated guard adds p-values and verdicts."""
    import offmap
    from offmap.data import write_table

    loaded = offmap.load(guard)
    acts = inputs.activations(data, wanted(loaded))
    columns: dict[str, Any] = {}
    if loaded.calibration is None:
        columns["score"] = loaded.score(acts)
    else:
        verdicts = loaded.verdicts(acts, fdr=fdr)
        columns |= {"score": verdicts.score, "p_value": verdicts.p_value, "known": verdicts.known}
        if verdicts.predicted is not None:
            columns["predicted"] = verdicts.predicted
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
