"""`offmap export`: a model and its guard as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import InputOptions, Json, show, with_inputs_but


@with_inputs_but("model", "head", "device")
def export(
    model: Annotated[
        str,
        typer.Argument(
            help="file.onnx, package.module:factory, the file of a model that offmap learned, or a deployment."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as guarded.onnx.")],
    inputs: InputOptions,
    guard: Annotated[
        Path | None,
        typer.Argument(
            help="A calibrated guard that offmap fit wrote, or the deployment that package.module:factory belongs to; "
            "a deployment in the model's place has its own."
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Inputs to compare with Python on before anything is written: .npz, .npy, pictures …"),
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Without --check: the shape of one input, such as 3,32,32.")] = None,
    classes: Annotated[
        Path | None, typer.Option(help="A text file with the name of one class per line, kept in the graph.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How far scores may lie apart, relative to their size.")] = 1e-4,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Keep the weights in a file beside the graph.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write one ONNX graph that gives logits, score, p_value and known; it runs without offmap."""
    import offmap
    from offmap.cli.checks import check_file
    from offmap.service.loading import DeploymentFiles

    check_file(out)
    names = None if classes is None else classes.read_text(encoding="utf-8").splitlines()
    file = model if guard is None else str(guard)
    if check is not None and file.endswith(".offmap"):
        inputs = inputs.with_pictures_of(DeploymentFiles(Path(file)).read_pictures())
    made = offmap.export(
        model,
        guard,
        out,
        None if check is None else inputs.batches(check),
        shape=None if shape is None else _sizes(shape),
        weights=inputs.weights,
        layer=inputs.layer,
        classes=names,
        tolerance=tolerance,
        external_data=external_data,
    )
    result = {
        "graph": str(made.path),
        "data": None if made.data is None else str(made.data),
        "detector": made.method,
        "tpr": made.tpr,
        "threshold": made.threshold,
        "checked": made.checked,
        "difference": made.difference,
    }
    show(result, as_json, str(made))


def _sizes(text: str) -> list[int]:
    from offmap.errors import InputError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--shape {text}: the sizes of one input are needed, such as 3,32,32") from error
