"""The page at the end of a journey: accuracy on all classes before and after, beside the oracle, round by round."""

from __future__ import annotations

from typing import Any

import numpy as np

from offmap.openworld.result import Round
from offmap.openworld.simulation import Simulation
from offmap.plots import grouped_bars
from offmap.report import Page, versions
from offmap.typing import Array


def journey_page(journey: Simulation) -> Page:
    """Summary first, then the figure, the rounds, and what every new class holds."""
    world, last = journey.world, journey.steps[-1].measured
    names = world.class_names
    page = Page(
        f"A network that knows {world.n_known} digits meets {len(names)}",
        f"Before, it named **{100 * journey.before.all:.1f} %** of test digits of all {len(names)} classes. It flagged "
        f"what it did not know, found classes in it and learned them, without a label: now it names "
        f"**{100 * last.all:.1f} %**. The oracle, the same network with all labels from the start, names "
        f"{100 * journey.oracle:.1f} %. Of the {world.n_known} digits it was taught it had "
        f"{100 * journey.before.known:.1f} % right before and has {100 * last.known:.1f} % now.",
    )
    page.section("Before and after").figure(
        grouped_bars(
            {
                "all digits": {
                    "before": 100 * journey.before.all,
                    "after": 100 * last.all,
                    "oracle": 100 * journey.oracle,
                },
                "digits it was taught": {"before": 100 * journey.before.known, "after": 100 * last.known},
                "new digits": {"before": 0.0, "after": 100 * last.new},
            },
            y="right, %",
        ),
        "Test pictures that nothing was learned or chosen from. New groups have no names, so they are matched to "
        "digits one to one.",
    )
    _rounds(page, journey)
    for number, step in enumerate(journey.steps, 1):
        if step.round is not None:
            page.section(f"Round {number}: the classes it found")
            _holds(page, journey, step.round)
            step.round.shown(page, pictures(step.round.pile.inputs))
            step.round.compared(page)
    settings = journey.steps[-1].round.settings if journey.steps[-1].round is not None else {}
    return page.settings({"seed": world.seed, **settings, "versions": versions()})


def _rounds(page: Page, journey: Simulation) -> None:
    rows = []
    for number, step in enumerate(journey.steps, 1):
        done = step.round
        decision = "no new class" if done is None else "deployed" if done.accepted else "not deployed"
        found = "" if done is None else ", ".join(done.new_names)
        now = step.measured
        flagged = f"{step.flagged}, {step.flagged_unknown} rightly"
        rows.append([number, flagged, found, decision, 100 * now.known, 100 * now.all])
    page.section("Rounds").table(
        ["round", "flagged", "new classes", "decision", "taught digits right, %", "all met so far right, %"],
        rows,
        digits=1,
        caption="A round is deployed when accuracy on held-out pictures of old classes falls by no more than allowed.",
    )
    refused = [step.why for step in journey.steps if step.round is None or not step.round.accepted]
    if refused:
        page.text("\n".join(f"- {why}" for why in refused))


def _holds(page: Page, journey: Simulation, done: Round) -> None:
    """Which digits the test pictures of each new class really show."""
    world = journey.world
    test = done.new.part(inputs=world.test.inputs, labels=world.test.labels) if done.new.network else world.test
    found = done.new.learned.predict(test)
    rows = []
    for label in range(done.n_old, len(done.new.known.class_names)):
        truth = test.labels[found == label]
        counts = np.bincount(truth, minlength=len(world.class_names))
        order = np.argsort(-counts, kind="stable")[:3]
        shown = ", ".join(f"{world.class_names[i]} ({counts[i]})" for i in order if counts[i])
        rows.append([done.new.known.class_names[label], len(truth), shown])
    page.table(["new class", "test pictures", "what they show"], rows, caption="The truth, which the loop never saw.")


def pictures(inputs: Any) -> list[Array] | None:
    """Inputs as pictures to look at, dark ink on white; `None` when they are not pictures."""
    if inputs is None or np.ndim(inputs) != 4 or inputs.shape[1] not in (1, 3):
        return None
    low, high = float(np.min(inputs)), float(np.max(inputs))
    grey = (np.moveaxis(np.asarray(inputs, np.float32), 1, -1) - low) / max(high - low, 1e-12)
    if grey.shape[-1] == 1:
        grey = 1 - grey
    return list((255 * grey).astype(np.uint8))
