"""`offmap learn`: a model of known and novel classes from some labels and a pile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from offmap.cli.options import Inputs, Json, say, show, with_inputs


@with_inputs
def learn(
    objective: Annotated[str, typer.Argument(help="What is minimised: sorl-spectral, or one of {objectives}.")],
    inputs: Inputs,
    data: Annotated[
        Path,
        typer.Option(
            help="Labelled and unlabelled inputs together: .npz/.npy/.parquet with features or pictures, a folder of "
            "pictures, a folder of offmap extract, or inputs for --model."
        ),
    ],
    out: Annotated[Path, typer.Option(help="A folder for the model, its history and checkpoints; resumed if there.")],
    labels: Annotated[
        Path | None, typer.Option(help="Class numbers, -1 where unknown: .npy/.npz/.parquet. The data's own otherwise.")
    ] = None,
    known: Annotated[
        str | None,
        typer.Option(
            help="Use labels of these classes only, as an experiment: so many (5), a share (0.5), or names or numbers "
            "(cat,dog). The other labels are hidden from learning, and what is found is compared with them."
        ),
    ] = None,
    ratio: Annotated[float, typer.Option(help="With --known: the share of their inputs that is labelled.")] = 0.5,
    k: Annotated[str, typer.Option("--k", help="Known and novel classes together, or auto.")] = "auto",
    network: Annotated[
        str, typer.Option(help="The network that learns: auto, linear, mlp, cnn, resnet18, resnet50, vit …")
    ] = "auto",
    preset: Annotated[
        str, typer.Option(help="auto, thesis, authors, embeddings, cifar10, cifar100 or imagenet100.")
    ] = "auto",
    change: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, such as epochs=20; may be given again.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="First choose settings on known classes that play the novel ones.")
    ] = False,
    predictions: Annotated[Path | None, typer.Option(help="Write a class and a novelty per input: .parquet/.csv.")] = (
        None
    ),
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files too.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    as_json: Json = False,
) -> None:
    """Learn known and novel classes from some labels and a pile of unlabelled inputs."""
    from offmap import data as files
    from offmap.activations import META
    from offmap.errors import InputError
    from offmap.learning import learn as train
    from offmap.learning import tune as choose

    names: tuple[str, ...] = ()
    if inputs.model is not None or (data / META).is_file():
        acts = inputs.activations(data)
        rows, own = acts.features, acts.labels
    else:
        samples = inputs.samples(data)
        features = samples.arrays.get("features")
        rows = samples.inputs if features is None else features
        own, names = samples.labels, samples.classes
    given: Any = files.read(labels).labels if labels is not None else own
    truth: Any = None
    if given is None:
        given = [-1] * len(rows)
    if known is not None:
        split = files.open_world_split(given, _known(known, names), ratio, seed, classes=names)
        given, truth = split.labels, split.targets
    if k != "auto" and not k.isdigit():
        raise InputError(f"--k {k}: a whole number or auto is needed")
    settings = dict(_setting(one) for one in change or [])
    if inputs.device is not None and inputs.model is None:
        settings["device"] = inputs.device
    if tune:
        found = choose(objective, rows, given, seed=seed, encoder=network, preset=preset, **settings)
        say(f"chosen: {found.settings or 'the defaults'}")
        settings |= found.settings
    model = train(
        objective,
        rows,
        given,
        "auto" if k == "auto" else int(k),
        network,
        seed,
        out,
        preset=preset,  # type: ignore[arg-type]  # learn refuses other names with a sentence
        tensorboard=tensorboard,
        **settings,
    )
    classes = model.predict(rows)
    if predictions is not None:
        files.write_table(predictions, {"label": classes, "novelty": model.novelty(rows)})
    result: dict[str, Any] = {
        "model": str(out / "model.offmap"),
        "n_classes": model.n_classes,
        "n_known": model.n_known,
        "settings": settings,
    }
    words = f"{model}, saved as {out / 'model.offmap'}"
    if truth is not None:
        result["accuracy"] = _accuracy(truth, classes, given)
        for convention, parts in result["accuracy"].items():
            words += f"\naccuracy on inputs whose label was hidden ({convention}): " + ", ".join(
                f"{name} {100 * value:.1f} %" for name, value in parts.items()
            )
    show(result, as_json, words)


def _known(text: str, names: tuple[str, ...]) -> Any:
    """A number, a share, or classes by name or number."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0] not in names:
        try:
            return int(parts[0]) if parts[0].isdigit() else float(parts[0])
        except ValueError:
            return parts
    return [int(part) if part.isdigit() and part not in names else part for part in parts]


def _setting(text: str) -> tuple[str, Any]:
    """A name and a value, the value read as JSON, or as text where it is none."""
    from offmap.errors import InputError

    name, mark, value = text.partition("=")
    if not mark:
        raise InputError(f"--set {text}: name=value is needed, such as epochs=20")
    try:
        read = json.loads(value)
    except json.JSONDecodeError:
        return name, value
    return name, tuple(read) if isinstance(read, list) else read


def _accuracy(truth: Any, found: Any, given: Any) -> dict[str, dict[str, float]]:
    """All, Known and Novel in both conventions, over inputs that have a class and whose label was hidden."""
    import numpy as np

    from offmap.metrics.clustering import open_world_accuracy

    hidden = (given < 0) & (truth >= 0)
    known = np.unique(given[given >= 0])
    return {
        convention: open_world_accuracy(truth[hidden], found[hidden], known, convention)._asdict()
        for convention in ("v2", "orca")
    }
