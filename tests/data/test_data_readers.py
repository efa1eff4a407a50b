"""Readers give back what was written, and refuse in one sentence what they cannot read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from safetensors.numpy import save_file

from offmap import data
from offmap.activations import Activations, Head
from offmap.errors import InputError, MissingError, OffmapError


def test_npz_with_synonyms_text_labels_and_a_head(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(
        file,
        embeddings=np.eye(3),
        y=np.array(["b", "a", "b"]),
        weight=np.ones((2, 3)),
        uncertainty=np.arange(3.0),
        unrelated=np.zeros(7),
    )
    samples = data.read(file)
    assert samples.labels is not None
    assert samples.labels.tolist() == [1, 0, 1]
    assert samples.classes == ("a", "b")
    assert sorted(samples.arrays) == ["features", "labels", "uncertainty"]
    acts = samples.activations()
    assert acts.logits.shape == (3, 2)
    assert len(samples[[0, 2]]) == 2


def test_npy_is_mapped_not_loaded(tmp_path):
    np.save(tmp_path / "f.npy", np.zeros((4, 5), np.float32))
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 8, 8), np.uint8))
    samples = data.read(tmp_path / "f.npy")
    assert isinstance(samples.features, np.memmap)
    assert data.read(tmp_path / "x.npy").inputs.shape == (4, 3, 8, 8)
    with pytest.raises(MissingError, match="no inputs here, only features"):
        _ = samples.inputs


def test_pickles_are_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    np.save(tmp_path / "b.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "b.npz", features=np.array([Bomb()], dtype=object))
    for name in ("b.npy", "b.npz"):
        with pytest.raises(InputError, match="pickled objects"):
            data.read(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_an_archive_larger_than_the_limit_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10)})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", header.getvalue() + bytes(50 * 2**20))
    with pytest.raises(InputError, match=r"the limit is 0\.0 GiB; raise max_bytes"):
        data.read(file, max_bytes=2**20)
    with pytest.raises(OffmapError, match=r"bomb\.npz"):  # the header promises more than the archive holds
        data.read(file)


@pytest.mark.parametrize("name", ["f.npz", "f.npy", "f.parquet", "folder"])
@settings(max_examples=25, deadline=None)
@given(junk=st.binary(max_size=300))
def test_junk_is_refused_with_the_file_named(tmp_path_factory, name, junk):
    path = tmp_path_factory.mktemp("junk") / name
    if name == "folder":
        path.mkdir()
        (path / "a.png").write_bytes(junk)
    else:
        path.write_bytes(junk)
    with pytest.raises(InputError, match=path.name):
        data.read(path)


@pytest.mark.parametrize("name", ["f.npz", "f.npy", "f.parquet", "f.png"])
def test_every_truncation_is_refused_or_reads_the_same(tmp_path, name):
    folder = tmp_path / "whole"
    folder.mkdir()
    array = np.random.default_rng(0).integers(0, 256, (6, 4), dtype=np.uint8)
    whole = folder / name
    if name == "f.npz":
        np.savez(whole, features=array)
    elif name == "f.npy":
        np.save(whole, array)
    elif name == "f.parquet":
        pq.write_table(pa.table({"features": list(array)}), whole)
    else:
        Image.fromarray(array).save(whole)
    content = whole.read_bytes()
    cut = whole.parent if name == "f.png" else whole
    for length in range(0, len(content), max(1, len(content) // 40)):
        whole.write_bytes(content[:length])
        try:
            samples = data.read(cut, mode="L") if name == "f.png" else data.read(cut)
        except InputError:
            continue
        assert name == "f.png", "only a picture's closing mark may be missed"
        np.testing.assert_array_equal(samples.inputs[0, ..., 0], array)


@settings(max_examples=25, deadline=None)
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=st.floats(width=32)))
def test_parquet_lists_come_back_bit_by_bit(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("parquet")
    flat = pa.array(array.reshape(-1))
    fixed = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    columns = {"fixed": fixed, "list": pa.array(list(array), pa.list_(pa.float32()))}
    for name, column in columns.items():
        pq.write_table(pa.table({"embedding": column}), folder / f"{name}.parquet")
        np.testing.assert_array_equal(data.read(folder / f"{name}.parquet").features, array)


def test_parquet_by_name_by_numbers_and_refusals(tmp_path):
    def written(**columns):
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    rows = [[1.0, 2.0], [3.0, 4.0]]
    samples = data.read(written(features=rows, logits=rows, note=["a", "b"], label=pa.array(["x", "y"])))
    assert sorted(samples.arrays) == ["features", "labels", "logits"]
    assert samples.classes == ("x", "y")
    categories = data.read(written(a=[1, 2], b=[0.5, 1.5], label=pa.array(["q", "p"]).dictionary_encode()))
    np.testing.assert_array_equal(categories.features, [[1, 0.5], [2, 1.5]])
    assert categories.labels is not None
    assert categories.labels.tolist() == [1, 0]
    for columns, words in [
        ({"a": [1.0, None]}, "column 'a': 1 of its 2 values are missing"),
        ({"f": [[1.0], None]}, "lists are missing"),
        ({"f": [[1.0, None], [1.0, 2.0]]}, "values are missing"),
        ({"f": [[1.0], [1.0, 2.0, 3.0]]}, "lists of 1 to 3"),
        ({"f": [[1.0], [1.0, 2.0]]}, "differ in length"),
        ({"note": ["a"]}, "no column of numbers"),
        ({"features": rows, "embeddings": rows}, "more than one array"),
    ]:
        with pytest.raises(InputError, match=words):
            data.read(written(**columns))


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    images = {}
    for name in ("cat/1.png", "cat/2.png", "ant/deep/1.png"):
        images[name] = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[name]).save(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden.png").write_bytes(b"x")
    return tmp_path, images


def test_class_folders_are_labels(pictures):
    folder, images = pictures
    samples = data.read(folder)
    assert samples.classes == ("ant", "cat")
    assert samples.labels is not None
    assert samples.labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(samples.inputs[0], images["ant/deep/1.png"])
    np.testing.assert_array_equal(samples.inputs[2], images["cat/2.png"])
    batches = list(data.image_folder(folder).batches(2))
    assert [len(batch) for batch in batches] == [2, 1]
    np.testing.assert_array_equal(np.concatenate(batches), samples.inputs)
    assert data.read(folder, mode="L", size=4).inputs.shape == (3, 4, 4, 1)
    assert data.read(folder / "cat").labels is None


def test_damaged_pictures_are_an_error_or_skipped_and_listed(pictures):
    folder, _ = pictures
    whole = (folder / "cat" / "1.png").read_bytes()
    (folder / "cat" / "1.png").write_bytes(whole[: len(whole) - 30])
    with pytest.raises(InputError, match=r"1\.png: not a readable picture"):
        data.read(folder)
    samples = data.read(folder, unreadable="skip")
    assert len(samples) == 2
    assert [Path(name).name for name in samples.skipped] == ["1.png"]
    assert samples.labels is not None
    assert samples.labels.tolist() == [0, 1]


def test_pictures_that_do_not_fit_together_are_refused(pictures):
    folder, _ = pictures
    with pytest.raises(InputError, match="the limit is"):
        data.read(folder, max_bytes=100)
    Image.new("RGB", (9, 9)).save(folder / "cat" / "3.png")
    with pytest.raises(InputError, match=r"3\.png: 9×9 pixels, others have 6×5; give size"):
        data.read(folder)
    assert data.read(folder, size=4).inputs.shape == (4, 4, 4, 3)
    Image.new("RGB", (9, 9)).save(folder / "top.png")
    with pytest.raises(InputError, match="both beside and inside"):
        data.read(folder)


def test_a_picture_that_claims_to_be_huge_is_refused(tmp_path):
    Image.new("1", (20000, 20000)).save(tmp_path / "huge.png")
    with pytest.raises(InputError, match=r"huge\.png"):
        data.read(tmp_path)


def test_scaling_matches_plain_loops():
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), dtype=np.uint8)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    out = data.scale_images(images, mean, std)
    for n, h, w, c in np.ndindex(images.shape):
        assert out[n, c, h, w] == pytest.approx((images[n, h, w, c] / 255 - mean[c]) / std[c], abs=1e-5)
    assert data.scale_images(images[..., 0]).shape == (2, 1, 3, 4)
    with pytest.raises(InputError, match="one per channel"):
        data.scale_images(images, (0.1, 0.2))
    with pytest.raises(InputError, match="uint8"):
        data.scale_images(images.astype(float))


def test_heads_from_files(tmp_path):
    weight, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, np.float32)
    save_file({"fc.weight": weight, "fc.bias": bias, "bn.weight": bias}, tmp_path / "m.safetensors")
    head = data.read_head(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(head.weight, weight)
    np.testing.assert_array_equal(head.bias, bias)
    save_file({"a.weight": weight, "b.weight": weight}, tmp_path / "two.safetensors")
    with pytest.raises(InputError, match="2 matrices"):
        data.read_head(tmp_path / "two.safetensors")
    with pytest.raises(InputError, match=r"\.npz or \.safetensors"):
        data.read_head(tmp_path / "head.pt")


def test_activations_from_folder_and_file(tmp_path):
    head = Head(np.ones((2, 3)))
    Activations(np.eye(3, dtype=np.float32), labels=[0, 1, 0]).save(tmp_path / "acts")
    acts = data.read_activations(tmp_path / "acts", head)
    assert acts.logits.shape == (3, 2)
    assert acts.labels is not None
    with pytest.raises(InputError, match="offmap extract"):
        data.read_activations(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        data.read_activations(tmp_path / "nothing.npz")
    (tmp_path / "a.txt").write_text("1")
    with pytest.raises(InputError, match=r"not '\.txt'"):
        data.read(tmp_path / "a.txt")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_read_back_to_the_same_bits(tmp_path, suffix):
    score = np.random.default_rng(0).normal(size=50)
    known = score > 0
    file = tmp_path / f"scores.{suffix}"
    data.write_table(file, {"score": score, "known": known, "name": [f'a,"{i}"' for i in range(50)]})
    if suffix == "csv":
        import csv

        rows = list(csv.DictReader(file.open(newline="")))
        assert [float(row["score"]) for row in rows] == score.tolist()
        assert [row["known"] for row in rows] == [str(flag).lower() for flag in known.tolist()]
        assert rows[3]["name"] == 'a,"3"'
    else:
        table = pq.read_table(file)
        assert table.column("score").to_pylist() == score.tolist()
        assert table.column("known").to_pylist() == known.tolist()
    with pytest.raises(InputError, match="different lengths"):
        data.write_table(file, {"a": [1], "b": [1, 2]})
    with pytest.raises(InputError, match=r"\.parquet or \.csv"):
        data.write_table(tmp_path / "scores.xls", {"a": [1]})


def test_digits_parts_are_disjoint_complete_and_repeatable():
    split = data.digits(known=(2, 7, 5), seed=3)
    parts = [split.train, split.val, split.test, split.unknown]
    assert sum(map(len, parts)) == 1797
    assert split.train.classes[:3] == ("2", "7", "5")
    for part in parts[:3]:
        assert part.labels is not None
        assert set(part.labels.tolist()) == {0, 1, 2}
    assert split.unknown.labels is not None
    assert set(split.unknown.labels.tolist()) == set(range(3, 10))
    assert split.train.inputs.dtype == np.float32
    assert 0 <= split.train.inputs.min() < split.train.inputs.max() <= 1
    again, other = data.digits((2, 7, 5), seed=3), data.digits((2, 7, 5), seed=4)
    np.testing.assert_array_equal(split.train.inputs, again.train.inputs)
    assert not np.array_equal(split.train.inputs, other.train.inputs)


@pytest.mark.parametrize("known", [0, 11, [1, 1], [10], []])
def test_digits_refuses_what_is_not_a_choice_of_digits(known):
    with pytest.raises(InputError, match="one to ten different digits"):
        data.digits(known)


def test_tiles_are_cut_row_by_row(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (7, 4, 4, 3), dtype=np.uint8)
    sheet = np.zeros((3 * 4, 3 * 4, 3), np.uint8)
    for i, image in enumerate(images):
        row, column = divmod(i, 3)
        sheet[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = image
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(sheet).save(folder / "toy_test.webp", lossless=True)
    np.save(folder / "toy_test_labels.npy", np.arange(7) % 2)
    (folder / "toy_classes.json").write_text('["a", "b"]')
    samples = data.tiles("toy_test", tmp_path, side=4, per_row=3)
    np.testing.assert_array_equal(samples.inputs, images)
    assert samples.classes == ("a", "b")
    with pytest.raises(InputError, match="there are toy_test"):
        data.tiles("other", tmp_path)
    with pytest.raises(InputError, match="3 rows of 3 tiles"):
        data.tiles("toy_test", tmp_path, side=4)
    monkeypatch.delenv("OFFMAP_DATA", raising=False)
    with pytest.raises(InputError, match="OFFMAP_DATA"):
        data.tiles("toy_test")


@pytest.mark.data
def test_the_real_mosaics(data_folder):
    cifar = data.tiles("cifar10_test", data_folder)
    assert cifar.inputs.shape == (10000, 32, 32, 3)
    assert cifar.labels is not None
    assert np.bincount(cifar.labels).tolist() == [1000] * 10
    assert len(cifar.classes) == 10
    assert len(data.tiles("dtd10", data_folder).classes) == 10
