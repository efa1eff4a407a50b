"""`guard`: from a model and its known inputs to a calibrated detector, a report and an ONNX graph, in one call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap.activations import Activations
from offmap.deploy.exporter import export
from offmap.deploy.texts import prepare_texts
from offmap.deploy.thumbnails import Thumbnails
from offmap.detection import Detector, Verdicts
from offmap.detection import detector as make_detector
from offmap.errors import InputError, OffmapError, OffmapWarning
from offmap.extra_passes import Requirements
from offmap.network import Network
from offmap.openworld.deployment import Deployment
from offmap.text import TextEncoder
from offmap.typing import Array

FIT_SHARE = 0.6  # the rest is halved: one half sets the threshold, the other checks it
FEWEST_CHECKED = 20
N_NOISE = 200
NOISE, GIVEN = "inputs of noise", "unknown inputs that were given"
NOT_WRITTEN = "not written: "
FILES = ("guard.offmap", "guarded.onnx", "report.html")


@dataclass(frozen=True)
class GuardEvidence:
    """A guard, how it was made, and its verdicts on inputs that it was not made from.

    Attributes
    ----------
    deployment : Deployment
        The calibrated detector, its network and the class names.
    n_fitted, n_calibrated : int
        Known inputs that the detector was fitted and its threshold set on.
    checked : Verdicts or None
        What it says about further known inputs; `None` where there were too few to set some aside.
    labels : array or None
        The classes of the checked inputs, where the data have labels.
    shown : mapping of int to array or str
        Small pictures of checked inputs by their place, where inputs are pictures; texts, where they are texts.
    unknown : mapping of str to Verdicts
        What it says about inputs that are unknown for sure, by what they are: noise, and those that were given.
    shape : tuple of int or None
        The shape of one input, where inputs were read; the ONNX graph is traced with it.
    """

    deployment: Deployment
    n_fitted: int
    n_calibrated: int
    checked: Verdicts | None
    labels: Array | None
    shown: dict[int, Any]
    unknown: dict[str, Verdicts]
    shape: tuple[int, ...] | None = None

    @property
    def false_alarms(self) -> float | None:
        """The share of checked known inputs that is called unknown."""
        return None if self.checked is None else float((~self.checked.known).mean())

    @property
    def accuracy(self) -> float | None:
        """The share of checked known inputs whose class the network predicts."""
        if self.checked is None or self.labels is None or self.checked.predicted is None:
            return None
        return float((self.checked.predicted == self.labels).mean())

    def __str__(self) -> str:
        calibration = self.deployment.detector.calibration
        assert calibration is not None
        lines = [
            f"{self.deployment.detector.chosen}",
            f"fitted on {self.n_fitted} known inputs, calibrated on {self.n_calibrated}: "
            f"on average at most {1 - calibration.tpr:.1%} of known inputs will be called unknown",
        ]
        if self.checked is not None:
            most = bound_by_chance(self.n_calibrated, len(self.checked), 1 - calibration.tpr)
            lines.append(
                f"of {len(self.checked)} other known inputs {self.false_alarms:.1%} were called unknown (so few inputs "
                f"allow up to {most:.1%} by chance)"
            )
        if self.accuracy is not None:
            lines.append(f"the network classifies {self.accuracy:.1%} of these rightly")
        for name, verdicts in self.unknown.items():
            lines.append(f"of {len(verdicts)} {name} {(~verdicts.known).mean():.1%} were called unknown")
        return "\n".join(lines)


def bound_by_chance(n_calibrated: int, n_checked: int, alpha: float, confidence: float = 0.95) -> float:
    """Bound the share of checked known inputs that a threshold calls unknown while its promise holds.

    The promise is about the average; a threshold set on few inputs and checked on few scatters about it. Among inputs
    drawn alike with unequal scores, the number flagged is beta-binomial.

    Parameters
    ----------
    n_calibrated, n_checked : int
        Known inputs that set the threshold, and others that check it.
    alpha : float
        The share that was promised: on average at most so many are flagged.
    confidence : float, default 0.95
        In this share of all checks no more are flagged.

    Returns
    -------
    float
        A share.

    Examples
    --------
    >>> round(bound_by_chance(134, 134, 0.05), 3), round(bound_by_chance(20_000, 20_000, 0.05), 3)
    (0.09, 0.054)
    """
    from scipy.stats import betabinom

    rank = int(np.floor(alpha * (n_calibrated + 1) + 1e-9))  # so many calibration inputs lie below the threshold
    if rank == 0:
        return 0.0
    return float(betabinom.ppf(confidence, n_checked, rank, n_calibrated + 1 - rank) / n_checked)


def guard(
    model: Any,
    known: Any,
    *,
    held_out: Any = None,
    unknown: Any = None,
    detector: str | Detector | None = None,
    tpr: float = 0.95,
    class_names: Sequence[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | None = None,
    seed: int = 0,
) -> Deployment:
    """Make a guard for a trained model: choose a detector, fit it, set its threshold, and check it.

    Parameters
    ----------
    model : nn.Module, Network, path or None
        The classifier: a torch module, a `Network`, an ``.onnx`` file or ``"package.module:factory"``. `None` when
        `known` holds activations already. Or a `TextEncoder`, for texts.
    known : loader, array, Activations or texts
        Inputs of known classes, as `Network.extract` takes them; labels are used where there are any. With a
        `TextEncoder`: a list of texts, or a tuple of texts and labels; a linear head is trained where there are labels.
    held_out : loader, array or Activations, optional
        Known inputs that the network was not trained on. Then all of `known` is fitted on, and these set and check the
        threshold. Without them `known` is divided: 60 % to fit, 20 % to calibrate, 20 % to check. A network is more
        certain of what it was trained on, so a threshold set on such inputs flags too much: give others.
    unknown : loader, array or Activations, optional
        Examples of unknown inputs. Nothing is chosen on them; the report says how many are flagged.
    detector : str or Detector, optional
        The detector's text form. By default ``"auto"``, which chooses from the known inputs alone, and for texts with
        labels `offmap.deploy.texts.DETECTOR`, which finds more and is made faster.
    tpr : float, default 0.95
        The share of known inputs to accept.
    class_names : sequence of str, optional
        One per class.
    out : path, optional
        A folder for ``guard.offmap``, ``report.html`` and, where the detector can be exported, ``guarded.onnx``. A
        file that cannot be written is named in a warning, with the reason.
    device : str, optional
        Where to run the network, such as ``"cuda"``.
    seed : int, default 0
        Seed of the division and of the noise.

    Returns
    -------
    Deployment
        The calibrated detector with its network: `predict`, `verdicts`, `save`.

    See Also
    --------
    build_guard : the same with the evidence.
    offmap.export : only the ONNX graph.

    Examples
    --------
    >>> import numpy as np, offmap, torch
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(600) % 3
    >>> rows = (4 * np.eye(4)[labels] + rng.normal(size=(600, 4))).astype(np.float32)
    >>> model = torch.nn.Linear(4, 3)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.eye(3, 4))
    >>> guarded = offmap.guard(model, [(rows, labels)], detector="mahalanobis")
    >>> guarded.predict(np.array([[4, 0, 0, 0], [-30, 0, 0, 30]], np.float32))
    array([ 0, -1])
    """
    evidence = build_guard(
        model, known, held_out=held_out, unknown=unknown, detector=detector, tpr=tpr, class_names=class_names,
        device=device, seed=seed,
    )  # fmt: skip
    if out is not None:
        _warn_of_missing(write_guard(evidence, out), out, texts=evidence.deployment.encoder is not None)
    return evidence.deployment


def build_guard(
    model: Any,
    known: Any,
    *,
    held_out: Any = None,
    unknown: Any = None,
    detector: str | Detector | None = None,
    tpr: float = 0.95,
    class_names: Sequence[str] | None = None,
    device: str | None = None,
    seed: int = 0,
) -> GuardEvidence:
    """Make a guard and keep the evidence; parameters as in `guard`.

    Returns
    -------
    GuardEvidence
        The deployment, and what it says about inputs that it was not made from.
    """
    if not 0 < tpr < 1:
        raise InputError(f"tpr={tpr}: the share of known inputs to accept lies between 0 and 1")
    if isinstance(model, TextEncoder):
        texts = prepare_texts(model, known, held_out, unknown, seed)
        evidence = build_guard(
            None, texts.known, held_out=texts.held_out, unknown=texts.unknown, detector=detector or texts.detector,
            tpr=tpr, class_names=texts.classes, seed=seed,
        )  # fmt: skip
        *_, check = _divide(np.arange(len(texts.held_out)), 0.0, seed)
        shown: dict[int, Any] = {place: texts.held_out_texts[row] for place, row in enumerate(check.tolist())}
        deployed = replace(evidence.deployment, encoder=model, examples=texts.examples)
        return replace(evidence, deployment=deployed, shown=shown)
    made = detector if isinstance(detector, Detector) else make_detector(detector or "auto")
    network = _network(model)
    reader = _Reader(network, replace(made.requirements, labels=False), device)
    acts, pictures = reader.read(known, "known")
    _check_labels(acts)
    if held_out is None:
        fitting, calibration, check = _divide(np.arange(len(acts)), FIT_SHARE, seed)
        parts = acts[fitting], acts[calibration], acts[check]
    else:
        others, pictures = reader.read(held_out, "held_out")
        _check_labels(others)
        _, calibration, check = _divide(np.arange(len(others)), 0.0, seed)
        parts = acts, others[calibration], others[check]
    made.fit(parts[0])
    made.calibrate(parts[1], tpr=tpr)
    verdicts = {NOISE: made.verdicts(reader.noise(seed))} if reader.shape is not None else {}
    if unknown is not None:
        verdicts[GIVEN] = made.verdicts(reader.read(unknown, "unknown")[0])
    names = None if class_names is None else tuple(class_names)
    return GuardEvidence(
        Deployment(made, network, names),
        len(parts[0]),
        len(parts[1]),
        made.verdicts(parts[2]) if len(parts[2]) else None,
        parts[2].labels,
        {place: pictures[row] for place, row in enumerate(check.tolist()) if row in pictures},
        verdicts,
        reader.shape,
    )


def write_guard(evidence: GuardEvidence, out: str | os.PathLike[str], example: Any = None) -> dict[str, str]:
    """Write ``guard.offmap``, ``report.html`` and, where it can be made, ``guarded.onnx`` into a folder.

    Parameters
    ----------
    evidence : GuardEvidence
        What `build_guard` returned.
    out : path
        The folder; it is made when it is not there.
    example : array, optional
        Some inputs to compare the ONNX graph with Python on; noise by default, shaped as the known inputs were.

    Returns
    -------
    dict
        Each file's name with its path, or with the reason why it was not written.
    """
    from offmap.deploy.guard_report import write_report

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    said: dict[str, str] = {}
    guard_file, graph_file, report_file = (folder / name for name in FILES)
    evidence.deployment.save(guard_file)
    said[FILES[0]] = str(guard_file)
    try:
        if evidence.deployment.encoder is not None:
            raise InputError("a graph does not tokenize texts; offmap.export writes what follows the encoder")
        network = evidence.deployment.network
        seen = None if network is None or network.backend.torch_model is None else evidence.shape
        said[FILES[1]] = str(export(evidence.deployment, path=graph_file, example=example, shape=seen).path)
    except OffmapError as error:
        said[FILES[1]] = f"{NOT_WRITTEN}{error}"
    try:
        said[FILES[2]] = str(write_report(evidence, report_file, said[FILES[1]]))
    except OffmapError as error:
        said[FILES[2]] = f"{NOT_WRITTEN}{error}"
    return said


def _warn_of_missing(said: Mapping[str, str], out: str | os.PathLike[str], texts: bool) -> None:
    """Say which files the folder lacks and why; texts never have a graph, and need no word about it."""
    for name, outcome in said.items():
        if outcome.startswith(NOT_WRITTEN) and not (texts and name == FILES[1]):
            why = outcome.removeprefix(NOT_WRITTEN)
            warnings.warn(f"{Path(out) / name} was not written: {why}", OffmapWarning, stacklevel=3)


@dataclass
class _Reader:
    """Turns what a user gave into activations, and remembers the shape of one input."""

    network: Network | None
    requirements: Requirements
    device: str | None
    shape: tuple[int, ...] | None = None

    def read(self, source: Any, name: str) -> tuple[Activations, dict[int, Array]]:
        if isinstance(source, Activations):
            return source, {}
        if self.network is None:
            raise InputError(f"guard(None, ...): without a model {name} must be offmap.Activations(features, ...)")
        batches = Thumbnails(source)
        acts = self.network.extract(batches, self.requirements, device=self.device)
        self.shape = batches.shape or self.shape
        return acts, batches.pictures

    def noise(self, seed: int) -> Activations:
        assert self.network is not None
        assert self.shape is not None
        return self.network.noise(N_NOISE, self.shape, seed, self.requirements, device=self.device)


def _network(model: Any) -> Network | None:
    if model is None or isinstance(model, Network):
        return model
    if isinstance(model, str | os.PathLike):
        from offmap.models import load_network

        return load_network(os.fspath(model))
    return Network(model)


def _divide(rows: Array, fit_share: float, seed: int) -> Iterator[Array]:
    """Yield the rows to fit, to calibrate and to check on; nothing is checked where too few would be left."""
    mixed = np.random.default_rng(seed).permutation(rows)
    cut = round(fit_share * len(mixed))
    rest = len(mixed) - cut
    half = rest // 2 if rest >= 2 * FEWEST_CHECKED else 0
    for part in np.split(mixed, [cut, cut + rest - half]):
        yield np.sort(part)


def _check_labels(acts: Activations) -> None:
    """Refuse labels that are no classes of the network; warn when they hardly agree with its predictions."""
    if acts.labels is None or not acts.has_logits:
        return
    highest = int(acts.labels.max(initial=0))
    if highest >= acts.n_classes:
        raise InputError(f"label {highest}, but the network knows {acts.n_classes} classes, numbered from 0")
    right = float((acts.predictions == acts.labels).mean())
    if acts.n_classes > 2 and right < 2 / acts.n_classes:
        warnings.warn(
            f"only {right:.1%} of the predictions agree with the labels; check that class folders or labels are in the "
            "order of the network's classes, and that inputs are scaled as in training (mean and std)",
            OffmapWarning,
            stacklevel=3,
        )
