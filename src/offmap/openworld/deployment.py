"""`Deployment`: a calibrated detector, the network it was fitted on and the names of its classes, as one file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from offmap import store
from offmap.activations import Activations, Head
from offmap.detection import Calibration, Detector, Verdicts
from offmap.detection.verdicts import limit_scores
from offmap.errors import InputError
from offmap.extra_passes import Requirements
from offmap.network import Network
from offmap.openworld.examples import KnownExamples
from offmap.openworld.extended_network import ExtendedNetwork
from offmap.openworld.network_files import network_parts, prefix_names, restore_network, select_prefix, stored_parts
from offmap.openworld.pictures import PictureSettings
from offmap.text import TextEncoder
from offmap.typing import Array

KIND = "deployment"
UNKNOWN = -1
_DETECTOR, _NETWORK, _EXAMPLES = "detector.", "network.", "examples."
RowKind = Literal["inputs", "features", "texts"]


@dataclass(frozen=True)
class Deployment:
    """The parts that answer in production: a calibrated detector, its network and the names of the classes.

    The rounds of `offmap.openworld` make deployments, the service runs them, `offmap.export` writes them as one ONNX
    graph, and `save` and `offmap.load` keep them in one file.

    Parameters
    ----------
    detector : Detector
        Fitted and calibrated.
    network : Network, optional
        Turns inputs into the activations that the detector reads. Without it only features can be judged.
    class_names : sequence of str, optional
        One per class; without names classes are called by their numbers.
    encoder : TextEncoder, optional
        Turns texts into the features that the detector reads. A file refers to it and holds its checksum, so that
        another encoder is refused.
    examples : KnownExamples, optional
        Known texts, to show with an answer which of them an input is most like.
    pictures : PictureSettings, optional
        How pictures become inputs of the network; ``offmap score`` and ``offmap serve`` follow it.

    Examples
    --------
    >>> import offmap, tempfile
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(300) % 3
    >>> known = offmap.Activations(4 * np.eye(3)[labels] + rng.normal(size=(300, 3)), head=offmap.Head(np.eye(3)))
    >>> detector = offmap.detector("energy").fit(known[:150]).calibrate(known[150:])
    >>> deployment = Deployment(detector, class_names=("ant", "bee", "cat"))
    >>> deployment.predict(np.array([[9.0, 0, 0], [-9, -9, -9]]), "features")
    array([ 0, -1])
    >>> file = tempfile.mkdtemp() + "/deployment.offmap"
    >>> deployment.save(file)
    >>> offmap.load(file).class_names
    ('ant', 'bee', 'cat')
    """

    detector: Detector
    network: Network | None = None
    class_names: Sequence[str] | None = None
    encoder: TextEncoder | None = None
    examples: KnownExamples | None = None
    pictures: PictureSettings | None = None

    def __post_init__(self) -> None:
        if not self.detector.is_fitted or self.detector.calibration is None:
            raise InputError(
                f"{self.detector}: it has no threshold; calibrate it first, as offmap fit --calibrate does"
            )
        object.__setattr__(self, "class_names", check_names(self.class_names))
        n_classes = self.detector.n_classes
        if self.class_names is not None and n_classes is not None and len(self.class_names) != n_classes:
            raise InputError(f"{len(self.class_names)} class names, but the detector was fitted on {n_classes} classes")
        if self.network is None and self.requirements.extras:
            wanted = self.requirements.describe()
            raise InputError(f"{self.detector}: it reads {wanted}, so a network is needed; give --model")

    def __repr__(self) -> str:
        runs = repr(self.encoder or self.network or "features").strip("'")
        return f"Deployment({self.detector.chosen} over {runs}, {self.n_classes} classes)"

    @property
    def n_classes(self) -> int | None:
        """How many classes it tells apart; `None` where the detector knows none."""
        return self.detector.n_classes if self.class_names is None else len(self.class_names)

    @property
    def calibration(self) -> Calibration:
        """The calibration of the detector."""
        assert self.detector.calibration is not None
        return self.detector.calibration

    @cached_property
    def version(self) -> str:
        """Twelve characters that identify the detector and its calibration."""
        digest = hashlib.sha256(self.detector.chosen.encode())
        digest.update(repr(self.calibration.tpr).encode())
        if self.calibration.confidence is not None:
            digest.update(repr(self.calibration.confidence).encode())
        for array in self.calibration.arrays().values():
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:12]

    @cached_property
    def requirements(self) -> Requirements:
        """The passes that the detector asks of a network."""
        return replace(self.detector.requirements, labels=False)

    @property
    def width(self) -> int | None:
        """How many features it reads; `None` where the detector reads logits alone, or a learned model others."""
        if isinstance(self.network, ExtendedNetwork) and self.network.reads_features:
            mapped = self.network.update.feature_map
            return None if mapped is None else mapped.width
        return None if self.detector.fitting is None else self.detector.fitting.width

    @property
    def maps_features(self) -> bool:
        """Whether given features go through a learned map before the detector reads them."""
        return isinstance(self.network, ExtendedNetwork) and self.network.reads_features

    @property
    def head(self) -> Head | None:
        """The linear head over the features that the detector was fitted with."""
        return self.detector.head

    def class_name(self, label: int | None) -> str | int | None:
        """Return the name of a class where there are names, else its number; `None` stays `None`."""
        if label is None or self.class_names is None or not 0 <= label < len(self.class_names):
            return label
        return self.class_names[label]

    def activations(self, rows: Any, kind: RowKind = "inputs", batch_size: int = 128) -> Activations:
        """Run the network over inputs or the encoder over texts, or take features as they are.

        Parameters
        ----------
        rows : array
            One row per input.
        kind : {"inputs", "features", "texts"}, default "inputs"
            What the rows are; inputs of a deployment with an encoder are texts.
        batch_size : int, default 128
            How many inputs the network sees at once.
        """
        if kind == "features":
            if self.maps_features:
                assert self.network is not None
                return self.network.extract(np.asarray(rows), batch_size=batch_size, progress=False)
            return Activations(np.asarray(rows))
        if self.encoder is not None:
            rows = self.encoder.encode(rows, progress=False)
            if self.network is None:
                return Activations(rows)  # else the network was learned on top of the encoder
        elif kind == "texts":
            raise InputError("there is no text encoder in this deployment; give features, or a guard made from texts")
        if self.network is None:
            raise InputError("there is no network in this deployment; give features instead of inputs")
        if len(rows) <= batch_size:
            return self.network(rows, self.requirements)
        return self.network.extract(rows, self.requirements, batch_size=batch_size, progress=False)

    def verdicts(self, rows: Any, kind: RowKind = "inputs", batch_size: int = 128) -> Verdicts:
        """Score inputs or features: score, p-value, known or unknown, and the predicted class of each.

        Scores are finite: an input whose score would be infinite is unknown, and has the largest or smallest float32.

        Parameters
        ----------
        rows, kind, batch_size
            As `activations` takes them.
        """
        return self.judge(self.activations(rows, kind, batch_size))

    def judge(self, acts: Activations) -> Verdicts:
        """Give the verdicts on activations of the network; see `verdicts`."""
        return limit_scores(self.detector.verdicts(acts), len(self.calibration.scores))

    def predict(self, rows: Any, kind: RowKind = "inputs", batch_size: int = 128) -> Array:
        """Return the class number of each input, -1 where the detector calls it unknown.

        Parameters
        ----------
        rows, kind, batch_size
            As `activations` takes them.
        """
        found = self.verdicts(rows, kind, batch_size)
        if found.predicted is None:
            raise InputError(f"{self.detector}: it was fitted without a head, so it names no class; see verdicts")
        return np.where(found.known, found.predicted, UNKNOWN)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write detector, network and class names into one file that `offmap.load` reads.

        ONNX networks, offmap's own CNN and networks extended by learned classes are kept whole. Of any other torch
        module the weights are kept; give a network of the same kind to `load` to run them.

        Parameters
        ----------
        path : path
            The file, such as ``deployment.offmap``.
        """
        inner = stored_parts(self.detector)
        network, tensors = network_parts(self.network)
        names = None if self.class_names is None else list(self.class_names)
        config: dict[str, Any] = {"class_names": names, "detector": inner.config, "network": network}
        arrays = {**prefix_names(inner.tensors, _DETECTOR), **prefix_names(tensors, _NETWORK)}
        if self.encoder is not None:
            config["encoder"] = self.encoder.reference()
        if self.pictures is not None:
            config["pictures"] = self.pictures.to_json()
        if self.examples is not None:
            config["examples"], kept = self.examples.to_parts()
            arrays |= prefix_names(kept, _EXAMPLES)
        store.save(path, KIND, config, arrays)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], network: Network | None = None, encoder: TextEncoder | None = None
    ) -> Deployment:
        """Read a deployment back.

        Parameters
        ----------
        path : path
            A file that `save` wrote.
        network : Network, optional
            For a torch module that is not offmap's own: a network of the same kind, into whose copy the saved weights
            go.
        encoder : TextEncoder, optional
            For an encoder that is a Python object, or whose files have moved: the same one; another is refused.
        """
        return cls.restore(store.load(path, KIND), network, encoder)

    @classmethod
    def restore(
        cls, stored: store.Stored, network: Network | None = None, encoder: TextEncoder | None = None
    ) -> Deployment:
        """Build a deployment from what `offmap.store.load` has read."""
        config = stored.config
        store.check_fields(KIND, config, {"detector": dict, "class_names": list | None, "network": dict})
        inner = store.Stored("detector", config["detector"], select_prefix(stored.tensors, _DETECTOR))
        names, reference, kept = config["class_names"], config.get("encoder"), config.get("examples")
        pictures = config.get("pictures")
        with store.restoring(KIND):
            made = restore_network(config["network"], select_prefix(stored.tensors, _NETWORK), network)
            return cls(
                Detector.restore(inner),
                made,
                None if names is None else tuple(names),
                None if reference is None else TextEncoder.restore(reference, encoder),
                None if kept is None else KnownExamples.from_parts(kept, select_prefix(stored.tensors, _EXAMPLES)),
                None if pictures is None else PictureSettings.from_json(pictures),
            )


def check_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return class names as a tuple of text, after checking that all are different.

    Examples
    --------
    >>> check_names(["ant", "bee"])
    ('ant', 'bee')
    """
    if names is None:
        return None
    found = tuple(map(str, names))
    if len(set(found)) != len(found):
        raise InputError("class names: two classes have the same name; give each its own")
    return found
