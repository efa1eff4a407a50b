"""`offmap guard`: from a model and its known inputs to a guard, in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import InputOptions, Json, show, with_inputs


@with_inputs
def guard(
    out: Annotated[Path, typer.Option(help="The folder to write: guard.offmap, report.html, guarded.onnx.")],
    inputs: InputOptions,
    known: Annotated[
        Path | None,
        typer.Option(
            help="Known inputs: a folder of pictures (sub-folders are classes), .npz, .npy, .parquet, or what offmap "
            "extract wrote."
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Known texts instead: .txt, .csv, .jsonl, .parquet or a folder of .txt files. With labels a linear "
            "head is trained over their embeddings; --held-out and --unknown are texts then, too."
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(help="Known inputs that the network was not trained on, to set and check the threshold."),
    ] = None,
    unknown: Annotated[
        Path | None, typer.Option(help="Examples of unknown inputs, to report on; nothing is chosen on them.")
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            help="The detector, as text; by default auto, which chooses from known inputs alone, and for texts with "
            "labels a sum that was found to do better."
        ),
    ] = None,
    tpr: Annotated[float, typer.Option(help="The share of known inputs to accept.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the division of the known inputs.")] = 0,
    as_json: Json = False,
) -> None:
    """Choose a detector for a model, set its threshold, check it, and write guard, report and ONNX graph."""
    from offmap.cli.checks import check_folder
    from offmap.data import holds_pictures
    from offmap.deploy import build_guard, write_guard
    from offmap.errors import InputError

    if (known is None) == (texts is None):
        raise InputError("give known inputs with --known, or known texts with --texts")
    check_folder(out)
    source = texts or known
    assert source is not None
    if texts is not None and inputs.encoder is None:
        inputs = replace(inputs, encoder="minilm")
    evidence = build_guard(
        inputs.text_encoder() if inputs.is_text(source) else None if inputs.model is None else inputs.network(),
        inputs.raw(source),
        held_out=None if held_out is None else inputs.raw(held_out),
        unknown=None if unknown is None else inputs.raw(unknown),
        detector=detector,
        tpr=tpr,
        class_names=inputs.class_names(source),
        device=inputs.device,
        seed=seed,
    )
    if inputs.model is not None and holds_pictures(source):
        with_pictures = replace(evidence.deployment, pictures=inputs.picture_settings())
        evidence = replace(evidence, deployment=with_pictures)
    files = write_guard(evidence, out)
    deployment = evidence.deployment
    result = {
        "detector": deployment.detector.chosen,
        "tpr": tpr,
        "fitted": evidence.n_fitted,
        "calibrated": evidence.n_calibrated,
        "false_alarms": evidence.false_alarms,
        "accuracy": evidence.accuracy,
        "unknown_flagged": {name: float((~found.known).mean()) for name, found in evidence.unknown.items()},
        "files": files,
    }
    lines = [f"{name}: {said}{inputs.tell_model() if name.endswith('.offmap') else ''}" for name, said in files.items()]
    show(result, as_json, "\n".join([str(evidence), *lines]))
