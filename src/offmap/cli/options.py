"""Options that several commands share, and the one way results are printed."""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from offmap.wording import format_count

if TYPE_CHECKING:
    from offmap.activations import Activations
    from offmap.data import Samples, Texts
    from offmap.deploy.texts import TextReader
    from offmap.detection import Detector
    from offmap.extra_passes import Requirements
    from offmap.network import Network
    from offmap.openworld import PictureSettings
    from offmap.scale import Source
    from offmap.text import TextEncoder

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]

_LONG_SECONDS = 3.0
_NETWORK, _PICTURES, _TEXTS = "Network", "Pictures", "Texts"

Engine = Annotated[
    str,
    typer.Option(help="local, or ray: the data is then a folder of shards, read by the workers of a Ray cluster."),
]
Workers = Annotated[int, typer.Option(min=1, help="With --engine ray: how many shards are read at a time.")]


def on_ray(engine: str) -> bool:
    """Return whether to use a cluster."""
    from offmap.errors import InputError

    if engine not in ("local", "ray"):
        raise InputError(f"--engine {engine}: the engines are local and ray")
    return engine == "ray"


@dataclass(frozen=True)
class InputOptions:
    """How data becomes activations: by running a network over it, or by reading what a network said before."""

    model: Annotated[
        str | None,
        typer.Option(
            help="Run this network over the data: package.module:factory, or a file.onnx. Without it the data "
            "must hold features or logits.",
            rich_help_panel=_NETWORK,
        ),
    ] = None
    weights: Annotated[
        Path | None,
        typer.Option(help="Weights for the model: .safetensors, or a torch state dict.", rich_help_panel=_NETWORK),
    ] = None
    layer: Annotated[
        str | None, typer.Option(help="The layer to tap; the last linear one by default.", rich_help_panel=_NETWORK)
    ] = None
    head: Annotated[
        Path | None,
        typer.Option(
            help="The last linear layer, for data that holds features only: .npz or .safetensors.",
            rich_help_panel=_NETWORK,
        ),
    ] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs per pass.", rich_help_panel=_NETWORK)] = 128
    device: Annotated[
        str | None, typer.Option(help="Where to run, such as cuda; the CPU by default.", rich_help_panel=_NETWORK)
    ] = None
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Bring pictures to this many pixels a side.", rich_help_panel=_PICTURES)
    ] = None
    gray: Annotated[bool, typer.Option("--gray", help="Read one channel, not three.", rich_help_panel=_PICTURES)] = (
        False
    )
    mean: Annotated[
        str | None, typer.Option(help="Subtract from pixels in [0, 1], such as .49,.48,.45.", rich_help_panel=_PICTURES)
    ] = None
    std: Annotated[
        str | None, typer.Option(help="Then divide by this, such as .2,.2,.2.", rich_help_panel=_PICTURES)
    ] = None
    skip_unreadable: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable", help="Leave damaged pictures out, and say how many.", rich_help_panel=_PICTURES
        ),
    ] = False
    encoder: Annotated[
        str | None,
        typer.Option(
            help="For texts: {encoders}, a file.onnx beside its tokenizer.json, a folder with both, or "
            "package.module:function from a list of texts to an array. minilm by default.",
            rich_help_panel=_TEXTS,
        ),
    ] = None
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer.json of an encoder in an .onnx file.", rich_help_panel=_TEXTS)
    ] = None
    text_column: Annotated[
        str | None,
        typer.Option(help="The column with texts, of .csv, .tsv, .jsonl or .parquet.", rich_help_panel=_TEXTS),
    ] = None
    label_column: Annotated[
        str | None, typer.Option(help="The column with their labels, if any.", rich_help_panel=_TEXTS)
    ] = None
    _loaded: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def check(self) -> None:
        """Refuse what cannot work before anything is read: the device, files that are not there, numbers."""
        from offmap.cli.checks import check_device, check_encoder
        from offmap.errors import InputError

        check_device(self.device)
        for option, file in {"weights": self.weights, "head": self.head, "tokenizer": self.tokenizer}.items():
            if file is not None and not file.exists():
                raise InputError(f"--{option} {file}: there is no such file")
        if any(abs(value) > 1 for value in numbers(self.mean) or ()):
            raise InputError(f"--mean {self.mean}: pixels are read in [0, 1], so divide mean and std by 255")
        numbers(self.std)
        check_encoder(self.encoder)

    def network(self) -> Network:
        """The network that the options name, loaded once."""
        from offmap.errors import InputError
        from offmap.models import load_network

        if self.model is None:
            raise InputError("no network: name one with --model package.module:factory or --model file.onnx")
        if not self._loaded:
            self._loaded.append(load_network(self.model, self.weights, self.layer))
        network: Network = self._loaded[0]
        return network

    def is_text(self, source: Path) -> bool:
        """Return whether the data are texts: by their ending, or because an encoder or a column of texts was named."""
        from offmap.data import holds_texts

        return self.model is None and (self.encoder is not None or holds_texts(source, self.text_column))

    def text_encoder(self) -> TextEncoder:
        """The encoder that the options name."""
        from offmap.models.load import import_object
        from offmap.text import TextEncoder

        named = self.encoder or "minilm"
        if ":" not in named:
            return TextEncoder(named, self.tokenizer)
        found = import_object(named)
        return found if isinstance(found, TextEncoder) else TextEncoder(found)

    def texts(self) -> TextReader:
        """The reader of texts, one for all data of a command."""
        from offmap.deploy.texts import TextReader

        if not self._loaded:
            self._loaded.append(TextReader(self.text_encoder(), self.text_column, self.label_column))
        reader: TextReader = self._loaded[0]
        return reader

    def tell_model(self) -> str:
        """Say how to name the network again, where a file holds its weights but cannot make it."""
        if self.model is None or self.model.endswith(".onnx"):
            return ""
        return f" (score and serve it with --model {self.model}; the weights are inside)"

    def batches(self, source: Path | Sequence[Path], labels: Path | None = None) -> Any:
        """The data as batches for the network."""
        from offmap import data

        options = {"image_size": self.image_size, **self._pictures()} if data.holds_pictures(source) else {}
        own = None if labels is None else data.read(labels).labels
        made = data.batches(
            source, size=self.batch_size, mean=numbers(self.mean), std=numbers(self.std), labels=own, **options
        )
        _tell_skipped(getattr(made.inputs, "skipped", ()))
        return made

    def samples(self, source: Path) -> Samples:
        """The data as it is, brought into memory: a file, or a folder of pictures."""
        from offmap import data

        if self.is_text(source):
            acts = self.texts().read_activations(source)
            labels = {} if acts.labels is None else {"labels": acts.labels}
            return data.Samples({"features": acts.features, **labels}, self.texts().classes)
        options = {"size": self.image_size, **self._pictures()} if data.holds_pictures(source) else {}
        made = data.read(source, **options)
        _tell_skipped(made.skipped)
        return made

    def picture_settings(self) -> PictureSettings:
        """The options for pictures, as a deployment keeps them."""
        from offmap.openworld import PictureSettings

        mean, std = (None if text is None else tuple(numbers(text) or ()) for text in (self.mean, self.std))
        return PictureSettings(self.image_size, self.gray, mean, std)

    def with_pictures_of(self, kept: PictureSettings | None) -> InputOptions:
        """Prepare pictures as a deployment keeps it, unless the options say otherwise."""
        if kept is None or self.image_size or self.gray or self.mean or self.std:
            return self
        mean, std = (",".join(map(str, values)) if values else None for values in (kept.mean, kept.std))
        return replace(self, image_size=kept.image_size, gray=kept.gray, mean=mean, std=std)

    def _pictures(self) -> dict[str, Any]:
        return {"mode": "L" if self.gray else "RGB", "unreadable": "skip" if self.skip_unreadable else "error"}

    def activations(self, source: Path, requirements: Requirements | None = None, unknown: bool = False) -> Activations:
        """Return what the network says about the data, or said before; labels of `unknown` inputs are not read."""
        from offmap import data

        if self.is_text(source):
            return self.texts().read_activations(source, labelled=not unknown)
        if self.model is None:
            return data.read_activations(source, None if self.head is None else data.read_head(self.head))
        return self.network().extract(self.batches(source), requirements=requirements, device=self.device)

    def read_texts(self, source: Path) -> Texts:
        """Return the texts of a file, without an encoder."""
        from offmap.deploy.texts import read_columns

        return read_columns(source, self.text_column, self.label_column, need_labels=False)

    def raw(self, source: Path) -> Any:
        """Return the data as batches for the network, as texts, or as activations when no network is named."""
        if self.is_text(source):
            return self.texts().read_texts(source)
        return self.activations(source) if self.model is None else self.batches(source)

    def class_names(self, source: Path) -> tuple[str, ...] | None:
        """Return the names of the sub-folders that a folder of pictures has, in order; `None` for other data."""
        if self.model is None or not source.is_dir():
            return None
        folder = self.batches(source).inputs
        return tuple(getattr(folder, "classes", ())) or None

    def source(self) -> Source:
        """The same for workers elsewhere. Pictures must be ready for the network: options for them stay here."""
        from offmap import data
        from offmap.scale import Source

        return Source(
            None if self.head is None else data.read_head(self.head),
            self.model,
            None if self.weights is None else str(self.weights),
            self.layer,
            self.batch_size,
        )

    def outliers(
        self, source: Path | None, noise: int | None, like: Path, requirements: Requirements
    ) -> Activations | None:
        """Outliers to choose parameters on: those given, or so many inputs of noise shaped like the data, or none."""
        if source is not None:
            return self.activations(source, requirements, unknown=True)
        if noise is None:
            return None
        return self.network().noise(noise, self.batches(like).shape, requirements=requirements, device=self.device)


def with_inputs(command: Callable[..., None]) -> Callable[..., None]:
    """Spread the fields of `InputOptions` over the options of a command whose last parameter is `inputs`."""
    return with_inputs_but()(command)


def with_inputs_but(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same for a command that has no use for some of the fields, or an argument of its own in their place."""
    return lambda command: _spread(command, left_out)


def _spread(command: Callable[..., None], left_out: tuple[str, ...]) -> Callable[..., None]:
    hints = get_type_hints(InputOptions, include_extras=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=made.default, annotation=hints[name])
        for name, made in InputOptions.__dataclass_fields__.items()
        if made.init and name not in left_out
    ]
    own_hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own_hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "inputs"
    ]

    def run(**given: Any) -> None:
        inputs = InputOptions(**{parameter.name: given.pop(parameter.name) for parameter in shared})
        inputs.check()
        command(**given, inputs=inputs)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]  # typer reads this
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return run


def show(result: Mapping[str, Any], as_json: bool, words: str) -> None:
    """Print a result: words for people, or one JSON object for scripts."""
    print(json.dumps(result) if as_json else words)


def say(words: str) -> None:
    """A remark for people, beside the result."""
    print(f"offmap: {words}", file=sys.stderr)


def tell_long_steps() -> Callable[[str, float], None]:
    """Return a function that says which step begins: at once on a terminal, and elsewhere when work takes seconds."""
    started = time.monotonic()

    def tell(words: str, share: float) -> None:
        if sys.stderr.isatty() or time.monotonic() - started > _LONG_SECONDS:
            say(f"{share:.0%}: {words}")

    return tell


def _tell_skipped(files: Sequence[str]) -> None:
    if files:
        say(f"left out {format_count(len(files), 'damaged picture')}, the first is {files[0]}")


def wanted(*detectors: Detector) -> Requirements:
    """Return what these detectors ask of a network, without labels: data may lack them."""
    from offmap.extra_passes import Requirements

    return replace(reduce(or_, [detector.requirements for detector in detectors], Requirements()), labels=False)


def numbers(text: str | None) -> list[float] | None:
    """Numbers separated by commas; `None` stays `None`."""
    from offmap.errors import InputError

    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{text!r}: numbers separated by commas are needed") from error
