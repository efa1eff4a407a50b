"""One reading of one shard, and how the readings of all shards become one detector; no engine is known here.

Detectors travel as the bytes of their own safe file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from offmap import store
from offmap.activations import Activations
from offmap.data import write_table
from offmap.detection.detectors import Detector, detector
from offmap.errors import StoreError
from offmap.extra_passes import Requirements


def pack(packed: Detector) -> bytes:
    """Turn a detector into bytes, in whatever state it is.

    Parameters
    ----------
    packed : Detector
        Fitted or not.

    Returns
    -------
    bytes
        What `unpack` reads.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "detector"
        packed.save(file)
        return file.read_bytes()


def unpack(content: bytes) -> Detector:
    """Turn bytes into the detector again.

    Parameters
    ----------
    content : bytes
        What `pack` made.

    Returns
    -------
    Detector
        In the same state.

    Examples
    --------
    >>> unpack(pack(detector("react(90)|energy")))
    react(90)|energy
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "detector"
        file.write_bytes(content)
        return Detector.restore(store.load(file, "detector"))


def read(part: Detector, acts: Activations) -> Detector:
    """Add a shard to a detector, block by block.

    Parameters
    ----------
    part : Detector
        Being fitted.
    acts : Activations
        Activations of the shard.

    Returns
    -------
    Detector
        The same.
    """
    for block in acts.blocks():
        part.update(block)
    return part


def fit(spec: str | Detector, read_all: Callable[[bytes, Requirements], Iterable[Detector]]) -> Detector:
    """Fit a detector by readings of all shards, as often as exactness takes.

    Parameters
    ----------
    spec : str or Detector
        The detector, or its text form.
    read_all : callable
        Shows every shard to a copy of the packed detector and gives the copies back, in the order of the shards, so
        that equal shards give equal bits.

    Returns
    -------
    Detector
        Fitted.
    """
    whole = detector(spec)
    for requirements in whole.readings():
        for part in read_all(pack(whole), requirements):
            whole.merge(part)
    return whole


def write_scores(guard: Detector, acts: Activations, file: Path) -> int:
    """Score a shard into a Parquet file, whole or not at all.

    Parameters
    ----------
    guard : Detector
        Fitted.
    acts : Activations
        Activations of the shard.
    file : Path
        Where to write.

    Returns
    -------
    int
        How many inputs are unknown; −1 without a threshold.
    """
    if guard.calibration is None:
        write_table(file, {"score": guard.score(acts)})
        return -1
    verdicts = guard.verdicts(acts)
    columns = {"score": verdicts.score, "p_value": verdicts.p_value, "known": verdicts.known}
    if verdicts.predicted is not None:
        columns["predicted"] = verdicts.predicted
    write_table(file, columns)
    return int((~verdicts.known).sum())


def names(shards: list[str]) -> list[str]:
    """Make a file name for each shard's scores: its place, so that the order is kept, and its own name.

    Parameters
    ----------
    shards : list of str
        Paths of shards.

    Returns
    -------
    list of str
        File names.

    Examples
    --------
    >>> names(["a/x.parquet", "b/x.parquet"])
    ['00000-x.parquet', '00001-x.parquet']
    """
    found = [f"{number:05d}-{Path(shard).stem}.parquet" for number, shard in enumerate(shards)]
    if any(len(name.encode()) > 255 for name in found):
        raise StoreError(f"a shard's name is too long for a file of scores: {max(found, key=len)}")
    return found
