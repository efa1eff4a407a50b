"""Rendered solids against a march along every ray that knows only which points lie inside; the toys of the thesis."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from offmap.errors import InputError
from thesis.shapes import COLOURS, SHAPES, draw_scenes, nscl_toy, render, shapes, sorl_toy


def inside(shape, scenes, n, points):
    """Which points of the world lie in the solid of scene n."""
    rest = 1.0 if shape == "sphere" else 0.75
    turn, size = -float(scenes.turn[n]), float(scenes.size[n])
    x, y = points[..., 0] - float(scenes.x[n]), points[..., 1] - float(scenes.y[n])
    x, y = (math.cos(turn) * x - math.sin(turn) * y) / size, (math.sin(turn) * x + math.cos(turn) * y) / size
    z = (points[..., 2] - size * rest) / size
    if shape == "cube":
        return np.maximum(np.maximum(abs(x), abs(y)), abs(z)) < 0.75
    if shape == "cylinder":
        return (x**2 + y**2 < 0.8**2) & (abs(z) < 0.75)
    return x**2 + y**2 + z**2 < 1


def march(shape, scenes, n, pixels):
    """For each ray of a picture: 2 where it meets the solid, else 1 where the floor is in shadow, else 0."""
    high, far = float(scenes.elevation[n]), float(scenes.distance[n])
    out = np.array([math.cos(high), 0, math.sin(high)])
    up = np.array([-math.sin(high), 0, math.cos(high)])
    eye = np.array([0, 0, 0.4]) + far * out
    turn, steep = float(scenes.light_turn[n]), float(scenes.light_elevation[n])
    light = np.array([math.cos(steep) * math.cos(turn), math.cos(steep) * math.sin(turn), math.sin(steep)])
    kinds = np.zeros((pixels, pixels), int)
    for row in range(pixels):
        for column in range(pixels):
            across, down = (0.28 * ((2 * place + 1) / pixels - 1) for place in (column, row))
            ray = across * np.array([0, 1, 0]) - down * up - out
            steps = np.linspace(far - 3, far + 3, 2000)[:, None]
            if inside(shape, scenes, n, eye + steps * ray).any():
                kinds[row, column] = 2
            elif ray[2] < -1e-3:
                ground = eye - eye[2] / ray[2] * ray
                kinds[row, column] = inside(shape, scenes, n, ground + np.linspace(0, 5, 2000)[:, None] * light).any()
    return kinds


@pytest.mark.parametrize("shape", SHAPES)
def test_solids_and_shadows_lie_where_a_march_along_the_rays_finds_them(shape):
    scenes = draw_scenes(3, seed=3)
    made = render(shape, "red", scenes, 12).astype(int)
    shadows = 0
    for n in range(3):
        kinds = march(shape, scenes, n, 24).reshape(12, 2, 12, 2).transpose(0, 2, 1, 3).reshape(12, 12, 4)
        whole = {kind: (kinds == kind).all(axis=2) for kind in (0, 1, 2)}
        colourful = made[n, ..., 0] - made[n, ..., 2] > 20
        assert colourful[whole[2]].all()
        assert not colourful[~(kinds == 2).any(axis=2)].any()
        floor, shadow = set(made[n][whole[0]].reshape(-1)), set(made[n][whole[1]].reshape(-1))
        assert len(floor) == 1
        assert len(shadow) <= 1  # it may hide behind the solid
        assert all(value < min(floor) for value in shadow)
        assert whole[2].sum() > 8
        shadows += len(shadow)
    assert shadows


def test_a_sphere_is_brightest_towards_the_light():
    scenes = replace(draw_scenes(2), y=np.zeros(2, np.float32), light_turn=np.array([0.5, -0.5], np.float32) * np.pi)
    right, left = render("sphere", "red", scenes, 32).astype(int)
    for picture, side in ((right, 1), (left, -1)):
        solid = np.ptp(picture, axis=2) > 20
        red = picture[..., 0] * solid
        assert np.sign(red[:, 16:].sum() - red[:, :16].sum()) == side


def test_sets_repeat_by_seed_and_types_do_not_depend_on_each_other():
    first = shapes([("red", "cube"), ("blue", "sphere")], per_type=3, pixels=8, seed=1)
    again = shapes([("blue", "sphere")], per_type=5, pixels=8, seed=1)
    assert np.array_equal(first.inputs[3:], again.inputs[:3])
    assert not np.array_equal(first.inputs[3:], shapes([("blue", "sphere")], 3, 8, seed=2).inputs)
    assert len(np.unique(again.inputs.reshape(5, -1), axis=0)) == 5
    assert first.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [list(SHAPES)[i] for i in first.arrays["shape"][[0, 3]]] == ["cube", "sphere"]
    assert [list(COLOURS)[i] for i in first.arrays["colour"][[0, 3]]] == ["red", "blue"]
    assert render("cube", "red", draw_scenes(0), 8).shape == (0, 8, 8, 3)


def test_the_toys_label_what_the_thesis_labels():
    for case, colour in ((1, "red"), (2, "grey")):
        toy = nscl_toy(case, per_type=2, pixels=8)
        assert len(toy) == 10
        assert toy.classes == (f"{colour} cylinder", "red", "blue")
        cylinder = toy.arrays["shape"] == 2
        assert (toy.labels[cylinder] == 0).all()
        assert (toy.labels[~cylinder] == -1).all()
        assert np.array_equal(toy.arrays["targets"][~cylinder], 1 + toy.arrays["colour"][~cylinder])
    toy = sorl_toy(per_type=6, pixels=8)
    assert len(toy) == 30
    assert np.array_equal(toy.arrays["targets"], toy.arrays["shape"])
    assert int((toy.labels == 0).sum()) == 6
    assert (toy.arrays["shape"][toy.labels == 0] == 0).all()


def test_unknown_shapes_are_refused_with_the_known_ones():
    for bad in (lambda: render("cone", "red", draw_scenes(1)), lambda: shapes([("red", "cone")], 1)):
        with pytest.raises(InputError, match="cylinder"):
            bad()
    with pytest.raises(InputError, match="grey"):
        shapes([("cube", "red")], 1)
    with pytest.raises(InputError, match="at least one type"):
        shapes([], 1)
    with pytest.raises(InputError, match="cases are 1"):
        nscl_toy(3)
