"""Views against plain loops over pictures and pixels; their random numbers against the distributions they stand for."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from offmap.data import augment
from offmap.data.splits import open_world_split
from offmap.data.vector_views import VectorViews, neighbour_lists
from offmap.data.views import ImageViews, step_generator
from offmap.errors import InputError

PLAIN = {"scale": (1.0, 1.0), "aspect": (1.0, 1.0), "flip": 0.0, "jitter": (0.0, 0.0, 0.0, 0.0), "grey": 0.0}


def pictures(count=6, channels=3, height=12, width=10, seed=0):
    return torch.rand((count, channels, height, width), generator=step_generator(seed, 0))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 24), st.integers(2, 24), st.booleans(), st.data())
def test_a_crop_is_a_slice_resized(height, width, high, wide, mirrored, data):
    # not from one column to one: there torch's interpolate (2.13) leaves out the rows
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w))
    images = pictures(2, 3, height, width)
    boxes = torch.tensor([[top, left, h, w], [0, 0, height, width]])
    made = augment.crop(images, boxes, torch.tensor([mirrored, False]), (high, wide))
    for row, (t, le, hh, ww) in enumerate(boxes.tolist()):
        part = images[row : row + 1, :, t : t + hh, le : le + ww]
        wanted = functional.interpolate(part, (high, wide), mode="bilinear", antialias=True)
        wanted = wanted.flip(3) if row == 0 and mirrored else wanted
        assert torch.allclose(made[row], wanted[0], atol=1e-5)


def loop_jitter(picture, which, amount):
    """One picture, pixel by pixel, with Python's own HSV."""
    out = np.empty_like(picture)
    height, width = picture.shape[1:]
    grey = [[float(np.dot((0.299, 0.587, 0.114), picture[:, i, j])) for j in range(width)] for i in range(height)]
    mean = sum(map(sum, grey)) / (height * width)
    for i in range(height):
        for j in range(width):
            pixel = picture[:, i, j]
            if which == 0:
                new = pixel * amount
            elif which == 1:
                new = mean + (pixel - mean) * amount
            elif which == 2:
                new = grey[i][j] + (pixel - grey[i][j]) * amount
            else:
                h, s, v = colorsys.rgb_to_hsv(*pixel)
                new = np.array(colorsys.hsv_to_rgb((h + amount) % 1, s, v))
            out[:, i, j] = np.clip(new, 0, 1)
    return out


@pytest.mark.parametrize("which", range(4))
def test_colours_change_as_pixel_loops_change_them(which):
    images = pictures(5, height=5, width=4)
    images[0, :, 0, 0] = 0.5  # grey, black and white pixels have no hue
    images[0, :, 1, 1] = 0.0
    images[0, :, 2, 2] = 1.0
    images[1, 1] = images[1, 0]  # two largest channels alike
    amounts = torch.tensor([-0.1, 0.4, 0.3, -0.5, 0.05] if which == 3 else [0.0, 0.6, 1.0, 1.4, 2.5])
    made = (augment.brightness, augment.contrast, augment.saturation, augment.hue)[which](images, amounts)
    for picture, amount, got in zip(images.double().numpy(), amounts.tolist(), made.numpy(), strict=True):
        assert np.allclose(got, loop_jitter(picture, which, amount), atol=1e-5)


def test_blur_is_the_normalised_double_sum():
    images, sigma = pictures(2, 1, 5, 6), torch.tensor([0.7, 2.0])
    made = augment.blur(images, sigma)
    for n, (i, j) in [(0, (0, 0)), (0, (2, 3)), (1, (4, 5)), (1, (1, 2))]:
        total = weight = 0.0
        for a in range(5):
            for b in range(6):
                w = math.exp(-((a - i) ** 2 + (b - j) ** 2) / (2 * float(sigma[n]) ** 2))
                total, weight = total + w * float(images[n, 0, a, b]), weight + w
        assert abs(total / weight - float(made[n, 0, i, j])) < 1e-5


def test_a_whole_view_is_what_the_steps_make_one_picture_at_a_time():
    views = ImageViews(blur=0.5, jitter=(0.8, 0.4, 0.3, 0.2), grey=0.3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    images = pictures(160, height=9, width=9)
    numbers = views.draw(160, step_generator(3, 1))
    made = views.apply(images, numbers)
    steps = (augment.brightness, augment.contrast, augment.saturation, augment.hue)
    reached = {"grey": 0, "blur": 0, "jitter": 0, "flip": 0}
    for n in range(0, 160, 3):
        for side in (0, 1):
            u = numbers[n : n + 1, side]
            box = views.boxes(u, 9, 9)
            flip, jitter, amounts, order, grey, blur, sigma = (
                u[0, 22] < 0.5, u[0, 23] < 0.8, u[0, 24:28], u[0, 28:32].argsort(), u[0, 32] < 0.3, u[0, 33] < 0.5,
                0.1 + 1.9 * u[:, 34],
            )  # fmt: skip
            x = augment.crop(images[n : n + 1], box, flip[None], (9, 9))
            if jitter:
                for which in order.tolist():
                    strength = views.jitter[which]
                    low = -strength if which == 3 else 1 - strength
                    x = steps[which](x, low + 2 * strength * amounts[which : which + 1])
            if grey:
                x = augment.luminance(x).repeat(1, 3, 1, 1)
            if blur:
                x = augment.blur(x, sigma)
            x = (x - torch.tensor(views.mean)[:, None, None]) / torch.tensor(views.std)[:, None, None]
            assert torch.allclose(made[side][n], x[0], atol=1e-5)
            for name, hit in (("grey", grey), ("blur", blur), ("jitter", jitter), ("flip", flip)):
                reached[name] += int(hit)
    assert all(10 < count < 100 for count in reached.values()), reached


@pytest.mark.parametrize(("height", "width"), [(32, 32), (7, 40), (40, 3)])
def test_boxes_lie_inside_and_follow_the_distribution(height, width):
    views = ImageViews()
    boxes = views.boxes(views.draw(4000, step_generator(1, 0))[:, 0], height, width)
    top, left, h, w = boxes.T
    assert (boxes >= 0).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()
    assert (h >= 1).all()
    assert (w >= 1).all()
    if height == width:
        area = (h * w / (height * width)).double()
        assert abs(float(area.mean()) - 0.58) < 0.03  # of uniform [.2, 1], a little less as wide large boxes do not fit
        assert float(area.min()) > 0.19
        assert (w / h).min() > 0.7
        assert (w / h).max() < 1.45


def test_boxes_at_the_end_of_the_numbers_stay_inside():
    numbers = torch.full((1, 35), 1 - 2**-24)
    for size in range(1, 70):
        box = ImageViews(scale=(0.01, 0.1)).boxes(numbers, size, size)[0]
        assert (box[:2] + box[2:] <= size).all()


def test_views_repeat_by_generator_and_by_row():
    images = pictures(600)  # more than are worked on at a time
    views = ImageViews()
    first, second = views(images, step_generator(0, 5))
    again, _ = views(images, step_generator(0, 5))
    other, _ = views(images, step_generator(0, 6))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert not torch.allclose(first, second)
    numbers = views.draw(600, step_generator(0, 5))
    part, _ = views.apply(images[1::3], numbers[1::3])
    assert torch.allclose(part, first[1::3], atol=1e-6)
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1 + 1e-5


def test_bytes_floats_grey_pictures_and_sizes():
    raw = (pictures(5) * 255).to(torch.uint8)
    views = ImageViews()
    assert torch.allclose(views(raw, step_generator(0, 0))[0], views(raw.float() / 255, step_generator(0, 0))[0])
    assert raw.dtype == torch.uint8
    grey = pictures(5, channels=1)
    kept = grey.clone()
    first, _ = ImageViews(size=(8, 6))(grey, step_generator(0, 0))
    assert first.shape == (5, 1, 8, 6)
    ImageViews(**PLAIN, mean=[0.5])(grey, step_generator(0, 0))
    assert torch.equal(grey, kept)
    same, _ = ImageViews(**PLAIN)(pictures(4, width=12), step_generator(0, 0))
    assert torch.allclose(same, pictures(4, width=12), atol=1e-6)
    assert torch.allclose(ImageViews(mean=[0.5], std=[0.5]).plain(grey), grey * 2 - 1, atol=1e-6)
    assert views(raw[:0], step_generator(0, 0))[0].shape == (0, 3, 12, 10)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"scale": (0, 1)}, "at most 1"),
        ({"scale": (0.5, 0.2)}, "rise"),
        ({"grey": 1.1}, "grey=1.1"),
        ({"jitter": (0, 0, 0, 0.6)}, "at most 0.5"),
        ({"sigma": (0, 1)}, "above 0"),
        ({"std": (0.0,)}, "above 0"),
    ],
)
def test_bad_settings_are_refused_with_the_rule(settings_, message):
    with pytest.raises(InputError, match=message):
        ImageViews(**settings_)


def test_bad_batches_are_refused_with_the_rule():
    with pytest.raises(InputError, match="1 or 3 channels"):
        ImageViews()(torch.zeros(2, 4, 8, 8), step_generator(0, 0))
    with pytest.raises(InputError, match="one for each"):
        ImageViews().view(pictures(3), torch.rand(2, 35))
    with pytest.raises(InputError, match="one a channel"):
        ImageViews(mean=(0.5,))(pictures(2), step_generator(0, 0))


def test_neighbour_lists_match_a_double_loop_even_with_copies():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 5)).astype(np.float32)
    features[30:] = features[0]
    lists = neighbour_lists(features, 6, normalize=False)
    for i in range(40):
        distances = np.linalg.norm(features - features[i], axis=1)
        wanted = np.sort(np.delete(distances, i))[:6]
        assert i not in lists[i]
        assert len(set(lists[i])) == 6
        assert np.allclose(np.sort(distances[lists[i]]), wanted, atol=1e-5)
    with pytest.raises(InputError, match="from 1 to 39"):
        neighbour_lists(features, 40)


def test_vector_views_drop_and_shake_as_much_as_they_say():
    batch = torch.randn((400, 64), generator=step_generator(0, 0)) * 3
    dropped, other = VectorViews(64, dropout=0.25, noise=0.0)(batch, step_generator(0, 1))
    assert abs(float((dropped == 0).float().mean()) - 0.25) < 0.01
    assert torch.allclose(dropped[dropped != 0], (batch / 0.75)[dropped != 0])
    assert not torch.equal(dropped, other)
    shaken, _ = VectorViews(64, dropout=0.0, noise=0.2)(batch, step_generator(0, 1))
    share = torch.linalg.vector_norm(shaken - batch, dim=1) / torch.linalg.vector_norm(batch, dim=1)
    assert abs(float(share.mean()) - 0.2) < 0.01
    both = VectorViews(64)
    numbers = both.draw(400, step_generator(2, 2))
    assert torch.equal(both.apply(batch[5:9], numbers[5:9])[1], both.apply(batch, numbers)[1][5:9])
    still, _ = VectorViews(64, dropout=0, noise=0)(batch, step_generator(0, 1))
    assert torch.equal(still, batch)


def test_neighbour_views_come_from_the_list_as_often_as_asked():
    features = torch.randn((200, 8), generator=step_generator(1, 0))
    views = VectorViews.among(features, k=4, neighbour=(0.2, 0.6), dropout=0.0, noise=0.0)
    rows = torch.randperm(200, generator=step_generator(1, 1))[:150]
    first, second = views(features[rows], step_generator(1, 2), rows)
    lists = neighbour_lists(features.numpy(), 4)
    moved = [0, 0]
    for side, view in enumerate((first, second)):
        for got, row in zip(view, rows.tolist(), strict=True):
            source = [i for i in [row, *lists[row]] if torch.equal(features[i], got)]
            assert len(source) == 1
            moved[side] += source != [row]
    assert 15 < moved[0] < 45 < 70 < moved[1] < 110
    with pytest.raises(InputError, match="rows"):
        views(features[rows], step_generator(0, 0))
    with pytest.raises(InputError, match="among"):
        VectorViews(8, neighbour=(0.0, 0.5))
    with pytest.raises(InputError, match="samples × 8"):
        views(features[:, :5], step_generator(0, 0), rows)
    with pytest.raises(InputError, match="two chances"):
        VectorViews(8, neighbour=(0.5,))
    with pytest.raises(InputError, match="below 1"):
        VectorViews(8, dropout=1.0)


@pytest.mark.data
def test_neighbours_of_real_sentences_mostly_mean_the_same(data_folder):
    with np.load(data_folder / "text" / "banking77_minilm.npz") as file:
        features, labels = file["test_features"][::2], file["test_labels"][::2]
    split = open_world_split(labels, known=0.5, ratio=0.5)
    rows = torch.from_numpy(split.unlabelled)
    views = VectorViews.among(features, k=3, dropout=0.0, noise=0.0)
    first, second = views(torch.from_numpy(features)[rows], step_generator(0, 0), rows)
    assert torch.equal(first, torch.from_numpy(features)[rows].float())
    drawn = (second @ torch.from_numpy(features).float().T).argmax(dim=1).numpy()
    assert (labels[drawn] == labels[split.unlabelled]).mean() > 0.7
