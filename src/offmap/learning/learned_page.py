"""The page about a learned model: the novel classes first, with what was put into them, then how learning went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offmap.learning.model import OpenWorldModel
from offmap.report import Page

SHOWN = 8  # inputs of a class
CLASSES = 24  # novel classes with inputs of their own on the page
SERIES = 8  # curves of one figure


def build_learned_page(
    model: OpenWorldModel,
    rows: Any,
    predicted: Any,
    items: Sequence[Any] | None = None,
    accuracy: Mapping[str, Mapping[str, float]] | None = None,
) -> Page:
    """Build a page about a model and the inputs that it was learned from.

    Parameters
    ----------
    model : OpenWorldModel
        What `learn` gave.
    rows : array
        The inputs.
    predicted : array of int
        Their classes, as `OpenWorldModel.predict` says.
    items : sequence, optional
        A picture (``uint8``) or a text of each input, to look at.
    accuracy : mapping, optional
        Where labels were hidden for an experiment: by convention, the shares that were found again.

    Returns
    -------
    Page
    """
    predicted = np.asarray(predicted)
    doubt = np.asarray(model.novelty(rows))
    numbers = [int(number) for number in model.class_ids]
    sizes = {number: int((predicted == number).sum()) for number in numbers}
    names = dict(zip(numbers, model.class_names, strict=True))
    novel = sorted(numbers[model.n_known :], key=lambda number: -sizes[number])
    inside = sum(sizes[number] for number in novel)
    page = Page(
        "A learned model",
        f"**{model.n_known} known and {len(novel)} novel classes.** Of {len(predicted)} inputs {inside} went to novel "
        f"classes. Learned with `{model.config.get('objective')}`.",
    )
    page.section("Novel classes")
    if not novel:
        page.text("None: every input went to a known class.")
    for number in novel[:CLASSES]:
        members = np.flatnonzero(predicted == number)
        page.text(f"**{names[number]}**: {len(members)} inputs")
        chosen = members[np.argsort(doubt[members], kind="stable")][::-1][:SHOWN]
        if items is None:
            page.text("Inputs " + ", ".join(map(str, chosen)) + ".")
        else:
            page.gallery([items[i] for i in chosen], [f"input {i}" for i in chosen], size=80)
    page.section("All classes").table(
        ["class", "known", "inputs", "mean novelty"],
        [
            [names[number], number in numbers[: model.n_known], sizes[number], _mean(doubt[predicted == number])]
            for number in [*novel, *numbers[: model.n_known]]
        ],
        caption="Novelty is high where an input resembles no known class.",
    )
    if accuracy:
        _add_accuracy(page, accuracy)
    _add_history(page, model.history)
    return page.settings(model.config)


def _add_accuracy(page: Page, accuracy: Mapping[str, Mapping[str, float]]) -> None:
    parts = list(next(iter(accuracy.values())))
    page.section("Against the labels that were hidden").table(
        ["convention", *parts],
        [[convention, *(100 * found[part] for part in parts)] for convention, found in accuracy.items()],
        digits=1,
        caption="Per cent of the inputs whose label was hidden.",
    )


def _list_series(history: Sequence[Mapping[str, float]]) -> list[str]:
    """Name what is drawn over the epochs; a loss of one part is drawn once."""
    names = [name for name in history[0] if name not in ("epoch", "round")]
    loss = [row.get("loss") for row in history]
    return [name for name in names if name == "loss" or [row.get(name) for row in history] != loss][:SERIES]


def _add_history(page: Page, history: Sequence[Mapping[str, float]]) -> None:
    """Draw every number of the epochs; rounds follow one another."""
    if len(history) < 2:
        return
    from offmap.plots.style import apply_style, colour, dash, graph_objects

    go = graph_objects()
    names = _list_series(history)
    figure = go.Figure(
        [
            go.Scatter(
                x=list(range(1, len(history) + 1)),
                y=[row.get(name) for row in history],
                name=name,
                mode="lines",
                line={"color": colour(i), "dash": dash(i)},
            )
            for i, name in enumerate(names)
        ]
    )
    page.section("How learning went").figure(
        apply_style(figure, x="epoch", y="value"),
        "The loss and its parts over the epochs. Where targets are made anew as learning goes on, it need not fall.",
    )


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None
