"""Run all that docs/thesis.md names, small: every command, script, function, detector and objective, one after another.

``python benchmarks/thesis_commands.py`` writes results/thesis_commands.json: for each, what was run, with which options
and on which data, and whether it worked. Commands get few inputs and epochs; where pictures and weights are not at
hand there are small stand-ins in their places. Nothing of the project is overwritten: scripts run in a
copy of ``benchmarks`` and ``docs``. What the file holds as working is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import importlib
import io
import json
import os
import pickle
import re
import runpy
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

import kept

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "thesis.md"
FEW = "--limit 40 --seeds 1 --passes-limit 12"
DETECTORS = "msp,energy,odin,mahalanobis,react(90)|energy,dice(0.9)|energy,knn(10),batchnorm_oracle"
OPEN = "--limit 300 --seeds 1 --methods k-means,discover,gcd,opencon"
# By what the page names: options that make it small. Of scripts, several runs may be asked for.
SUITES = {
    "offmap bench cifar10-densenet": f"{FEW} --methods {DETECTORS}",
    "offmap bench cifar100-densenet": f"{FEW} --methods {DETECTORS}",
    "offmap bench imagenet-resnet50": "--limit 300 --seeds 1 --methods msp,energy,react(90)|energy,knn(10)",
    "offmap bench open-banking77": "--limit 800 --seeds 1 --methods k-means,discover,gcd,opencon,nscl,sorl",
    "offmap bench open-banking77 --classes estimated": "--limit 800 --seeds 1 --methods discover,opencon",
    "offmap bench open-clinc150": "--limit 900 --seeds 1 --methods k-means,discover,gcd,opencon",
    "offmap bench open-digits": OPEN,
    "offmap bench open-fashion-mnist": OPEN,
    "offmap bench open-cifar10-small": "--limit 120 --seeds 1 --methods k-means,discover,gcd,opencon",
}
STAND_INS = {
    "offmap bench thesis-imagenet-resnet50": {"width": 8},
    "offmap bench thesis-imagenet-mobilenetv2": {"width": 0.25},
    "offmap bench thesis-imagenet-vit": {"width": 24, "depth": 2, "n_heads": 3},
    "offmap bench thesis-hard-cifar10": {"width": 8},
    **{f"offmap bench {name}": {} for name in ("c10-5", "c100-50", "c100-80")},
    **{f"offmap bench orca-{name}": {} for name in ("c10", "c100", "imagenet100")},
}
SCRIPTS = {
    "python benchmarks/thesis_detection.py": "--limit 100 --passes-limit 20 --seeds 1 --out detection --sweeps "
    "react-percentile-CIFAR-10 dice-subset-CIFAR-10 knn-normalised knn-average",
    "python benchmarks/thesis_activations.py": "--inputs 8 --out activations.json",
    "python benchmarks/mahalanobis_layers.py": "--only cifar10-densenet --fitted 40 --weighed 12 --known 72 "
    "--unknown 16",
    "python benchmarks/theory_figures.py": "",
    "python benchmarks/toy.py": "--per-type 8 --epochs 1 --out toy.json --work toy --picture toy.svg",
    "python benchmarks/toy.py --thesis-size --seeds 5": "--per-type 2 --epochs 1 --out size.json --work size",
    "python benchmarks/learn_images.py fashion": "--pictures 200 --pretrain-epochs 1 --epochs 1 --objectives opencon",
    "python benchmarks/learn_images.py cifar10": "--pictures 200 --pretrain-epochs 1 --epochs 1 --objectives opencon",
    "python benchmarks/learn_ablations.py": "--seeds 1",
    "python benchmarks/learn_sensitivity.py": "--seeds 1",
}
COMMANDS = {
    "offmap learn --tune": "gcd --data rows.npz --known 4 --k 6 --out tuned --set epochs=1 --set neighbours=5",
    "offmap loop": "--data digits --rounds 1 --out loop",
}
# By the setting as the page writes it: whose it is, and as `learn` takes it.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "percentile=70": ("opencon", {"percentile": 70}),
    "divergence=0.05": ("opencon", {"divergence": 0.05}),
    "known_too=True": ("opencon", {"known_too": True}),
    'gate="authors"': ("opencon", {"gate": "authors"}),
    "n_classes=None": ("opencon", {"n_classes": None}),
    'keep=("layer4",)': ("sorl", {"keep": ("layer4",)}),
    'pretrain="scl"': ("sorl", {"pretrain": "scl"}),
    'pretrain="simclr"': ("opencon", {"pretrain": "simclr"}),
    "diffusion=0.5": ("sorl-spectral", {"diffusion": 0.5, "columns": 4}),
}
# Detectors that read the heads of known classes which these objectives keep.
HEADS = {"godin": ("godin_h", "godin_g"), "mos": ("mos",), "logitnorm": ("msp",), "csi": ("msp",)}


def code_of_page() -> list[str]:
    """What stands between backticks, each once."""
    found = re.findall(r"`([^`]+)`", PAGE.read_text())
    return list(dict.fromkeys(code.replace("\\|", "|") for code in found))


def detectors_of_page() -> list[str]:
    """The detectors of chapters 3 to 5, as `runnable` writes them."""
    chapters = PAGE.read_text().partition("## Chapters 6 and 7")[0].partition("## Chapter 3")[2]
    codes: list[str] = []
    for line in chapters.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        codes += re.findall(r"`([^`]+)`", cells[2]) if len(cells) > 3 else []
    specs = [code.replace("\\|", "|") for code in codes if not re.match(r"offmap[ .]|python |learn\(|fit\(", code)]
    return list(dict.fromkeys(map(runnable, specs)))


def runnable(spec: str) -> str:
    """A detector of the page with layers and neighbours that the digits' network and their number allow."""
    spec = re.sub(r"\[…\]", "['features.2','features.5']", spec).replace('"block2"', "'features.5'")
    return spec.replace("knn(1000,", "knn(3,")


def command_line(words: list[str]) -> None:
    """Call ``offmap`` in this process."""
    from offmap.cli import app

    app(words, standalone_mode=False)


def suite(words: list[str], out: Path) -> None:
    """Run a suite; every method that was asked for must end in rows of its table."""
    command_line([*words, "--out", str(out)])
    held = json.loads((out / "results.json").read_text())
    if not held["rows"] or held.get("skipped"):
        raise AssertionError(f"{len(held['rows'])} rows; left out: {held.get('skipped')}")


def script(code: str, options: str, folder: Path) -> None:
    """Run a script of the copy as a program."""
    words = code.removeprefix("python ").split()
    sys.argv = [words[0], *words[1:], *options.split()]
    runpy.run_path(str(folder / words[0]), run_name="__main__")


def function(name: str) -> None:
    """Run the examples of a public name; of a package, import it."""
    parts = name.split(".")
    found: Any = importlib.import_module("offmap")
    for place, part in enumerate(parts[1:], start=2):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(".".join(parts[:place]))
        found = getattr(found, part)
    cases = [case for case in doctest.DocTestFinder(recurse=False).find(found, name, globs={}) if case.examples]
    holder = found if isinstance(found, ModuleType) else sys.modules[found.__module__]
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for case in cases:
        case.globs = dict(vars(holder))
        if runner.run(case).failed:
            raise AssertionError(f"{name}: its example failed")
    if found is not holder and not cases:
        raise AssertionError(f"{name}: it has no example to run")


def learned(objective: str, preset: str, **given: Any) -> None:
    """Learn from a few pictures, for one epoch; `given` are further settings."""
    from offmap import detector
    from offmap.learning import learn
    from offmap.models.encoders import make_encoder

    pictures = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3)).astype(np.uint8)
    labels = np.array([0, 0, 1, 1, 0, 1, 0, 1] + 16 * [-1])
    network = make_encoder("resnet18", (3, 16, 16), width=4)[0]
    short = {"epochs": 1, "batch_size": 12, "pretrain_epochs": 1} | given
    n_classes = short.pop("n_classes", 4)
    if objective in ("sorl-spectral", "self-training"):
        pictures = pictures[:, :4, :4].reshape(24, -1).astype(np.float32)
        model = learn(pictures, labels, 4, objective=objective, progress=False, neighbours=5, **given)
    else:
        model = learn(pictures, labels, n_classes, network, objective=objective, preset=preset, progress=False, **short)
    if not np.isfinite(model.transform(pictures)).all():
        raise AssertionError(f"{objective}, {preset}: features are not finite")
    for spec in HEADS.get(objective, ()):
        made = detector(spec)
        acts = model.known_network.extract(
            np.moveaxis(pictures, 3, 1).astype(np.float32) / 255, requirements=made.requirements, progress=False
        )
        if not np.isfinite(made.fit(acts).score(acts)).all():
            raise AssertionError(f"{spec} on {objective}: scores are not finite")


def detect(specs: list[str], folder: Path) -> None:
    """Run detectors on the digits; all of them must end in a row of the table."""
    command_line(["bench", "digits", "--seeds", "1", "--methods", ",".join(specs), "--out", str(folder / "digits")])
    held = json.loads((folder / "digits" / "results.json").read_text())
    n_rows = len({row["method"] for row in held["rows"]})
    if n_rows != len(set(specs)):
        raise AssertionError(f"{n_rows} of {len(set(specs))} detectors have a row; left out: {held.get('skipped')}")


def cifar(file: Path, n_classes: int, key: bytes, parts: tuple[str, ...]) -> None:
    """An archive as CIFAR's site publishes them, of noise."""
    rng = np.random.default_rng(0)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as made:
        for name in parts:
            labels = list(range(n_classes)) * (2 if n_classes > 10 else 4)
            pixels = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
            content = pickle.dumps({b"data": pixels, key: labels}, protocol=2)
            content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")  # as an old NumPy wrote it
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))


def stand_ins(root: Path) -> Path:
    """Small folders and archives of noise where the published sets would be."""
    rng = np.random.default_rng(0)
    places = {"imagenet/train": 12, "imagenet/val": 8, "inaturalist/iNaturalist": 4, "sun/SUN": 4, "places/Places": 4}
    places |= {"dtd/dtd/images": 4, "lsun-fix": 4, "imagenet-fix": 4, "imagenet-r/imagenet-r": 4}
    for place, n in places.items():
        for i in range(n):
            picture(root / place / f"class-{i % 2}" / f"{i}.png", rng)
    for i in range(200):
        picture(root / "imagenet100" / f"class-{i % 100:03}" / f"{i}.png", rng)
    batches = tuple(f"cifar-10-batches-py/{name}" for name in ("data_batch_1", "test_batch"))
    cifar(root / "cifar10" / "cifar-10-python.tar.gz", 10, b"labels", batches)
    hundred = ("cifar-100-python/train", "cifar-100-python/test")
    cifar(root / "cifar100" / "cifar-100-python.tar.gz", 100, b"fine_labels", hundred)
    truth = rng.integers(0, 6, 150)
    rows = rng.normal(size=(6, 8))[truth] + 0.2 * rng.normal(size=(150, 8))
    np.savez(root.parent / "rows.npz", features=rows.astype(np.float32), labels=truth)
    return root


def beside_the_data(folder: Path) -> Path:
    """The data folder with pictures of noise where sets that it does not hold would be."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for held in Path(os.environ["OFFMAP_DATA"]).resolve().iterdir():
        if held.is_dir():
            (folder / held.name).symlink_to(held)
    for place in ("lsun-crop/LSUN", "lsun-resize/LSUN_resize", "isun/iSUN", "places365/val_256"):
        if not (folder / place).exists():
            for i in range(4):
                picture(folder / place / f"{i}.png", rng)
    return folder


def picture(file: Path, rng: np.random.Generator) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(file)


def stand_in_suite(code: str, small: dict[str, Any], root: Path) -> str:
    """Write the declared suite again, with a narrow network or one epoch, and its weights; return its file."""
    from safetensors.torch import save_file

    from offmap.bench import suites
    from offmap.bench.kinds.backbones import BACKBONES

    name = code.split()[2]
    declared = Path(suites.__file__).parent / "declared"
    file = declared / f"{name}.toml" if small else declared / "open_world" / f"{name}.toml"
    text = file.read_text()
    if small:
        (spec,) = suites.load_suite(name).networks
        own = small | ({"n_classes": 2} if "imagenet" in name else {})
        taken = {key: value for key, value in spec.options.items() if key in ("stem", "n_classes")} | own
        weights = root / "weights" / f"{name}.safetensors"
        weights.parent.mkdir(exist_ok=True)
        model = BACKBONES[spec.options["name"]](**taken)
        save_file({key: value.contiguous() for key, value in model.state_dict().items()}, weights)
        lines = "".join(f"{key} = {value}\n" for key, value in own.items())
        text = re.sub(r'weights = ".*"\n', f'weights = "weights/{weights.name}"\n{lines}', text)
    else:
        text = text.replace("[settings]\n", "[settings]\nepochs = 1\npretrain_epochs = 1\nbatch_size = 100\n")
        text = text.replace("side = 224", "side = 16")
    made = root / f"{name}.toml"
    made.write_text(text)
    return str(made)


def tasks(folder: Path) -> dict[str, tuple[str, Callable[[], None]]]:
    """By what the page names: how it is run, and the run itself."""
    from offmap.learning import registered

    out: dict[str, tuple[str, Callable[[], None]]] = {}
    root, whole = stand_ins(folder / "stand-ins"), beside_the_data(folder / "data")
    for code in code_of_page():
        if code in SUITES:
            words = [*code.split()[1:], *SUITES[code].split(), "--data", str(whole)]
            place = folder / code.replace(" ", "-")
            how = f"{code} {SUITES[code]}, noise where a set is not at hand"
            out[code] = (how, lambda words=words, place=place: suite(words, place))
        elif code in STAND_INS:
            out[code] = (f"{code}, on stand-ins, one seed", lambda code=code: _stand_in(code, root, folder))
        elif code in SCRIPTS:
            options = SCRIPTS[code]
            out[code] = (f"{code} {options}".strip(), lambda c=code, o=options: script(c, o, folder))
        elif code in COMMANDS:
            words = [*code.split()[1:], *COMMANDS[code].split()]
            out[code] = (f"{code} {COMMANDS[code]}", lambda words=words: command_line(words))
        elif code == "benchmarks/thesis/toy_graphs.py":
            out[code] = ("imported; its tests run it", lambda code=code: script(code, "", folder))
        elif re.fullmatch(r"offmap\.[\w.]+", code):
            out[code] = ("its examples", lambda code=code: function(code))
        elif found := re.search(r'objective="([\w-]+)"(?:, preset="(\w+)")?', code):
            name, preset = found[1], found[2] or "thesis"
            how = f'learn(…, objective="{name}", preset="{preset}"), one epoch'
            out[code] = (how, lambda name=name, preset=preset: learned(name, preset))
        elif found := re.fullmatch(r'preset="(\w+)"', code):
            how = f'learn(…, objective="opencon", preset="{found[1]}"), one epoch'
            out[code] = (how, lambda preset=found[1]: learned("opencon", preset))
        elif code in SETTINGS:
            name, given = SETTINGS[code]
            how = f'learn(…, objective="{name}", {code}), one epoch'
            out[code] = (how, lambda name=name, given=given: learned(name, "thesis", **given))
    for name in registered():
        how = f'learn(…, objective="{name}", preset="thesis"), one epoch'
        out[f"objective {name}"] = (how, lambda name=name: learned(name, "thesis"))
    specs = [spec if _scores(spec) else f"{spec}|energy" for spec in detectors_of_page()]
    out["detectors of chapters 3 to 5"] = (
        f"offmap bench digits --methods {','.join(specs)}", lambda: detect(specs, folder)
    )  # fmt: skip
    return out


def _stand_in(code: str, root: Path, folder: Path) -> None:
    words = ["bench", stand_in_suite(code, STAND_INS[code], root), "--data", str(root), "--seeds", "1"]
    if STAND_INS[code]:
        words += ["--methods", "energy,knn(1),mahalanobis", "--cache", str(folder / "cache")]
    suite(words, folder / code.split()[2])


def _scores(spec: str) -> bool:
    from offmap import detector
    from offmap.errors import OffmapError

    try:
        detector(spec)
    except OffmapError:
        return False
    return True


def run_all(out: Path, only: str, again: bool) -> int:
    """Run what the file does not hold as working; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(HERE, folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(HERE.parent / "docs", folder / "docs")
        sys.path.insert(0, str(folder / "benchmarks"))
        os.chdir(folder)
        for code, (how, run) in tasks(folder).items():
            if only not in code or (not again and kept.read(out).get(code, {}).get("outcome") == "works"):
                continue
            start, said = time.process_time(), io.StringIO()
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    run()
                outcome = "works"
            except (Exception, SystemExit) as error:
                ended = isinstance(error, SystemExit) and not error.code
                outcome = "works" if ended else f"fails: {type(error).__name__}"
                failed += not ended
                if not ended:
                    traceback.print_exc()
                    print(said.getvalue()[-600:])
            kept.add(out, {code: {"run": how, "outcome": outcome}})
            print(f"{time.process_time() - start:7.1f} s  {code}: {outcome}", flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "thesis_commands.json")
    parser.add_argument("--only", default="", help="what contains this")
    parser.add_argument("--again", action="store_true", help="also what the file holds as working")
    given = parser.parse_args()
    if failed := run_all(given.out.resolve(), given.only, given.again):
        raise SystemExit(f"{failed} failed")


if __name__ == "__main__":
    main()
