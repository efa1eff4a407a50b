"""A bank on disk: the same answers, and a sentence for every way a file can be broken."""

from __future__ import annotations

import json
import multiprocessing
import os

import numpy as np
import pytest

from offmap.errors import StoreError
from offmap.neighbors import Bank


@pytest.fixture
def bank():
    rng = np.random.default_rng(0)
    return Bank().add(rng.normal(size=(3000, 8))).merge(Bank().add(rng.normal(size=(10, 8))))


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(("normalize", "dtype"), [(True, "float32"), (False, "float16")])
def test_round_trip(tmp_path, mmap, normalize, dtype):
    rng = np.random.default_rng(0)
    bank = Bank(normalize, dtype).add(rng.normal(size=(300, 8)))
    bank.save(tmp_path / "deep" / "bank")
    back = Bank.open(tmp_path / "deep" / "bank", mmap=mmap)
    assert isinstance(back.vectors, np.memmap) == mmap
    assert repr(back) == repr(bank)
    queries = rng.normal(size=(20, 8))
    np.testing.assert_array_equal(back.kth_distance(queries, 5), bank.kth_distance(queries, 5))


def test_mapped_parts_are_not_copied_when_banks_grow(tmp_path, bank):
    bank.save(tmp_path / "bank")
    mapped = Bank.open(tmp_path / "bank")
    grown = Bank().merge(mapped).add(np.ones((5, 8)))
    assert len(grown) == 3015
    assert grown._parts[0] is mapped._parts[0]
    expected = Bank().add(bank.vectors).add(np.ones((5, 8))).kth_distance(np.eye(8), 7)
    np.testing.assert_array_equal(grown.kth_distance(np.eye(8), 7), expected)


def test_an_empty_bank_can_be_saved(tmp_path):
    Bank().save(tmp_path / "bank")
    assert len(Bank.open(tmp_path / "bank")) == 0


def test_an_existing_bank_is_not_replaced(tmp_path, bank):
    bank.save(tmp_path / "bank")
    with pytest.raises(StoreError, match="exists already"):
        Bank().add([[1.0]]).save(tmp_path / "bank")
    assert len(Bank.open(tmp_path / "bank")) == 3010


def _write(folder, value, barrier, results):
    barrier.wait()
    try:
        Bank(normalize=False).add(np.full((2000, 50), value)).save(folder)
        results.put(value)
    except StoreError:
        results.put(None)


def test_of_two_writers_one_wins_whole(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    writers = [context.Process(target=_write, args=(tmp_path / "bank", value, barrier, results)) for value in (1, 2)]
    for writer in writers:
        writer.start()
    won = [results.get(timeout=120) for _ in writers]
    for writer in writers:
        writer.join()
    winner = [value for value in won if value is not None]
    assert len(winner) == 1
    assert (Bank.open(tmp_path / "bank").vectors == winner[0]).all()
    assert os.listdir(tmp_path) == ["bank"]


@pytest.mark.parametrize("mmap", [True, False])
def test_a_truncated_file_is_named(tmp_path, bank, mmap):
    bank.save(tmp_path / "bank")
    file = tmp_path / "bank" / "vectors.npy"
    whole = file.read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(StoreError, match="truncated"):
            Bank.open(tmp_path / "bank", mmap=mmap)


def test_a_changed_byte_is_noticed_when_everything_is_read(tmp_path, bank):
    bank.save(tmp_path / "bank")
    with (tmp_path / "bank" / "vectors.npy").open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"\x01")
    with pytest.raises(StoreError, match="checksum"):
        Bank.open(tmp_path / "bank", mmap=False)


def test_missing_or_foreign_descriptions_are_named(tmp_path, bank):
    with pytest.raises(StoreError, match="no bank"):
        Bank.open(tmp_path)
    bank.save(tmp_path / "bank")
    meta = tmp_path / "bank" / "bank.json"
    good = json.loads(meta.read_text())
    for bad, words in [
        ("{", "not a readable"),
        ("[]", "not a readable"),
        (json.dumps(good | {"format": 9}), "format 9"),
        (json.dumps(good | {"shape": [3, 8]}), "says"),
    ]:
        meta.write_text(bad)
        with pytest.raises(StoreError, match=words):
            Bank.open(tmp_path / "bank")


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path, bank, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left"):
        bank.save(tmp_path / "bank")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("order", ["as drawn", "sorted"])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_large_mapped_bank_answers_like_one_in_memory(tmp_path, order, normalize):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20000, 12)) + 0.5
    if order == "sorted":
        vectors = vectors[np.argsort(vectors[:, 0])]
    queries = rng.normal(size=(60, 12))
    Bank(normalize).add(vectors[:15000]).save(tmp_path / "bank")
    mapped = Bank.open(tmp_path / "bank").add(vectors[15000:])
    whole = Bank(normalize).add(vectors)
    for k in (1, 50, 1000):
        np.testing.assert_allclose(mapped.kth_distance(queries, k), whole.kth_distance(queries, k), rtol=1e-6)
        np.testing.assert_allclose(mapped.search(queries, k)[0], whole.search(queries, k)[0], rtol=1e-4, atol=1e-6)
