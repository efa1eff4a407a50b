"""Check the numbers that a page written by hand quotes.

A passage that states measured numbers is followed by a comment that says where each stands:

    <!-- sources
    30.13 / 94.58: cifar10-densenet > dice(0.9)|energy > svhn
    60.07: react_dice.json > cifar100-densenet > dice > the authors' mean activations > svhn fpr95
    -->

Each line is a quote, a colon and a place. The quote must occur in the passage above the comment, its numbers must be
those found at the place, rounded as they are quoted, and every number with a decimal point in the passage must be in
some quote. Exempt are code, citations of the thesis and settings such as ``p = 0.9``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SOURCES, NOT_PROSE = "<!-- sources\n", ("<!--", "#", "|", "!", "::")
NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\w.])\d+(?:\.\d+)?")
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+")
EXEMPT = re.compile(r"`[^`]*`|\((?:section|appendix|chapter)[^)]*\)|\b\w+ = [\d.]+")

Find = Callable[[Sequence[str]], Sequence[float]]


def check_quotes(text: str, find: Find) -> list[str]:
    """List what a page quotes wrongly or without a source.

    Parameters
    ----------
    text : str
        The page, in Markdown.
    find : callable
        Takes the parts of a place and returns the numbers that stand there.

    Returns
    -------
    list of str
        One sentence for each fault; empty when every number holds.
    """
    faults: list[str] = []
    passage: list[str] = []
    for block in [*re.split(r"\n\s*\n", FENCE.sub("\n\n# code\n\n", text)), "# end"]:
        if not block.strip().startswith(NOT_PROSE):
            passage.append(block)
            continue
        found = block.strip()
        sources = found.removeprefix(SOURCES).removesuffix("-->") if found.startswith(SOURCES) else ""
        faults += _check_passage(" ".join(" ".join(passage).split()), sources, find)
        passage = []
    return faults


def _check_passage(passage: str, sources: str, find: Find) -> list[str]:
    faults, rest = [], passage
    for line in filter(None, map(str.strip, sources.splitlines())):
        quote, _, place = line.partition(": ")
        if quote not in passage:
            faults.append(f"{quote!r} is not in the passage above its sources: …{passage[:60]}…")
            continue
        rest = rest.replace(quote, "")
        try:
            found = find([part.strip() for part in place.split(" > ")])
        except (KeyError, StopIteration, ValueError, FileNotFoundError) as error:
            faults.append(f"{place}: nothing stands there ({error!r})")
            continue
        quoted = [number.replace(",", "") for number in NUMBER.findall(quote)]
        shown = [f"{value:.{len(number.partition('.')[2])}f}" for number, value in zip(quoted, found, strict=False)]
        if quoted != shown or len(quoted) != len(found):
            faults.append(f"{quote!r}: {place} holds {', '.join(map(str, found))}")
    faults += [f"{number} has no source: …{passage[:60]}…" for number in DECIMAL.findall(EXEMPT.sub("", rest))]
    return faults
