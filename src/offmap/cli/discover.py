"""`offmap discover`: which classes are hidden among unlabelled inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from offmap.cli.options import InputOptions, Json, show, tell_long_steps, with_inputs

UNKNOWN = "unknown"


@with_inputs
def discover(
    data: Annotated[
        Path,
        typer.Argument(
            help="Labelled and unlabelled rows together: a folder of offmap extract, .npz/.npy/.parquet with features, "
            "pictures with --model, or texts: .txt, .csv, .jsonl, or .txt files in a folder with --encoder."
        ),
    ],
    inputs: InputOptions,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="One class per row: .npy/.npz/.parquet with -1 where unknown, or .txt with a name or nothing on each "
            "line. The data's own otherwise; of a folder, the names of its sub-folders."
        ),
    ] = None,
    unknown: Annotated[
        str, typer.Option(help="The sub-folder, or the class by name, that holds what nobody has labelled.")
    ] = UNKNOWN,
    k: Annotated[str, typer.Option("--k", help="Known and novel classes together, or auto.")] = "auto",
    method: Annotated[str, typer.Option(help="auto, or one of {discovery}.")] = "auto",
    outliers: Annotated[bool, typer.Option("--outliers", help="Flag rows of no class as -1.")] = False,
    lost: Annotated[
        float, typer.Option(help="With --outliers: the share of rows with a class that may be flagged.")
    ] = 0.05,
    texts: Annotated[
        Path | None, typer.Option(help="The rows as texts, one per line: they name the novel classes.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write one label per row: .parquet or .csv.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with exemplars of every class: .html.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the result, for offmap.load.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answer.")] = 0,
    as_json: Json = False,
) -> None:
    """Find the classes hidden among unlabelled inputs: how many there are, and which rows belong together."""
    from offmap import data as files
    from offmap.cli.checks import check_file, check_outputs
    from offmap.discovery import discover as find
    from offmap.errors import InputError

    check_outputs(table=out, page=report)
    check_file(save)
    if k != "auto" and not k.isdigit():
        raise InputError(f"--k {k}: a whole number or auto is needed")
    features, own, items, named = _read(data, inputs)
    if texts is not None:
        items = files.read_texts(texts).texts
    if labels is not None:
        own = _labels(labels)
    own = _without(unknown, own)
    found = find(
        features,
        own,
        "auto" if k == "auto" else int(k),
        method,
        seed,
        outliers=lost if outliers else False,
        texts=items if isinstance(items, list) else None,
        on_step=tell_long_steps(),
    )
    if out is not None:
        files.write_table(out, files.join_columns(named, _columns(found)))
    if report is not None:
        found.to_html(report, items)
    if save is not None:
        (found.with_text_encoder(inputs.text_encoder()) if inputs.is_text(data) else found).save(save)
    result: dict[str, Any] = {
        "n_classes": found.n_classes,
        "interval": list(found.n_classes_interval),
        "novel_rows": int(found.is_novel.sum()),
        "names": {str(number): name for number, name in found.names.items()},
    }
    if out is None and as_json:
        result["labels"] = found.labels.tolist()
    words = items if isinstance(items, list) else named.get("path")
    show(result, as_json, found.summary(words))


def _read(data: Path, inputs: InputOptions) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return features, labels, what is shown of each row, and the columns that tables name it by."""
    from offmap import data as files
    from offmap.text import read_extracted_texts

    if inputs.is_text(data):
        read = inputs.texts().read_texts(data)
        return inputs.text_encoder().encode(read.texts), read.labels, read.texts, read.named()
    if inputs.model is not None:
        batches = inputs.batches(data)
        features = inputs.network().extract(batches, device=inputs.device).features
        own = _named(batches.labels, getattr(batches.inputs, "classes", ()))
        pictures = getattr(batches.inputs, "files", None)
        if pictures is None:
            return features, own, None, {}
        return features, own, batches.inputs, {"path": [str(file) for file in pictures]}
    acts = inputs.activations(data)
    if data.is_file():
        held = files.read(data)
        return acts.features, _named(held.labels, held.classes), None, dict(held.others)
    extracted = read_extracted_texts(data)
    return acts.features, acts.labels, extracted, {} if extracted is None else {"text": extracted}


def _without(unknown: str, labels: Any) -> Any:
    """Take the label off rows of the class that stands for those nobody has labelled."""
    import numpy as np

    from offmap.errors import InputError

    numbered = labels is None or np.issubdtype(np.asarray(labels).dtype, np.number)
    if unknown != UNKNOWN and (numbered or unknown not in labels):
        there = (
            "labels are numbers, -1 where unknown"
            if numbered
            else f"classes are {', '.join(sorted({*labels} - {None}))}"
        )
        raise InputError(f"--unknown {unknown}: there is no such class; the {there}")
    return labels if numbered else [None if name == unknown else name for name in labels]


def _columns(found: Any) -> dict[str, Any]:
    """One row per input: its class by name, whether that was known, its number, and how sure that is."""
    import numpy as np

    names = np.array([name or "" for name in found.named_labels])
    return {"class": names, "known": ~found.is_novel, "label": found.labels, "confidence": found.confidence}


def _labels(file: Path) -> Any:
    """One label per row from a file: numbers, or names where it has them."""
    from offmap.data import read

    if file.suffix == ".txt":
        return [line.strip() or None for line in file.read_text(encoding="utf-8").splitlines()]
    held = read(file)
    return _named(held.labels, held.classes)


def _named(labels: Any, classes: Any) -> Any:
    if labels is None or not len(classes):
        return labels
    return [None if label < 0 else classes[label] for label in labels]
