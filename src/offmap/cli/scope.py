"""`offmap scope`: a guard for an application of a language model, from examples of what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import InputOptions, Json, show, with_inputs_but
from offmap.wording import format_count

OTHERS = (
    "model", "weights", "layer", "head", "batch_size", "device", "image_size", "gray", "mean", "std", "skip_unreadable",
)  # fmt: skip


@with_inputs_but(*OTHERS)
def fit(
    examples: Annotated[Path, typer.Argument(help="On-topic texts: .txt with one per line, .csv, .jsonl, .parquet.")],
    inputs: InputOptions,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("scope.offmap"),
    off_topic: Annotated[
        Path | None, typer.Option(help="Texts to refuse; the promise on on-topic texts stays as it is.")
    ] = None,
    tpr: Annotated[float, typer.Option(help="The share of on-topic texts to accept.")] = 0.97,
    seed: Annotated[int, typer.Option(help="Of the division of the examples.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a scope from on-topic examples, and from off-topic ones where there are some."""
    from offmap.cli.checks import check_file
    from offmap.deploy.scopes import fit_scope

    check_file(out)
    reader = inputs.texts()
    refused = None if off_topic is None else reader.read_texts(off_topic)
    made = fit_scope(reader.read_texts(examples), refused, tpr=tpr, encoder=reader.encoder, seed=seed)
    made.save(out)
    result = {
        "scope": str(out),
        "examples": len(made.on_topic),
        "calibrated_on": len(made.calibration.scores),
        "off_topic": 0 if made.off_topic is None else len(made.off_topic),
        "tpr": tpr,
        "threshold": made.calibration.threshold,
    }
    further = format_count(len(made.calibration.scores), "further example")
    show(result, as_json, f"{made!r} in {out}, its threshold set on {further}")


@with_inputs_but(*OTHERS, "text_column", "label_column")
def check(
    scope: Annotated[Path, typer.Argument(help="A file that offmap scope fit or offmap guard --texts wrote.")],
    text: Annotated[list[str], typer.Argument(help="What a user has written; may be given again.")],
    inputs: InputOptions,
    as_json: Json = False,
) -> None:
    """Say whether texts are on topic."""
    from offmap.deploy.scopes import scope as load_scope
    from offmap.text import check_text

    for number, one in enumerate(text, 1):  # as a person counts what they have typed; a list in Python begins with 0
        check_text(one, f"text {number}" if len(text) > 1 else "the text")
    loaded = load_scope(scope, None if inputs.encoder is None else inputs.text_encoder())
    found = loaded.check_all(text)
    result = [
        {"text": one, "on_topic": verdict.on_topic, "p_value": verdict.p_value, "nearest": verdict.nearest}
        for one, verdict in zip(text, found, strict=True)
    ]
    words = "\n".join(
        f"{'on topic' if verdict.on_topic else 'off topic'} (p = {verdict.p_value:.3f}): {one}"
        for one, verdict in zip(text, found, strict=True)
    )
    show({"results": result}, as_json, words)
