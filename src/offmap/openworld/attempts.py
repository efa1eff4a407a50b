"""One attempt of a round: learn proposed groups beside known classes, hold them back, calibrate, judge each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offmap.network import Network
from offmap.openworld.decisions import (
    MIN_RECALL,
    GroupDecision,
    class_offsets,
    fall_p_value,
    harmful_groups,
    offsets_without_harm,
)
from offmap.openworld.extended_network import ClassifierUpdate
from offmap.openworld.inputs import KnownSplits, LabeledInputs
from offmap.openworld.learners import LEARNERS, LearnerInputs, Progress
from offmap.openworld.result import Evaluation, evaluate
from offmap.openworld.state import LearningState, read_with_network, refit_detector
from offmap.typing import Array

FALL_AIMED_AT = 0.25  # of what is allowed, when the logits of new classes are lowered on calibration inputs
OPTIMISM = 0.015  # of known inputs: calibration inputs lose so much less than others, as they were grouped with
CONFIDENCE = 0.95  # that the promised share is accepted: 200 inputs of which some were left out miss it too often


@dataclass(frozen=True)
class RoundTask:
    """Everything that does not change between attempts of one round."""

    state: LearningState
    learner: str
    max_forgetting: float
    seed: int
    progress: Progress
    settings: dict[str, Any]

    @property
    def n_old(self) -> int:
        """The number of known classes."""
        return len(self.state.known.class_names)


@dataclass(frozen=True)
class Attempt:
    """Candidates with labels, what the new classes are called, and what was learned from it."""

    candidates: LabeledInputs
    names: dict[int, str]
    state: LearningState


def learn_groups(task: RoundTask, candidates: LabeledInputs, names: Mapping[int, str]) -> Attempt:
    """Learn the classes of the candidates beside the known ones, and fit and calibrate a detector for all of them."""
    state, n_old = task.state, task.n_old
    all_names = state.known.class_names + tuple(names[n_old + place] for place in range(len(names)))
    known = state.known.add_groups(candidates, all_names, task.seed)
    task.progress(f"learning {len(names)} new classes", 0.0)
    learned = LEARNERS.get(task.learner)(
        LearnerInputs(
            known.train,
            candidates[candidates.labels < 0],
            all_names,
            n_old,
            state.network,
            task.seed,
            lambda words, share: task.progress(words, 0.9 * share),
            task.settings,
        )
    )
    network = learned.network or state.network
    if learned.network is not None:
        known = read_with_network(learned.network, known)
    learned = _lower(task, learned, known)
    task.progress("fitting and calibrating a new detector", 0.9)
    return Attempt(candidates, dict(names), _calibrate(task, learned, known, network))


def evaluate_before(task: RoundTask, attempt: Attempt) -> Evaluation:
    """Measure the state before the round on the held-out inputs of now, with features of the network before."""
    known = attempt.state.known
    if attempt.state.network is not task.state.network:
        held = task.state.part(inputs=known.held_out.inputs, labels=known.held_out.labels)
        known = replace(known, held_out=held)
    return evaluate(task.state, known, task.n_old)


def hold_back(task: RoundTask, attempt: Attempt, level: float) -> Attempt:
    """Lower harmful classes as far as held-out inputs of known classes ask for; others keep what they have."""
    known, n_old = attempt.state.known, task.n_old
    old, right = _right_before(task, known)
    logits = attempt.state.learned.activations(known.held_out).logits[old]
    offsets = offsets_without_harm(logits, known.held_out.labels[old], right, n_old, task.max_forgetting, level)
    learned = attempt.state.learned.lower_new(n_old, offsets)
    return replace(attempt, state=_calibrate(task, learned, known, attempt.state.network))


def _lower(task: RoundTask, learned: ClassifierUpdate, known: KnownSplits) -> ClassifierUpdate:
    """Lower new classes so that inputs of known ones lose next to no accuracy, unless that is dear."""
    logits, labels = learned.activations(known.calibration).logits, known.calibration.labels
    old = labels < task.n_old
    least = _accuracy_before(task) + OPTIMISM - FALL_AIMED_AT * task.max_forgetting
    return learned.lower_new(
        task.n_old, class_offsets(logits[old], labels[old], task.n_old, least, new_logits=logits[~old])
    )


def _accuracy_before(task: RoundTask) -> float:
    """Return which share of the calibration inputs of known classes was right before the round."""
    own = task.state.known.calibration
    return float((task.state.learned.predict(own) == own.labels).mean())


def _calibrate(
    task: RoundTask, learned: ClassifierUpdate, known: KnownSplits, network: Network | None
) -> LearningState:
    """Fit and calibrate a detector for all classes."""
    calibration = task.state.detector.calibration
    assert calibration is not None
    by_class = calibration.classes is not None
    fair = known
    if not by_class:  # inputs of a group that do not come back to it would lower the threshold for everything unknown
        right = learned.predict(known.calibration) == known.calibration.labels
        fair = replace(known, calibration=known.calibration[(known.calibration.labels < task.n_old) | right])
    sure = calibration.confidence
    if sure is None and not by_class and 1 - calibration.tpr ** len(fair.calibration) >= CONFIDENCE:
        sure = CONFIDENCE
    detector = refit_detector(task.state.detector, learned, fair, calibration.tpr, by_class, sure)
    return LearningState(detector, learned, known, network)


def learn_and_judge(
    task: RoundTask, candidates: LabeledInputs, names: Mapping[int, str], level: float
) -> tuple[Attempt, list[GroupDecision]]:
    """Learn the classes of the candidates, hold back harmful ones, and decide for each new class.

    A harmful class is left out if holding it back far enough would cost it half of its own inputs.
    """
    attempt = learn_groups(task, candidates, names)
    decisions = judge_groups(task, attempt, level)
    if all(one.outcome != "left out" for one in decisions):
        return attempt, decisions
    held = hold_back(task, attempt, level)
    again = judge_groups(task, held, level)
    return held, [_decide_held_back(*both) for both in zip(decisions, again, strict=True)]


def judge_groups(task: RoundTask, attempt: Attempt, level: float) -> list[GroupDecision]:
    """Decide for each new class: learned, merged into another, waiting, or left out for the harm that it does."""
    n_old, held = task.n_old, attempt.state.known.held_out
    logits = attempt.state.learned.activations(held).logits
    predicted = logits.argmax(axis=1)
    old, right = _right_before(task, attempt.state.known)
    harm = harmful_groups(logits[old], held.labels[old], right, n_old, task.max_forgetting, level)
    all_names = attempt.state.known.class_names
    found = []
    for label, name in attempt.names.items():
        size = int((attempt.candidates.labels == label).sum())
        if label in harm:
            lost, n, p = harm[label]
            words = f"it takes {lost} of {n} held-out inputs of known classes (p = {p:.2g})"
            found.append(GroupDecision(name, size, "left out", words, None, lost, n, p))
            continue
        went = predicted[held.labels == label]
        own = int((went == label).sum())
        if fall_p_value(len(went) - own, len(went), 1 - MIN_RECALL) >= level:
            words = f"{own} of {len(went)} held-out inputs of the group come back to it"
            found.append(GroupDecision(name, size, "learned", words, label))
            continue
        other = int(np.bincount(went[went != label]).argmax())
        most = int((went == other).sum())
        words = f"only {own} of {len(went)} held-out inputs of the group come back to it"
        if 2 * most >= len(went):
            words += f", {most} go to {all_names[other]}"
            found.append(GroupDecision(name, size, "merged", words, other))
        else:
            found.append(GroupDecision(name, size, "waiting", words))
    return found


def _decide_held_back(before: GroupDecision, after: GroupDecision) -> GroupDecision:
    """Return the decision about a class that may have been harmful before it was held back."""
    if before.outcome != "left out":
        return after
    if after.outcome != "learned":
        return before
    return replace(after, reason=f"{after.reason}, held back: {before.reason}")


def _right_before(task: RoundTask, known: KnownSplits) -> tuple[Array, Array]:
    """Return which held-out inputs are of known classes, and which of those were right before the round."""
    origin = task.state.known.held_out  # the same inputs as those, with features of the network before
    return known.held_out.labels < task.n_old, task.state.learned.predict(origin) == origin.labels


def leave_out(attempt: Attempt, decisions: list[GroupDecision]) -> tuple[LabeledInputs, dict[int, str]]:
    """Return candidates and names with learned groups renumbered, merged ones in their class, the others unlabelled."""
    first = min(attempt.names)
    kept = [label for label, one in zip(attempt.names, decisions, strict=True) if one.outcome == "learned"]
    number = {label: first + place for place, label in enumerate(kept)}
    labels = attempt.candidates.labels.copy()
    for label, one in zip(attempt.names, decisions, strict=True):
        into = one.label if one.outcome == "merged" and one.label is not None else label
        target = number.get(into, into if into < first else -1)
        labels[attempt.candidates.labels == label] = target
    return replace(attempt.candidates, labels=labels), {number[label]: attempt.names[label] for label in kept}
