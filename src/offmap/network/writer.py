"""A folder of activations that grows batch by batch and survives a crash at any moment.

Arrays are `.npy` files that only ever grow at the end. A journal, one checksummed line per batch, says which
rows count: data reaches the disk first, its line after, so rows without a line are cut off and written again.
Each line holds a digest of the inputs, by which a changed or shuffled loader is recognised, and a checksum of
what was computed from them.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from offmap import store
from offmap.activation_files import META, array_file, compute_checksums, write_meta
from offmap.activations import Activations, Head
from offmap.errors import StoreError
from offmap.typing import Array

JOURNAL = "extraction.journal"
FORMAT = 1
_HEADER_BYTES = 256
_COMMIT_BYTES = 8 * 2**20
_COMMIT_SECONDS = 2.0


@dataclass(frozen=True)
class ExtractionPlan:
    """A description of an extraction: everything that must agree before a folder is continued or reused."""

    network: str
    layer: str | None
    dtype: str
    extras: tuple[str, ...]


class ActivationWriter:
    """The writing side of one extraction: holds a lock while it is open, can be resumed however it ends."""

    def __init__(self, path: str | os.PathLike[str], plan: ExtractionPlan) -> None:
        self.path = Path(path)
        self.plan = plan
        self.rows = 0
        self._arrays: dict[str, dict[str, Any]] = {}
        self._batches: list[dict[str, Any]] = []
        self._files: dict[str, IO[bytes]] = {}
        self._journal: IO[bytes] | None = None
        self._lock: int | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._committed_at = time.monotonic()

    def __enter__(self) -> ActivationWriter:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        try:
            if (self.path / JOURNAL).exists():
                self._journal = (self.path / JOURNAL).open("r+b")
                self._read_journal(self._journal)
            elif self.finished:
                raise StoreError(f"{self.path}: already holds activations saved there; choose another folder")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            # after a failure the error at hand matters more than one of the disk's
            with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
                self._commit()
        finally:
            self._close()

    def _close(self) -> None:
        for file in [*self._files.values(), self._journal]:
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        if self._lock is not None:
            os.close(self._lock)

    @property
    def finished(self) -> bool:
        """Whether the whole extraction is there."""
        return (self.path / META).exists()

    def check(self, index: int, rows: int, digest: str) -> bool:
        """Return `True` if a batch is there already; raise an error when it was made from other inputs.

        Parameters
        ----------
        index : int
            Number of the batch.
        rows : int
            Its inputs.
        digest : str
            Digest of its inputs.

        Returns
        -------
        bool
            Whether it can be skipped.
        """
        if index >= len(self._batches):
            if self.finished:
                raise StoreError(
                    f"{self.path}: finished with {len(self._batches)} batches, but the loader gives more; "
                    "choose another folder or remove it"
                )
            return False
        record = self._batches[index]
        if record["inputs"] != digest or record["rows"] != rows:
            raise StoreError(
                f"{self.path}: batch {index} is not the one this folder was made from. The loader may be "
                "shuffled or random, have another batch size, or the data may have changed; use a fixed "
                "order, or choose another folder"
            )
        self._check_outputs(index, record)
        return True

    def append(self, arrays: Mapping[str, Array], digest: str) -> None:
        """Add the results of one batch; they are safe on disk after the next commit.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            By name.
        digest : str
            Digest of the inputs.
        """
        if not self._files:
            with self._saying():
                self._start(arrays)
        specs = _specs(arrays)
        if specs != self._arrays:
            raise StoreError(f"{self.path}: earlier batches held {self._arrays}, this one {specs}; they must agree")
        rows = len(next(iter(arrays.values())))
        checks = {}
        with self._saying():
            for name, array in arrays.items():
                content = np.ascontiguousarray(array).tobytes()
                self._files[name].write(content)
                checks[name] = zlib.crc32(content)
                self._pending_bytes += len(content)
            record = {"start": self.rows, "rows": rows, "inputs": digest, "outputs": checks}
            self._pending.append(_line(record))
            self._batches.append(record)
            self.rows += rows
            if self._pending_bytes >= _COMMIT_BYTES or time.monotonic() - self._committed_at >= _COMMIT_SECONDS:
                self._commit()

    def finish(self, batches: int, head: Head | None) -> Activations:
        """Mark the folder as complete and map it into memory.

        Parameters
        ----------
        batches : int
            How many there were.
        head : Head or None
            The network's last linear layer.

        Returns
        -------
        Activations
            Mapped.
        """
        if batches != len(self._batches):
            raise StoreError(
                f"{self.path}: made from {len(self._batches)} batches, but the loader now gives {batches}; "
                "choose another folder or remove it"
            )
        if not self.finished:
            with self._saying():
                self._end(head)
        return Activations.open(self.path)

    def _end(self, head: Head | None) -> None:
        if not self._files:
            self._open_files()
        self._commit()
        for name, file in self._files.items():
            file.seek(0)
            file.write(npy_header(self._arrays[name], self.rows))
            _flush(file)
        names = sorted(self._arrays)
        checksums = {name: compute_checksums(self.path / array_file(name)) for name in names}
        write_meta(self.path, dict.fromkeys(names, self.rows), None if head is None else head.arrays(), checksums)

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        """Turn what the disk refuses into a sentence; what was not committed is given up."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            self._pending.clear()
            raise StoreError(
                f"{self.path}: writing failed ({error.strerror or error}); finished batches are kept, "
                "run it again when that is mended"
            ) from error

    def _commit(self) -> None:
        if not self._pending:
            return
        assert self._journal is not None
        for file in self._files.values():
            _flush(file)
        lines, self._pending = self._pending, []  # taken out first: an interrupt must not write them twice
        self._journal.write(b"".join(lines))
        _flush(self._journal)
        self._pending_bytes = 0
        self._committed_at = time.monotonic()

    def _start(self, arrays: Mapping[str, Array]) -> None:
        if self._journal is None:
            for name in arrays:
                if (self.path / array_file(name)).exists():
                    raise StoreError(f"{self.path / array_file(name)}: is in the way; choose another folder")
            self._arrays = _specs(arrays)
            header = {"format": FORMAT, "plan": asdict(self.plan), "arrays": self._arrays}
            store.write_atomically(self.path / JOURNAL, _line(header))
            self._journal = (self.path / JOURNAL).open("r+b")
            self._journal.seek(0, os.SEEK_END)
        self._open_files()

    def _open_files(self) -> None:
        """Open every array at the end of its last committed row, cutting off what was not committed."""
        for name, spec in self._arrays.items():
            path = self.path / array_file(name)
            if not path.exists() and self.rows == 0:
                store.write_atomically(path, npy_header(spec, 0))
            file = path.open("r+b")
            self._files[name] = file
            file.truncate(_HEADER_BYTES + self.rows * _row_bytes(spec))
            file.seek(0, os.SEEK_END)

    def _read_journal(self, journal: IO[bytes]) -> None:
        """Take up what the journal vouches for; a torn last line is cut off."""
        content = journal.read()
        lines = list(_whole_lines(content))
        if not lines or (self.finished and lines[-1][1] != len(content)):
            raise StoreError(f"{self.path / JOURNAL}: damaged, remove the folder and extract again")
        header = lines[0][0]
        self._check_plan(header)
        self._arrays = header["arrays"]
        self._batches = [record for record, _ in lines[1:]]
        self.rows = sum(record["rows"] for record in self._batches)
        journal.truncate(lines[-1][1])
        journal.seek(0, os.SEEK_END)
        for name, spec in self._arrays.items():
            path, needed = self.path / array_file(name), _HEADER_BYTES + self.rows * _row_bytes(spec)
            if self.rows and (not path.exists() or path.stat().st_size < needed):
                raise StoreError(f"{path}: shorter than the journal says; remove the folder and extract again")

    def _check_plan(self, header: Mapping[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise StoreError(f"{self.path / JOURNAL}: not of format {FORMAT}, which this version of offmap reads")
        there, asked = header["plan"], asdict(self.plan)
        if there["network"] != asked["network"]:
            raise StoreError(
                f"{self.path}: holds the activations of another network (or of this one before it was "
                f"trained further): weights {there['network'][:8]}…, now {asked['network'][:8]}…; "
                "choose another folder"
            )
        for name in ("layer", "dtype"):
            if there[name] != asked[name]:
                raise StoreError(
                    f"{self.path}: made with {name}={there[name]!r}, now {asked[name]!r}; choose another folder"
                )
        missing = [key for key in asked["extras"] if key not in there["extras"]]
        if missing or (not self.finished and len(there["extras"]) != len(asked["extras"])):
            raise StoreError(
                f"{self.path}: made with the extras {there['extras']}, now asked for "
                f"{list(asked['extras'])}; extract into another folder with all needs united"
            )

    def _check_outputs(self, index: int, record: Mapping[str, Any]) -> None:
        """Compare the rows of a batch on disk with the checksum they were written with."""
        for name, spec in self._arrays.items():
            path, width = self.path / array_file(name), _row_bytes(spec)
            with path.open("rb") as file:
                file.seek(_HEADER_BYTES + record["start"] * width)
                if zlib.crc32(file.read(record["rows"] * width)) != record["outputs"][name]:
                    raise StoreError(
                        f"{path}: the rows of batch {index} are damaged; remove the folder and extract again"
                    )


def read_plan(path: str | os.PathLike[str]) -> ExtractionPlan | None:
    """Return what the activations in a folder were made with; `None` where nothing was extracted."""
    journal = Path(path) / JOURNAL
    if not journal.is_file():
        return None
    header = next(_whole_lines(journal.read_bytes()), None)
    if header is None or header[0].get("format") != FORMAT:
        raise StoreError(f"{journal}: damaged, remove the folder and extract again")
    plan = header[0]["plan"]
    return ExtractionPlan(plan["network"], plan["layer"], plan["dtype"], tuple(plan["extras"]))


def npy_header(spec: Mapping[str, Any], rows: int) -> bytes:
    """Make the header of a `.npy` file, of constant length however many rows there are.

    Parameters
    ----------
    spec : mapping of str to Any
        Type and shape of one row.
    rows : int
        Number of rows.

    Returns
    -------
    bytes
        The header.

    Examples
    --------
    >>> import io
    >>> content = npy_header({"dtype": "<f4", "shape": [2]}, 1) + np.ones(2, np.float32).tobytes()
    >>> np.load(io.BytesIO(content))
    array([[1., 1.]], dtype=float32)
    """
    fields = {"descr": spec["dtype"], "fortran_order": False, "shape": (rows, *spec["shape"])}
    prefix = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return prefix + repr(fields).encode().ljust(_HEADER_BYTES - 11) + b"\n"


def _specs(arrays: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
    """Return what all batches must share: the type and the shape of one row of every array."""
    return {name: {"dtype": array.dtype.str, "shape": list(array.shape[1:])} for name, array in arrays.items()}


def _row_bytes(spec: Mapping[str, Any]) -> int:
    return int(np.dtype(spec["dtype"]).itemsize * np.prod(spec["shape"], dtype=np.int64))


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _whole_lines(content: bytes) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record up to the first line that is damaged or does not follow, with the place where its line ends."""
    end = rows = 0
    for line in content.splitlines(keepends=True):
        check, _, text = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or check != b"%08x" % zlib.crc32(text):
            return
        record = json.loads(text)
        if record.get("start", rows) != rows:
            return
        rows += record.get("rows", 0)
        end += len(line)
        yield record, end


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _locked(folder: Path) -> int | None:
    """Hold the folder for this process; the lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows has no flock; there the user keeps two extractions apart
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StoreError(f"{folder}: another process is extracting into this folder") from None
    return handle
