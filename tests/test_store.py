"""The saving format under faults: cut, altered, full disk, killed in the middle, foreign."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save as plain_safetensors
from safetensors.torch import save_file as save_tensors

from offmap import store
from offmap.errors import StoreError

TENSORS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.array(7), "none": np.zeros((0, 4))}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    target = tmp_path / "a.offmap"
    store.save(target, "example", {"k": 3, "name": "é", "nested": {"list": [1, None, 2.5]}}, TENSORS)
    return target


def test_everything_comes_back(file: Path) -> None:
    held = store.load(file, kind="example")
    assert held.kind == "example"
    assert held.config == {"k": 3, "name": "é", "nested": {"list": [1, None, 2.5]}}
    assert held.tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert held.tensors[name].shape == array.shape, name
        assert held.tensors[name].dtype == array.dtype, name
        assert np.array_equal(held.tensors[name], array), name


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, False]),
        np.array([1, 2], np.uint8),
        np.array([-1], np.int16),
        np.array([1.5], np.float16),
        np.arange(3.0).astype(">f8"),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-3],
        np.array([np.nan, np.inf, -0.0]),
        np.zeros((2, 0, 3), np.int64),
    ],
    ids=str,
)
def test_every_kind_of_array_comes_back(array: np.ndarray, tmp_path: Path) -> None:
    store.save(tmp_path / "a", "example", {}, {"x": array})
    back = store.load(tmp_path / "a").tensors["x"]
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(back, array, equal_nan=array.dtype.kind == "f")


def test_the_same_content_is_the_same_file(tmp_path: Path) -> None:
    store.save(tmp_path / "a", "example", {"k": 1}, {"x": np.ones(3), "y": np.zeros(2)})
    store.save(tmp_path / "b", "example", {"k": 1}, {"y": np.zeros(2), "x": np.ones(3)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_cut_anywhere_it_is_refused(file: Path) -> None:
    content = file.read_bytes()
    for length in [*range(0, len(content), 7), *range(len(content) - 12, len(content))]:
        file.write_bytes(content[:length])
        with pytest.raises(StoreError):
            store.load(file)
    for tail in (b"\0", b"more", content):
        file.write_bytes(content + tail)
        with pytest.raises(StoreError):
            store.load(file)


def test_no_changed_bit_goes_unnoticed(file: Path) -> None:
    """Any single changed bit is refused, or changes nothing that is read (blanks that pad the header)."""
    content = bytearray(file.read_bytes())
    whole = store.load(file)
    for place in range(len(content)):
        content[place] ^= 1 << place % 8
        file.write_bytes(content)
        with contextlib.suppress(StoreError):
            held = store.load(file)
            assert held.kind == whole.kind
            assert held.config == whole.config
            assert all(np.array_equal(held.tensors[name], whole.tensors[name]) for name in TENSORS)
        content[place] ^= 1 << place % 8


def test_foreign_and_newer_files(tmp_path: Path, file: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        store.load(tmp_path / "absent")
    with pytest.raises(StoreError, match=r"a folder; give the file inside, .*a\.offmap"):
        store.load(tmp_path)
    with pytest.raises(StoreError, match="holds a example, not a detector"):
        store.load(file, kind="detector")
    other = tmp_path / "other"
    other.write_bytes(plain_safetensors({"x": np.ones(2)}))
    with pytest.raises(StoreError, match="not one that offmap wrote"):
        store.load(other)
    header = {"format": 99, "kind": "example", "config": {}, "sha256": ""}
    other.write_bytes(plain_safetensors({"x": np.ones(2)}, metadata={"offmap": json.dumps(header)}))
    with pytest.raises(StoreError, match="format 99, this version of offmap reads format 1"):
        store.load(other)
    for text in ("[]", "{}", "nonsense", '{"format": 1}'):
        other.write_bytes(plain_safetensors({"x": np.ones(2)}, metadata={"offmap": text}))
        with pytest.raises(StoreError):
            store.load(other)
    for content in (b"", b"\x80\x04\x95pickle", os.urandom(200), b"\xff" * 8 + b"{}", b"PK\x03\x04" * 20):
        other.write_bytes(content)
        with pytest.raises(StoreError):
            store.load(other)


def test_folders_that_are_not_there_or_closed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        store.save(tmp_path / "no" / "a", "example", {}, {})
    (tmp_path / "taken").mkdir()
    with pytest.raises(StoreError, match="could not be written"):
        store.save(tmp_path / "taken", "example", {}, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"], "no leftovers"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_full_disk_leaves_the_old_file(file: Path) -> None:
    """The kernel refuses to let files grow beyond a limit, as a full disk does."""
    before = file.read_bytes()
    done = run(
        """
        import resource, sys
        import numpy as np
        from offmap import store
        from offmap.errors import StoreError
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            store.save(sys.argv[1], "example", {}, {"x": np.ones(100_000)})
        except StoreError as error:
            print(error)
        """,
        str(file),
    )
    assert "could not be written" in done.stdout, done.stderr
    assert "untouched" in done.stdout
    assert file.read_bytes() == before
    assert [entry.name for entry in file.parent.iterdir()] == [file.name], "no leftovers"


def test_killed_while_saving_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    """A process saves two different contents in turn until it is killed; whatever is there then is one of them."""
    file = tmp_path / "a.offmap"
    script = textwrap.dedent("""
        import sys
        import numpy as np
        from offmap import store
        turn = 0
        while True:
            store.save(sys.argv[1], "example", {"turn": turn % 2}, {"x": np.full(300_000, turn % 2, np.float32)})
            turn += 1
            print(turn, flush=True)
    """)
    for delay in (0.0, 0.003, 0.01, 0.02):
        writer = subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(3):
            writer.stdout.readline()
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        held = store.load(file)
        assert (held.tensors["x"] == held.config["turn"]).all()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    done = run(
        """
        import os, sys
        from offmap import store
        os.umask(0o027)
        store.save(sys.argv[1], "example", {}, {})
        print(oct(os.stat(sys.argv[1]).st_mode & 0o777))
        """,
        str(tmp_path / "a"),
    )
    assert done.stdout.strip() == "0o640", done.stderr


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_that_numpy_does_not_know_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    header = json.dumps({"format": 1, "kind": "example", "config": {}, "sha256": ""})
    save_tensors({"x": torch.ones(2).to(dtype)}, tmp_path / "a", metadata={"offmap": header})
    with pytest.raises(StoreError, match="x holds numbers of type"):
        store.load(tmp_path / "a")


@pytest.mark.parametrize("depth", [300, 990, 5000, 200_000])
def test_a_deeply_nested_description_is_refused(tmp_path: Path, depth: int) -> None:
    text = '{"format": 1, "kind": "example", "sha256": "", "config": {"a": ' + "[" * depth + "]" * depth + "}}"
    (tmp_path / "a").write_bytes(plain_safetensors({"x": np.ones(2)}, metadata={"offmap": text}))
    with pytest.raises(StoreError):
        store.load(tmp_path / "a")
    for config in ("[]", "3", "null"):
        text = '{"format": 1, "kind": "example", "sha256": "", "config": ' + config + "}"
        (tmp_path / "a").write_bytes(plain_safetensors({"x": np.ones(2)}, metadata={"offmap": text}))
        with pytest.raises(StoreError, match="not one that offmap wrote"):
            store.load(tmp_path / "a")


def test_a_lack_of_memory_is_not_called_a_damaged_file():
    with pytest.raises(MemoryError), store.restoring("detector"):
        raise MemoryError
