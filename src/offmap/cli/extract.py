"""`offmap extract`: run the network once, keep what it says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offmap.cli.options import InputOptions, Json, show, wanted, with_inputs
from offmap.cli.scored import load_guard

if TYPE_CHECKING:
    from offmap.activations import Activations

DOUBTFUL = 0.9  # below this share of right predictions, how inputs were prepared is called into question


@with_inputs
def extract(
    data: Annotated[
        Path,
        typer.Argument(
            help="Inputs: .npz, .npy, .parquet, or a folder of pictures (sub-folders are classes), or texts."
        ),
    ],
    to: Annotated[Path, typer.Option(help="The folder to write; a run cut short goes on where it stopped.")],
    inputs: InputOptions,
    labels: Annotated[Path | None, typer.Option(help="Class indices in a file of their own: .npy or .npz.")] = None,
    needed_by: Annotated[
        str | None,
        typer.Option(
            "--for", help="Detectors or a saved guard that may ask for more than features and logits, such as odin."
        ),
    ] = None,
    noise: Annotated[
        int | None,
        typer.Option(min=1, help="Pass this many inputs of noise, shaped like the data, instead of the data."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    half: Annotated[bool, typer.Option("--half", help="Keep float16 on disk.")] = False,
    as_json: Json = False,
) -> None:
    """Run a network over data once and keep features, logits and labels in a folder."""
    import offmap
    from offmap.cli.checks import check_folder
    from offmap.detection.spec import split

    check_folder(to)
    dtype = "float16" if half else "float32"
    if inputs.is_text(data):
        from offmap.text import extract_texts

        reader = inputs.texts()
        texts = reader.read_texts(data)
        numbers = None if texts.labels is None else texts.encode_labels()
        acts = extract_texts(reader.encoder, texts.texts, to, numbers, dtype)
        _tell(acts, to, as_json)
        return
    asked = needed_by or ""
    if asked.endswith(".offmap"):
        held = load_guard(inputs, Path(asked))
        guards = [getattr(held, "detector", held)]
    else:
        guards = [offmap.detector(spec) for spec in split(asked)]
    requirements = wanted(*guards)
    batches = inputs.batches(data, labels)
    if noise is None:
        acts = inputs.network().extract(batches, requirements=requirements, to=to, dtype=dtype, device=inputs.device)
    else:
        acts = inputs.network().noise(noise, batches.shape, seed=seed, requirements=requirements, device=inputs.device)
        acts.save(to, dtype)
    _tell(acts, to, as_json)


def _tell(acts: Activations, to: Path, as_json: bool) -> None:
    result = {
        "to": str(to),
        "inputs": len(acts),
        "features": acts.features.shape[1],
        "classes": acts.n_classes if acts.has_logits else None,
        "labels": acts.labels is not None,
        "accuracy": accuracy(acts),
    }
    words = f"{acts!r} in {to}"
    if result["accuracy"] is not None:
        words += f"; {result['accuracy']:.1%} of the labels are predicted"
        words += _doubt(acts, result["accuracy"])
    show(result, as_json, words)


def _doubt(acts: Activations, right: float) -> str:
    """Say what may be wrong where few labels are predicted."""
    if right >= DOUBTFUL:
        return ""
    assert acts.labels is not None
    beyond = float((acts.labels >= acts.n_classes).mean())
    if beyond:
        return f" ({beyond:.0%} of the labels are none of the network's classes, 0 to {acts.n_classes - 1})"
    return " (lower than you know it? check --mean, --std)"


def accuracy(acts: Activations) -> float | None:
    """Return the share of labels that the network predicts; `None` without labels or logits.

    Far below what the network is known to reach, it says that inputs were prepared in another way than for training.
    """
    if acts.labels is None or not acts.has_logits or not (acts.labels >= 0).any():
        return None
    labelled = acts.labels >= 0
    return float((acts.predictions[labelled] == acts.labels[labelled]).mean())
