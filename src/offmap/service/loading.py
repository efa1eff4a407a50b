"""Load a deployment from the files that the command line names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import offmap
from offmap import store
from offmap.detection import Detector
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld import Deployment, PictureSettings
from offmap.text import TextEncoder


@dataclass(frozen=True)
class DeploymentFiles:
    """The files of a deployment, so that it can be loaded again.

    Parameters
    ----------
    guard : Path
        A file that `Detector.save` or `Deployment.save` wrote.
    model : str or None, default=None
        ``package.module:factory``, a ``file.onnx``, or the file of a learned model; `None` for features only.
    weights, layer : optional
        As `offmap.models.load_network` takes them.
    classes : Path or None, default=None
        A JSON list of names, or a text file with one name per line. A learned model has its own.
    encoder : str or None, default=None
        ``package.module:function``, or where an encoder's files are now, for a guard that was made from texts; that
        of the guard's file by default.
    """

    guard: Path
    model: str | None = None
    weights: Path | None = None
    layer: str | None = None
    classes: Path | None = None
    encoder: str | None = None

    def load(self) -> Deployment:
        """Load all files.

        Returns
        -------
        Deployment
            Detector, network and class names.

        Raises
        ------
        InputError, StoreError
            If a file cannot be used.
        """
        stored = store.load(self.guard)
        if stored.kind == "deployment":
            return self._restore(stored)
        detector = offmap.load(self.guard)
        if not isinstance(detector, Detector):
            raise InputError(f"{self.guard}: holds {detector!r}; a guard from offmap fit or offmap guard is needed")
        network, names = self._load_network()
        return Deployment(detector, network, names if self.classes is None else read_class_names(self.classes))

    def read_pictures(self) -> PictureSettings | None:
        """Return how pictures are prepared, where the guard's file says so; `None` otherwise."""
        stored = store.load(self.guard)
        kept = stored.config.get("pictures") if stored.kind == "deployment" else None
        if kept is None:
            return None
        with store.restoring("deployment"):
            return PictureSettings.from_json(kept)

    def _restore(self, stored: store.Stored) -> Deployment:
        """Restore a whole deployment; a network or an encoder that was named takes the place of what is in the file."""
        network, names = self._load_network()
        found = Deployment.restore(stored, network, None if self.encoder is None else load_encoder(self.encoder))
        if self.classes is not None:
            names = read_class_names(self.classes)
        return found if names is None else replace(found, class_names=names)

    def _load_network(self) -> tuple[Network | None, Sequence[str] | None]:
        from offmap.models import load_network

        if self.model is None:
            if self.weights is not None or self.layer is not None:
                raise InputError("--weights and --layer belong to a network; name one with --model")
            return None, None
        if Path(self.model).is_file() and not self.model.endswith(".onnx"):
            from offmap.learning import OpenWorldModel

            learned = offmap.load(self.model)
            if not isinstance(learned, OpenWorldModel):
                raise InputError(f"{self.model}: holds {learned!r}; a model from offmap.learn is needed")
            return learned.network, learned.class_names
        network = load_network(self.model, self.weights, self.layer)
        network.layers()  # an ONNX file is read at first use; one that cannot be read must be rejected here
        return network, None


def load_encoder(named: str) -> TextEncoder:
    """Load an encoder by name, path, or ``package.module:function``. Importing runs code: name only what you trust."""
    from offmap.models.load import import_object

    if ":" not in named:
        return TextEncoder(named)
    found = import_object(named)
    return found if isinstance(found, TextEncoder) else TextEncoder(found)


def read_class_names(file: Path) -> list[str]:
    r"""Read class names from a JSON list or from lines.

    Parameters
    ----------
    file : Path
        A text file in UTF-8.

    Returns
    -------
    list of str
        One name per class.

    Raises
    ------
    InputError
        If the file cannot be read or holds anything but names.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "classes.txt"
    >>> _ = file.write_text("ant\nbee\n")
    >>> read_class_names(file)
    ['ant', 'bee']
    """
    try:
        text = file.read_text(encoding="utf-8")
        names = json.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: the class names cannot be read ({error})") from error
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"{file}: class names are texts; give a JSON list of them, or one per line")
    return [name.strip() for name in names]
