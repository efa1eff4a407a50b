"""Pictures of cubes, spheres and cylinders, red, blue or grey: the thesis' toy worlds (section 6.4.2; appendix B.1.4;
appendix B.2.5).

A small ray caster stands in for the rendering program of the thesis. All three solids are convex, so a ray is inside
one between the last surface it enters and the first it leaves; that one idea gives the picture and the shadow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offmap.data.samples import Samples
from offmap.data.splits import open_world_split
from offmap.errors import InputError

Floats = npt.NDArray[np.floating[Any]]
Surface = tuple[Floats, Floats, Floats]  # where rays enter and leave, and the normal where they enter

COLOURS = {"red": (0.68, 0.12, 0.12), "blue": (0.13, 0.25, 0.80), "grey": (0.36, 0.36, 0.36)}
_FINER = 2  # rays per pixel along each axis
_AT_ONCE = 32  # pictures rendered together; what is made on the way stays small
_VIEW = 0.28  # half the picture's width at distance 1
_AMBIENT, _DIFFUSE, _GLOSS, _SHARPNESS = 0.5, 0.6, 0.2, 24
_HALF, _RADIUS = 0.75, 0.8  # of a cube or the height of a cylinder, and of a cylinder; a sphere has radius 1


@dataclass(frozen=True)
class Scenes:
    """Pose, size, camera and light of pictures: one number each, angles in radians; see `draw_scenes`."""

    turn: Floats
    x: Floats
    y: Floats
    size: Floats
    elevation: Floats
    distance: Floats
    light_turn: Floats
    light_elevation: Floats
    light: Floats
    floor: Floats
    shade: Floats

    def __len__(self) -> int:
        return len(self.turn)

    def __getitem__(self, part: slice) -> Scenes:
        return Scenes(**{name: values[part] for name, values in vars(self).items()})


_RANGES = {
    "turn": (0, 2 * np.pi),
    "x": (-0.35, 0.35),
    "y": (-0.35, 0.35),
    "size": (0.5, 0.9),
    "elevation": (np.pi / 8, np.pi / 4),
    "distance": (4.6, 5.6),
    "light_turn": (0, 2 * np.pi),
    "light_elevation": (np.pi / 4, np.pi / 2.4),
    "light": (0.8, 1.15),
    "floor": (0.55, 0.8),
    "shade": (0.85, 1.15),
}


def draw_scenes(count: int, seed: int | Sequence[int] = 0) -> Scenes:
    """Random scenes: every number uniform in its range.

    Parameters
    ----------
    count
        How many.
    seed
        The same seed gives the same scenes; a longer draw starts with the shorter one.

    Examples
    --------
    >>> scenes = draw_scenes(3, seed=0)
    >>> bool((scenes.size > 0.5).all()), np.array_equal(draw_scenes(5, 0).turn[:3], scenes.turn)
    (True, True)
    """
    numbers = np.random.default_rng(seed).random((count, len(_RANGES)), np.float32)
    return Scenes(**{
        name: (low + (high - low) * numbers[:, place]).astype(np.float32)
        for place, (name, (low, high)) in enumerate(_RANGES.items())
    })  # fmt: skip


def render(shape: str, colour: str, scenes: Scenes, pixels: int = 32) -> npt.NDArray[np.uint8]:
    """Pictures of one solid in one colour.

    Parameters
    ----------
    shape
        ``"cube"``, ``"sphere"`` or ``"cylinder"``.
    colour
        ``"red"``, ``"blue"`` or ``"grey"``.
    scenes
        One for each picture.
    pixels
        Height and width of a picture.

    Returns
    -------
    array of uint8
        Pictures × pixels × pixels × 3.

    Examples
    --------
    >>> picture = render("sphere", "red", draw_scenes(1), 32)[0]
    >>> picture.shape, [channel > 100 for channel in picture[16, 16].tolist()]
    ((32, 32, 3), [True, False, False])
    """
    if shape not in SHAPES or colour not in COLOURS or pixels < 1:
        raise InputError(
            f"render({shape!r}, {colour!r}, {pixels} pixels): shapes are {', '.join(SHAPES)}, colours "
            f"{', '.join(COLOURS)}, and at least 1 pixel"
        )
    parts = (scenes[start : start + _AT_ONCE] for start in range(0, len(scenes), _AT_ONCE))
    made = [_render(shape, np.array(COLOURS[colour], np.float32), part, pixels) for part in parts]
    return np.concatenate([np.empty((0, pixels, pixels, 3), np.uint8), *made])


def shapes(types: Sequence[tuple[str, str]], per_type: int = 2500, pixels: int = 32, seed: int = 0) -> Samples:
    """A data set of rendered solids.

    Parameters
    ----------
    types
        Pairs of colour and shape, such as ``("red", "cube")``.
    per_type
        Pictures of each. The pictures of a type do not depend on which others are asked for.
    pixels
        Height and width of a picture.
    seed
        Of all scenes.

    Returns
    -------
    Samples
        ``inputs``, ``labels`` (the place in `types`), ``shape`` and ``colour`` (places in `SHAPES` and `COLOURS`).

    Examples
    --------
    >>> toy = shapes([("red", "cube"), ("grey", "cylinder")], per_type=3)
    >>> toy
    Samples(6: inputs 32×32×3, labels one each, shape one each, colour one each)
    >>> toy.classes
    ('red cube', 'grey cylinder')
    """
    if not types or per_type < 1 or seed < 0:
        raise InputError(
            f"shapes({list(types)}, {per_type=}, {seed=}): at least one type and picture, a seed from 0 on"
        )
    inputs, kinds, colours = [], [], []
    for colour, shape in types:
        if shape not in SHAPES or colour not in COLOURS:
            raise InputError(
                f"shapes({(colour, shape)!r}): a type is one of {', '.join(COLOURS)} and one of {', '.join(SHAPES)}"
            )
        kinds.append(list(SHAPES).index(shape))
        colours.append(list(COLOURS).index(colour))
        scenes = draw_scenes(per_type, [seed, kinds[-1], colours[-1]])
        inputs.append(render(shape, colour, scenes, pixels))
    places = {"labels": range(len(types)), "shape": kinds, "colour": colours}
    arrays = {name: np.repeat(np.array(place, np.int64), per_type) for name, place in places.items()}
    names = tuple(f"{colour} {shape}" for colour, shape in types)
    return Samples({"inputs": np.concatenate(inputs), **arrays}, names)


def nscl_toy(case: Literal[1, 2], per_type: int = 2500, pixels: int = 32, seed: int = 0) -> Samples:
    """NSCL's toy (thesis, appendix B.1.4): red and blue cubes and spheres without labels, to be told apart by colour.

    Parameters
    ----------
    case
        1: labelled red cylinders, which share a colour with the unlabelled; 2: grey ones, which share nothing.
    per_type, pixels, seed
        As for `shapes`.

    Returns
    -------
    Samples
        As `shapes` gives, with ``labels`` 0 or −1 and the truth in ``targets``: cylinder, red, blue.

    Examples
    --------
    >>> toy = nscl_toy(1, per_type=2)
    >>> toy.labels.tolist(), toy.arrays["targets"].tolist(), toy.classes
    ([-1, -1, -1, -1, -1, -1, -1, -1, 0, 0], [1, 1, 1, 1, 2, 2, 2, 2, 0, 0], ('red cylinder', 'red', 'blue'))
    """
    if case not in (1, 2):
        raise InputError(f"nscl_toy(case={case}): the cases are 1 (red cylinders labelled) and 2 (grey ones)")
    labelled = ("red" if case == 1 else "grey", "cylinder")
    unlabelled = [("red", "cube"), ("red", "sphere"), ("blue", "cube"), ("blue", "sphere")]
    samples = shapes([*unlabelled, labelled], per_type, pixels, seed)
    cylinder = samples.arrays["shape"] == list(SHAPES).index("cylinder")
    targets = np.where(cylinder, 0, 1 + samples.arrays["colour"])
    names = (" ".join(labelled), "red", "blue")
    return open_world_split(targets, known=[0], ratio=1.0, seed=seed, classes=names).apply(samples)


def sorl_toy(ratio: float = 0.5, per_type: int = 2500, pixels: int = 32, seed: int = 0) -> Samples:
    """SORL's toy (thesis, appendix B.2.5): cubes known; spheres, which share their colours, and grey cylinders novel.

    Parameters
    ----------
    ratio
        The share of cubes that is labelled.
    per_type, pixels, seed
        As for `shapes`.

    Returns
    -------
    Samples
        As `shapes` gives, with ``labels`` 0 or −1 and the truth in ``targets``: cube, sphere, cylinder.

    Examples
    --------
    >>> toy = sorl_toy(per_type=2)
    >>> int((toy.labels == 0).sum()), toy.arrays["targets"].tolist()
    (2, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
    """
    types = [("red", "cube"), ("blue", "cube"), ("red", "sphere"), ("blue", "sphere"), ("grey", "cylinder")]
    samples = shapes(types, per_type, pixels, seed)
    split = open_world_split(samples.arrays["shape"], known=[0], ratio=ratio, seed=seed, classes=tuple(SHAPES))
    return split.apply(samples)


def _render(shape: str, paint: Floats, scenes: Scenes, pixels: int) -> npt.NDArray[np.uint8]:
    """Rays through every pixel; where they meet the solid it is shaded, else the floor, darker in its shadow."""
    camera, ray = _rays(scenes, pixels * _FINER)
    light = _direction(scenes.light_turn, scenes.light_elevation)[:, None]
    enter, leave, normal = _meet(shape, scenes, camera, ray)
    hit = (enter < leave) & (enter > 0)
    diffuse = np.maximum((normal * light).sum(axis=2), 0)
    half = light - ray / np.linalg.norm(ray, axis=2, keepdims=True)
    half /= np.linalg.norm(half, axis=2, keepdims=True)
    gloss = np.where(diffuse > 0, np.maximum((normal * half).sum(axis=2), 0) ** _SHARPNESS, 0)
    strength = scenes.light[:, None]
    lit = scenes.shade[:, None] * (_AMBIENT + _DIFFUSE * strength * diffuse)
    solid = lit[..., None] * paint + (_GLOSS * strength * gloss)[..., None]
    down = ray[..., 2] < -1e-3
    reach = np.where(down, -camera[..., 2] / np.where(down, ray[..., 2], -1), 0)
    shadow_enter, shadow_leave, _ = _meet(shape, scenes, camera + reach[..., None] * ray, light)
    dark = down & (shadow_enter < shadow_leave) & (shadow_leave > 0)
    upward = _DIFFUSE * strength * light[..., 2]
    floor = scenes.floor[:, None] * (_AMBIENT + np.where(dark, 0, upward))
    colours = np.where(hit[..., None], solid, floor[..., None])
    grid = colours.reshape(len(scenes), pixels, _FINER, pixels, _FINER, 3).mean(axis=(2, 4))
    return np.round(255 * np.clip(grid, 0, 1)).astype(np.uint8)


def _rays(scenes: Scenes, pixels: int) -> tuple[Floats, Floats]:
    """Where the camera stands (scenes × 1 × 3) and its rays (scenes × rays × 3), not of length 1."""
    target = np.array([0, 0, 0.4], np.float32)
    outward = _direction(np.zeros_like(scenes.turn), scenes.elevation)
    camera: Floats = target + scenes.distance[:, None] * outward
    right = np.array([0, 1, 0], np.float32)
    up = np.cross(outward, right)
    place = ((np.arange(pixels, dtype=np.float32) + 0.5) / pixels * 2 - 1) * np.float32(_VIEW)
    across, down = np.meshgrid(place, place)
    ray = across.reshape(1, -1, 1) * right - down.reshape(1, -1, 1) * up[:, None] - outward[:, None]
    return camera[:, None], ray


def _meet(shape: str, scenes: Scenes, start: Floats, ray: Floats) -> Surface:
    """Where rays enter and leave the solid of each scene, and the outward normal where they enter, in the world."""
    cos, sin = (f(scenes.turn)[:, None] for f in (np.cos, np.sin))
    size = scenes.size[:, None, None]
    surfaces, rest = SHAPES[shape]
    centre = np.stack([scenes.x, scenes.y, scenes.size * rest], axis=1)[:, None]
    local = _turned((start - centre) / size, cos, -sin)
    course = _turned(ray / size, cos, -sin)
    met = surfaces(local, course)
    enter, leave, normal = next(met)
    for inward, outward, facing in met:
        later = inward > enter
        normal = np.where(later[..., None], facing, normal)
        enter, leave = np.where(later, inward, enter), np.minimum(leave, outward)
    return enter, leave, _turned(normal, cos, sin)


def _cube(start: Floats, ray: Floats) -> Iterator[Surface]:
    yield from (_slab(start, ray, axis) for axis in range(3))


def _cylinder(start: Floats, ray: Floats) -> Iterator[Surface]:
    yield _round(start, ray, axes=2, radius=_RADIUS)
    yield _slab(start, ray, 2)


def _sphere(start: Floats, ray: Floats) -> Iterator[Surface]:
    yield _round(start, ray, axes=3, radius=1.0)


SHAPES: dict[str, tuple[Callable[[Floats, Floats], Iterator[Surface]], float]] = {  # and how high the centre lies
    "cube": (_cube, _HALF),
    "sphere": (_sphere, 1.0),
    "cylinder": (_cylinder, _HALF),
}


def _slab(start: Floats, ray: Floats, axis: int) -> Surface:
    """Between two planes across an axis."""
    along = ray[..., axis]
    along = np.where(np.abs(along) < 1e-9, np.float32(1e-9), along)
    middle, reach = -start[..., axis] / along, _HALF / np.abs(along)
    normal = np.zeros((*along.shape, 3), np.float32)
    normal[..., axis] = -np.sign(along)
    return middle - reach, middle + reach, normal


def _round(start: Floats, ray: Floats, axes: int, radius: float) -> Surface:
    """Within a radius of the centre, in the first two axes (an endless cylinder) or all three (a sphere)."""
    origin, course = start[..., :axes], ray[..., :axes]
    a = np.maximum((course * course).sum(axis=-1), np.float32(1e-12))
    b = (origin * course).sum(axis=-1) / a
    square = b * b - ((origin * origin).sum(axis=-1) - radius**2) / a
    root = np.sqrt(np.maximum(square, 0))
    missed = square < 0
    enter, leave = np.where(missed, np.inf, -b - root), np.where(missed, -np.inf, -b + root)
    normal = np.zeros((*enter.shape, 3), np.float32)
    normal[..., :axes] = (origin + np.where(missed, 0, enter)[..., None] * course) / radius
    return enter, leave, normal


def _turned(vectors: Floats, cos: Floats, sin: Floats) -> Floats:
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    return np.stack(np.broadcast_arrays(cos * x - sin * y, sin * x + cos * y, z), axis=-1)


def _direction(turn: Floats, elevation: Floats) -> Floats:
    flat = np.cos(elevation)
    return np.stack([flat * np.cos(turn), flat * np.sin(turn), np.sin(elevation)], axis=1)
