"""One call for every format: the reader is chosen by what the path is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offmap.activation_files import META
from offmap.activations import Activations, Head
from offmap.data.images import holds_pictures, image_folder
from offmap.data.samples import MAX_BYTES, Samples
from offmap.errors import InputError
from offmap.registry import Registry

Reader = Callable[[Path, int], Samples]
READERS: Registry[Reader] = Registry("reader", package="offmap.data", group="offmap.readers")


def read(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES, **images: Any) -> Samples:
    """Read a data set by what it is: a file that a registered reader takes, or a folder of pictures.

    Readers are registered in `READERS` by the ending of the files that they read: ``npz``, ``npy``, ``parquet`` …

    Parameters
    ----------
    path : str or path
        The file or folder.
    max_bytes : int, default=MAX_BYTES
        What may be brought into memory; ``.npy`` files are mapped instead.
    **images : Any
        For folders: `size`, `mode` and `unreadable` of `image_folder`.

    Returns
    -------
    Samples
        The arrays, class names and head that there are.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> file = tempfile.mkdtemp() + "/x.npz"
    >>> np.savez(file, images=np.zeros((4, 8, 8), np.uint8), labels=[0, 1, 1, 0])
    >>> read(file)
    Samples(4: inputs 8×8, labels one each)
    """
    source = Path(path)
    if holds_pictures(source):
        return image_folder(source, **images).read(max_bytes)
    if not source.is_file():
        raise InputError(f"{source}: there is no such file or folder")
    kind = source.suffix[1:].lower()
    if kind not in READERS:
        files = ", ".join(f".{name}" for name in READERS)
        raise InputError(f"{source}: {files} or a folder of pictures can be read, not {source.suffix!r}")
    return READERS.get(kind)(source, max_bytes)


def read_activations(path: str | os.PathLike[str], head: Head | None = None) -> Activations:
    """Read what a network said, from a folder that an extraction wrote or from a file with features or logits.

    Parameters
    ----------
    path : str or path
        The folder or file.
    head : Head or None, default=None
        The last linear layer, for files of features without logits.

    Returns
    -------
    Activations
        In memory, or mapped when a folder is read.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> file = tempfile.mkdtemp() + "/known.npz"
    >>> np.savez(file, features=np.zeros((5, 3)), labels=np.zeros(5, int))
    >>> read_activations(file)
    Activations(5 inputs, 3 features, labels)
    """
    source = Path(path)
    if not source.is_dir():
        return read(source).activations(head)
    if not (source / META).is_file():
        raise InputError(
            f"{source}: no activations in this folder; make them with offmap extract, or name the network for "
            "pictures: --model file.onnx"
        )
    acts = Activations.open(source)
    if head is not None:
        acts = Activations(acts.features, head, None, acts.labels, acts.extras)
    return acts
