"""Findings of a diagnosis as plain values: sentences, tables, and figures still to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from offmap.theory.plain_words import say_plainly

if TYPE_CHECKING:
    from offmap.report import Page

Verdict = Literal["holds", "fails", "unclear", "ranked", "advised"]


@dataclass(frozen=True)
class Finding:
    """How one assumption stands: its topic, a verdict and the sentence that says so.

    Attributes
    ----------
    topic : str
        ``"methods"``, ``"rectified"``, ``"sparsified"``, ``"neighbours"``, ``"normality"``, ``"graph"``, ``"advice"`` …
    verdict : {"holds", "fails", "unclear", "ranked", "advised"}
        Whether the assumption holds on the inputs given, in one word; ``ranked`` and ``advised`` where there is a list.
    sentence : str
        The answer in one sentence, with the numbers.
    numbers : mapping of str to float
        The numbers by name.
    """

    topic: str
    verdict: Verdict
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def plain(self) -> str:
        """What it means, for someone who knows none of the methods; empty where no such words are known."""
        return say_plainly(self.topic, self.verdict, self.numbers)

    def __str__(self) -> str:
        return f"{self.topic} ({self.verdict}): {self.sentence}"


@dataclass(frozen=True)
class Table:
    """Columns and rows of plain cells."""

    columns: list[str]
    rows: list[list[Any]]
    caption: str = ""
    digits: int = 2


@dataclass(frozen=True)
class Figure:
    """A figure to be drawn: the name of a function of `offmap.plots.theory` and its arguments."""

    kind: str
    values: Mapping[str, Any]
    caption: str = ""

    def draw(self) -> Any:
        """Draw the plotly figure."""
        from offmap.plots import theory

        return getattr(theory, self.kind)(**self.values)


@dataclass(frozen=True)
class Section:
    """A part of the page: a title, text, tables and figures."""

    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


@dataclass(frozen=True)
class Findings:
    """Everything `explain` found; prints as text, becomes a page on request.

    Examples
    --------
    >>> found = Findings([Finding("graph", "unclear", "the k-NN graph breaks most clearly into 4 groups")], [])
    >>> print(found)
    - Without labels nothing says whether the groups that the inputs fall into are classes.
    In numbers:
    graph (unclear): the k-NN graph breaks most clearly into 4 groups
    """

    findings: list[Finding]
    sections: list[Section]
    title: str = "Methods and their assumptions on this network"

    def __str__(self) -> str:
        if not self.findings:
            return "nothing could be measured on these inputs; give more of them, with labels where there are some"
        plain = [f"- {finding.plain}" for finding in self.findings if finding.plain]
        return "\n".join([*plain, "In numbers:", *map(str, self.findings)] if plain else map(str, self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain values, for JSON.

        Examples
        --------
        >>> Findings([Finding("graph", "holds", "it does", {"k": 3.0})], []).to_dict()["findings"][0]["numbers"]
        {'k': 3.0}
        """
        return {
            "title": self.title,
            "findings": [
                {
                    "topic": finding.topic,
                    "verdict": finding.verdict,
                    "plain": finding.plain,
                    "sentence": finding.sentence,
                    "numbers": {name: float(value) for name, value in finding.numbers.items()},
                }
                for finding in self.findings
            ],
        }

    def page(self) -> Page:
        """Build a page of `offmap.report` with the figures drawn (needs the extra `report`)."""
        from offmap.report import Page

        page = Page(self.title, "\n".join(f"- {finding.plain or finding.sentence}" for finding in self.findings))
        page.section("In numbers").text("\n".join(f"- **{f.topic}**, {f.verdict}: {f.sentence}" for f in self.findings))
        for section in self.sections:
            page.section(section.title).text(section.text)
            for table in section.tables:
                page.table(table.columns, table.rows, caption=table.caption, digits=table.digits)
            for figure in section.figures:
                page.figure(figure.draw(), figure.caption)
        return page
