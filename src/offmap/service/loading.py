"""A guard, its network and its class names from the files that the command line names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import offmap
from offmap.detection import Detector
from offmap.errors import InputError
from offmap.network import Network


@dataclass(frozen=True)
class Files:
    """Where a guard and what belongs to it come from, so that they can be read again.

    Parameters
    ----------
    guard
        A file that `Detector.save` wrote.
    model
        ``package.module:factory``, a ``file.onnx``, or the file of a learned model; `None` for features only.
    weights, layer
        For `offmap.models.load_network`.
    classes
        A JSON list of names, or a text with one name per line. A learned model brings its own.
    """

    guard: Path
    model: str | None = None
    weights: Path | None = None
    layer: str | None = None
    classes: Path | None = None

    def load(self) -> tuple[Detector, Network | None, Sequence[str] | None]:
        """Read everything."""
        guard = offmap.load(self.guard)
        if not isinstance(guard, Detector):
            raise InputError(f"{self.guard}: holds {guard!r}; a guard from offmap fit is needed")
        network, own = self._network()
        return guard, network, own if self.classes is None else read_names(self.classes)

    def _network(self) -> tuple[Network | None, Sequence[str] | None]:
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
        network.layers()  # an ONNX file is read at first use; one that cannot be read must be refused here
        return network, None


def read_names(file: Path) -> list[str]:
    r"""Class names from a JSON list or from lines.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "classes.txt"
    >>> _ = file.write_text("ant\nbee\n")
    >>> read_names(file)
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
