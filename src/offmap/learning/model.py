"""The result of `learn`: an encoder with a linear classifier over known and novel classes, as a `Network` too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offmap import store
from offmap.errors import InputError, StoreError
from offmap.learning.encoders import Encoder, build_encoder, unwrap_bert
from offmap.learning.inputs import as_inputs, as_tokens, split_rows
from offmap.learning.objectives.base import Objective
from offmap.models.bert_weights import save_bert
from offmap.models.known_heads import RotatedLinear, build_known_head, turn_pictures
from offmap.neighbors.vectors import unit
from offmap.network import Network
from offmap.text import MadeFromTexts, read_text_reference
from offmap.typing import Float32Array
from offmap.wording import format_count

KIND = "open-world-model"
_FIELDS = {
    "encoder": dict, "projection": int, "class_ids": list, "class_names": list, "n_known": int, "history": list,
    "run": dict,
}  # fmt: skip
SHARPNESS = 10.0  # cosines are multiplied by it to become logits, as in training with class vectors


class OpenWorldNet(nn.Module):
    """Encoder, projection, rows of length 1, one linear layer over all classes.

    Parameters
    ----------
    encoder, projection
        The projection is left out of the classifier's features when objectives read the encoder's.
    width, n_classes
        Of the classifier.
    known_head
        A head over known classes that the objective trained, which `KnownNet` reads.
    """

    def __init__(
        self, encoder: Encoder, projection: nn.Module, width: int, n_classes: int, known_head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.classifier = nn.Linear(width, n_classes)
        self.known_head = known_head

    def embed(self, inputs: Tensor) -> Tensor:
        """Compute features of length 1."""
        return unit(self.projection(self.encoder(inputs)).float())

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits over known classes, then novel ones."""
        logits: Tensor = self.classifier(self.embed(inputs))
        return logits


class KnownNet(nn.Module):
    """The encoder with the head over known classes that the objective trained, features as they are.

    Parameters
    ----------
    net
        A network with such a head.
    """

    def __init__(self, net: OpenWorldNet) -> None:
        super().__init__()
        self.encoder, self.projection, self.known_head = net.encoder, net.projection, net.known_head

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits over known classes; of CSI's head their mean over the four quarter turns."""
        assert self.known_head is not None
        if isinstance(
            self.known_head, RotatedLinear
        ):  # the picture as it is comes last: its features are the ones kept
            turns = reversed(range(self.known_head.turns))
            each = [self.known_head(self._features(turn_pictures(inputs, turn)), turn) for turn in turns]
            return torch.stack(each).mean(dim=0)
        logits: Tensor = self.known_head(self._features(inputs))
        return logits

    def _features(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.projection(self.encoder(inputs).float())
        return features


@dataclass(frozen=True)
class OpenWorldModel(MadeFromTexts):
    """A learned model of known and novel classes.

    Parameters
    ----------
    net
        The module, in evaluation mode.
    class_ids
        The number of each class: known ones as they were given, novel ones after them.
    class_names
        What the classes are called.
    n_known
        How many of the classes are known; they come first.
    history
        The loss and its parts, epoch by epoch.
    config
        Objective, settings, seed, number of classes asked for, and novel classes that were dropped as unused.
    text_reference
        Of a model that was learned from the rows of a text encoder: which one that is, and its checksum. With it,
        given by `with_text_encoder`, texts are taken wherever rows are.
    """

    net: OpenWorldNet
    class_ids: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    n_known: int
    history: list[dict[str, float]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    text_reference: Mapping[str, Any] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        novel = len(self.class_ids) - self.n_known
        known = format_count(self.n_known, "known class", "known classes")
        return f"OpenWorldModel({self.config.get('objective')}, {known}, {novel} novel)"

    @property
    def n_classes(self) -> int:
        """Known and novel classes in use."""
        return len(self.class_ids)

    @cached_property
    def network(self) -> Network:
        """The model as a `Network`: detectors fit on what it extracts."""
        return Network(self.net)

    @cached_property
    def known_network(self) -> Network:
        """The head over known classes that the objective trained, as a `Network` for detectors.

        ``godin`` keeps one for ``godin_h`` and ``godin_g``, ``mos`` for ``mos``, ``logitnorm`` and ``csi`` for scores
        of logits. That of ``csi`` sends every picture through the encoder in four turns; ``msp`` is its paper's score.
        """
        if self.net.known_head is None:
            raise InputError(
                f"{self!r}: this objective keeps no head over known classes (csi, godin, logitnorm and mos do); "
                "use model.network"
            )
        linear = isinstance(self.net.known_head, nn.Linear)
        return Network(KnownNet(self.net), None if linear else "projection")

    def predict(self, x: Any) -> npt.NDArray[np.int64]:
        """Predict the class number of each input, known numbers as given, novel ones after them."""
        return self.class_ids[np.concatenate([_numpy(logits).argmax(axis=1) for logits in self._logits(x)])]

    def transform(self, x: Any) -> Float32Array:
        """Compute embeddings of length 1."""
        with torch.no_grad():
            return np.concatenate([_numpy(self.net.embed(part)) for part in self._blocks(x)])

    def predict_proba(self, x: Any) -> Float32Array:
        """Predict the probability of each class, columns in the order of `class_ids`."""
        return np.concatenate([_numpy(torch.softmax(logits, dim=1)) for logits in self._logits(x)])

    def novelty(self, x: Any) -> Float32Array:
        """Compute the probability that each input is of a novel class: that of all novel classes together."""
        novel: Float32Array = self.predict_proba(x)[:, self.n_known :].sum(axis=1)
        return novel

    def rename(self, names: Mapping[int, str]) -> Self:
        """Return the same model with other names for some classes, by class number."""
        return replace(
            self, class_names=tuple(names.get(int(i), n) for i, n in zip(self.class_ids, self.class_names, strict=True))
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file; `offmap.load` gives the model back."""
        tensors = {f"net.{name}": _numpy(value) for name, value in self.net.state_dict().items()}
        projected = not isinstance(self.net.projection, nn.Identity)
        config = {
            "encoder": self.net.encoder.config,
            "projection": self.net.classifier.in_features if projected else 0,
            "class_ids": self.class_ids.tolist(),
            "class_names": list(self.class_names),
            "n_known": self.n_known,
            "history": self.history,
            "run": self.config,
        }
        if self.net.known_head is not None:
            config["known_head"] = self.net.known_head.config
        if self.text_reference is not None:
            config["text_encoder"] = dict(self.text_reference)
        store.save(Path(path), KIND, config, tensors)

    def save_encoder(self, folder: str | os.PathLike[str], beside: Mapping[str, bytes] | None = None) -> Path:
        """Write the sentence encoder that was trained as a folder, which `offmap.TextEncoder` takes.

        Parameters
        ----------
        folder : path
            An encoder that was written there before is replaced; other files are not.
        beside : mapping of str to bytes, optional
            As `offmap.models.save_bert` takes it.
        """
        return save_bert(unwrap_bert(self.net.encoder), folder, beside)

    @classmethod
    def restore(cls, stored: store.Stored, encoder: nn.Module | None = None) -> Self:
        """Restore the model that a file holds; give the module when the encoder was your own."""
        config = stored.config
        store.check_fields(KIND, config, _FIELDS)
        columns, names, n_known = config["projection"], config["class_names"], config["n_known"]
        if len(names) != len(config["class_ids"]) or not 0 <= n_known <= len(names):
            raise StoreError(f"not a whole {KIND}: {len(names)} names, {len(config['class_ids'])} classes")
        with store.restoring(KIND):
            made = build_encoder(config["encoder"], encoder)
            kept = config.get("known_head")
            net = OpenWorldNet(
                made,
                Objective.projection_head(made.width, columns),
                columns or made.width,
                len(config["class_ids"]),
                None if kept is None else build_known_head(kept),
            )
            state = {n.removeprefix("net."): torch.from_numpy(a.copy()) for n, a in stored.tensors.items()}
            net.load_state_dict(state)
            net.requires_grad_(False).eval()
            _check_runs(net, config["encoder"])
            ids = np.asarray(config["class_ids"], np.int64)
            reference = read_text_reference(config)
            return cls(net, ids, tuple(map(str, names)), n_known, config["history"], config["run"], reference)

    def _blocks(self, x: Any, size: int = 1024) -> Iterator[Tensor]:
        encoder = self.net.encoder
        if self.text_reference is not None and len(x) and all(isinstance(one, str) for one in x):
            assert self.text_encoder is not None
            x = self.text_encoder.encode(x, progress=False)
        inputs = (as_tokens(x, encoder.tokenizer) if encoder.reads_tokens else as_inputs(x)).tensor
        if not len(inputs):
            raise InputError("there is no input; give at least one row")
        yield from split_rows(inputs, size)

    def _logits(self, x: Any) -> Iterator[Tensor]:
        with torch.no_grad():
            for part in self._blocks(x):
                yield self.net(part)


def _check_runs(net: OpenWorldNet, config: dict[str, Any]) -> None:
    """Run two inputs of zeros through a restored net, so that parts that do not fit are found here."""
    shape = {"named": config.get("shape"), "lookup": [config.get("width")]}.get(config["kind"])
    if shape is not None:
        with torch.no_grad():
            net(torch.zeros(2, *shape))
            if net.known_head is not None:
                KnownNet(net)(torch.zeros(2, *shape))


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return array
