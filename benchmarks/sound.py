"""Sound as pictures: ESC-50's recordings as spectrograms through an ImageNet ResNet-50, with classes held out.

    python benchmarks/sound.py --esc50 FOLDER --onnx resnet50.onnx [--classes 50] [--clips 40] [--features FILE]
        [--parts discovery detection]

The folder holds ESC-50's ``audio`` and ``meta/esc50.csv`` (github.com/karolpiczak/ESC-50). Each recording of 5 s
becomes a log spectrogram of 224 mel-spaced bands and 224 times; its 2,048 features come from Keras' ResNet-50, which
never saw a spectrogram. Five draws of held-out classes: a linear head is trained on half of the known recordings,
detectors are fitted on the same, and told apart are the other half and the held-out classes. Then classes are found:
half of them known, half of their recordings labelled, five splits, the number of classes given or estimated. The
features are kept in a file, so that a run cut short costs nothing twice. Results go to
``benchmarks/results/sound.json``.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.io import wavfile
from scipy.signal import spectrogram
from sklearn.linear_model import LogisticRegression

import kept
import offmap
from caltech import measure as measure_discovery
from offmap.metrics.detection import detection_report

RESULTS = Path(__file__).parent / "results" / "sound.json"
SIDE = 224
METHODS = ("msp", "energy", "knn(3)", "mahalanobis", "mahalanobis_pp", "rmds", "vim", "react(95)|energy", "auto")
DISCOVERY = {"kmeans": True, "ss-kmeans": True, "gcd": True, "auto": True, "auto, number estimated": False}
PARTS = ("discovery", "detection")
SPLITS = (2, 3, 4, 5, 6)


def to_picture(file: Path) -> np.ndarray:
    """A log spectrogram as grey pixels, BGR less the means that the network was trained with."""
    rate, sound = wavfile.read(file)
    frequencies, _, power = spectrogram(sound.astype(np.float32) / 2**15, rate, nperseg=2048, noverlap=1064)
    mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), SIDE)
    wanted = 700 * (10 ** (mels / 2595) - 1)
    level = np.log10(power + 1e-10)
    columns = np.linspace(0, level.shape[1] - 1, SIDE).round().astype(int)
    bands = np.stack([np.interp(wanted, frequencies, level[:, column]) for column in columns], axis=1)[::-1]
    pixels = 255 * (bands - bands.min()) / max(float(np.ptp(bands)), 1e-6)
    return (pixels[None] - np.array([103.939, 116.779, 123.68])[:, None, None]).astype(np.float32)


def extract(folder: Path, onnx: Path, classes: int, clips: int, held: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and classes of some recordings of the first classes."""
    if not held.is_file():
        with (folder / "meta" / "esc50.csv").open() as file:
            entries = [(row["filename"], int(row["target"])) for row in csv.DictReader(file)]
        chosen = [name for label in range(classes) for name in sorted(n for n, t in entries if t == label)[:clips]]
        labels = np.repeat(np.arange(classes), clips)
        net = offmap.Network.onnx(onnx, layer="features")
        batches = (
            np.stack([to_picture(folder / "audio" / name) for name in chosen[at : at + 16]])
            for at in range(0, len(chosen), 16)
        )
        np.savez(held, features=np.concatenate([net(batch).features for batch in batches]), labels=labels)
    with np.load(held) as arrays:
        return arrays["features"], arrays["labels"]


def measure(rows: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Any]:
    """AUROC and FPR95 of every method for one draw of held-out classes, a fifth of them."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.unique(labels))
    known = np.sort(order[len(order) // 5 :])
    inside = rng.permutation(np.flatnonzero(np.isin(labels, known)))
    fit, test = inside[: len(inside) // 2], inside[len(inside) // 2 :]
    codes = np.searchsorted(known, labels)
    linear = LogisticRegression(C=0.1, max_iter=300).fit(rows[fit], codes[fit])
    head = offmap.Head(linear.coef_.astype(np.float32), linear.intercept_.astype(np.float32))
    acts = offmap.Activations(rows[fit], head, labels=codes[fit])
    tested, far = offmap.Activations(rows[test], head), offmap.Activations(rows[~np.isin(labels, known)], head)
    found: dict[str, Any] = {"accuracy": round(100 * linear.score(rows[test], codes[test]), 2)}
    for spec in METHODS:
        fitted = offmap.detector(spec).fit(acts)
        report = detection_report(fitted.score(tested), fitted.score(far))
        found[spec] = {"fpr95": round(100 * report.fpr95, 2), "auroc": round(100 * report.auroc, 2)}
    return found


def discovery(rows: np.ndarray, labels: np.ndarray) -> None:
    """Find classes, half of them known: every method on every split."""
    for name, given_number in DISCOVERY.items():
        for seed in SPLITS:
            cell = measure_discovery(rows, labels, seed, name.partition(",")[0], given_number)
            kept.add(RESULTS, {"discovery": {name: {str(seed): cell}}})
            print(name, seed, cell, flush=True)


def detection(rows: np.ndarray, labels: np.ndarray) -> None:
    """Every method on five draws of held-out classes, and the means."""
    runs = {str(seed): measure(rows, labels, seed) for seed in range(5)}
    mean = {
        spec: {name: round(fmean(run[spec][name] for run in runs.values()), 2) for name in ("fpr95", "auroc")}
        for spec in METHODS
    }
    kept.add(RESULTS, {"runs": runs, "mean": mean})
    for spec, numbers in mean.items():
        print(f"{spec:<22}{numbers['fpr95']:8.2f}{numbers['auroc']:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--esc50", type=Path, required=True)
    parser.add_argument("--onnx", type=Path, required=True)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--features", type=Path, default=Path("out/esc50.npz"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    given.features.parent.mkdir(parents=True, exist_ok=True)
    rows, labels = extract(given.esc50, given.onnx, given.classes, given.clips, given.features)
    kept.add(RESULTS, {"classes": given.classes, "clips": given.clips})
    if "discovery" in given.parts:
        discovery(rows, labels)
    if "detection" in given.parts:
        detection(rows, labels)


if __name__ == "__main__":
    main()
