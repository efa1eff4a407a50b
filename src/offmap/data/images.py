"""Readers of pictures: folders with one sub-folder per class, and mosaics of equal tiles."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from offmap.data.read_ahead import read_ahead
from offmap.data.samples import MAX_BYTES, Samples, check_size
from offmap.errors import DependencyError, InputError
from offmap.typing import Array

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
MAX_PIXELS = 64 * 10**6  # of one picture; a small file can claim to be a huge one
ENVIRONMENT = "OFFMAP_DATA"
MOST_DECODERS = 8  # threads


@dataclass(frozen=True)
class ImageFolder:
    """Pictures in a folder, decoded when asked for; made by `image_folder`.

    It has `len` and indices, so torch's `DataLoader` takes it as it is.
    """

    files: tuple[Path, ...]
    labels: Array | None
    classes: tuple[str, ...]
    size: int | None
    mode: Literal["RGB", "L"]
    skipped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        size = "" if self.size is None else f", brought to {self.size} × {self.size}"
        return f"ImageFolder({len(self)} pictures{classes}{size})"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Array:
        """One picture: ``uint8``, height × width × channels."""
        return decode_picture(self.files[index], self.size, self.mode)

    def batches(self, size: int = 256) -> Iterator[Array]:
        """Yield the pictures in order, `size` at a time, in bounded memory; the next are read meanwhile."""
        return read_ahead(self.stacks(size))

    def stacks(self, size: int) -> Iterator[Array]:
        """Yield the pictures in order, `size` at a time, each lot decoded when it is asked for."""
        for start in range(0, len(self), size):
            yield self._stacked(range(start, min(start + size, len(self))))

    def read(self, max_bytes: int = MAX_BYTES) -> Samples:
        """Read all pictures at once."""
        check_size(self[0].nbytes * len(self), f"{len(self)} pictures", max_bytes)
        arrays = {"inputs": self._stacked(range(len(self)))}
        if self.labels is not None:
            arrays["labels"] = self.labels
        return Samples(arrays, self.classes, tuple(str(file) for file in self.files), self.skipped)

    def _stacked(self, indices: range) -> Array:
        """Decode pictures into one array, in as many threads as there are cores: decoders leave Python free.

        One thread alone would hold up a network that uses all cores: the others wait for the one it takes a core from.
        """
        first = self[indices[0]]
        out = np.empty((len(indices), *first.shape), np.uint8)
        out[0] = first

        def place(row: int) -> None:
            image = self[indices[row]]
            if image.shape != first.shape:
                raise InputError(
                    f"{self.files[indices[row]]}: {image.shape[0]}×{image.shape[1]} pixels, others have "
                    f"{first.shape[0]}×{first.shape[1]}; give size=… (--image-size) to bring all to one size"
                )
            out[row] = image

        with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_DECODERS), thread_name_prefix="offmap-decoding") as pool:
            for _ in pool.map(place, range(1, len(indices))):  # in order, so the first bad picture is the one named
                pass
        return out


def holds_pictures(source: str | os.PathLike[str] | Sequence[Path]) -> bool:
    """Tell whether a source names pictures: a folder, one picture, a pattern such as ``photos/*.jpg``, or several.

    Examples
    --------
    >>> holds_pictures("photos/*.jpg"), holds_pictures("cat.png"), holds_pictures("features.npz")
    (True, True, False)
    """
    if not isinstance(source, str | os.PathLike):
        return True
    path = Path(source)
    return path.is_dir() or path.suffix.lower() in SUFFIXES or _is_pattern(path)


def _is_pattern(path: Path) -> bool:
    return any(sign in str(path) for sign in "*?[") and not path.exists()


def image_folder(
    folder: str | os.PathLike[str] | Sequence[Path],
    *,
    size: int | None = None,
    mode: Literal["RGB", "L"] = "RGB",
    unreadable: Literal["error", "skip"] = "error",
) -> ImageFolder:
    """Find the pictures of a folder; its sub-folders, if any, are the classes, in alphabetical order.

    Parameters
    ----------
    folder : str, path or sequence of path
        Pictures anywhere below it; files that are not pictures by their name are left alone. Also one picture, a
        pattern such as ``photos/*.jpg``, or several pictures or folders: these have no classes.
    size : int or None, default=None
        Bring every picture to `size` × `size`: the shorter side is scaled, the middle cut out.
    mode : {"RGB", "L"}, default="RGB"
        ``"RGB"`` (three channels) or ``"L"`` (grey, one channel).
    unreadable : {"error", "skip"}, default="error"
        What to do about a damaged picture: stop with an error when it is met, or (``"skip"``) try all of them
        first and leave the damaged out, listed in `ImageFolder.skipped`.

    Returns
    -------
    ImageFolder
        The files; nothing is decoded yet.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("ant", "bee"):
    ...     (folder / name).mkdir()
    ...     Image.new("RGB", (8, 8)).save(folder / name / "0.png")
    >>> found = image_folder(folder)
    >>> len(found), found.classes, found.labels, found[0].shape
    (2, ('ant', 'bee'), array([0, 1]), (8, 8, 3))
    """
    if size is not None and size < 1:
        raise InputError(f"size={size}: pictures have at least one pixel")
    if mode not in ("RGB", "L") or unreadable not in ("error", "skip"):
        raise InputError(f"mode={mode!r}, unreadable={unreadable!r}: 'RGB' or 'L', and 'error' or 'skip'")
    root, files = _find_files(folder)
    depths = {root is not None and len(file.relative_to(root).parts) > 1 for file in files}
    if len(depths) > 1:
        raise InputError(f"{root}: pictures both beside and inside class folders; move them all to one level")
    labelled = depths == {True}
    names = [file.relative_to(root).parts[0] if labelled and root is not None else "" for file in files]
    classes = tuple(sorted(set(names))) if labelled else ()
    skipped: list[str] = []
    if unreadable == "skip":
        found = files
        files, skipped = _readable(files, size, mode)
        if not files:
            raise InputError(f"{folder}: none of its {len(skipped)} pictures can be read")
        left_out = set(skipped)
        names = [name for name, file in zip(names, found, strict=True) if str(file) not in left_out]
    index = {name: i for i, name in enumerate(classes)}
    labels = np.array([index[name] for name in names]) if labelled else None
    return ImageFolder(tuple(files), labels, classes, size, mode, tuple(skipped))


def _find_files(source: str | os.PathLike[str] | Sequence[Path]) -> tuple[Path | None, list[Path]]:
    """The folder, if it is one, and the pictures in alphabetical order."""
    root = Path(source) if isinstance(source, str | os.PathLike) else None
    if root is not None and root.is_dir():
        files = sorted(
            file
            for file in root.rglob("*")
            if file.suffix.lower() in SUFFIXES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(root).parts)
        )
        if not files:
            raise InputError(f"{root}: no pictures in it ({', '.join(sorted(SUFFIXES))})")
        return root, files
    if root is not None and _is_pattern(root):
        anchor = Path(root.anchor)
        pattern = str(root.relative_to(anchor)) if root.is_absolute() else str(root)
        files = sorted(file for file in anchor.glob(pattern) if file.is_file() and file.suffix.lower() in SUFFIXES)
        if not files:
            raise InputError(f"{root}: no picture matches this pattern ({', '.join(sorted(SUFFIXES))})")
        return None, files
    given = [root] if root is not None else [Path(file) for file in source]  # type: ignore[union-attr]
    if root is None:  # several: folders among them stand for the pictures in them
        given = [file for one in given for file in (_find_files(one)[1] if one.is_dir() else [one])]
    for file in given:
        if not file.is_file():
            kind = "picture" if file.suffix.lower() in SUFFIXES else "folder"
            raise InputError(f"{file}: there is no such {kind}")
        if file.suffix.lower() not in SUFFIXES:
            raise InputError(f"{file}: not a picture by its ending ({', '.join(sorted(SUFFIXES))})")
    return None, given


def tiles(name: str, folder: str | os.PathLike[str] | None = None, *, side: int = 32, per_row: int = 100) -> Samples:
    """Read a set kept as one lossless mosaic: tiles row by row, with labels beside it.

    Reads ``images/<name>.webp``, ``images/<name>_labels.npy`` and, if there, the class names
    ``images/<set>_classes.json``, where `<set>` is the name up to its first underscore.

    Parameters
    ----------
    name : str
        Name of the set, such as ``"cifar10_test"``.
    folder : str, path or None, default=None
        The folder with the data; the environment's ``OFFMAP_DATA`` when absent.
    side : int, default=32
        Pixels along the side of a tile.
    per_row : int, default=100
        Tiles in one row of the mosaic.

    Returns
    -------
    Samples
        ``inputs``: ``uint8``, samples × side × side × 3; ``labels``.
    """
    root = folder if folder is not None else os.environ.get(ENVIRONMENT)
    if root is None:
        raise InputError(f"tiles({name!r}): name the data folder, as an argument or in the environment's {ENVIRONMENT}")
    images = Path(root) / "images"
    file = images / f"{name}.webp"
    if not file.is_file():
        there = sorted(found.stem for found in images.glob("*.webp"))
        raise InputError(f"{file}: there is no such set; there are {', '.join(there) or 'none'}")
    labels = np.load(images / f"{name}_labels.npy", allow_pickle=False).astype(np.int64)
    sheet = decode_picture(file)
    rows, columns = sheet.shape[0] // side, sheet.shape[1] // side
    if columns != per_row or rows * columns < len(labels):
        raise InputError(f"{file}: {rows} rows of {columns} tiles for {len(labels)} labels and {per_row} per row")
    cut = sheet.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    names = images / f"{name.partition('_')[0]}_classes.json"
    classes = tuple(json.loads(names.read_text())) if names.is_file() else ()
    return Samples({"inputs": cut[: len(labels)], "labels": labels}, classes)


def scale_images(images: Array, mean: Any = 0.0, std: Any = 1.0) -> npt.NDArray[np.float32]:
    """Scale pictures as a network takes them: to [0, 1], less the mean, over the deviation, channels first.

    Parameters
    ----------
    images : ndarray
        ``uint8``, samples × height × width × channels (or without channels: grey).
    mean, std : float or sequence of float, default=0.0 and 1.0
        One number, or one per channel.

    Returns
    -------
    ndarray of float32 of shape (n, channels, height, width)
        The scaled pictures.

    Examples
    --------
    >>> scale_images(np.full((1, 2, 2, 3), 255, np.uint8), mean=0.5, std=0.5).shape
    (1, 3, 2, 2)
    """
    array = np.asarray(images)
    array = array[..., None] if array.ndim == 3 else array
    if array.dtype != np.uint8 or array.ndim != 4:
        raise InputError(f"images of shape {array.shape}, type {array.dtype}: uint8 pictures are needed")
    centre, spread = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    if not (spread > 0).all() or {centre.size, spread.size} - {1, array.shape[-1]}:
        raise InputError(f"mean={mean}, std={std}: one number or one per channel, deviations above 0")
    out = (array.astype(np.float32) / np.float32(255) - centre) / spread
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


def decode_picture(
    file: Path | IO[bytes], size: int | None = None, mode: Literal["RGB", "L"] = "RGB", name: str | None = None
) -> Array:
    """Decode one picture.

    Parameters
    ----------
    file : Path or binary file
        The picture.
    size : int, optional
        Bring it to `size` × `size`: the shorter side is scaled, the middle cut out.
    mode : {"RGB", "L"}, default="RGB"
        Three channels, or one.
    name : str, optional
        What errors call it; the path by default.

    Returns
    -------
    ndarray of uint8 of shape (height, width, channels)
        The picture.

    Raises
    ------
    InputError
        If it is damaged, or larger than `MAX_PIXELS`.
    """
    called = name or file
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DependencyError(
            "reading pictures needs pillow, which is not installed: pip install 'offmap[data]'"
        ) from error
    try:
        with Image.open(file) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise InputError(f"{called}: {opened.width}×{opened.height} pixels, the limit is {MAX_PIXELS:,}")
            upright = ImageOps.exif_transpose(opened).convert(mode)
            if size is not None:
                upright = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
            array = np.asarray(upright)
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:  # what pillow's decoders raise
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{called}: not a readable picture ({error}); mend it, or leave such files out: --skip-unreadable, "
            "unreadable='skip'"
        ) from error
    return array[..., None] if array.ndim == 2 else array


def _readable(files: list[Path], size: int | None, mode: Literal["RGB", "L"]) -> tuple[list[Path], list[str]]:
    good, bad = [], []
    for file in files:
        try:
            decode_picture(file, size, mode)
        except InputError:
            bad.append(str(file))
        else:
            good.append(file)
    return good, bad
