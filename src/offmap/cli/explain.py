"""`offmap explain`: which methods suit this network, and do their assumptions hold?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import InputOptions, Json, show, with_inputs


@with_inputs
def explain(
    known: Annotated[
        Path, typer.Argument(help="Known inputs: a folder of offmap extract, .npz/.npy/.parquet, or texts.")
    ],
    inputs: InputOptions,
    unknown: Annotated[Path | None, typer.Option(help="Unknown inputs, or noise.")] = None,
    noise: Annotated[
        int | None, typer.Option(min=1, help="With --model: this many noise inputs as the unknown.")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="ReAct's threshold c; several are compared without it.")] = None,
    budget: Annotated[int, typer.Option(min=0, help="Labels you could buy; above 0, advice on which.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the findings as a page: .html.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the trials and of the clustering behind the advice.")] = 0,
    as_json: Json = False,
) -> None:
    """Say in plain words which methods suit a network, and whether what they assume holds on it."""
    from offmap.cli.checks import check_page
    from offmap.extra_passes import Requirements
    from offmap.theory import explain as diagnose

    if out is not None:
        check_page(out)
    found = diagnose(
        inputs.activations(known),
        inputs.outliers(unknown, noise, known, Requirements()),
        clip=clip,
        budget=budget,
        seed=seed,
    )
    if out is not None:
        found.page().write(out)
    show(found.to_dict(), as_json, str(found))
