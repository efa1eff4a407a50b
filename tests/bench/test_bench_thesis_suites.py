"""The thesis' suites on pictures that are not here, run on small stand-ins: the same files, other weights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from offmap.bench import suites
from offmap.bench.kinds.backbones import BACKBONES
from offmap.bench.networks import make_network
from offmap.bench.runner import run_suite
from offmap.bench.suite_page import build_suite_page
from offmap.bench.suites import NetworkSpec, load_suite
from offmap.errors import InputError

SMALL = {
    "resnet50": {"width": 8},
    "mobilenetv2": {"width": 0.25},
    "vit-b16": {"width": 24, "depth": 2, "n_heads": 3},
    "resnet18": {"width": 8},
}
FOLDERS = {
    "imagenet/train": 12, "imagenet/val": 6, "inaturalist/iNaturalist": 4, "sun/SUN": 4, "places/Places": 4,
    "dtd/dtd/images": 4, "lsun-fix": 4, "imagenet-fix": 4, "imagenet-r/imagenet-r": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small folders where the sets would be, and weights of narrow networks."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for folder, n in FOLDERS.items():
        for i in range(n):
            place = root / folder / ("class-a" if i % 2 else "class-b")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(place / f"{i}.png")
    (root / "images").mkdir()
    Image.fromarray(rng.integers(0, 256, (32, 3200, 3), dtype=np.uint8)).save(root / "images" / "cifar100_test.webp")
    np.save(root / "images" / "cifar100_test_labels.npy", np.arange(20) % 2)
    (root / "weights").mkdir()
    return root


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2", "vit"])
def test_the_imagenet_suites_run_where_the_pictures_are(name: str, stand_ins: Path, tmp_path: Path) -> None:
    suite = load_suite(f"thesis-imagenet-{name}")
    (spec,) = suite.networks
    small = SMALL[spec.options["name"]] | {"n_classes": 2}
    model = BACKBONES[spec.options["name"]](**small)
    file = (stand_ins / spec.options["weights"]).with_suffix(".safetensors")
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, file)
    text = (Path(sys.modules[load_suite.__module__].__file__).parent / "declared" / f"{suite.name}.toml").read_text()
    own = "".join(f"{key} = {value}\n" for key, value in small.items())
    text = text.replace(f'weights = "{spec.options["weights"]}"\n', f'weights = "weights/{file.name}"\n{own}')
    (tmp_path / "small.toml").write_text(text)
    run = [sys.executable, "-m", "offmap.cli", "bench", str(tmp_path / "small.toml"), "--data", str(stand_ins)]
    methods = ["--methods", "energy,mahalanobis,knn(1)"]
    out = ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--json"]
    done = subprocess.run([*run, *methods, *out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert {row["ood"] for row in rows} == {"inaturalist", "sun", "places", "textures"}
    assert {row["method"] for row in rows} == {"energy", "mahalanobis", "knn(1)"}


def test_what_is_printed_stands_beside_the_methods_that_run() -> None:
    names = ("imagenet-resnet50", "imagenet-mobilenetv2", "imagenet-vit", "hard-cifar10")
    for suite in (load_suite(f"thesis-{name}") for name in names):
        assert all(set(figures) == set(suite.methods) for figures in suite.thesis.values())
        assert set(suite.thesis) == {ood.name for ood in suite.ood}
    assert load_suite("thesis-imagenet-vit").thesis["sun"]["knn(10)"] == (48.40,)  # tables 5.5 and 5.3: FPR95 alone
    assert load_suite("thesis-hard-cifar10").thesis["cifar100"] == {"ssd": (45.50,), "knn(50)": (38.83,)}
    figures = load_suite("thesis-imagenet-resnet50").thesis
    average = np.mean([figures[ood]["react(90)|energy"] for ood in figures], axis=0)
    assert average == pytest.approx([31.43, 92.95], abs=0.006)
    figures = load_suite("thesis-imagenet-mobilenetv2").thesis
    average = np.mean([figures[ood]["react(90)|energy"] for ood in figures], axis=0)
    assert average == pytest.approx([45.02, 89.47], abs=0.006)
    for name, dice in (("cifar10-densenet", (20.83, 95.24)), ("cifar100-densenet", (49.72, 87.23))):
        figures = load_suite(name).thesis
        average = np.mean([figures[ood]["dice(0.9)|energy"] for ood in figures], axis=0)
        assert average == pytest.approx(dice, abs=0.02), name


def test_printed_figures_of_another_number_are_refused() -> None:
    file = Path(suites.__file__).parent / "declared" / "thesis-imagenet-vit.toml"
    with pytest.raises(InputError, match="for mahalanobis; FPR95, or FPR95 and AUROC"):
        suites.parse_suite(tomllib.loads(file.read_text().replace("[17.56]", "[17.56, 1.0, 2.0]")), "mine")


def test_the_hard_sets_run_where_they_are(stand_ins: Path, tmp_path: Path) -> None:
    suite = load_suite("thesis-hard-cifar10")
    (spec,) = suite.networks
    small = {**spec.options, **SMALL["resnet18"], "weights": "weights/hard.safetensors"}
    settings = {key: value for key, value in small.items() if key not in ("name", "weights", "mean", "std")}
    model = BACKBONES["resnet18"](**settings)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, stand_ins / "weights" / "hard.safetensors")
    from dataclasses import replace

    from offmap.bench.suites import SetSpec

    shown = {"path": "imagenet/train", "side": 32}
    suite = replace(
        suite,
        networks=(NetworkSpec("resnet18", "backbone", small),),
        known=SetSpec("known", shown),
        test=SetSpec("test", {**shown, "path": "imagenet/val"}),
    )
    suite = replace(suite, thesis={**suite.thesis, "imagenet-r": {"knn(1)": (29.92,)}})
    found = run_suite(suite, methods=["knn(1)"], data=stand_ins, cache=tmp_path)
    assert {row.ood for row in found.rows} == {"lsun-fix", "imagenet-fix", "imagenet-r", "cifar100"}
    (row,) = (row for row in found.rows if row.ood == "imagenet-r")
    assert row.thesis == pytest.approx({"fpr95": 0.2992})
    assert re.search(r" 29\.92 +– \(", str(found))
    assert "29.92" in build_suite_page(found).html()


def test_a_backbone_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name one of resnet18"):
        make_network(NetworkSpec("own", "backbone", {"name": "resnet34", "weights": "x"}), None, tmp_path, tmp_path)
    with pytest.raises(InputError, match=r"resnet50\.pth"):
        make_network(load_suite("thesis-imagenet-resnet50").networks[0], None, tmp_path, tmp_path)
