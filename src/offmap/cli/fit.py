"""`offmap fit`: from known inputs to a guard in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import Engine, InputOptions, Json, Workers, on_ray, show, wanted, with_inputs


@with_inputs
def fit(
    known: Annotated[
        Path, typer.Argument(help="Known inputs: a folder of offmap extract, .npz/.npy/.parquet, or texts.")
    ],
    out: Annotated[Path, typer.Option(help="The guard's file, such as guard.offmap.")],
    inputs: InputOptions,
    detector: Annotated[
        str, typer.Argument(help='auto chooses from the known inputs; or such as "knn(10)", see offmap methods.')
    ] = "auto",
    calibrate: Annotated[
        Path | None, typer.Option(help="Held-out known inputs to set the threshold on, with a guarantee.")
    ] = None,
    tpr: Annotated[float, typer.Option(help="The share of known inputs to accept.")] = 0.95,
    confidence: Annotated[
        float | None, typer.Option(help="Keep the promise for this very calibration set, with this confidence.")
    ] = None,
    recent: Annotated[
        Path | None, typer.Option(help="Recent inputs, to weight the calibration by how the kinds of inputs shifted.")
    ] = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="Keep the promise within every class.")] = False,
    val: Annotated[Path | None, typer.Option(help="Held-out known inputs to choose auto on.")] = None,
    outliers: Annotated[Path | None, typer.Option(help="Outliers to choose auto on, such as noise.")] = None,
    noise: Annotated[int | None, typer.Option(min=1, help="With --model: this many noise inputs as outliers.")] = None,
    engine: Engine = "local",
    workers: Workers = 2,
    as_json: Json = False,
) -> None:
    """Fit a detector on known inputs, calibrate it, and save it in one safe file."""
    import offmap
    from offmap.cli.checks import check_file

    check_file(out)
    if calibrate is None and (confidence is not None or recent is not None):
        raise offmap.errors.InputError("--confidence and --recent are about the threshold; give --calibrate too")
    guard = offmap.detector(detector)
    requirements = wanted(guard)
    if on_ray(engine):
        from offmap import scale

        guard = scale.fit(guard, scale.shards_in(known), inputs.source(), workers)
    else:
        guard.fit(
            inputs.activations(known, requirements),
            val=None if val is None else inputs.activations(val, requirements),
            outliers=inputs.outliers(outliers, noise, known, requirements),
        )
    if calibrate is not None:
        guard.calibrate(
            inputs.activations(calibrate, wanted(guard)),
            tpr=tpr,
            by_class=by_class,
            confidence=confidence,
            shift=None if recent is None else inputs.activations(recent, wanted(guard), unknown=True),
        )
    guard.save(out)
    threshold = None if calibrate is None or by_class or recent is not None else guard.threshold
    result = {
        "guard": str(out),
        "detector": repr(guard),
        "chosen": guard.chosen,
        "calibrated": calibrate is not None,
        "tpr": None if calibrate is None else tpr,
        "confidence": confidence,
        "threshold": threshold,
    }
    words = f"{guard.chosen} in {out}"
    if threshold is not None:
        words += f": inputs that score at least {threshold:.6g} are known, {tpr:.0%} of known inputs do"
    show(result, as_json, words)
