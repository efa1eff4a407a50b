"""Every sentence of docs/imagenet-results.md that compares is borne out by all rows of what it compares."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
RESULTS = DOCS.parent / "benchmarks" / "results"
COMPARING = re.compile(
    r"\b(best|better|worse|worst|more|less|most|least|ahead|behind|beats?|loses?|gains?|poor|good|alike|shines?|harms?"
    r"|helps?|falls?|faster|slower|quicker|cheaper|times|higher|lower|larger|smaller|highest|lowest|at chance)\b"
)
WITHOUT_FIGURES = {
    # says how to read a table, or why something was not measured; nothing in the results could contradict it
    "Accepted by corruption and strength: mean over the methods, and the least and most.",
    "Why known inputs suffer more was not looked into.",
    "Since then wide embeddings are learned slower, in proportion to their columns, as was tried on splits 0 and 1.",
    "CPU seconds, and the most memory above that of the idle process; one thread. pytorch-ood gets batches of 128.",
    "The network saw ImageNet's classes, among them many of Caltech's, so this says how well classes are found among "
    "good features.",
    "`benchmarks/tables.py`: the 42 sets of ADBench that could be had and that every detector took (`lof` refuses "
    "one), at most 2,000 rows a part, fitted on normal rows only, all parameters as they come, the same "
    "standardised columns for all.",
    "`react(90)|gen`: cut features make the probabilities of all classes alike, and the generalised entropy weighs the "
    "small ones up.",
}


def read(name: str) -> Any:
    """One committed file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def sentences() -> list[str]:
    """The prose of the page without tables, headings and pictures."""
    text = (DOCS / "imagenet-results.md").read_text()
    for pattern in (r"<!--.*?-->", r"^\|.*$", r"^[#!].*$"):
        text = re.sub(pattern, "", text, flags=re.DOTALL | re.MULTILINE if "<" in pattern else re.MULTILINE)
    found = []
    for passage in re.split(r"\n\s*\n|^- ", text, flags=re.MULTILINE):
        found += re.split(r"(?<=[.:;])\s+(?=[A-Z`*])", " ".join(passage.split()))
    return [sentence for sentence in found if sentence]


def on_textures() -> dict[str, dict[str, float]]:
    """Every method that was measured on stored features against textures, by the suite or in a sweep."""
    found = {row["method"]: row for row in read("suite-imagenet-resnet50")["rows"] if row["ood"] == "textures"}
    return found | {row["method"]: row for sweep in read("imagenet")["sweeps"].values() for row in sweep}


CHECKS: dict[str, Callable[[], bool]] = {}


def states(sentence: str) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    """Register the check of one sentence of the page."""

    def register(check: Callable[[], bool]) -> Callable[[], bool]:
        CHECKS[sentence] = check
        return check

    return register


@states(
    "Four methods put textures above known pictures here, and so does `bottom_k`, the thesis' control that keeps the "
    "wrong weights."
)
def _below_chance() -> bool:
    below = {name for name, row in on_textures().items() if row["auroc"] < 50}
    return below == {"nac", "iforest", "react(90)|gen", "neglabel(1)", "bottom_k(0.7)|energy"}


def test_how_many_inputs_a_class_has_is_said() -> None:
    sizes = {int(size): count for size, count in read("imagenet")["classes by inputs to fit on"].items()}
    mean = sum(size * count for size, count in sizes.items()) / sum(sizes.values())
    text = " ".join((DOCS / "imagenet-results.md").read_text().split())
    assert f"a class has {mean:.1f} on average, {sizes[0]} classes none and {sizes[5]} all five" in text


def test_no_method_of_the_first_table_is_better_on_textures_than_neighbours() -> None:
    """The page says that k-NN is the best there."""
    rows = {row["method"]: row for row in read("suite-imagenet-resnet50")["rows"]}
    assert min(rows, key=lambda name: rows[name]["fpr95"]) == "knn(10)"
    assert max(rows, key=lambda name: rows[name]["auroc"]) == "knn(10)"
    least = min(on_textures().items(), key=lambda item: item[1]["fpr95"])
    assert least[0].endswith("knn(10)")


@states(
    "`react(90)|energy` cuts features after positions were averaged and helps much; cutting maps changes little after "
    "the first two stages, and the later the stage, the more it harms."
)
def _layers() -> bool:
    twin = read("imagenet_twin")
    plain = twin["methods"]["energy"]
    stages = [found for _, found in sorted(twin["energy cut at the 90th percentile after"].items())]
    helps = plain["fpr95"] - twin["methods"]["react(90)|energy"]["fpr95"] > 30
    little = all(abs(stage["fpr95"] - plain["fpr95"]) < 10 for stage in stages[:2])
    falling = [stage["auroc"] for stage in stages]
    return helps and little and falling == sorted(falling, reverse=True) and plain["auroc"] > falling[0]


@states("Methods that shine on textures do not here, and none is good:")
def _near() -> bool:
    rows = [row for name in ("hide100", "hide200", "pairs") for row in read(f"suite-imagenet-resnet50-{name}")["rows"]]
    near = [row for row in rows if row["ood"] == "left out"]
    shining = {row["method"] for row in rows if row["ood"] == "textures" and row["fpr95"] < 25}
    plain = {
        row["method"]: row["auroc"]
        for row in read("suite-imagenet-resnet50-hide100")["rows"]
        if row["ood"] == "left out"
    }
    worse = all(plain[method] < plain["msp"] for method in shining)
    return (
        len(near) > 30 and worse and max(row["auroc"] for row in near) < 80 and min(row["fpr95"] for row in near) > 75
    )


@states(
    "Where the network is unsure, gradients are small, all units are near the middle state, which seems to be the best "
    "covered one: over both sets the score falls as the largest probability rises (rank correlation -0.62)."
)
def _nac() -> bool:
    return f"{read('imagenet')['why below chance']['nac with the largest probability']:.2f}" == "-0.62"


@states(
    "`iforest` finds small activations the most usual ones, and textures have smaller ones: the score falls as the "
    "mean activation rises (rank correlation -0.69)."
)
def _iforest() -> bool:
    held = read("imagenet")
    smaller = held["unit means"]["textures"]["mean"] < held["unit means"]["known"]["mean"]
    return smaller and f"{held['why below chance']['iforest with the mean activation']:.2f}" == "-0.69"


@states(
    "With 400 inputs for 1,000 classes, class-wise methods warn, and `rmds`, `she` and `mahalanobis` have the lowest "
    "AUROC over the full spectrum;"
)
def _full_spectrum() -> bool:
    found: dict[str, list[float]] = {}
    for row in read("suite-imagenet-resnet50-pictures")["rows"]:
        found.setdefault(row["method"], []).append(row["full_spectrum"]["auroc"])
    means = {method: fmean(values) for method, values in found.items()}
    return sorted(means, key=means.__getitem__)[:3] == ["rmds", "she", "mahalanobis"]


@states("`she` is at chance on X-rays.")
def _she() -> bool:
    rows = read("suite-imagenet-resnet50-pictures")["rows"]
    return [abs(row["auroc"] - 50) < 5 for row in rows if (row["method"], row["ood"]) == ("she", "chest X-rays")] == [
        True
    ]


def discovered(method: str) -> dict[str, float]:
    """Accuracy on Caltech-101 by split."""
    return {split: run["all"] for split, run in read("caltech")[method].items()}


@states("`auto` is ahead of the other methods on each split, with the number of classes given or estimated.")
def _auto() -> bool:
    others = [method for method in read("caltech") if not method.startswith("auto")]
    autos = [discovered("auto"), discovered("auto, number estimated")]
    return all(auto[split] > score for auto in autos for other in others for split, score in discovered(other).items())


@states("GCD's clustering is behind plain k-means on each.")
def _gcd() -> bool:
    plain = discovered("kmeans")
    return all(score < plain[split] for split, score in discovered("gcd").items())


def learned(objective: str, *more: str) -> dict[str, dict[str, Any]]:
    """What an objective reached, by split; with ``K estimated`` if that is given."""
    found = {tuple(key.split("|")[1:]): run for key, run in read("learn_caltech").items()}
    return {key[1]: run for key, run in found.items() if key == (objective, key[1], *more)}


def gained(objective: str) -> list[float]:
    """Points over `discover` on each split that was learned on."""
    return [run["v2"][0] - discovered("auto")[split] for split, run in learned(objective).items()]


@states(
    "Contrast of views and labels (`gcd`, `opencon`) gains most, the closed form `sorl-spectral` one and a half points "
    "in seconds;"
)
def _objectives() -> bool:
    closed, *others = (fmean(gained(name)) for name in ("sorl-spectral", "self-training", "sorl", "supcon"))
    contrast = min(fmean(gained(name)) for name in ("gcd", "opencon"))
    return contrast > max(closed, *others) and abs(closed - 1.5) < 0.1


@states("`sorl` trained by steps loses one and labels alone (`supcon`) six.")
def _losing_objectives() -> bool:
    return [round(fmean(gained(name))) for name in ("sorl", "supcon")] == [-1, -6]


@states("`self-training`, which `learn` takes by default, is above `discover` on each split, the number given.")
def _default() -> bool:
    return min(gained("self-training")) > 0 and len(gained("self-training")) == 5


def in_the_loop(method: str) -> float:
    """Per cent of pictures right, over those of `discover`."""
    runs = read("caltech_pictures")["runs"]
    return float(runs[method]["2"]["v2"][0] - runs["discover"]["2"]["v2"][0])


@states("Contrast of views on an adapter gains one and a half to two points on training-free discovery.")
def _adapters() -> bool:
    return all(1.4 < in_the_loop(name) < 2.1 for name in ("gcd", "opencon"))


@states(
    "**Training the last stage loses one**: three epochs of 1,200 pictures are too few for its fifteen million weights."
)
def _last_stage() -> bool:
    return [round(in_the_loop(f"{name}, last stage")) for name in ("gcd", "opencon")] == [-1, -1]


@states("`self-training`, the default of `learn`, is level with discovery.")
def _default_in_the_loop() -> bool:
    return abs(in_the_loop("self-training")) < 0.5


@states(
    "Detection is poor: the head is right on three quarters of the known recordings, and `auto` has the highest AUROC "
    "with 75.4, `msp` the lowest FPR95 with 82."
)
def _sound_detection() -> bool:
    mean, right = read("sound")["mean"], fmean(run["accuracy"] for run in read("sound")["runs"].values())
    best = (
        max(mean, key=lambda name: float(mean[name]["auroc"])),
        min(mean, key=lambda name: float(mean[name]["fpr95"])),
    )
    figures = f"{mean['auto']['auroc']:.1f}", f"{mean['msp']['fpr95']:.0f}"
    return best == ("auto", "msp") and figures == ("75.4", "82") and abs(right - 75) < 1


@states("Distances in these features are near chance (`rmds`, which compares two of them, is not).")
def _sound_distances() -> bool:
    mean = {name: found["auroc"] for name, found in read("sound")["mean"].items()}
    near = max(mean[name] for name in ("knn(3)", "mahalanobis", "mahalanobis_pp", "vim"))
    return near < 60 and mean["rmds"] > 70


def heard(method: str) -> dict[str, dict[str, float]]:
    """What was found among recordings, by split."""
    return dict(read("sound")["discovery"][method])


@states("`auto` is ahead of the other methods on each split, by ten points or more over k-means.")
def _sound_auto() -> bool:
    auto = heard("auto")
    others = [heard(method) for method in ("kmeans", "ss-kmeans", "gcd")]
    plain = min(auto[split]["all"] - run["all"] for split, run in others[0].items())
    ahead = all(auto[split]["all"] > run["all"] for other in others for split, run in other.items())
    return ahead and plain >= 10 and len(auto) == 5


@states(
    "When the number of classes is estimated, 43 to 51 are found, and the accuracy is the same within a point on "
    "average."
)
def _sound_estimated() -> bool:
    given, estimated = heard("auto"), heard("auto, number estimated")
    lost = [given[split]["all"] - run["all"] for split, run in estimated.items()]
    found = [run["classes"] for run in estimated.values()]
    return (min(found), max(found)) == (43, 51) and abs(fmean(lost)) < 1


def test_the_page_on_sound_quotes_the_same() -> None:
    text = " ".join((DOCS / "howto" / "sound.md").read_text().split())
    means = {name: fmean(run["all"] for run in heard(name).values()) for name in ("auto", "kmeans")}
    best = max(found["auroc"] for found in read("sound")["mean"].values())
    assert f"the best AUROC for classes held out was {best:.0f}" in text
    assert f"`discover` put {means['auto']:.0f} % of the recordings" in text
    assert f"where k-means had {means['kmeans']:.0f}" in text


def speed() -> dict[str, Any]:
    """What was measured about speed."""
    return dict(read("imagenet_speed"))


@states(
    "Of the twelve, offmap takes less CPU time for nine, for `fdbd` and `dice` 66 and 32 times less, and `energy` is "
    "level."
)
def _quicker() -> bool:
    ratios = {name: found["ratio_of_cpu_time"] for name, found in speed()["methods"].items()}
    much = [round(ratios[name]) for name in ("fdbd", "dice(0.7)|energy")] == [66, 32]
    others = set(ratios) - {"energy", "react(90)|energy", "vim"}
    return much and abs(ratios["energy"] - 1) < 0.1 and len(others) == 9 and min(ratios[name] for name in others) > 1.1


@states(
    "`react` takes 1.6 times as long, for an exact percentile of all activations, and `vim` twice, since offmap "
    "decomposes in float64 and pytorch-ood in float32."
)
def _slower() -> bool:
    ratios = [speed()["methods"][name]["ratio_of_cpu_time"] for name in ("react(90)|energy", "vim")]
    return [f"{1 / ratio:.1f}" for ratio in ratios] == ["1.6", "2.0"]


@states(
    "It holds less memory for `fdbd` and `dice`, where pytorch-ood needs 8.2 GB and 1.1 GB, and more for all others, "
    "at most 325 MB."
)
def _memory() -> bool:
    held = {
        name: (found["offmap"]["peak_megabytes"], found["pytorch-ood"]["peak_megabytes"])
        for name, found in speed()["methods"].items()
    }
    less = {name for name, (ours, theirs) in held.items() if ours < theirs}
    theirs = [f"{held[name][1] / 1000:.1f}" for name in ("fdbd", "dice(0.7)|energy")]
    most = round(max(ours for ours, _ in held.values()))
    return less == {"fdbd", "dice(0.7)|energy"} and theirs == ["8.2", "1.1"] and most == 325


@pytest.mark.parametrize("sentence", CHECKS)
def test_the_figures_bear_out_what_is_said(sentence: str) -> None:
    assert sentence in sentences(), "the page no longer says so: mend or remove the check"
    assert CHECKS[sentence]()


def test_every_sentence_that_compares_has_a_check() -> None:
    comparing = {sentence for sentence in sentences() if COMPARING.search(re.sub(r"`[^`]*`", "", sentence))}
    assert comparing - set(CHECKS) - WITHOUT_FIGURES == set(), "write a check for it above"
