"""`offmap learn`: a model of known and novel classes from some labels and unlabelled inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offmap.cli.options import InputOptions, Json, say, show, with_inputs
from offmap.wording import format_count

if TYPE_CHECKING:
    from offmap.data import Samples, Texts


SHOWN = 20  # novel classes are named one by one


@with_inputs
def learn(
    inputs: InputOptions,
    out: Annotated[Path, typer.Option(help="A folder for the model, its history and checkpoints; resumed if there.")],
    objective: Annotated[
        str,
        typer.Argument(
            help="What is minimised: auto (self-training for embeddings, opencon for pictures), sorl-spectral, or one "
            "of {objectives}. Without --data this is the data, and the objective is auto."
        ),
    ] = "auto",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled and unlabelled inputs together: .npz/.npy/.parquet with features or pictures, a folder of "
            "pictures, a folder of offmap extract, inputs for --model, or texts: .txt, .csv, .jsonl."
        ),
    ] = None,
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
    report: Annotated[
        Path | None, typer.Option(help="Write a page with the novel classes and how learning went: .html.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Log every epoch to tensorboard, mlflow or wandb, as set up there; may be given again."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    as_json: Json = False,
) -> None:
    """Learn known and novel classes from some labels and unlabelled inputs."""
    from offmap import data as files
    from offmap.cli.checks import check_folder, check_outputs
    from offmap.learning import learn as train
    from offmap.learning import tune as choose
    from offmap.learning.learned_page import build_learned_page
    from offmap.learning.settings import parse_count, parse_setting
    from offmap.metrics.clustering import accuracy_by_convention
    from offmap.openworld.result import render_pictures

    data, objective = _place_data(data, objective)
    check_outputs(table=predictions, page=report)
    check_folder(out)
    samples = _read(inputs, data)
    features = samples.arrays.get("features")
    rows = samples.inputs if features is None else features
    given: Any = files.read(labels).labels if labels is not None else samples.labels
    if given is None:
        given = [-1] * len(rows)
    split = None
    if known is not None:
        classes = files.parse_known(known, samples.classes)
        split = files.open_world_split(given, classes, ratio, seed, classes=samples.classes)
        given = split.labels
    settings = dict(parse_setting(one) for one in change or [])
    if inputs.device is not None and inputs.model is None:
        settings["device"] = inputs.device
    common: dict[str, Any] = {"objective": objective, "encoder": network, "preset": preset, "seed": seed}
    n_classes = parse_count(k)
    if tune:
        found = choose(rows, given, **common, **settings)
        say(f"chosen: {found.settings or 'the defaults'}")
        settings |= found.settings
    model = train(rows, given, n_classes, out=out, log=log, **common, **settings)
    predicted = model.predict(rows)
    texts = inputs.read_texts(data) if inputs.is_text(data) else None
    items = render_pictures(samples.arrays.get("inputs")) if texts is None else texts.texts
    named = _names(model, predicted, samples, None if texts is None else texts.texts)
    model = model.rename(named)
    if texts is not None:
        model = model.with_text_encoder(inputs.texts().encoder)
    if named or texts is not None:
        model.save(out / "model.offmap")
    if predictions is not None:
        files.write_table(predictions, _table(model, rows, predicted, samples, texts))
    result: dict[str, Any] = {
        "model": str(out / "model.offmap"),
        "n_classes": model.n_classes,
        "n_known": model.n_known,
        "settings": settings,
    }
    words = [f"{model}, saved as {out / 'model.offmap'}", *_tell_novel(model, predicted)]
    if split is not None:
        result["accuracy"] = accuracy_by_convention(split.targets, predicted, split.labels)
        words += [_sentence(convention, parts) for convention, parts in result["accuracy"].items()]
    if report is not None:
        page = build_learned_page(model, rows, predicted, items, result.get("accuracy"))
        page.write(report)
        result["report"] = str(report)
        words.append(f"The report is {report}")
    show(result, as_json, "\n".join(words))


def _tell_novel(model: Any, predicted: Any) -> list[str]:
    """Name the novel classes, the largest first, with how many inputs were put into each."""
    sizes = {
        name: int((predicted == number).sum())
        for number, name in zip(model.class_ids[model.n_known :], model.class_names[model.n_known :], strict=True)
    }
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    more = [f"and {len(largest) - SHOWN} more"] if len(largest) > SHOWN else []
    named = [f"{name} ({format_count(size, 'input')})" for name, size in largest[:SHOWN]]
    return [f"novel classes: {', '.join([*named, *more])}"] if named else []


def _place_data(data: Path | None, objective: str) -> tuple[Path, str]:
    """Return the data and the objective; without `--data`, what stands in the objective's place is the data."""
    from offmap.errors import InputError

    if data is not None:
        return data, objective
    if not Path(objective).exists():
        raise InputError(f"learn {objective}: name the inputs with --data; there is no file or folder {objective}")
    return Path(objective), "auto"


def _names(model: Any, predicted: Any, samples: Samples, texts: list[str] | None) -> dict[int, str]:
    """Names by class number: of known classes as the data call them, of novel ones the keywords of their texts."""
    import numpy as np

    from offmap.discovery import suggest_names

    novel = model.class_ids[model.n_known :]
    found = {int(number): samples.classes[number] for number in model.class_ids[: model.n_known] if samples.classes}
    if texts is not None:
        words = suggest_names(texts, np.asarray(predicted))
        found |= {int(number): words[int(number)] for number in novel if int(number) in words}
    return found


def _table(model: Any, rows: Any, predicted: Any, samples: Samples, texts: Texts | None) -> dict[str, Any]:
    """One row per input: its file or text where there is one, its class by name, whether that is known, its novelty."""
    import numpy as np

    from offmap.data import join_columns

    called: dict[str, Any] = {"path": samples.names} if samples.names else dict(samples.others)
    places = np.searchsorted(model.class_ids, predicted)
    found = {
        "class": np.array(model.class_names)[places],
        "known": places < model.n_known,
        "label": predicted,
        "novelty": model.novelty(rows),
    }
    return join_columns(called if texts is None else texts.named(), found)


def _read(inputs: InputOptions, source: Path) -> Samples:
    """Read features where a network or an earlier extraction gives them, and samples as they are otherwise."""
    from offmap import data
    from offmap.activation_files import META

    if inputs.model is None and not (source / META).is_file():
        return inputs.samples(source)
    acts = inputs.activations(source)
    arrays = {"features": acts.features} | ({} if acts.labels is None else {"labels": acts.labels})
    return data.Samples(arrays)


def _sentence(convention: str, parts: dict[str, float]) -> str:
    values = ", ".join(f"{name} {100 * value:.1f} %" for name, value in parts.items())
    return f"accuracy on inputs whose label was hidden ({convention}): {values}"
