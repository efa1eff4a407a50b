"""Sets as their sites publish them; pickles that ask for anything else than arrays are refused, and nothing runs."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import offmap
from offmap.bench.downloads import unpack
from offmap.bench.sets import load_set
from offmap.bench.suites import SetSpec
from offmap.data.archives import read_cifar
from offmap.errors import InputError, StoreError


def python2_batch(pixels: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """A pickle as Python 2 and an old NumPy wrote it: protocol 2, texts as bytes, NumPy's old module names."""
    made = pickle.dumps({b"data": pixels, key: labels}, protocol=2)
    return made.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def batch_of_opcodes(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The same opcodes as in the published files: texts are byte strings of Python 2, which Python 3 cannot write."""
    n, width = (b"M" + size.to_bytes(2, "little") for size in pixels.shape)
    raw = pixels.tobytes()
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + n + width + b"\x86"
    array += dtype + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    classes = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + classes + b"u."


def test_the_opcodes_of_the_published_files(tmp_path: Path) -> None:
    pixels = draw(3)
    content = batch_of_opcodes(pixels, [4, 0, 7])
    true = pickle.loads(content, encoding="bytes")  # noqa: S301 - written here, to see that it is a true pickle
    assert np.array_equal(true[b"data"], pixels)
    found = read_cifar(archive(tmp_path / "c.tar.gz", {"cifar-10-batches-py/test_batch": content}))
    assert found.labels.tolist() == [4, 0, 7]
    assert np.array_equal(found.inputs[1, :, :, 2].ravel(), pixels[1, 2048:])


def archive(file: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w" if file.suffix == ".tar" else "w:gz") as made:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return file


def draw(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def test_cifar10_as_published(tmp_path: Path) -> None:
    parts = {f"data_batch_{i}": draw(3, i) for i in range(1, 6)} | {"test_batch": draw(4, 9)}
    members = {
        f"cifar-10-batches-py/{name}": python2_batch(pixels, list(range(len(pixels)))) for name, pixels in parts.items()
    }
    members["cifar-10-batches-py/readme.html"] = b"<html>"
    (tmp_path / "cifar10").mkdir()
    file = archive(tmp_path / "cifar10" / "cifar-10-python.tar.gz", members)
    train, test = read_cifar(file, "train"), read_cifar(file, "test")
    assert train.inputs.shape == (15, 32, 32, 3)
    assert train.labels.tolist() == [0, 1, 2] * 5
    assert np.array_equal(train.inputs[3, :, :, 1].ravel(), parts["data_batch_2"][0, 1024:2048])
    assert np.array_equal(test.inputs[0, :, :, 0].ravel(), parts["test_batch"][0, :1024])
    assert len(offmap.data.read(file)) == 19
    assert len(load_set(SetSpec("known", {"cifar": "cifar10", "part": "test"}), tmp_path)) == 4


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    pixels = draw(5)
    members = {"cifar-100-python/train": python2_batch(pixels, [9, 8, 7, 6, 5], b"fine_labels")}
    found = read_cifar(archive(tmp_path / "c.tar.gz", members))
    assert found.labels.tolist() == [9, 8, 7, 6, 5]


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (pickle.dumps({b"data": Harm(), b"labels": [0]}, protocol=2), "asks for"),
        (python2_batch(np.zeros((1, 3072)), [0]), "not of bytes"),
        (python2_batch(draw(1)[:, :100], [0]), "100"),
        (python2_batch(draw(2), [0]), "labels"),
        (pickle.dumps([1, 2]), "not CIFAR"),
        (b"nonsense", "not CIFAR"),
    ],
)
def test_anything_else_is_refused_and_nothing_runs(
    content: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = archive(tmp_path / "c.tar.gz", {"cifar-10-batches-py/test_batch": content})
    with pytest.raises(InputError, match=told):
        read_cifar(file)
    assert not (tmp_path / "harmed").exists()


def test_other_archives_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no batches"):
        read_cifar(archive(tmp_path / "a.tar.gz", {"x": b"y"}))
    (tmp_path / "b.tar.gz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a readable tar"):
        read_cifar(tmp_path / "b.tar.gz")
    with pytest.raises(InputError, match="--get cifar10"):
        load_set(SetSpec("known", {"cifar": "cifar10"}), tmp_path)
    with pytest.raises(InputError, match="cifar10 or cifar100"):
        load_set(SetSpec("known", {"cifar": "cifar11"}), tmp_path)


def test_svhn_as_published(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.array([[1], [10], [3], [10], [9]], np.uint8)})
    found = offmap.data.read(tmp_path / "test_32x32.mat")
    assert found.labels.tolist() == [1, 0, 3, 0, 9]
    assert np.array_equal(found.inputs[2], pixels[..., 2])
    savemat(tmp_path / "other.mat", {"Z": pixels})
    with pytest.raises(InputError, match="no pictures X"):
        offmap.data.read(tmp_path / "other.mat")
    (tmp_path / "broken.mat").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="no pictures X"):
        offmap.data.read(tmp_path / "broken.mat")


def test_archives_are_unpacked_once_and_never_outside(tmp_path: Path) -> None:
    file = archive(tmp_path / "dtd.tar.gz", {"dtd/images/banded/a.jpg": b"picture"})
    assert (unpack(file, "sum") / "dtd/images/banded/a.jpg").read_bytes() == b"picture"
    (tmp_path / "dtd/images/banded/a.jpg").write_bytes(b"changed")
    unpack(file, "sum")
    assert (tmp_path / "dtd/images/banded/a.jpg").read_bytes() == b"changed"
    (tmp_path / "in").mkdir()
    bad = archive(tmp_path / "in" / "bad.tar.gz", {"../escaped": b"x"})
    with pytest.raises(StoreError, match="cannot be unpacked"):
        unpack(bad, "sum")
    assert not (tmp_path / "escaped").exists()


def picture(colour: tuple[int, int, int], width: int = 12, height: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(stream, "png")
    return stream.getvalue()


def test_textures_as_published(tmp_path: Path) -> None:
    members = {
        "dtd/images/banded/banded_0002.png": picture((200, 0, 0)),
        "dtd/images/zigzagged/zigzagged_0001.png": picture((0, 200, 0), 9, 20),
        "dtd/labels/test1.txt": b"banded/banded_0002.jpg",
        "dtd/images/banded/._banded_0001.png": b"what a Mac leaves behind",
    }
    file = archive(tmp_path / "dtd-r1.0.1.tar.gz", members)
    found = load_set(SetSpec("textures", {"path": file.name, "side": 6}), tmp_path).samples
    assert found.inputs.shape == (2, 6, 6, 3)
    assert found.classes == ("banded", "zigzagged")
    assert found.labels.tolist() == [0, 1]
    assert found.inputs[1, 0, 0].tolist() == [0, 200, 0]
    with pytest.raises(InputError, match="pictures of 2 sizes"):
        offmap.data.read(file)
    unpack(file, "sum")
    folder = load_set(SetSpec("textures", {"path": "dtd/images", "side": 6, "first": 1}), tmp_path).samples
    assert np.array_equal(folder.inputs, found.inputs)


def test_places_lsun_and_isun_as_published(tmp_path: Path) -> None:
    file = tmp_path / "val_256.tar"
    archive(file, {f"val_256/Places365_val_{i:08d}.png": picture((i, 0, 0)) for i in (3, 1, 2)})
    found = offmap.data.read(file)
    assert found.inputs[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert found.labels is None
    with pytest.raises(InputError, match="no classes"):
        load_set(SetSpec("places", {"path": file.name, "side": 4, "first": 1}), tmp_path)
    with pytest.raises(InputError, match="no pictures in it"):
        offmap.data.read(archive(tmp_path / "a.tgz", {"x": b"y"}))
    with pytest.raises(InputError, match="not a readable picture"):
        offmap.data.read(archive(tmp_path / "b.tgz", {"x.png": b"y"}))


def test_mnist_as_published(tmp_path: Path) -> None:
    pixels = bytes(range(2 * 3 * 4))
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + pixels
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 5])))
    found = offmap.data.read(tmp_path / "t10k-images-idx3-ubyte.gz")
    assert found.inputs.shape == (2, 3, 4, 1)
    assert found.labels.tolist() == [7, 5]
    assert found.inputs[1, 0, 0, 0] == 12


def test_a_set_that_is_not_here_may_be_made_from_another(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.zeros((4, 2, 2), np.uint8), labels=np.array([0, 0, 1, 1]))
    spec = {"tiles": "nothing", "otherwise": {"path": "a.npz", "first": 1}}
    assert len(load_set(SetSpec("a", spec), tmp_path)) == 2
    with pytest.raises(InputError, match=r"nothing.*nor is there what it may be made from.*b\.npz"):
        load_set(SetSpec("a", {**spec, "otherwise": {"path": "b.npz"}}), tmp_path)
