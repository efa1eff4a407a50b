"""The result of a round: old and new classes before and after, the decision, and a page that shows it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offmap.discovery import Discovery
from offmap.openworld.decisions import GroupDecision
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.state import LearningState
from offmap.report import Page
from offmap.typing import Array


@dataclass(frozen=True)
class Evaluation:
    """How a state does on held-out inputs, which nothing was learned from.

    Parameters
    ----------
    known, new : float and float or None
        The share of inputs whose class is right: of the classes known before the round (by their labels) and of the
        new ones (by the groups they were put into). `None` where there are no inputs.
    accepted_known, accepted_new : float and float or None
        The share that the detector calls known.
    by_class : tuple of tuple of str, int, float
        Per class its name, how many held-out inputs it has, and the share that is right.
    """

    known: float
    new: float | None
    accepted_known: float
    accepted_new: float | None
    by_class: tuple[tuple[str, int, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "known": self.known,
            "new": self.new,
            "accepted_known": self.accepted_known,
            "accepted_new": self.accepted_new,
            "by_class": [list(row) for row in self.by_class],
        }


def evaluate(state: LearningState, known: KnownSplits, n_old: int) -> Evaluation:
    """Measure accuracy and acceptance on held-out inputs of `known`, whose first `n_old` classes are the old ones."""
    part = known.held_out
    right = state.learned.predict(part) == part.labels
    accepted = state.judge(part).known
    old = part.labels < n_old

    def share(values: Any, rows: Any) -> float | None:
        return float(np.mean(values[rows])) if rows.any() else None

    by_class = tuple(
        (name, int((part.labels == label).sum()), share(right, part.labels == label) or 0.0)
        for label, name in enumerate(known.class_names)
    )
    return Evaluation(
        share(right, old) or 0.0, share(right, ~old), share(accepted, old) or 0.0, share(accepted, ~old), by_class
    )


@dataclass(frozen=True)
class Round:
    """One round of the loop.

    Parameters
    ----------
    accepted, reason : bool and str
        Whether the new state may be put in service, and why or why not.
    old, new : LearningState
        The states before and after.
    before, after : Evaluation
        Both measured on the same held-out inputs.
    n_old : int
        How many classes were known before.
    candidates : LabeledInputs
        The unlabelled inputs, with the class each was learned as, -1 for none.
    groups : tuple of GroupDecision, default=()
        What became of each proposed group, and why.
    discovery : Discovery or None, default=None
        The groups that the new classes come from.
    settings : dict of str to Any
        Learner, seed and the like.
    """

    accepted: bool
    reason: str
    old: LearningState
    new: LearningState
    before: Evaluation
    after: Evaluation
    n_old: int
    candidates: LabeledInputs
    groups: tuple[GroupDecision, ...] = ()
    discovery: Discovery | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> LearningState:
        """The state to go on with: the new one if it was accepted, else the old one."""
        return self.new if self.accepted else self.old

    @property
    def new_names(self) -> tuple[str, ...]:
        """The classes that were learned."""
        return self.new.known.class_names[self.n_old :]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison and the decision as plain values."""
        return {
            "accepted": self.accepted,
            "reason": self.reason,
            "classes": list(self.new.known.class_names),
            "new_classes": list(self.new_names),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "groups": [one.to_json() for one in self.groups],
            "settings": self.settings,
        }

    def summary(self) -> str:
        """Return the outcome in a few lines of text."""
        lines = [
            f"{len(self.new_names)} new classes beside {self.n_old}: {', '.join(self.new_names)}",
            f"{'accepted' if self.accepted else 'NOT accepted'}: {self.reason}",
            f"new classes: {_percent(self.before.new)} right before, {_percent(self.after.new)} after",
            f"the detector calls known: {_percent(self.before.accepted_known)} then "
            f"{_percent(self.after.accepted_known)} of old classes, {_percent(self.before.accepted_new)} then "
            f"{_percent(self.after.accepted_new)} of new ones",
            f"learned by {self.settings.get('learner')}, detected by {self.settings.get('detector')}",
        ]
        return "\n".join(lines)

    def to_html(self, path: str | os.PathLike[str], items: Any = None) -> None:
        """Write a page with the decision, the comparison and the new classes.

        Parameters
        ----------
        path : str or path
            The file to write.
        items : Any, default=None
            Pictures (``uint8``) or texts of the candidates, one per input, to show what the new classes look like.
        """
        self.page(items).write(path)

    def page(self, items: Any = None, title: str = "A round of learning") -> Page:
        """Return the same page, to be added to."""
        lines = self.summary().split("\n")
        made = Page(title, f"**{lines[0]}.** {lines[1]}.")
        made.text("\n".join(f"- {line}" for line in lines[2:]))
        self.compared(made.section("Before and after"))
        if self.discovery is not None and items is not None:
            self.shown(made.section("The new classes"), items)
        return made.settings(self.settings)

    def compared(self, page: Page) -> None:
        """Add the table of classes before and after."""
        rows = [
            [name, label >= self.n_old, count, 100 * then, 100 * now]
            for label, ((name, count, then), (_, _, now)) in enumerate(
                zip(self.before.by_class, self.after.by_class, strict=True)
            )
        ]
        page.table(
            ["class", "new", "held-out inputs", "right before, %", "right after, %"],
            rows,
            digits=1,
            caption="Held-out inputs took no part in learning. Those of new classes count as right when they are put "
            "into the class that their group became.",
        )

    def shown(self, page: Page, items: Any, each: int = 8) -> None:
        """Add exemplars of each proposed group."""
        found = self.discovery
        assert found is not None
        first = int((found.given >= 0).sum())
        for info in sorted(found.classes, key=lambda one: -one.size):
            typical = [row - first for row in info.exemplars if row >= first][:each]
            if info.known or not typical:
                continue
            like = ", ".join(found.names[near] for near in info.nearest_known)
            page.text(f"**{info.name}**: {info.size} inputs; nearest known classes: {like}")
            sure = [f"confidence {found.confidence[first + row]:.2f}" for row in typical]
            page.gallery([items[row] for row in typical], sure)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def render_pictures(inputs: Any) -> list[Array] | None:
    """Render inputs as pictures to look at, dark ink on white.

    Parameters
    ----------
    inputs : array-like of shape (n, channels, height, width) or None
        Inputs of a network.

    Returns
    -------
    list of ndarray of uint8 or None
        One picture each; `None` when the inputs are not pictures.
    """
    if inputs is None or np.ndim(inputs) != 4 or inputs.shape[1] not in (1, 3):
        return None
    low, high = float(np.min(inputs)), float(np.max(inputs))
    grey = (np.moveaxis(np.asarray(inputs, np.float32), 1, -1) - low) / max(high - low, 1e-12)
    if grey.shape[-1] == 1:
        grey = 1 - grey
    return list((255 * grey).astype(np.uint8))
