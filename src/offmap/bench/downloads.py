"""Downloads of the standard sets: official addresses, checksums, downloads that resume and are verified."""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from offmap.errors import InputError, StoreError

CHUNK = 1 << 20
ATTEMPTS = 5
TIMEOUT = 30.0
SCHEMES = ("http://", "https://")


@dataclass(frozen=True)
class Remote:
    """One file: its address and the checksum that loaders of others (torchvision's first) hold it against."""

    url: str
    checksum: str
    algorithm: str = "md5"

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rpartition("/")[2].partition("?")[0]


@dataclass(frozen=True)
class Download:
    """A set: its files, the folder that they go to, what its publisher allows, and whether they are unpacked there."""

    files: tuple[Remote, ...]
    folder: str
    licence: str
    unpacked: bool = False


SETS: dict[str, Download] = {
    "cifar10": Download(
        (Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
        "cifar10",
        "no licence stated",
    ),
    "cifar100": Download(
        (Remote("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        "cifar100",
        "no licence stated",
    ),
    "svhn": Download(
        (
            Remote("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            Remote("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ),
        "svhn",
        "for non-commercial use",
    ),
    "textures": Download(
        (
            Remote(
                "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
                "fff73e5086ae6bdbea199a49dfb8a4c1",
            ),
        ),
        "dtd",
        "for research",
        unpacked=True,
    ),
    "mnist": Download(
        (
            Remote(
                "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz",
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            ),
            Remote(
                "https://ossci-datasets.s3.amazonaws.com/mnist/train-labels-idx1-ubyte.gz",
                "d53e105ee54ea40749a09fcbcd1e9432",
            ),
            Remote(
                "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-images-idx3-ubyte.gz",
                "9fb629c4189551a2d022fa330f9573f3",
            ),
            Remote(
                "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        "mnist",
        "CC BY-SA 3.0",
    ),
    "fashion-mnist": Download(
        tuple(
            Remote(f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz", checksum)
            for name, checksum in (
                ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe"),
                ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79"),
                ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310"),
            )
        ),
        "fashion-mnist",
        "MIT",
    ),
    "places365": Download(
        (
            Remote(
                "http://data.csail.mit.edu/places/places365/val_256.tar",
                "e27b17d8d44f4af9a78502beb927f808",
            ),
        ),
        "places365",
        "CC BY",
        unpacked=True,
    ),
    # made small by the authors of ODIN, the thesis' LSUN-Crop, LSUN-Resize and iSUN
    **{
        name: Download(
            (Remote(f"https://www.dropbox.com/s/{place}/{file}.tar.gz?dl=1", checksum),),
            name,
            "no licence stated",
            unpacked=True,
        )
        for name, place, file, checksum in (
            ("lsun-crop", "fhtsw1m3qxlwj6h", "LSUN", "458a0a0ab8e5f1cb4516d7400568e460"),
            ("lsun-resize", "moqh2wh8696c3yl", "LSUN_resize", "278b7b31c8cb7e804a1465a8ce03a2dc"),
            ("isun", "ssz7qxfqae0cca5", "iSUN", "be77b0f2c26fda898afac5f99645ee70"),
        )
    },
    # 10,000 pictures each of concepts that ImageNet does not have, picked by the authors of MOS
    **{
        name: Download(
            (Remote(f"http://pages.cs.wisc.edu/~huangrui/imagenet_ood_dataset/{file}.tar.gz", checksum),),
            name,
            "for research, as the sets they are taken from",
            unpacked=True,
        )
        for name, file, checksum in (
            ("inaturalist", "iNaturalist", "5be6ea8aa027d7b631916427b32cb335"),
            ("sun", "SUN", "8469c3ada62211477954ec1be53b12d0"),
            ("places", "Places", "b5cb5eba2754ae2a28beea8718db699a"),
        )
    },
    "imagenet-r": Download(
        (
            Remote(
                "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
                "a61312130a589d0ca1a8fca1f2bd3337",
            ),
        ),
        "imagenet-r",
        "MIT",
        unpacked=True,
    ),
}


def fetch_set(
    name: str, data: Path, *, mirror: str | None = None, on_step: Callable[[str], None] = lambda words: None
) -> list[Path]:
    """Fetch the files of a set into its folder below `data`; files already there and right are left alone.

    Parameters
    ----------
    name : str
        One of `SETS`.
    data : Path
        The data folder.
    mirror : str, optional
        Address to fetch from instead: file names are appended to it, checksums stay the same.
    on_step : callable, optional
        Called with a short text when a step begins.

    Returns
    -------
    list of Path
    """
    if name not in SETS:
        raise InputError(f"{name!r}: not a set that is known here; there are {', '.join(SETS)}")
    entry = SETS[name]
    folder = data / entry.folder
    folder.mkdir(parents=True, exist_ok=True)
    done = []
    for remote in entry.files:
        url = remote.url if mirror is None else f"{mirror.rstrip('/')}/{remote.name}"
        on_step(f"fetching {url}")
        done.append(fetch(Remote(url, remote.checksum, remote.algorithm), folder / remote.name))
        if entry.unpacked:
            on_step(f"unpacking {done[-1]}")
            unpack(done[-1], remote.checksum)
    return done


def unpack(archive: Path, content: str) -> Path:
    """Unpack a tar archive of pictures beside itself, once; nothing is written outside of that folder.

    Parameters
    ----------
    archive : Path
        The archive.
    content : str
        Its checksum, noted when all is unpacked: a run that was cut short begins again.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    StoreError
        If the archive is broken, or holds links or paths that lead elsewhere.
    """
    folder, note = archive.parent, archive.with_name(archive.name + ".unpacked")
    if note.is_file() and note.read_text(encoding="utf-8") == content:
        return folder
    try:
        with tarfile.open(archive) as held:
            held.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise StoreError(f"{archive}: cannot be unpacked ({error}); delete it and fetch it again") from error
    note.write_text(content, encoding="utf-8")
    return folder


def fetch(remote: Remote, target: Path, *, attempts: int = ATTEMPTS, pause: float = 1.0) -> Path:
    """Fetch one file, whole and right, or raise: broken connections are resumed, wrong bytes are never kept.

    Parameters
    ----------
    remote : Remote
        Address and checksum.
    target : Path
        Where the file goes; until it is right it is called ``<name>.part``.
    attempts : int, default=5
        Tries without any progress before giving up.
    pause : float, default=1.0
        Seconds before the second try; doubled for each further one.

    Returns
    -------
    Path
    """
    if not remote.url.startswith(SCHEMES):
        raise InputError(f"{remote.url}: only http and https addresses are fetched")
    if target.is_file() and checksum(target, remote.algorithm) == remote.checksum:
        return target
    part = target.with_name(target.name + ".part")
    failures, restarted = 0, False
    while True:
        before = part.stat().st_size if part.is_file() else 0
        problem = _continue(remote.url, part)
        if problem is None:
            found = checksum(part, remote.algorithm)
            if found == remote.checksum:
                os.replace(part, target)
                return target
            part.unlink()
            if restarted or before == 0:  # bytes all from this answer were wrong: the server has another file
                raise StoreError(
                    f"{remote.url}: its {remote.algorithm} is {found}, not {remote.checksum}; nothing was kept. "
                    "Try --mirror with another address"
                )
            restarted = True
            continue
        after = part.stat().st_size if part.is_file() else 0
        failures = 0 if after > before else failures + 1
        if failures >= attempts:
            raise StoreError(f"{remote.url}: {problem}; run the same command again to resume, or try --mirror")
        time.sleep(pause * 2**failures if failures else 0)


def _continue(url: str, part: Path) -> str | None:
    """Append what is missing; return the reason when the file is not whole afterwards."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # http(s)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # http(s) only, checked above
            resumed = answer.status == 206
            length = answer.headers.get("Content-Length")
            got = 0
            with part.open("ab" if resumed else "wb") as stream:
                while block := answer.read(CHUNK):
                    stream.write(block)
                    got += len(block)
            if length is not None and length.isdecimal() and got < int(length):
                return f"the connection ended after {got} of {length} bytes"
            return None
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or the server's file is shorter: the checksum decides
            return None
        return f"the server answered {error.code} {error.reason}"
    except (OSError, HTTPException) as error:
        return str(error) or type(error).__name__


def checksum(file: Path, algorithm: str) -> str:
    """Compute the checksum of a file.

    Parameters
    ----------
    file : Path
        The file.
    algorithm : str
        A name that `hashlib` knows.

    Returns
    -------
    str

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a"
    >>> _ = file.write_bytes(b"")
    >>> checksum(file, "md5")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
