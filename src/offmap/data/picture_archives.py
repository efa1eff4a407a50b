"""Pictures inside a tar archive, as Textures, Places, LSUN and iSUN are published: read without unpacking."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from offmap.data.images import SUFFIXES, decode_picture
from offmap.data.samples import MAX_BYTES, Samples, check_size
from offmap.errors import InputError

ENDINGS = (".tar", ".tar.gz", ".tgz")
LARGEST_PICTURE = 1 << 26  # bytes of one packed picture


def is_archive(path: Path) -> bool:
    """Tell whether a file is a tar archive by its name.

    Parameters
    ----------
    path : Path
        The file.

    Examples
    --------
    >>> is_archive(Path("dtd-r1.0.1.tar.gz")), is_archive(Path("train-images-idx3-ubyte.gz"))
    (True, False)
    """
    return path.name.lower().endswith(ENDINGS)


def read_picture_archive(path: Path, size: int | None = None, max_bytes: int = MAX_BYTES) -> Samples:
    """Read the pictures of a tar archive; the folders that hold them, if there are several, are the classes.

    Parameters
    ----------
    path : Path
        ``.tar``, ``.tar.gz`` or ``.tgz``.
    size : int, optional
        Bring every picture to `size` × `size`: the shorter side is scaled, the middle cut out.
    max_bytes : int, default=MAX_BYTES
        What may be brought into memory.

    Returns
    -------
    Samples
        ``inputs`` uint8, n × height × width × 3, in the order of their names, and ``labels`` where there are classes.

    Raises
    ------
    InputError
        If it is no archive, holds no pictures, or pictures of several sizes and none is asked for.
    """
    found: dict[str, np.ndarray] = {}
    total = 0
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if not member.isfile() or name.suffix.lower() not in SUFFIXES or name.name.startswith("._"):
                    continue
                if member.size > LARGEST_PICTURE:
                    raise InputError(f"{path}: {member.name} has {member.size} bytes, the limit is {LARGEST_PICTURE:,}")
                stream = archive.extractfile(member)
                assert stream is not None
                found[member.name] = decode_picture(io.BytesIO(stream.read()), size, name=f"{path}: {member.name}")
                total += found[member.name].nbytes
                check_size(total, f"{len(found)} pictures", max_bytes)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a readable tar archive ({error})") from error
    if not found:
        raise InputError(f"{path}: no pictures in it")
    names = sorted(found)
    shapes = {found[name].shape for name in names}
    if len(shapes) > 1:
        raise InputError(f"{path}: pictures of {len(shapes)} sizes; say to which side they are to be brought")
    folders = [PurePosixPath(name).parent.name for name in names]
    classes = tuple(sorted(set(folders)))
    arrays = {"inputs": np.stack([found[name] for name in names])}
    if len(classes) > 1:
        arrays["labels"] = np.searchsorted(classes, folders).astype(np.int64)
    return Samples(arrays, classes if len(classes) > 1 else (), tuple(names))
