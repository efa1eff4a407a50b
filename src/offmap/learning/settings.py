"""Settings of a run: an objective's own and those of training, with presets, checked by name and type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from offmap.errors import InputError
from offmap.learning.objectives.base import Kind, Objective

Preset = Literal["auto", "thesis", "authors", "embeddings", "cifar10", "cifar100", "imagenet100"]
ENCODERS = {"cifar10": "resnet18", "cifar100": "resnet18", "imagenet100": "resnet50"}  # thesis, section 8.4
PRESETS = ("auto", "thesis", "authors", "embeddings", *ENCODERS)


@dataclass(frozen=True)
class Training:
    """The settings of training.

    The values here are the thesis' for CIFAR (appendix B.3.4), `EMBEDDINGS` what suits features.

    Parameters
    ----------
    epochs, batch_size : int, default=200 and 512
        As usual; a batch holds labelled and unlabelled rows in the proportion of the set. Of several processes each
        takes a batch of this size.
    optimizer, learning_rate, momentum, weight_decay, schedule : str and float, optional
        ``"sgd"`` or ``"adamw"``; ``"cosine"`` to zero, ``"steps"`` (a tenth at each of the `milestones`) or
        ``"constant"``.
    milestones : tuple of float, default=(0.5, 0.75)
        Shares of the training at which ``"steps"`` divides the learning rate by ten.
    projection : int, default=128
        Columns of the projection head, 0 for none.
    hidden : int, default=0
        For embeddings: width of the adapter's hidden layer, 0 for a linear adapter.
    neighbours, neighbour_share, dropout, noise : int and float, default=0 and 1.0 and 0.0 and 0.0
        Views of embeddings: the second view is one of so many nearest rows, this often; both lose values and gain
        Gaussian noise.
    span : float, default=0.0
        Views of texts: the share of a text's tokens that are dropped as one span; `dropout` is the chance of each token
        beside it.
    shrinkage : float or None, default=None
        Shrinkage of the whitening by known classes; `None` does not whiten.
    smoothing : int, default=0
        Where k-means looks for classes, at the start and in the end: average the features of each row with those of so
        many nearest rows first; 0 does not, and whether groups are balanced is then decided on hidden known classes.
    pretrain, pretrain_epochs : str or None and int, default=None and 0
        ``"simclr"`` or ``"scl"``: learn from views alone first, for so many epochs. ``"supcon"`` learns from the
        labelled rows, and from them only.
    mean, std : tuple of float, default=()
        Pictures: what is subtracted from values between 0 and 1 and what they are divided by, one number or one per
        channel, as a pre-trained network wants them; the mean and deviation of the set when empty.
    keep : tuple of str, default=()
        With a network of one's own or by name: train only these parts of it, such as ``("layer4",)``, as OpenCon
        and SORL do from pre-trained weights (thesis, section 8.4); all when empty.
    amp : str or None, default=None
        ``"bfloat16"`` to run the network in mixed precision; losses stay in float32. float16 is not offered: it
        would need its loss scaled.
    compile : bool, default=False
        Pass the network through ``torch.compile``.
    device : str, default="cpu"
        Where to train, such as ``"cuda"``; what is learned comes back to the CPU.
    """

    epochs: int = 200
    batch_size: int = 512
    optimizer: str = "sgd"
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: str = "cosine"
    milestones: tuple[float, ...] = (0.5, 0.75)
    projection: int = 128
    hidden: int = 0
    neighbours: int = 0
    neighbour_share: float = 1.0
    dropout: float = 0.0
    noise: float = 0.0
    span: float = 0.0
    shrinkage: float | None = None
    smoothing: int = 0
    pretrain: str | None = None
    pretrain_epochs: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    keep: tuple[str, ...] = ()
    amp: str | None = None
    compile: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        rules = {
            "epochs": self.epochs >= 0,
            "batch_size": self.batch_size >= 2,
            "optimizer": self.optimizer in ("sgd", "adamw"),
            "schedule": self.schedule in ("cosine", "steps", "constant"),
            "milestones": all(0 < share < 1 for share in self.milestones),
            "learning_rate": self.learning_rate > 0,
            "weight_decay": self.weight_decay >= 0,
            "momentum": 0 <= self.momentum < 1,
            "projection": self.projection >= 0,
            "hidden": self.hidden >= 0,
            "neighbours": self.neighbours >= 0,
            "neighbour_share": 0 <= self.neighbour_share <= 1,
            "dropout": 0 <= self.dropout < 1,
            "noise": self.noise >= 0,
            "span": 0 <= self.span < 1,
            "shrinkage": self.shrinkage is None or 0 < self.shrinkage <= 1,
            "smoothing": self.smoothing >= 0,
            "std": all(value > 0 for value in self.std),
            "pretrain": self.pretrain in (None, "simclr", "scl", "supcon"),
            "pretrain_epochs": self.pretrain_epochs >= 0,
            "amp": self.amp in (None, "bfloat16"),
        }
        for name, fine in rules.items():
            if not fine:
                raise InputError(f"{name}={getattr(self, name)!r}: not possible; see offmap.learning.Training")


EMBEDDINGS: Mapping[str, Any] = {
    "epochs": 5,
    "batch_size": 256,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "projection": 0,
    "neighbours": 10,
    "dropout": 0.1,
    "shrinkage": 0.8,
    "smoothing": 15,
}
TEXTS: Mapping[str, Any] = {
    "epochs": 3,
    "batch_size": 128,
    "learning_rate": 1e-4,
    "weight_decay": 1e-2,
    "dropout": 0.1,
    "span": 0.1,
}


def resolve(
    objective: type[Objective], kind: Kind, preset: Preset, given: Mapping[str, Any]
) -> tuple[dict[str, Any], Training]:
    """Resolve the settings of the objective and of training from a preset and what was given on top.

    Parameters
    ----------
    objective, kind : type and Kind
        What is learned, and from what.
    preset : Preset
        ``"thesis"`` and ``"authors"`` as published, for images; ``"cifar10"``, ``"cifar100"`` and ``"imagenet100"`` the
        thesis' whole recipe for that set, its network, epochs and pre-training included; ``"embeddings"`` what suits
        features; ``"auto"`` that for features, and for images the thesis' values but for what is known to be better.
    given : mapping of str to Any
        Settings by name, of either.

    Returns
    -------
    tuple of dict, Training
        Settings of the objective, and of training.

    Examples
    --------
    >>> from offmap.learning.objectives import objective
    >>> own, training = resolve(objective("gcd"), "embeddings", "auto", {"balance": 0.5, "epochs": 3})
    >>> own["balance"], training.epochs
    (0.5, 3)
    """
    if preset not in PRESETS:
        raise InputError(f"preset={preset!r}: choose one of {', '.join(PRESETS)}")
    chosen = "embeddings" if preset == "auto" and kind != "images" else preset
    own, training = dict(objective.settings), {**asdict(Training()), **objective.published_training}
    layers: list[Mapping[str, Any]] = []
    if kind != "images":
        training |= EMBEDDINGS
    if chosen == "embeddings":
        layers.append(objective.embeddings)
    elif chosen != "auto":
        layers.append(objective.thesis)
    if kind == "texts":
        layers.append({**TEXTS, **objective.texts})
    if chosen == "authors":
        if not objective.authors:
            raise InputError(f"preset='authors': no released code of {objective.name} is followed here; try 'thesis'")
        layers.append(objective.authors)
    if chosen in ENCODERS:
        if chosen not in objective.recipes:
            has = ", ".join(objective.recipes) or "none"
            raise InputError(f"preset={chosen!r}: {objective.name} has no recipe for it; its recipes: {has}")
        layers.append(objective.recipes[chosen])
    names = {field.name for field in fields(Training)}
    for layer in [*layers, given]:
        for name, value in layer.items():
            if name in own:
                own[name] = _like(name, value, own[name])
            elif name in names:
                training[name] = value
            else:
                raise InputError(
                    f"{objective.name}: there is no setting {name!r}; it has {', '.join(own) or 'none of its own'}, "
                    f"and training has {', '.join(sorted(names))}"
                )
    return own, Training(**training)


def published_encoder(preset: str) -> str:
    """Return the network of a published recipe, ``"auto"`` where a preset names none.

    Parameters
    ----------
    preset : str
        Name of the preset.

    Returns
    -------
    str
        Name of the network.

    Examples
    --------
    >>> published_encoder("cifar100"), published_encoder("thesis")
    ('resnet18', 'auto')
    """
    return ENCODERS.get(preset, "auto")


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse ``name=value``, the value read as JSON, or kept as text where it is none.

    Parameters
    ----------
    text : str
        Such as ``"temperature=0.1"``.

    Returns
    -------
    tuple of str, Any
        Name and value.

    Examples
    --------
    >>> parse_setting("epochs=20"), parse_setting("optimizer=sgd")
    (('epochs', 20), ('optimizer', 'sgd'))
    """
    name, mark, value = text.partition("=")
    if not mark:
        raise InputError(f"--set {text}: name=value is needed, such as epochs=20")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        return name, value
    return name, tuple(parsed) if isinstance(parsed, list) else parsed


def parse_count(text: str) -> int | Literal["auto"]:
    """Parse a number of classes, or ``"auto"``.

    Parameters
    ----------
    text : str
        A whole number or ``"auto"``.

    Returns
    -------
    int or "auto"
        The number.

    Examples
    --------
    >>> parse_count("12"), parse_count("auto")
    (12, 'auto')
    """
    if text == "auto":
        return "auto"
    if not text.isdigit():
        raise InputError(f"--k {text}: a whole number or auto is needed")
    return int(text)


def _like(name: str, value: Any, model: Any) -> Any:
    """Convert to a value of the same type as the one it replaces; whole numbers pass for fractions."""
    if isinstance(model, tuple) and isinstance(value, list | tuple):
        return tuple(float(item) for item in value)
    if isinstance(model, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(model):
        raise InputError(f"{name}={value!r}: a {type(model).__name__} is needed, like {model!r}")
    return value
