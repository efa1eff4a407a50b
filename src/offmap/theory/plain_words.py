"""What the findings of a diagnosis mean, in words for someone who knows none of the methods."""

from __future__ import annotations

from collections.abc import Mapping

_WORDS = {
    ("rectified", "holds"): (
        "The strongest signals inside the network come mostly from the unknown inputs given. Cutting strong "
        "signals off (`react`) has reason to help against inputs like them."
    ),
    ("rectified", "fails"): (
        "The strongest signals inside the network do not come mostly from the unknown inputs given. Cutting "
        "strong signals off (`react`) has no reason to help against inputs like them."
    ),
    ("sparsified", "holds"): (
        "Leaving out the network's weaker connections (`dice`) sets the unknown inputs given further apart "
        "from known ones."
    ),
    ("sparsified", "fails"): (
        "Leaving out the network's weaker connections (`dice`) does not set the unknown inputs given further "
        "apart from known ones."
    ),
    ("neighbours", "holds"): (
        "Unknown inputs lie farther from their nearest known examples than known inputs do, so that looking "
        "for near examples (`knn`) can tell them apart."
    ),
    ("neighbours", "fails"): (
        "Unknown inputs have known examples as near as known inputs have, so that looking for near examples "
        "(`knn`) will miss many of them."
    ),
    ("normality", "fails"): (
        "Most classes are not the simple round clouds that some methods (`mahalanobis`) take them for. Those "
        "methods may still do well; trust the ranking, not their formula."
    ),
    ("normality", "unclear"): (
        "Nothing here speaks against methods that take each class for a simple round cloud (`mahalanobis`)."
    ),
    ("graph", "holds"): (
        "Inputs of the same class lie close together, so classes that nobody has named yet can be found by "
        "grouping (`offmap discover`)."
    ),
    ("graph", "fails"): (
        "Classes overlap in what the network sees, so grouping (`offmap discover`) will mix them up; features "
        "of another network may serve better."
    ),
    ("graph", "unclear"): ("Without labels nothing says whether the groups that the inputs fall into are classes."),
    ("advice", "advised"): ("Some labels are worth more than others: the list below says which to buy first."),
    ("advice", "unclear"): ("None of the labels that could be bought is predicted to help."),
}


def say_plainly(topic: str, verdict: str, numbers: Mapping[str, float]) -> str:
    """Say what a finding means, without terms of the field.

    Parameters
    ----------
    topic, verdict : str
        As in `offmap.theory.findings.Finding`.
    numbers : mapping of str to float
        The numbers of the finding.

    Returns
    -------
    str
        One or two sentences; empty for a topic without words.

    Examples
    --------
    >>> say_plainly("normality", "unclear", {})
    'Nothing here speaks against methods that take each class for a simple round cloud (`mahalanobis`).'
    >>> say_plainly("methods", "ranked", {"methods": 12.0, "chosen": 3.0, "best_area": 0.93})[:53]
    'Use `auto`: it puts together 3 of the 12 methods trie'
    """
    if topic == "methods":
        return (
            f"Use `auto`: it puts together {numbers['chosen']:.0f} of the {numbers['methods']:.0f} methods tried. In a "
            "rehearsal, with known classes playing the unknown, the best single method ranked a known input above an "
            f"unknown one {100 * numbers['best_area']:.0f} times out of 100 (a coin does 50)."
        )
    if topic == "neighbours" and "log_density_gap" not in numbers:
        return (
            f"Known inputs vary in about {numbers['intrinsic']:.0f} independent ways. The fewer, the fewer examples "
            "are needed to judge by near ones (`knn`)."
        )
    return _WORDS.get((topic, verdict), "")
