"""`offmap finetune`: a sentence encoder trained on labelled texts, for every other command's ``--encoder``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import InputOptions, Json, show, with_inputs_but
from offmap.cli.scope import OTHERS
from offmap.wording import format_count


@with_inputs_but(*OTHERS, "tokenizer")
def finetune(
    texts: Annotated[Path, typer.Argument(help="Texts with labels, at least for some: .csv, .jsonl, .parquet.")],
    inputs: InputOptions,
    out: Annotated[Path, typer.Option(help="A folder for the encoder.")] = Path("encoder"),
    trained: Annotated[
        int | None, typer.Option(min=1, help="Train this many of the last blocks only, which takes less time.")
    ] = None,
    aside: Annotated[
        float,
        typer.Option(
            help="The share of labelled texts to leave out, so that offmap guard can set its threshold on them."
        ),
    ] = 0.0,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as epochs=4; may be given again.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same encoder.")] = 0,
    as_json: Json = False,
) -> None:
    """Train the sentence encoder on labelled texts; other commands take the folder as --encoder."""
    from offmap.errors import InputError
    from offmap.learning.fine_tuning import fine_tune
    from offmap.learning.settings import parse_setting
    from offmap.text.packaged import DEFAULT

    given = inputs.texts().read_texts(texts)
    if given.labels is None:
        raise InputError(f"{texts}: no labels to learn from; name their column with --label-column")
    settings = dict(parse_setting(one) for one in change or [])
    made = fine_tune(
        given.texts, given.labels, out, inputs.encoder or DEFAULT, trained=trained, aside=aside, seed=seed, **settings
    )
    labelled = given.labelled()
    n_trained = int(made.was_trained_on(labelled.texts).sum())
    result = {
        "encoder": str(out),
        "labelled": len(labelled),
        "trained_on": n_trained,
        "classes": len(given.classes),
        "width": made.width,
    }
    show(
        result,
        as_json,
        f"trained on {format_count(n_trained, 'text')} of {format_count(len(given.classes), 'class', 'classes')}; "
        f"use it with --encoder {out}",
    )
