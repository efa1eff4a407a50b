"""`offmap discover`: which classes are hidden in a pile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offmap.cli.options import Inputs, Json, show, with_inputs


@with_inputs
def discover(
    data: Annotated[
        Path,
        typer.Argument(
            help="Labelled and unlabelled rows together: a folder of offmap extract, .npz/.npy/.parquet with features, "
            "pictures with --model, or texts with --encoder."
        ),
    ],
    inputs: Inputs,
    labels: Annotated[
        Path | None, typer.Option(help="Class numbers, -1 where unknown: .npy/.npz/.parquet. The data's own otherwise.")
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Known and novel classes together, or auto.")] = "auto",
    method: Annotated[str, typer.Option(help="auto, ss-kmeans, spectral, kmeans, gcd, gmm, vmf or hdbscan.")] = "auto",
    outliers: Annotated[bool, typer.Option("--outliers", help="Flag rows of no class as -1.")] = False,
    encoder: Annotated[
        str | None, typer.Option(help="For texts: package.module:function from a list of texts to an array.")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="The rows as texts, one per line: they name the novel classes.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write one label per row: .parquet or .csv.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with exemplars of every class: .html.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the result, for offmap.load.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    as_json: Json = False,
) -> None:
    """Find the classes hidden in a pile: how many there are, and which rows belong together."""
    from offmap import data as files
    from offmap.discovery import discover as find
    from offmap.errors import InputError
    from offmap.nets.load import imported

    items: Any = None if texts is None else files.read_texts(texts)
    own = None if labels is None else files.read(labels).labels
    if encoder is not None:
        items = files.read_texts(data)
        features: Any = files.encoded_texts(items, imported(encoder))
    else:
        acts = inputs.activations(data)
        features, own = acts.features, own if own is not None else acts.labels
    if k != "auto" and not k.isdigit():
        raise InputError(f"--k {k}: a whole number or auto is needed")
    found = find(
        features,
        own,
        "auto" if k == "auto" else int(k),
        method,  # type: ignore[arg-type]  # discover refuses other names with a sentence
        seed,
        outliers=outliers,
        texts=items,
    )
    if out is not None:
        files.write_table(out, {"label": found.labels, "novel": found.is_novel, "confidence": found.confidence})
    if report is not None:
        found.to_html(report, items)
    if save is not None:
        found.save(save)
    result: dict[str, Any] = {
        "n_classes": found.n_classes,
        "interval": list(found.n_classes_interval),
        "novel_rows": int(found.is_novel.sum()),
        "names": {str(number): name for number, name in found.names.items()},
    }
    if out is None and as_json:
        result["labels"] = found.labels.tolist()
    show(result, as_json, found.summary())
