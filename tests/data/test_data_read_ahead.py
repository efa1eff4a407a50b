"""Batches are made one ahead, in order, and errors come in the place of the batch that they belong to."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from offmap import data
from offmap.data.read_ahead import read_ahead
from offmap.errors import InputError


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; fail after a long time without."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    pytest.fail("did not happen within ten seconds")


def test_one_item_is_made_while_another_is_used_and_no_more() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(5):
            made.append(item)
            yield item

    ahead = read_ahead(items())
    assert next(ahead) == 0
    wait_for(lambda: made == [0, 1])
    assert next(ahead) == 1
    wait_for(lambda: made == [0, 1, 2])
    assert list(ahead) == [2, 3, 4]


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise InputError("the second is damaged")

    ahead = read_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(InputError, match="the second is damaged"):
        next(ahead)


def test_leaving_early_ends_the_thread() -> None:
    before = set(threading.enumerate())
    ahead = read_ahead(iter(range(100)))
    assert next(ahead) == 0
    assert set(threading.enumerate()) != before
    ahead.close()
    assert set(threading.enumerate()) == before


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Seven pictures of noise."""
    for place, pixels in enumerate(np.random.default_rng(0).integers(256, size=(7, 12, 10, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(tmp_path / f"{place}.png")
    return tmp_path


def test_pictures_are_decoded_once_each_and_while_a_batch_is_used(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import offmap.data.images as images

    decoded: list[str] = []
    plain = images.decode_picture

    def count(file: Path, *rest: object) -> np.ndarray:
        decoded.append(file.name)
        return plain(file, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(images, "decode_picture", count)
    for source in (data.image_folder(pictures).batches(3), iter(data.batches(pictures, size=3))):
        decoded.clear()
        first = next(source)
        assert len(first) == 3
        wait_for(lambda: len(decoded) == 6)
        assert [len(rest) for rest in source] == [3, 1]
        assert sorted(decoded) == [f"{place}.png" for place in range(7)]


def test_a_damaged_picture_is_named_in_its_place(pictures: Path) -> None:
    (pictures / "4.png").write_bytes(b"no picture")
    ahead = iter(data.batches(pictures, size=3))
    assert next(ahead).shape == (3, 3, 12, 10)
    with pytest.raises(InputError, match=r"4\.png: not a readable picture"):
        next(ahead)


def test_of_several_damaged_pictures_the_first_is_named(pictures: Path) -> None:
    for name in ("5.png", "2.png"):
        (pictures / name).write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"2\.png: not a readable picture"):
        data.image_folder(pictures).read()
