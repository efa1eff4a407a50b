"""From inputs to features: a fixed front that is computed once, and a body that learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offmap.errors import InputError, StoreError
from offmap.models.bert import BertEncoder
from offmap.models.tokenizer import Tokenizer
from offmap.neighbors.vectors import unit

Config = dict[str, Any]


class Encoder(nn.Module):
    """A front without parameters that learn, and a body.

    Parameters
    ----------
    front, body : nn.Module
        Modules; what the front gives for the whole set is computed once and kept.
    width : int
        Columns of the features.
    config : Config
        From which `build_encoder` makes the same modules again.
    tokenizer : Tokenizer or None, default=None
        What turns texts into inputs, where the encoder reads texts.
    """

    def __init__(
        self, front: nn.Module, body: nn.Module, width: int, config: Config, tokenizer: Tokenizer | None = None
    ) -> None:
        super().__init__()
        self.front, self.body, self.width, self.config, self.tokenizer = front, body, width, config, tokenizer

    @property
    def reads_tokens(self) -> bool:
        """Whether the inputs are texts, or token numbers of such."""
        return bool(self.config["kind"] == "bert")

    def forward(self, inputs: Tensor) -> Tensor:
        """Features, rows × width."""
        features: Tensor = self.body(self.front(inputs))
        return features


class Whitening(nn.Module):
    """Rows scaled to length 1, centred, multiplied by a fixed matrix, scaled to length 1 again."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("matrix", torch.eye(width))

    def fit(self, rows: npt.NDArray[Any], codes: npt.NDArray[np.int64], shrinkage: float | None) -> None:
        """Make known classes round; with too few labelled rows only centre."""
        from offmap.discovery import whitening

        scaled = unit(torch.from_numpy(np.ascontiguousarray(rows, np.float32))).numpy()
        self.mean.copy_(torch.from_numpy(scaled.mean(axis=0, dtype=np.float64).astype(np.float32)))
        repeated = np.bincount(codes[codes >= 0], minlength=1) > 1
        if shrinkage is not None and repeated.any():
            self.matrix.copy_(torch.from_numpy(whitening(scaled, codes, shrinkage)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the prepared rows."""
        return unit((unit(inputs.float()) - self.mean) @ self.matrix)


class Pictures(nn.Module):
    """Pictures as floats, less a mean and over a deviation per channel: those of the set, or those that are given."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))

    def fit(self, pictures: Tensor, mean: Sequence[float] = (), std: Sequence[float] = ()) -> None:
        """Take mean and deviation as given, one number or one per channel; what is not given, from the pictures."""
        for name, given in (("mean", mean), ("std", std)):
            if len(given) not in (0, 1, len(self.mean)):
                raise InputError(f"{name}={tuple(given)}: one number, or one for each of {len(self.mean)} channels")
        values = None if mean and std else pictures.double()
        for held, given, compute in ((self.mean, mean, torch.mean), (self.deviation, std, torch.std)):
            if given:
                held.copy_(torch.tensor(given))
            elif values is not None:
                held.copy_(compute(values, dim=(0, 2, 3)))
        self.deviation.clamp_(min=1e-6)

    def forward(self, inputs: Tensor) -> Tensor:
        """Standardise pictures."""
        return (inputs.float() - self.mean[:, None, None]) / self.deviation[:, None, None]


class HalfPrecision(nn.Module):
    """States of tokens in 16 bits: half the memory where those of a whole set are kept."""

    def forward(self, states: Tensor) -> Tensor:
        """Return the same numbers, rounded."""
        return states.half()


class Lookup(nn.Module):
    """Features of stored rows, and for other rows the mean of their nearest ones' (Nyström's extension)."""

    bank: Tensor
    values: Tensor

    def __init__(self, rows: int, width: int, columns: int, neighbours: int = 10) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.register_buffer("bank", torch.zeros(rows, width))
        self.register_buffer("values", torch.zeros(rows, columns))

    def forward(self, rows: Tensor) -> Tensor:
        """Looked-up features; a stored row gets its own."""
        similar, near = (rows @ self.bank.T).topk(min(self.neighbours, len(self.bank)), dim=1)
        found = unit(self.values[near].mean(dim=1))
        stored = similar[:, :1] > 1 - 1e-5
        return torch.where(stored, self.values[near[:, 0]], found)


def make_named_encoder(name: str, shape: tuple[int, ...], seed: int = 0, **settings: Any) -> Encoder:
    """Make an encoder of `offmap.models` by name: rows are whitened first, pictures standardised.

    Examples
    --------
    >>> make_named_encoder("linear", (4,))(torch.eye(4)).shape
    torch.Size([4, 4])
    >>> make_named_encoder("cnn", (1, 8, 8))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 96])
    """
    from offmap.models.encoders import make_encoder

    body, width = make_encoder(name, shape, seed, **settings)
    config = {"kind": "named", "name": name, "shape": list(shape), "settings": settings}
    if len(shape) == 1:
        return Encoder(Whitening(shape[0]), body, width, config)
    return Encoder(nn.Identity(), nn.Sequential(Pictures(shape[0]), body), width, config)


def make_lookup_encoder(front: Whitening, body: Lookup) -> Encoder:
    """Make an encoder that remembers features worked out without a network."""
    (rows, width), columns = body.bank.shape, body.values.shape[1]
    config = {"kind": "lookup", "rows": rows, "width": width, "columns": columns, "neighbours": body.neighbours}
    return Encoder(front, body, columns, config)


def wrap_bert(encoder: BertEncoder) -> Encoder:
    """Wrap a sentence encoder: blocks that are not trained are the front, whose states of tokens are kept."""
    tokenizer = encoder.tokenizer
    config = {"kind": "bert", "shape": encoder.shape, "trained": encoder.trained}
    if tokenizer is not None:
        config |= {"tokenizer": tokenizer.definition, "max_length": tokenizer.max_length}
    front = encoder.front if encoder.trained is None else nn.Sequential(encoder.front, HalfPrecision())
    return Encoder(front.requires_grad_(False), encoder.body, encoder.width, config, tokenizer)


def unwrap_bert(encoder: Encoder) -> BertEncoder:
    """Return the sentence encoder inside, as trained."""
    if not encoder.reads_tokens:
        raise InputError(
            f"an encoder of the kind {encoder.config['kind']!r} reads no texts; there is nothing to unwrap"
        )
    made = BertEncoder(**encoder.config["shape"], trained=encoder.config["trained"], tokenizer=encoder.tokenizer)
    front = encoder.front[0] if isinstance(encoder.front, nn.Sequential) else encoder.front
    made.front, made.body = front, encoder.body  # type: ignore[assignment]  # what `wrap_bert` was given
    return made.eval()


def wrap_module(body: nn.Module, example: Tensor) -> Encoder:
    """Wrap a user's module that maps inputs to features, rows × columns."""
    was_training = body.training
    with torch.no_grad():
        made = body.eval()(example[:2].float())
    body.train(was_training)
    if not isinstance(made, Tensor) or made.ndim != 2:
        raise InputError(
            f"encoder={type(body).__name__}: it must give rows × features, not {tuple(getattr(made, 'shape', ()))}; "
            "leave out its last layer, or flatten"
        )
    columns, channels, pictures = int(made.shape[1]), int(example.shape[1]), example.ndim == 4
    config = {"kind": "custom", "channels": channels, "pictures": pictures, "columns": columns}
    return Encoder(nn.Identity(), nn.Sequential(Pictures(channels), body) if pictures else body, columns, config)


def build_encoder(config: Mapping[str, Any], body: nn.Module | None = None) -> Encoder:
    """Build the encoder that a saved model had, without its numbers; a user's own `body` must be given."""
    kind = config["kind"]
    if kind == "named":
        return make_named_encoder(config["name"], tuple(config["shape"]), **config["settings"])
    if kind == "lookup":
        stored = Lookup(config["rows"], config["width"], config["columns"], config["neighbours"])
        return make_lookup_encoder(Whitening(config["width"]), stored)
    if kind == "bert":
        tokens = Tokenizer(config["tokenizer"], config["max_length"]) if "tokenizer" in config else None
        return wrap_bert(BertEncoder(**config["shape"], trained=config["trained"], tokenizer=tokens))
    if kind == "custom" and body is not None:
        whole = nn.Sequential(Pictures(config["channels"]), body) if config["pictures"] else body
        return Encoder(nn.Identity(), whole, config["columns"], dict(config))
    raise StoreError(
        f"a model with an encoder of the kind {kind!r} was saved; give the same module: "
        "OpenWorldModel.restore(offmap.store.load(path), encoder=module)"
    )
