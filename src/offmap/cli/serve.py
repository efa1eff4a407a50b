"""`offmap serve`: a guard as a service that stores the inputs it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import numbers, say

_NETWORK, _IMAGES, _ACCESS, _LEARNING = "Network", "Images", "Access", "Learning"


def serve(
    guard: Annotated[Path, typer.Argument(help="A file that offmap fit --calibrate or offmap guard wrote.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Run this network over inputs: package.module:factory, a file.onnx, or a learned model's file. "
            "Without it only features are scored.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Weights for the model: .safetensors, or a torch state dict.", rich_help_panel=_NETWORK),
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="The layer to read; the last linear one by default.", rich_help_panel=_NETWORK)
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(help="Names of the classes: a JSON list, or a text file with one per line."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="The text encoder of a guard made from texts, where its file cannot name it: "
            "package.module:function, or where its .onnx file is now.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            help="Labelled inputs (or features) of the known classes, from which the page at / can learn new ones: "
            ".npz, .parquet, a folder of images in class folders, one of offmap extract, or texts (.csv, .jsonl).",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Labelled inputs that the network was not trained on, to calibrate and to measure forgetting; a part "
            "of --known otherwise.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(help="The column with texts, of --known and --held-out.", rich_help_panel=_LEARNING),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="The column with their labels.", rich_help_panel=_LEARNING),
    ] = None,
    learner: Annotated[str, typer.Option(help="auto, or one of {learners}.", rich_help_panel=_LEARNING)] = "auto",
    max_forgetting: Annotated[
        float,
        typer.Option(
            help="By how much accuracy on known classes may fall; beyond that nothing is deployed.",
            rich_help_panel=_LEARNING,
        ),
    ] = 0.03,
    host: Annotated[str | None, typer.Option(help="The address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 8000 by default, 0 for a free one.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Where unknown inputs are kept: a folder, or postgresql://….")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token clients must send; or set OFFMAP_TOKEN.", rich_help_panel=_ACCESS),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Listen beyond this machine without a token.", rich_help_panel=_ACCESS)
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second and address; 0 for no limit.", rich_help_panel=_ACCESS),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to run, such as cuda; the CPU by default.", rich_help_panel=_NETWORK)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Inputs scored at a time; 128 by default.", rich_help_panel=_NETWORK)
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Resize and crop images to this many pixels.", rich_help_panel=_IMAGES)
    ] = None,
    gray: Annotated[bool, typer.Option("--gray", help="Read one channel, not three.", rich_help_panel=_IMAGES)] = False,
    mean: Annotated[
        str | None, typer.Option(help="Subtract from pixels in [0, 1], such as .49,.48,.45.", rich_help_panel=_IMAGES)
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Then divide by this, such as .2,.2,.2.", rich_help_panel=_IMAGES)
    ] = None,
) -> None:
    """Answer requests for scores over HTTP, and store every unknown input durably. All limits: OFFMAP_… variables."""
    from offmap.cli.checks import check_device, check_encoder, check_packages

    check_packages("the service", ("fastapi", "uvicorn", "prometheus_client", "pydantic_settings"), "serve")
    from offmap.errors import InputError
    from offmap.service.loading import DeploymentFiles
    from offmap.service.run import serve_files
    from offmap.service.settings import load_settings, with_pictures
    from offmap.service.triage.inputs import KnownData

    check_device(device)
    check_encoder(encoder)
    settings = load_settings(
        host=host, port=port, store=store, token_file=token_file, no_auth=no_auth or None, rate=rate,
        max_batch=batch_size, device=device, image_size=image_size, gray=gray or None, mean=numbers(mean),
        std=numbers(std),
    )  # fmt: skip
    files = DeploymentFiles(guard, model, weights, layer, classes, encoder)
    labelled = None if known is None else KnownData(known, held_out, text_column, label_column)
    if labelled is not None:
        labelled.check_columns()
    elif text_column is not None or label_column is not None:
        raise InputError("--text-column and --label-column are columns of --known; name that file too")
    settings = with_pictures(settings, files.read_pictures())
    serve_files(files, settings, say, labelled, learner, max_forgetting)
