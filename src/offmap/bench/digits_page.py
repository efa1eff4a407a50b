"""The page at the end of a simulation: accuracy on all classes before and after, beside the oracle, round by round."""

from __future__ import annotations

from typing import Any

import numpy as np

from offmap.bench.digits_simulation import Simulation
from offmap.openworld.result import Round, render_pictures
from offmap.plots import grouped_bars
from offmap.report import Page, versions


def build_simulation_page(simulation: Simulation) -> Page:
    """Build the report: a summary, accuracy before and after, the rounds, and what every new class holds.

    Parameters
    ----------
    simulation : Simulation
        What `offmap.bench.digits_simulation.simulate` found.

    Returns
    -------
    Page
        The report.
    """
    scenario, last = simulation.scenario, simulation.steps[-1].measured
    names = scenario.class_names
    page = Page(
        f"A network that knows {scenario.n_known} digits meets {len(names)}",
        f"Before, it named **{100 * simulation.before.all:.1f} %** of test digits of all {len(names)} classes. It "
        f"flagged what it did not know, found classes in it and learned them, without a label: now it names "
        f"**{100 * last.all:.1f} %**. The oracle, the same network with all labels from the start, names "
        f"{100 * simulation.oracle:.1f} %. Of the {scenario.n_known} digits it was taught it had "
        f"{100 * simulation.before.known:.1f} % right before and has {100 * last.known:.1f} % now.",
    )
    page.section("Before and after").figure(
        grouped_bars(
            {
                "all digits": {
                    "before": 100 * simulation.before.all,
                    "after": 100 * last.all,
                    "oracle": 100 * simulation.oracle,
                },
                "digits it was taught": {"before": 100 * simulation.before.known, "after": 100 * last.known},
                "new digits": {"before": 0.0, "after": 100 * last.new},
            },
            y="right, %",
        ),
        "Test pictures that nothing was learned or chosen from. New groups have no names, so they are matched to "
        "digits one to one.",
    )
    _still_wrong(page, simulation)
    _rounds(page, simulation)
    for number, step in enumerate(simulation.steps, 1):
        done = step.record.round
        if done is not None:
            page.section(f"Round {number}: the classes it found")
            _holds(page, simulation, done)
            done.shown(page, render_pictures(done.candidates.inputs))
            done.compared(page)
    last_round = simulation.steps[-1].record.round
    settings = {} if last_round is None else last_round.settings
    return page.settings({"seed": scenario.seed, **settings, "versions": versions()})


def list_errors(simulation: Simulation) -> list[tuple[str, int, int, str]]:
    """List the digits with errors left, most errors first.

    Parameters
    ----------
    simulation : Simulation
        What `offmap.bench.digits_simulation.simulate` found.

    Returns
    -------
    list of tuple of str, int, int, str
        The digit, its test pictures, how many are wrong, and what those are mostly taken for.
    """
    from offmap.metrics.clustering import match_clusters

    scenario, test = simulation.scenario, simulation.scenario.test
    found = simulation.state.learned.predict(test)
    partner: dict[Any, Any] = {
        **match_clusters(test.labels, found),
        **{label: label for label in range(scenario.n_known)},
    }
    named = np.array([partner.get(int(group), -1) for group in found])
    rows: list[tuple[str, int, int, str]] = []
    for digit, name in enumerate(scenario.class_names):
        inside = test.labels == digit
        wrong = inside & (named != digit)
        if not wrong.any():
            continue
        taken = named[wrong]
        most = int(np.bincount(taken[taken >= 0]).argmax()) if (taken >= 0).any() else -1
        as_what = (
            "a further group" if most < 0 or (taken < 0).sum() > (taken == most).sum() else scenario.class_names[most]
        )
        rows.append((name, int(inside.sum()), int(wrong.sum()), as_what))
    return sorted(rows, key=lambda row: -row[2])


def describe_errors(simulation: Simulation) -> str:
    """Say in two sentences what is still wrong: the number of classes, and the digits with the most errors.

    Parameters
    ----------
    simulation : Simulation
        What `offmap.bench.digits_simulation.simulate` found.
    """
    extra = simulation.run.n_classes - len(simulation.scenario.class_names)
    words = "It has as many classes as there are digits."
    if extra > 0:
        words = (
            f"It has {extra} more classes than there are digits: a digit that is written in two ways became two "
            "classes, and only one of them counts as right."
        )
    elif extra < 0:
        words = f"It has {-extra} fewer classes than there are digits: two digits share one, or one was not learned."
    errors = list_errors(simulation)
    if not errors:
        return f"{words} Every test picture is right."
    worst = "; ".join(f"{digit}: {wrong} of {n}, mostly taken for {most}" for digit, n, wrong, most in errors[:3])
    return f"{words} Most errors are left in {worst}."


def _still_wrong(page: Page, simulation: Simulation) -> None:
    page.section("What is still wrong").text(describe_errors(simulation))
    page.table(["digit", "test pictures", "wrong", "mostly taken for"], [list(row) for row in list_errors(simulation)])


def _rounds(page: Page, simulation: Simulation) -> None:
    rows = []
    for number, step in enumerate(simulation.steps, 1):
        record, now = step.record, step.measured
        decision = "deployed" if record.deployed else "not deployed"
        found = "" if record.round is None else ", ".join(record.round.new_names)
        flagged = f"{record.flagged}, {step.flagged_unknown} rightly"
        rows.append([number, flagged, found, decision, 100 * now.known, 100 * now.all])
    page.section("Rounds").table(
        ["round", "flagged", "new classes", "decision", "taught digits right, %", "all met so far right, %"],
        rows,
        digits=1,
        caption="A group is left out when it takes significantly more held-out pictures of old classes than allowed.",
    )
    groups = [
        [number, one.name, one.size, one.outcome, one.reason]
        for number, step in enumerate(simulation.steps, 1)
        for one in step.record.groups
    ]
    page.table(["round", "group", "pictures", "outcome", "why"], groups, caption="What became of each group.")
    page.text("\n".join(f"- round {number}: {step.record.reason}" for number, step in enumerate(simulation.steps, 1)))


def _holds(page: Page, simulation: Simulation, done: Round) -> None:
    """Which digits the test pictures of each new class really show."""
    scenario = simulation.scenario
    test = scenario.test
    found = done.new.learned.predict(test)
    rows = []
    for label in range(done.n_old, len(done.new.known.class_names)):
        truth = test.labels[found == label]
        counts = np.bincount(truth, minlength=len(scenario.class_names))
        order = np.argsort(-counts, kind="stable")[:3]
        shown = ", ".join(f"{scenario.class_names[i]} ({counts[i]})" for i in order if counts[i])
        rows.append([done.new.known.class_names[label], len(truth), shown])
    page.table(["new class", "test pictures", "what they show"], rows, caption="The truth, which the loop never saw.")
