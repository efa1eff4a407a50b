"""The thesis' own questions about detection, each declared as one sweep: which detectors, over which parameter, where.

A sweep is data; `thesis.ablations` measures and draws them all alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["lines", "bars", "grid"]
CIFAR10, CIFAR100, FASHION = "cifar10-densenet", "cifar100-densenet", "fashion-mnist"


@dataclass(frozen=True)
class Point:
    """One detector of a sweep: its series, its place on the axis, its text form.

    `network` are options that differ from the suite's own network: its normalisation, objective or tapped layer.
    """

    series: str
    x: Any
    method: str
    network: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Sweep:
    """One question.

    Attributes
    ----------
    name, question
        What is asked.
    says
        What the thesis says, with the line.
    suite
        Whose network and sets it is asked of.
    points
        The detectors.
    kind, x
        How it is drawn, and what the axis is.
    accuracy
        Whether the classes that the shaped network answers are measured too.
    """

    name: str
    question: str
    says: str
    suite: str
    points: tuple[Point, ...] = field(repr=False)
    kind: Kind = "lines"
    x: str = ""
    accuracy: bool = False
    logarithmic: bool = False


PERCENTILES = (10, 65, 80, 85, 90, 95, 99, 99.9)
SPARSITIES = (0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
NEIGHBOURS = (1, 10, 20, 50, 100, 200, 500, 1000)
SHARES = (0.01, 0.1, 0.5, 1)
LAYERS = ("features.2", "features.5", "features.8")
SPARSIFIERS = ("unit_dropout", "weight_dropout", "unit_pruning", "weight_pruning", "dice")
SUBSETS = ("bottom_k", "random_k", "top_bottom_k", "dice")
OTHERS = ("iforest", "ocsvm", "loda", "pca(50)", "lof(50)", "knn(50)")
SUPCON = (("objective", "supcon"),)
PROJECTION = (*SUPCON, ("layer", "projection"))
NORMS = {"BatchNorm": (), "GroupNorm": (("norm", "group"),), "WeightNorm": (("norm", "weight"),)}


def _percentile(suite: str, known: str) -> Sweep:
    return Sweep(
        f"react-percentile-{known}",
        f"Which percentile should ReAct cut at? ({known})",
        "90 is best on ImageNet with ResNet-50; very low ones lose what tells classes apart (section 3.3.1, table 3.2)",
        suite,
        tuple(Point("react|energy", p, f"react({p})|energy") for p in PERCENTILES),
        x="percentile",
        accuracy=True,
    )


def _sparsity(suite: str, known: str) -> Sweep:
    return Sweep(
        f"dice-sparsity-{known}",
        f"How sparse should DICE make the head? ({known})",
        "already p = .1 helps, .1 to .9 are alike, .99 is too much "
        "(section 4.4, figure 4.3; appendix A.2.3, table A.3)",
        suite,
        tuple(Point("dice|energy", p, f"dice({p})|energy") for p in SPARSITIES),
        x="share of weights dropped",
        accuracy=True,
    )


SWEEPS: tuple[Sweep, ...] = (
    _percentile(CIFAR10, "CIFAR-10"),
    _percentile(CIFAR100, "CIFAR-100"),
    Sweep(
        "react-scores",
        "Does ReAct help MSP, energy and ODIN alike?",
        "it helps each of them, energy most (section 3.3.2, table 3.3)",
        FASHION,
        tuple(
            Point("with ReAct" if shaper else "plain", score, f"{shaper}{score}")
            for score in ("msp", "energy", "odin")
            for shaper in ("", "react(90)|")
        ),
        kind="bars",
    ),
    Sweep(
        "react-layers",
        "At which layer should ReAct cut?",
        "only the last one helps, earlier ones hurt (appendix A.1.2, table A.1)",
        FASHION,
        (
            Point("energy", "none", "energy"),
            *(Point("react(90)|energy", layer, f'react(90, layer="{layer}")|energy') for layer in LAYERS),
            Point("react(90)|energy", "penultimate", "react(90)|energy"),
        ),
        kind="bars",
    ),
    Sweep(
        "react-normalisation",
        "Does ReAct help under other normalisations?",
        "under GroupNorm and WeightNorm too (section 3.5.2)",
        FASHION,
        tuple(
            Point(method, name, method, options)
            for name, options in NORMS.items()
            for method in ("energy", "react(90)|energy")
        ),
        kind="bars",
    ),
    Sweep(
        "batchnorm-oracle",
        "What would BatchNorm with the unknown inputs' own statistics do?",
        "an upper bound that ReAct comes near (section 3.5.1, table 3.4)",
        FASHION,
        tuple(Point("batch of one set", m, m) for m in ("energy", "react(90)|energy", "batchnorm_oracle")),
        kind="bars",
    ),
    _sparsity(CIFAR10, "CIFAR-10"),
    _sparsity(CIFAR100, "CIFAR-100"),
    *(
        Sweep(
            f"dice-sparsifiers-{known}",
            f"Is it sparsity that helps, or its direction? ({known}, p = .9)",
            "direction: DICE before weight pruning, dropping at random hurts "
            "(section 4.4, table 4.3; appendix A.2.4, table A.4)",
            suite,
            tuple(Point("p = 0.9", name, f"{name}(0.9)|energy") for name in SPARSIFIERS),
            kind="bars",
        )
        for suite, known in ((CIFAR10, "CIFAR-10"), (CIFAR100, "CIFAR-100"))
    ),
    *(
        Sweep(
            f"dice-subset-{known}",
            f"Which units should be kept? ({known}, p = .9)",
            "the top ones; the bottom ones tell nothing (section 4.4, table 4.4)",
            suite,
            tuple(Point("p = 0.9", name, f"{name}(0.9)|energy") for name in SUBSETS),
            kind="bars",
        )
        for suite, known in ((CIFAR10, "CIFAR-10"), (CIFAR100, "CIFAR-100"))
    ),
    Sweep(
        "knn-grid",
        "How many neighbours k, from what share α of the known inputs?",
        "the best FPR95 is alike for all α, with k growing with α (section 5.4, figure 5.3)",
        CIFAR10,
        tuple(
            Point(f"{share:.0%}", k, f"knn({k}, alpha={share})")
            for share in SHARES
            for k in NEIGHBOURS
            if k <= 5_000 * share
        ),
        kind="grid",
        x="k among all known inputs; k·α neighbours are taken among a share α",
    ),
    Sweep(
        "knn-normalised",
        "Must features be normalised?",
        "it is critical: 61 points of FPR95 on ImageNet with SupCon (section 5.4, figure 5.4)",
        CIFAR10,
        tuple(
            Point(name, k, f"knn({k}, normalize={flag})")
            for name, flag in (("normalised", "true"), ("as they are", "false"))
            for k in NEIGHBOURS
        ),
        x="k",
        logarithmic=True,
    ),
    Sweep(
        "knn-average",
        "The k-th distance, or the average of k?",
        "alike, each with its best k (section 5.4)",
        CIFAR10,
        tuple(
            Point(name, k, f"knn({k}, average={flag})")
            for name, flag in (("k-th", "false"), ("average", "true"))
            for k in NEIGHBOURS
        ),
        x="k",
        logarithmic=True,
    ),
    Sweep(
        "knn-layer",
        "Penultimate features or the projection head?",
        "penultimate ones on all sets (section 5.4, figure 5.4)",
        FASHION,
        (Point("k = 50", "penultimate", "knn(50)", SUPCON), Point("k = 50", "projection", "knn(50)", PROJECTION)),
        kind="bars",
    ),
    Sweep(
        "knn-objective",
        "Features of cross-entropy or of SupCon?",
        "SupCon on all sets (section 5.3.1, table 5.1)",
        FASHION,
        (Point("k = 50", "cross-entropy", "knn(50)"), Point("k = 50", "SupCon", "knn(50)", SUPCON)),
        kind="bars",
    ),
    Sweep(
        "knn-react",
        "Does ReAct help k-NN?",
        "yes: 38.5 to 26.5 on ImageNet with SupCon (section 5.4, table 5.6)",
        CIFAR10,
        tuple(
            Point(name, k, f"{shaper}knn({k})")
            for name, shaper in (("knn", ""), ("react(95)|knn", "react(95)|"), ("react(99)|knn", "react(99)|"))
            for k in (10, 50, 200)
        ),
        x="k",
        logarithmic=True,
    ),
    Sweep(
        "knn-others",
        "How does k-NN compare with other non-parametric detectors?",
        "it is better by far, on SupCon features (section 5.3.1, table 5.2)",
        CIFAR10,
        tuple(Point("default settings", name, name) for name in OTHERS),
        kind="bars",
    ),
)
