"""What a guard is loaded from and scores, by the options of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offmap.cli.options import InputOptions, wanted

if TYPE_CHECKING:
    from offmap.activations import Activations
    from offmap.detection import Detector
    from offmap.openworld import Deployment
    from offmap.text import TextEncoder


def load_guard(inputs: InputOptions, file: Path, scopes: bool = False) -> Any:
    """Load what `offmap fit` or `offmap guard` wrote, with the network and the encoder that the options name.

    Into the network of a deployment go the weights that its file holds.

    Parameters
    ----------
    inputs : InputOptions
        The options.
    file : path
        A detector or a deployment; other things are refused.
    scopes : bool, default False
        Whether a file of `offmap scope fit` is taken too.
    """
    from offmap.deploy import Scope
    from offmap.detection import Detector
    from offmap.errors import InputError
    from offmap.openworld import Deployment

    found = _load(inputs, file)
    if not isinstance(found, (Detector, Deployment, Scope) if scopes else (Detector, Deployment)):
        raise InputError(f"{file}: holds {found!r}; a guard from offmap fit or offmap guard is needed")
    return found


def _load(inputs: InputOptions, file: Path) -> Any:
    from offmap import load, store
    from offmap.deploy import Scope
    from offmap.openworld import Deployment

    if inputs.encoder is None and inputs.model is None:
        return load(file)
    stored = store.load(file)
    encoder = None if inputs.encoder is None else inputs.text_encoder()
    if stored.kind == "deployment":
        return Deployment.restore(stored, None if inputs.model is None else inputs.network(), encoder)
    return Scope.restore(stored, encoder) if stored.kind == "scope" else load(file)


def read_scored(
    inputs: InputOptions, sources: Sequence[Path], detector: Detector, deployment: Deployment | None
) -> tuple[Activations, dict[str, list[Any]]]:
    """Return what a detector reads of the data, and what each input is called: a file, a text, or nothing."""
    source = sources[0] if len(sources) == 1 else list(sources)  # a shell makes such a list of a pattern
    if deployment is not None and deployment.encoder is not None:
        return _read_texts(inputs, one_source(sources), deployment, deployment.encoder)
    network = None if deployment is None else deployment.network  # with the weights that it was calibrated with
    if network is None and inputs.model is not None:
        network = inputs.network()
    if network is None or (isinstance(source, Path) and inputs.is_text(source)):
        only = one_source(sources)
        if inputs.is_text(only):
            return inputs.activations(only, wanted(detector)), inputs.read_texts(only).named()
        return _read_table(inputs, only, detector)
    batches = inputs.with_pictures_of(None if deployment is None else deployment.pictures).batches(source)
    acts = network.extract(batches, wanted(detector), device=inputs.device)
    files = getattr(batches.inputs, "files", None)
    return acts, {} if files is None else {"path": [str(file) for file in files]}


def one_source(sources: Sequence[Path]) -> Path:
    """Return the only source; several are for pictures."""
    from offmap.errors import InputError

    if len(sources) == 1:
        return sources[0]
    raise InputError(f"{len(sources)} files: several at a time are for pictures, with --model or a guard that has one")


def _read_texts(
    inputs: InputOptions, source: Path, deployment: Deployment, encoder: TextEncoder
) -> tuple[Activations, dict[str, list[Any]]]:
    """Return what a guard of texts reads: of a file of texts, or of rows that its encoder has made before."""
    from offmap.text import read_extracted_texts, read_extraction

    extracted = read_extracted_texts(source)
    if extracted is None:
        texts = inputs.read_texts(source)
        return deployment.activations(texts.texts, "texts"), texts.named()
    rows = read_extraction(source, encoder).features
    return deployment.activations(rows, "features"), {"text": extracted}


def _read_table(inputs: InputOptions, source: Path, detector: Detector) -> tuple[Activations, dict[str, Any]]:
    """Return rows of features, by the names of their columns where both the guard and a table have names."""
    from offmap import data

    head = None if inputs.head is None else data.read_head(inputs.head)
    if not source.is_file():
        return data.read_activations(source, head), {}
    samples = data.read(source).with_columns(detector.columns)
    return samples.activations(head), dict(samples.others)
