"""`offmap recalibrate`: move a guard's threshold on with inputs that people have confirmed as known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import InputOptions, Json, show, with_inputs
from offmap.cli.scored import load_guard, read_scored
from offmap.wording import format_count


@with_inputs
def recalibrate(
    guard: Annotated[Path, typer.Argument(help="A calibrated guard that offmap fit or offmap guard wrote.")],
    confirmed: Annotated[
        Path, typer.Argument(help="Inputs confirmed as known, oldest first; a fair sample, not only of flagged ones.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write; it may be the guard's own.")],
    inputs: InputOptions,
    window: Annotated[int, typer.Option(min=1, help="How many calibration inputs to keep, the newest.")] = 1000,
    as_json: Json = False,
) -> None:
    """Let confirmed known inputs take the place of the oldest calibration inputs, and save the guard."""
    from offmap.cli.checks import check_file
    from offmap.openworld import Deployment

    check_file(out)
    loaded = load_guard(inputs, guard)
    deployment = loaded if isinstance(loaded, Deployment) else None
    detector = loaded if deployment is None else deployment.detector
    acts, _ = read_scored(inputs, [confirmed], detector, deployment)
    detector.recalibrate(acts, window=window)
    loaded.save(out)
    calibration = detector.calibration
    assert calibration is not None
    kept = len(calibration.scores)
    result = {"guard": str(out), "confirmed": len(acts), "calibrated_on": kept, "tpr": calibration.tpr}
    show(
        result,
        as_json,
        f"{format_count(len(acts), 'confirmed input')} taken in; {out} is calibrated on the newest {kept}",
    )
