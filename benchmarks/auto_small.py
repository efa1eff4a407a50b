"""Further small networks that ``auto`` was developed on, for `auto.py`: other classes, widths and seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from auto_pairs import (
    World,
    clothes_on_mlp,
    colours_on_cnn,
    digits_on_cnn,
    digits_on_mlp,
    fewer_clothes,
    made_table,
    small_pictures_on_cnn,
)

_PICTURES, _NUMBERS = ("cifar10_test", "SVHN"), ("svhn_test10k", "CIFAR-10")

# the first twelve were looked at while the root of features was sought, the others only to see whether it holds
SMALL: dict[str, Callable[[], World]] = {
    "4 kinds of clothes, MLP": partial(clothes_on_mlp, 4, 1001, (64,)),
    "7 kinds of clothes, MLP": partial(clothes_on_mlp, 7, 1002, (200, 48)),
    "4 kinds of clothes, CNN": partial(fewer_clothes, 4, 5, 1010, width=12, seed=3),
    "7 kinds of clothes, CNN": partial(fewer_clothes, 7, 5, 1020, width=24, seed=4),
    "7 digits, CNN": partial(digits_on_cnn, 7, 15, 1030, width=24, seed=5),
    "4 digits, CNN": partial(digits_on_cnn, 4, 15, 1034, width=32, seed=6),
    "5 digits, MLP": partial(digits_on_mlp, 5, 1040, (96,)),
    "4 classes of CIFAR-10, CNN": partial(colours_on_cnn, *_PICTURES, 4, 1050, width=24, seed=5),
    "7 classes of CIFAR-10, CNN": partial(colours_on_cnn, *_PICTURES, 7, 1054, width=16, seed=7),
    "5 street numbers in colour, CNN": partial(colours_on_cnn, *_NUMBERS, 5, 1060, width=24, seed=8),
    "10 classes of CIFAR-100, CNN": partial(small_pictures_on_cnn, 10, 1070, width=24, seed=3),
    "made table of 6 classes, MLP": partial(made_table, 6, 9, 11, (96, 48)),
    "3 kinds of clothes, MLP": partial(clothes_on_mlp, 3, 2054, (100, 50)),
    "5 other kinds of clothes, MLP": partial(clothes_on_mlp, 5, 2051, (128, 64)),
    "6 kinds of clothes, MLP": partial(clothes_on_mlp, 6, 2052, (96,)),
    "8 kinds of clothes, MLP": partial(clothes_on_mlp, 8, 2053, (128, 32)),
    "5 other kinds of clothes, CNN": partial(fewer_clothes, 5, 5, 2020, width=32, seed=13),
    "6 other kinds of clothes, CNN": partial(fewer_clothes, 6, 6, 2030, width=24, seed=14),
    "8 kinds of clothes, CNN": partial(fewer_clothes, 8, 5, 2040, width=20, seed=18),
    "6 other digits, CNN": partial(digits_on_cnn, 6, 15, 2060, width=24, seed=19),
    "3 classes of CIFAR-10, CNN": partial(colours_on_cnn, *_PICTURES, 3, 2007, width=24, seed=15),
    "5 other classes of CIFAR-10, CNN": partial(colours_on_cnn, *_PICTURES, 5, 2001, width=32, seed=11),
    "6 other classes of CIFAR-10, CNN": partial(colours_on_cnn, *_PICTURES, 6, 2004, width=20, seed=12),
    "7 street numbers in colour, CNN": partial(colours_on_cnn, *_NUMBERS, 7, 2010, width=24, seed=17),
    "8 classes of CIFAR-100, CNN": partial(small_pictures_on_cnn, 8, 2070, width=24, seed=16),
}
