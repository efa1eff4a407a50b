"""The sets of a suite: read where the declaration says, whole or a part drawn by a fixed seed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from offmap.bench.suites import SetSpec
from offmap.data import Samples, digits, image_folder, read, tiles
from offmap.data.archives import Part, read_cifar
from offmap.data.idx import read_idx_set
from offmap.data.picture_archives import is_archive, read_picture_archive
from offmap.errors import InputError
from offmap.registry import Registry
from offmap.typing import Array

FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's dataset-fashion-mnist puts it
READERS: Registry[Callable[..., Samples]] = Registry("kind of set", package="offmap.bench.kinds", group="offmap.sets")


@dataclass(frozen=True)
class LoadedSet:
    """The samples of one set.

    Attributes
    ----------
    name : str
        As the suite names it.
    samples : Samples
        Inputs or features, with labels where there are any.
    stored : StoredFeatures or None
        Features that a network of the suite gave before for exactly this content.
    """

    name: str
    samples: Samples
    stored: StoredFeatures | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def has_inputs(self) -> bool:
        """True if there are inputs as such, for example pictures."""
        return "inputs" in self.samples.arrays

    @property
    def can_run(self) -> bool:
        """True if a network can be run on it: on inputs, or on features that no network of the suite gave."""
        return self.has_inputs or self.stored is None

    @cached_property
    def digest(self) -> str:
        """Checksum of the inputs themselves, not of the files they came in."""
        name = "inputs" if self.has_inputs else "features"
        return checksum_array(self.samples.arrays[name])

    def with_array(self, name: str, values: Array) -> LoadedSet:
        """Add one more number per sample.

        Parameters
        ----------
        name : str
            Its name.
        values : ndarray of shape (n,)
            The numbers.

        Returns
        -------
        LoadedSet
            A copy.
        """
        return replace(self, samples=replace(self.samples, arrays={**self.samples.arrays, name: values}))

    def part(self, n: int | None, seed: int = 0) -> LoadedSet:
        """Draw at most `n` samples, in their own order; a smaller part lies within a larger one.

        Parameters
        ----------
        n : int or None
            How many; all when `None`.
        seed : int, default=0
            Seed of the draw.

        Returns
        -------
        LoadedSet
            The part.
        """
        if n is None or n >= len(self):
            return self
        rows = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        stored = None if self.stored is None else replace(self.stored, rows=self.stored.rows[rows])
        return LoadedSet(self.name, self.samples[rows], stored)


@dataclass(frozen=True)
class StoredFeatures:
    """Features that a network gave before, in a file, with a checksum of all that they were made from."""

    file: Path
    made_from: tuple[Path, ...]
    content: str
    rows: Array

    def features(self) -> Array:
        """Read the rows as float32."""
        with np.load(self.file, allow_pickle=False) as arrays:
            kept: Array = arrays["features"][self.rows].astype(np.float32)
        return kept

    def belongs_to(self, weights: Path) -> bool:
        """Return True if weights, inputs and features are, to the byte, what the declaration was written for."""
        return self.content == checksum_files((weights, *self.made_from, self.file))


def checksum_files(files: tuple[Path, ...]) -> str:
    """Compute a checksum of the bytes of some files, in order.

    Parameters
    ----------
    files : tuple of Path
        Files to read.

    Returns
    -------
    str

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a"
    >>> _ = file.write_bytes(b"abc")
    >>> checksum_files((file,)) != checksum_files((file, file))
    True
    """
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()[:32]


def checksum_array(array: Array) -> str:
    """Compute a checksum of an array's numbers, shape and type.

    Parameters
    ----------
    array : ndarray
        Any array.

    Returns
    -------
    str

    Examples
    --------
    >>> checksum_array(np.zeros(2)) == checksum_array(np.zeros((2, 1)))
    False
    """
    made = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    for start in range(0, len(array), 4096):
        made.update(np.ascontiguousarray(array[start : start + 4096]).tobytes())
    return made.hexdigest()[:32]


def load_set(spec: SetSpec, data: Path | None) -> LoadedSet:
    """Read one set of a suite.

    Parameters
    ----------
    spec : SetSpec
        Its declaration; ``at_most`` draws a part, ``otherwise`` is another declaration for where this one is not here.
    data : Path or None
        The folder that relative paths start from.

    Returns
    -------
    LoadedSet

    Examples
    --------
    >>> len(load_set(SetSpec("unseen", {"digits": "unknown"}), None)) > 700
    True
    """
    options = dict(spec.source)
    otherwise = options.pop("otherwise", None)
    if otherwise is not None:
        try:
            return load_set(SetSpec(spec.name, options), data)
        except InputError as error:
            try:
                return load_set(SetSpec(spec.name, otherwise), data)
            except InputError as other:
                raise InputError(f"{error}; nor is there what it may be made from: {other}") from None
    kinds = [word for word in READERS if word in options]
    if len(kinds) != 1:
        raise InputError(f"set {spec.name}: one of {', '.join(READERS)} must say where it is, not {sorted(options)}")
    stored_file, content = options.pop("stored", None), options.pop("stored_for", "")
    at_most = options.pop("at_most", None)
    if kinds[0] == "stored_only":
        stored_file = options["stored_only"]
    samples = READERS[kinds[0]](options.pop(kinds[0]), data, **options)
    if len(samples) == 0:
        raise InputError(f"set {spec.name}: it is empty")
    if stored_file is None:
        return LoadedSet(spec.name, samples).part(at_most)
    file = locate(stored_file, data)
    made_from = () if kinds[0] == "stored_only" else (_mosaic(str(spec.source[kinds[0]]), data),)
    stored = StoredFeatures(file, made_from, content, np.arange(len(samples)))
    return LoadedSet(spec.name, samples, stored).part(at_most)


def locate(path: str, data: Path | None) -> Path:
    """Resolve a path of a declaration: `~` and environment variables are filled in, the data folder goes before.

    Parameters
    ----------
    path : str
        As declared.
    data : Path or None
        The data folder.

    Returns
    -------
    Path
        The resolved path.
    """
    found = Path(os.path.expandvars(os.path.expanduser(path)))
    if not found.is_absolute() and data is not None and (data / found).exists():
        return data / found
    if not found.exists():
        where = "name the data folder with --data or OFFMAP_DATA" if data is None else f"nor is it in {data}"
        raise InputError(f"{found}: there is no such file or folder; {where}")
    return found


def _mosaic(name: str, data: Path | None) -> Path:
    return locate(f"images/{name}.webp", data)


@READERS.register("tiles")
def _tiles(name: str, data: Path | None, side: int | None = None, grey: bool = False) -> Samples:
    """Pictures of one mosaic in the data folder, by its name; `side` resizes them, `grey` keeps one channel."""
    samples = tiles(name, data)
    return samples if side is None and not grey else _reshaped(samples, side, grey)


@READERS.register("digits")
def _digits(part: str, data: Path | None, known: int = 6, seed: int = 0, side: int | None = None) -> Samples:
    """One part of the digits of scikit-learn: ``train``, ``val``, ``test`` or ``unknown``; ``all`` has all classes."""
    if part == "all":
        return _all_digits()
    split = digits(known, seed)
    if not hasattr(split, part):
        raise InputError(f"digits = {part!r}: 'train', 'val', 'test', 'unknown' or 'all'")
    samples: Samples = getattr(split, part)
    if side is None:
        return samples
    pixels = (255 * samples.inputs.transpose(0, 2, 3, 1)).astype(np.uint8)
    return _reshaped(replace(samples, arrays={**samples.arrays, "inputs": pixels}), side, grey=True)


def _all_digits() -> Samples:
    from sklearn.datasets import load_digits

    held = load_digits()
    return Samples({"inputs": (held.images * (255 / 16)).astype(np.uint8), "labels": held.target.astype(np.int64)})


@READERS.register("cifar")
def _cifar(name: str, data: Path | None, part: Part = "train") -> Samples:
    """CIFAR from the archive that its site publishes: ``cifar10`` or ``cifar100``, ``train``, ``test`` or ``all``."""
    files = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}
    if name not in files or part not in ("train", "test", "all"):
        raise InputError(f"cifar = {name!r}, part = {part!r}: cifar10 or cifar100; train, test or all")
    try:
        file = locate(f"{name}/{files[name]}", data)
    except InputError as error:
        raise InputError(f"{error}; get it with: offmap bench --get {name}") from None
    return read_cifar(file, part)


@READERS.register("path")
def _path(
    path: str,
    data: Path | None,
    side: int | None = None,
    split: str = "",
    labelled: bool = False,
    first: int | None = None,
) -> Samples:
    """Any file or folder that offmap reads; `split` picks arrays named ``<split>_…`` of one archive.

    With `labelled`, samples without a class (−1) are left out; with `first`, so many of each class are kept, the first.
    """
    found = locate(path, data)
    if found.is_dir():
        return _first_of_each(image_folder(found, size=side).read(), first)
    if is_archive(found) and side is not None:
        return _first_of_each(read_picture_archive(found, side), first)
    if not split:
        return _first_of_each(read(found), first)
    with np.load(found, allow_pickle=False) as arrays:
        chosen = {name.removeprefix(f"{split}_"): arrays[name] for name in arrays.files if name.startswith(f"{split}_")}
        classes = tuple(map(str, arrays["classes"])) if "classes" in arrays.files else ()
    if "features" not in chosen and "inputs" not in chosen:
        raise InputError(f"{found}: no arrays named {split}_features or {split}_inputs in it")
    if labelled and "labels" in chosen:
        kept_rows = chosen["labels"] >= 0
        chosen = {key: values[kept_rows] for key, values in chosen.items() if len(values) == len(kept_rows)}
    name = "inputs" if "inputs" in chosen else "features"
    kept = {name: np.asarray(chosen[name], np.float32)}
    if "labels" in chosen and (chosen["labels"] >= 0).all():
        kept["labels"] = chosen["labels"].astype(np.int64)
    return Samples(kept, classes)


def _first_of_each(samples: Samples, first: int | None) -> Samples:
    if first is None:
        return samples
    if samples.labels is None:
        raise InputError(f"first = {first}: these samples have no classes to take so many of each from")
    labels = np.asarray(samples.labels)
    kept = [np.flatnonzero(labels == label)[:first] for label in np.unique(labels)]
    return samples[np.sort(np.concatenate(kept))]


@READERS.register("idx")
def _idx(prefix: str, data: Path | None, fashion: bool = False) -> Samples:
    """Pictures and labels in the IDX format of MNIST, with or without ``.gz``; `prefix` is ``train`` or ``t10k``."""
    folder = FASHION if fashion and FASHION.is_dir() else None
    for name in ("fashion-mnist",) if fashion else ("mnist",):
        folder = data / name if data is not None and (data / name).is_dir() else folder
    if folder is None:
        way = "apt-get install dataset-fashion-mnist" if fashion else "offmap bench --get mnist"
        raise InputError(f"{'Fashion-' if fashion else ''}MNIST is not here; get it with: {way}")
    return read_idx_set(folder / f"{prefix}-images-idx3-ubyte")


@READERS.register("noise")
def _noise(kind: str, data: Path | None, n: int = 1000, shape: tuple[int, ...] = (32, 32, 3), seed: int = 0) -> Samples:
    """Made-up pictures: ``gaussian`` or ``uniform`` pixels."""
    rng = np.random.default_rng(seed)
    size = (n, *shape)
    if kind not in ("gaussian", "uniform"):
        raise InputError(f"noise = {kind!r}: 'gaussian' or 'uniform'")
    values = rng.integers(0, 256, size) if kind == "uniform" else np.clip(128 + 64 * rng.standard_normal(size), 0, 255)
    return Samples({"inputs": values.astype(np.uint8)})


@READERS.register("stored_only")
def _stored_only(name: str, data: Path | None) -> Samples:
    """Features of a network whose inputs are not at hand."""
    with np.load(locate(name, data), allow_pickle=False) as arrays:
        return Samples({"features": arrays["features"].astype(np.float32), "labels": arrays["labels"].astype(np.int64)})


def _reshaped(samples: Samples, side: int | None, grey: bool) -> Samples:
    from PIL import Image

    made = []
    for pixels in samples.inputs:
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        image = image.convert("L") if grey else image
        image = image if side is None else image.resize((side, side), Image.Resampling.BILINEAR)
        made.append(np.asarray(image))
    inputs = np.stack(made)
    return replace(samples, arrays={**samples.arrays, "inputs": inputs[..., None] if grey else inputs})
