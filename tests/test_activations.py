"""`Head` and `Activations`: what they take, what they refuse, their folder on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import offmap
from offmap import Activations, Head
from offmap.activation_files import array_file
from offmap.errors import InputError, MissingError, StoreError


def some(n: int = 20, **more: Any) -> Activations:
    rng = np.random.default_rng(0)
    parts: dict[str, Any] = {
        "head": Head(rng.normal(size=(3, 5)), rng.normal(size=3)),
        "labels": np.arange(n) % 3,
        "extras": {"layer(a/b,mean)": rng.normal(size=(n, 2, 2)), "wide": np.arange(n)},
    }
    return Activations(rng.normal(size=(n, 5)).astype(np.float32), **(parts | more))


def test_logits_by_hand() -> None:
    acts = some()
    wanted = np.empty((20, 3))
    for n, row in enumerate(acts.features):
        for c in range(3):
            wanted[n, c] = sum(acts.head.weight[c, d] * row[d] for d in range(5)) + acts.head.bias[c]
    np.testing.assert_allclose(acts.logits, wanted, rtol=1e-5, atol=1e-5)
    assert np.array_equal(acts.predictions, np.argmax(wanted, axis=1))
    assert repr(acts) == "Activations(20 inputs, 5 features, 3 classes, labels, layer(a/b,mean), wide)"
    assert repr(acts.head) == "Head(3 classes, 5 features)"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Head(np.ones(3)), "classes × features"),
        (lambda: Head(np.ones((0, 3))), "classes × features"),
        (lambda: Head(np.ones((2, 3)), [1.0]), "2 rows of weights but 1 biases"),
        (lambda: Head([[np.nan]]), "NaN or infinity"),
        (lambda: Head([[1.0]], [np.inf]), "NaN or infinity"),
        (lambda: Activations(None), "give features, logits or both"),
        (lambda: Activations(np.ones(3)), "two dimensions are needed"),
        (lambda: Activations(np.ones((2, 2, 2))), "two dimensions are needed"),
        (lambda: Activations(np.ones((2, 0))), "at least one number"),
        (lambda: Activations([["a"]]), "numbers are needed"),
        (lambda: Activations([[1, 2], [3]]), "equally many numbers"),
        (lambda: Activations(torch.zeros(2, 2, dtype=torch.complex64)), "numbers are needed"),
        (
            lambda: Activations(np.ones((2, 3)), Head(np.ones((2, 4)))),
            "the head reads 4 features, but each input has 3",
        ),
        (lambda: Activations(np.ones((2, 4)), Head(np.ones((2, 4))), np.ones((2, 3))), "the logits 3 columns"),
        (lambda: Activations(np.ones((2, 3)), logits=np.ones((3, 3))), "2 inputs but 3 rows of logits"),
        (lambda: Activations(np.ones((2, 3)), labels=[1]), "2 inputs but 1 rows of labels"),
        (lambda: Activations(np.ones((2, 3)), labels=[[1], [2]]), "one class index per input"),
        (lambda: Activations(np.ones((2, 3)), labels=[0.5, 1]), "whole numbers"),
        (lambda: Activations(np.ones((2, 3)), labels=[np.nan, 1]), "whole numbers"),
        (lambda: Activations(np.ones((2, 3)), labels=[np.inf, 1]), "whole numbers"),
        (lambda: Activations(np.ones((2, 3)), extras={"x": np.ones(3)}), r"3 rows of extras\['x'\]"),
        (lambda: Activations(np.ones((2, 3)), extras={"x": 3.0}), "one number of extras"),
        (lambda: list(some().blocks(0)), "at least one input"),
    ],
)
def test_refused_with_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingError, match="hold logits only"):
        Activations(None, logits=np.ones((1, 2))).features  # noqa: B018 - reading it is the test
    bare = Activations(np.ones((1, 2)))
    with pytest.raises(MissingError, match=r"pass logits=\.\.\. or head="):
        bare.logits  # noqa: B018 - reading it is the test
    with pytest.raises(MissingError, match="classes are not known"):
        bare.n_classes  # noqa: B018 - reading it is the test
    assert not bare.has_logits
    assert bare.given_logits is None


def test_a_head_over_arrays_that_cannot_be_written_can() -> None:
    weight, bias = np.eye(2, 3, dtype=np.float32), np.zeros(2, np.float32)
    weight.flags.writeable = bias.flags.writeable = False
    head = offmap.Head(weight, bias)  # torch warns of tensors over the given ones
    assert head.weight.flags.writeable
    assert head.bias.flags.writeable
    np.testing.assert_array_equal(head.weight, weight)


def test_any_kind_of_array() -> None:
    rows = np.arange(6.0).reshape(2, 3)
    for given_ in (rows, rows.tolist(), torch.tensor(rows), torch.tensor(rows).bfloat16(), torch.tensor(rows).half()):
        assert np.array_equal(Activations(given_).features, rows)
    with_gradient = torch.tensor(rows, requires_grad=True)
    assert np.array_equal(Activations(with_gradient).features, rows)
    assert Activations(rows, labels=[1.0, 2.0]).labels.dtype.kind == "i"
    assert np.array_equal(Activations(rows, labels=torch.tensor([1, 0])).labels, [1, 0])


@settings(max_examples=60)
@given(st.integers(0, 25), st.one_of(st.slices(25), st.lists(st.integers(0, 24), max_size=9)), st.integers(1, 30))
def test_parts_are_numpys_parts(n: int, index: Any, size: int) -> None:
    acts = some(n)
    if isinstance(index, list):
        index = np.array([i for i in index if i < n], dtype=int)
    part = acts[index]
    assert np.array_equal(part.features, acts.features[index])
    assert np.array_equal(part.labels, acts.labels[index])
    assert np.array_equal(part.extras["wide"], acts.extras["wide"][index])
    assert part.head is acts.head
    blocks = list(acts.blocks(size))
    assert sum(map(len, blocks)) == n
    assert all(len(block) == size for block in blocks[:-1])
    if n:
        assert np.array_equal(np.concatenate([block.features for block in blocks]), acts.features)


def test_single_inputs() -> None:
    acts = some(4)
    assert len(acts[-1]) == 1
    assert np.array_equal(acts[-1].features, acts.features[-1:])
    assert np.array_equal(acts[np.int64(2)].labels, [2])
    assert len([one for one in acts]) == 4  # noqa: C416 - iterating is the test
    for outside in (4, -5):
        with pytest.raises(IndexError):
            acts[outside]
    assert len(acts[np.array([True, False, True, False])]) == 2


def test_blocks_are_near_16_megabytes() -> None:
    wide = Activations(np.zeros((1, 2048), np.float32))
    assert wide.block_rows() * 2048 * 4 == 16 * 2**20
    assert Activations(np.zeros((1, 10**6), np.float32)).block_rows() == 64
    assert Activations(np.zeros((1, 1), np.float32)).block_rows() == 16384


@pytest.mark.parametrize("dtype", [None, "float32", "float16"])
def test_a_folder_comes_back_mapped(tmp_path: Path, dtype: str | None) -> None:
    acts = some(logits=np.ones((20, 3)))
    acts.save(tmp_path / "acts", dtype)
    back = Activations.open(tmp_path / "acts")
    assert isinstance(back.features, np.memmap)
    assert back.features.dtype == np.dtype(dtype or "float32")
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(back.features, acts.features, atol=tolerance)
    np.testing.assert_allclose(back.given_logits, acts.given_logits)
    assert np.array_equal(back.labels, acts.labels)
    assert np.array_equal(back.head.weight, acts.head.weight)
    np.testing.assert_allclose(back.extras["layer(a/b,mean)"], acts.extras["layer(a/b,mean)"], atol=tolerance)
    with pytest.raises((ValueError, TypeError)):
        back.features[0] = 1
    scores = offmap.detector("energy").fit(back).score(back)
    assert len(scores) == 20
    with pytest.raises(StoreError, match="already holds activations"):
        acts.save(tmp_path / "acts")


def test_save_never_touches_a_file_of_someone_else(tmp_path):
    (tmp_path / "features.npy").write_bytes(b"mine")
    with pytest.raises(StoreError, match=r"features\.npy would be written over"):
        Activations(np.zeros((2, 3), np.float32)).save(tmp_path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"mine"]


def test_empty_and_logits_only_folders(tmp_path: Path) -> None:
    some(0).save(tmp_path / "empty")
    assert len(Activations.open(tmp_path / "empty")) == 0
    Activations(None, logits=np.ones((3, 2))).save(tmp_path / "logits")
    back = Activations.open(tmp_path / "logits")
    assert not back.has_features
    assert len(back) == 3


def test_names_of_extras_stay_in_the_folder(tmp_path: Path) -> None:
    names = ["../../etc/passwd", "a/b", "..", "ü", "features", "with space", "%2e"]
    acts = Activations(np.ones((2, 2)), extras={name: np.full(2, i) for i, name in enumerate(names)})
    acts.save(tmp_path / "acts")
    assert {path.parent for path in tmp_path.rglob("*.npy")} == {tmp_path / "acts"}
    back = Activations.open(tmp_path / "acts")
    assert {name: int(back.extras[name][0]) for name in names} == {name: i for i, name in enumerate(names)}
    assert len({array_file(name) for name in names}) == len(names)


def test_numbers_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not fit float16; save them as float32"):
        Activations(np.full((2, 2), 7e4)).save(tmp_path / "a", "float16")
    with pytest.raises(StoreError, match="no finished activations"):
        Activations.open(tmp_path / "a")
    Activations(np.full((2, 2), 7e4)).save(tmp_path / "a", "float32")
    with pytest.raises(InputError, match="'float32' or 'float16'"):
        some().save(tmp_path / "b", "float64")


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "acts"
    some(200).save(folder)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    def restored() -> None:
        for path in folder.iterdir():
            path.unlink()
        for name, content in whole.items():
            (folder / name).write_bytes(content)

    for name, content in whole.items():
        for length in (0, 1, 7, 60, len(content) // 2, len(content) - 1):
            (folder / name).write_bytes(content[:length])
            with pytest.raises(StoreError):
                Activations.open(folder)
        (folder / name).unlink()
        with pytest.raises(StoreError):
            Activations.open(folder)
        restored()
    meta = json.loads(whole["activations.json"])
    for wrong in (
        {**meta, "format": 9},
        {**meta, "arrays": {}},
        {**meta, "arrays": []},
        {**meta, "arrays": {**meta["arrays"], "features": 199}},
        {**meta, "arrays": {**meta["arrays"], "extra.ghost": 200}},
        {"format": 1},
        [],
        "text",
    ):
        (folder / "activations.json").write_text(json.dumps(wrong))
        with pytest.raises(StoreError):
            Activations.open(folder)
    restored()
    np.save(folder / "features.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(StoreError):
        Activations.open(folder)
    with pytest.raises(StoreError, match="no finished activations"):
        Activations.open(tmp_path / "absent")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("was_there", [False, True])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, was_there: bool) -> None:
    """The kernel refuses to let files grow beyond a limit, as a full disk does; a mapped file would end by a signal."""
    if was_there:
        (tmp_path / "acts").mkdir()
    done = run(
        """
        import resource, sys
        import numpy as np
        from offmap import Activations
        from offmap.errors import StoreError
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            Activations(np.ones((10_000, 8)), labels=np.zeros(10_000)).save(sys.argv[1])
        except StoreError as error:
            print(error)
        """,
        str(tmp_path / "acts"),
    )
    assert done.returncode == 0, done.stderr
    assert "could not be written (File too large); nothing was left behind" in done.stdout
    assert list(tmp_path.rglob("*")) == ([tmp_path / "acts"] if was_there else [])


@pytest.mark.parametrize("use", ["acts.features.sum()", "acts.labels.sum()", "acts[5:9]", "list(acts.blocks())"])
def test_a_file_cut_short_after_opening_is_an_error(tmp_path: Path, use: str) -> None:
    Activations(np.ones((100_000, 4)), labels=np.zeros(100_000, np.int64)).save(tmp_path / "acts")
    done = run(
        f"""
        import os, sys
        from offmap import Activations
        from offmap.errors import StoreError
        acts = Activations.open(sys.argv[1])
        for name in ("features.npy", "labels.npy"):
            os.truncate(sys.argv[1] + "/" + name, 1000)
        try:
            {use}
        except StoreError as error:
            print(error)
        """,
        str(tmp_path / "acts"),
    )
    assert done.returncode == 0, done.stderr
    assert "was cut short after it was opened, to 1000 bytes" in done.stdout


def test_changed_bytes_are_found_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "acts"
    Activations(np.ones((4000, 64), np.float32), labels=np.zeros(4000, np.int64)).save(folder)
    file = folder / "features.npy"
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="checksum does not match"):
        Activations.open(folder)
    assert len(Activations.open(folder, verify=False)) == 4000
    # as a huge folder is: many blocks, of which a few are read
    monkeypatch.setattr("offmap.activation_files.BLOCK_BYTES", 4096)
    monkeypatch.setattr("offmap.activation_files.CHECKED_WHOLE", 1000)
    acts = Activations(np.ones((4000, 64), np.float32))
    acts.save(tmp_path / "huge")
    file = tmp_path / "huge" / "features.npy"
    whole = file.read_bytes()
    assert len(json.loads((tmp_path / "huge" / "activations.json").read_text())["checksums"]["features"]) == 251
    for place in (200, len(whole) - 1):
        file.write_bytes(whole[:place] + b"\x07" + whole[place + 1 :])
        with pytest.raises(StoreError, match="checksum does not match"):
            Activations.open(tmp_path / "huge")
    file.write_bytes(whole[:5000] + b"\x07" + whole[5001:])
    assert len(Activations.open(tmp_path / "huge")) == 4000, "a block that is not read"
    with pytest.raises(StoreError, match="checksum does not match"):
        Activations.open(tmp_path / "huge", verify=True)


def test_folders_without_checksums_still_open(tmp_path: Path) -> None:
    some().save(tmp_path / "acts")
    file = tmp_path / "acts" / "activations.json"
    meta = json.loads(file.read_text())
    for wrong in ("text", {"features": 3}, {"features": [1]}):
        file.write_text(json.dumps(meta | {"checksums": wrong}))
        with pytest.raises(StoreError):
            Activations.open(tmp_path / "acts")
    del meta["checksums"]
    file.write_text(json.dumps(meta))
    assert len(Activations.open(tmp_path / "acts")) == 20


def test_tensors_that_numpy_does_not_know() -> None:
    rows = torch.tensor([[0.5, 1.0], [2.0, 0.0]])
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        assert np.array_equal(Activations(rows.to(dtype)).features, rows)
    for sparse in (rows.to_sparse(), rows.to_sparse_csr()):
        with pytest.raises(InputError, match=r"pass its to_dense\(\)"):
            Head(sparse)
    with pytest.raises(InputError, match="holds no numbers"):
        Activations(torch.empty(2, 2, device="meta"))
