"""Rounds on data of one's own: labelled inputs, a stream without labels, with or without a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from offmap.detection import Detector
from offmap.discovery import Discovery, Space
from offmap.errors import InputError
from offmap.openworld.decisions import LEVEL, GroupDecision, match_groups
from offmap.openworld.deployment import UNKNOWN, Deployment
from offmap.openworld.grouping import choose_row_space, group_kept
from offmap.openworld.inputs import LabeledInputs
from offmap.openworld.inputs import Space as RowSource
from offmap.openworld.learners import check_learner
from offmap.openworld.pacing import GROWTH, Pace, check_growth, thin
from offmap.openworld.preparation import begin, read_stream
from offmap.openworld.records import RoundRecord
from offmap.openworld.rounds import (
    MAX_FORGETTING,
    MIN_SIZE,
    NothingFoundError,
    check_tests,
    free_name,
    learn_classes,
)
from offmap.openworld.state import LearningState
from offmap.openworld.streams import cut_stream, read_known
from offmap.typing import Array

DETECTOR = "maxlogit + knn(5)"
TPR = 0.98  # accepted inputs are looked at again in every round, so the detector need not be strict
ASKED_AGAIN = 1.5  # times as many inputs as when learners were compared last


@dataclass(frozen=True)
class OpenWorldRun:
    """A deployment that learns: what it began with, what is in use now, and the unlabelled inputs it keeps.

    Whenever inputs are grouped, all that were kept are, new and old, beside the classes that people labelled, so that a
    class can be split, merged or given up later, and nothing is forgotten step by step. That is done in a round where
    enough or something new came in; in others inputs are only judged and kept, so a round costs what is new in it.

    Parameters
    ----------
    origin : LearningState
        Before the first round: the classes that people labelled.
    state : LearningState
        What is in use now.
    store : LabeledInputs
        Unlabelled inputs that were kept, each with the class it is taken for now, -1 for none.
    rounds : tuple of RoundRecord
        What happened, in order.
    class_ids : array of int
        The numbers of all classes: those that the labelled ones were given, and those of new ones, which follow the
        largest. A class keeps its number; that of a class that was given up is not used again.
    next_id : int
        The number of the next class that is new.
    row_space : Space, optional
        How rows are prepared for grouping; chosen in the first round.
    pace : Pace
        What came in since inputs were grouped last.
    kept_apart : frozenset of tuple of str
        Classes that the last grouping put into one group and that stayed apart: they become one if the next one agrees.
    """

    origin: LearningState
    state: LearningState
    store: LabeledInputs
    rounds: tuple[RoundRecord, ...] = ()
    class_ids: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    next_id: int = 0
    row_space: Space | None = None
    pace: Pace = field(default_factory=Pace)
    kept_apart: frozenset[tuple[str, str]] = frozenset()

    @property
    def deployment(self) -> Deployment:
        """The detector, network and class names: they can be saved, served and exported."""
        return self.state.deployment

    @property
    def n_classes(self) -> int:
        """Labelled and learned classes together."""
        return len(self.state.known.class_names)

    def predict(self, rows: Any, kind: Literal["features", "inputs"] = "features") -> Array:
        """Return the class number of each row: labelled classes as given, new ones from there on, -1 for unknown.

        Parameters
        ----------
        rows : array
            One row per input.
        kind : {"features", "inputs"}, default "features"
            What the rows are; inputs need a network.
        """
        return np.asarray(np.append(self.class_ids, UNKNOWN)[self.deployment.predict(rows, kind)])

    def step(
        self,
        arrived: LabeledInputs,
        n_new: int | Literal["auto"] = "auto",
        *,
        growth: float = GROWTH,
        space: RowSource = "auto",
        min_size: int = MIN_SIZE,
        seed: int = 0,
        **options: Any,
    ) -> OpenWorldRun:
        """Take in new inputs; where they give reason to, group all that are kept and learn what holds.

        Parameters
        ----------
        arrived : LabeledInputs
            New inputs with features of the origin's network; their labels are not looked at.
        n_new : int or "auto", default "auto"
            How many classes to look for beyond those learned so far; with a number inputs are grouped at once.
        growth : float, default 1.25
            Inputs are grouped again when there are so many times as many as the last time, or when significantly more
            than usual are flagged; 1 groups in every round.
        space : {"auto", "inputs", "features"}, default "auto"
            What to group by; see `LabeledInputs.rows`.
        min_size : int, default 10
            Groups smaller than this wait.
        seed : int, default 0
            Of grouping and learning.
        **options
            As `learn_classes` takes them.
        """
        check_growth(growth)
        check_tests(options.get("max_forgetting", MAX_FORGETTING), options.get("level", LEVEL))
        check_learner(options.get("learner", "auto"))
        fresh = replace(arrived, labels=self.state.assign(arrived))
        flagged = int((fresh.labels == UNKNOWN).sum())
        kept = self.store + fresh if len(self.store) else fresh
        pace = self.pace.take_in(len(fresh), flagged)
        if n_new == "auto" and not pace.is_due(growth, min_size):
            waits = pace.describe_wait(growth)
            record = RoundRecord(len(fresh), flagged, len(kept), (), False, waits, self.n_classes, grouped=False)
            return replace(self, store=thin(kept, seed), rounds=(*self.rounds, record), pace=pace)
        return replace(self, pace=pace)._group(kept, len(fresh), flagged, n_new, space, min_size, seed, options)

    def _group(
        self,
        kept: LabeledInputs,
        n_arrived: int,
        flagged: int,
        n_new: int | Literal["auto"],
        space: RowSource,
        min_size: int,
        seed: int,
        options: dict[str, Any],
    ) -> OpenWorldRun:
        """Group all inputs that are kept, learn what holds, and return the next state of the run."""
        total = n_new if n_new == "auto" else self.n_classes - len(self.origin.known.class_names) + n_new
        row_space = self.row_space
        names_now = self.state.known.class_names
        try:
            if row_space is None:
                row_space = choose_row_space(self.origin, kept, space, seed)
            number = {name: place for place, name in enumerate(names_now)}
            asked = frozenset((number[a], number[b]) for a, b in self.kept_apart if a in number and b in number)
            found, apart = group_kept(self.origin, kept, total, space, row_space, seed, asked)
            labels, names, found, waiting = self._number(found, kept, min_size)
            if not names:
                raise NothingFoundError(f"no group of at least {min_size} inputs among {len(kept)}; wait for more")
        except NothingFoundError as error:
            record = RoundRecord(n_arrived, flagged, len(kept), (), False, str(error), self.n_classes)
            pace = self.pace.after(self.state, kept, seed)
            return replace(self, store=thin(kept, seed), rounds=(*self.rounds, record), row_space=row_space, pace=pace)
        candidates = replace(kept, labels=labels)
        options = {**options, "learner": self._learner(options.get("learner", "auto"), len(kept))}
        done = learn_classes(self.origin, candidates, names, seed=seed, discovery=found, **options)
        state, store = (done.new, done.candidates) if done.accepted else (self.state, kept)
        decided = (*done.groups, *waiting)
        n_classes = len(state.known.class_names)
        record = RoundRecord(n_arrived, flagged, len(kept), decided, done.accepted, done.reason, n_classes, done)
        following = replace(
            self,
            rounds=(*self.rounds, record),
            row_space=row_space,
            pace=self.pace.after(state, kept, seed),
            kept_apart=frozenset((names_now[a], names_now[b]) for a, b in apart),
        )
        return following._take(state, thin(store, seed))

    def _take(self, state: LearningState, store: LabeledInputs) -> OpenWorldRun:
        """Return the run with this state; classes that were there before keep their numbers."""
        ids = dict(zip(self.state.known.class_names, self.class_ids.tolist(), strict=True))
        next_id = self.next_id
        for name in state.known.class_names:
            if name not in ids:
                ids[name], next_id = next_id, next_id + 1
        numbers = np.array([ids[name] for name in state.known.class_names], np.int64)
        return replace(self, state=state, store=store, class_ids=numbers, next_id=next_id)

    def _learner(self, asked: str, n: int) -> str:
        """Return the learner of this round, with so many inputs, when this one was asked for.

        A kernel stays once it was chosen. Otherwise an earlier choice holds until there are half as many inputs again:
        on nearly the same inputs the same test costs time and has another chance to be wrong.
        """
        if asked != "auto":
            return asked
        chosen, compared = asked, 0
        for record in self.rounds:
            if record.round is not None:
                chosen = record.round.settings["learner"]
                compared = record.considered if record.considered >= ASKED_AGAIN * compared else compared
        return chosen if chosen == "kernel" or n < ASKED_AGAIN * compared else asked

    def _number(
        self, found: Discovery, kept: LabeledInputs, min_size: int
    ) -> tuple[Array, dict[int, str], Discovery, list[GroupDecision]]:
        """Turn groups into class numbers: earlier classes keep their order and names, small groups wait."""
        own = found.labels[found.given < 0]
        n_given = len(self.origin.known.class_names)
        sizes = {info.id: int((own == info.id).sum()) for info in found.classes if info.id >= n_given}
        waiting = [
            GroupDecision(found.names[one], size, "waiting", f"{size} inputs; at least {min_size} are needed")
            for one, size in sizes.items()
            if 0 < size < min_size
        ]
        large = [one for one, size in sizes.items() if size >= min_size]
        earlier = match_groups(
            np.where(np.isin(own, large), own, UNKNOWN), np.where(kept.labels >= n_given, kept.labels, UNKNOWN)
        )
        order = sorted(large, key=lambda one: (earlier.get(one, 1 << 30), -sizes[one], one))
        labels = np.full(len(own), UNKNOWN, np.int64)
        # an input that grouping and the labelled classes' own classifier agree on is safe to learn from
        agreed = (own >= 0) & (own < n_given) & (own == self.origin.learned.predict(kept))
        labels[agreed] = own[agreed]
        names: dict[int, str] = {}
        taken = set(self.state.known.class_names)
        used = {group.name for record in self.rounds for group in record.groups if group.outcome == "learned"}
        for place, one in enumerate(order):
            labels[own == one] = n_given + place
            before = earlier.get(one)
            if before is not None:
                names[n_given + place] = self.state.known.class_names[before]
            elif kept.texts is not None:
                names[n_given + place] = free_name(found.names[one], taken)
            else:
                names[n_given + place] = _free_name(taken | used)
                taken.add(names[n_given + place])
        called = {one: names[n_given + place] for place, one in enumerate(order)}
        return labels, names, found.rename(called), waiting


def run(
    known_features: Any,
    known_labels: Any,
    stream_features: Any,
    rounds: int = 4,
    seed: int = 0,
    *,
    detector: str | Detector = DETECTOR,
    tpr: float = TPR,
    class_names: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    **options: Any,
) -> OpenWorldRun:
    """Learn new classes from a stream of features, round by round, beside the classes that are known.

    Parameters
    ----------
    known_features : array
        One row of features per labelled input, such as embeddings.
    known_labels : array of int or str
        Their class numbers, or names; names are numbered in the order of the alphabet. Rows with -1, or `None` among
        names, are left out.
    stream_features : array or sequence of arrays
        Features of inputs without labels, of known and new classes and of none. One array is cut into as many parts as
        there are rounds, in its order; of several arrays each is a round.
    rounds : int, default 4
        How many rounds the stream is cut into; 0 learns the known classes alone.
    seed : int, default 0
        The same seed gives the same answer.
    detector : str or Detector, default "maxlogit + knn(5)"
        What calls inputs unknown, over a linear head that is trained here.
    tpr : float, default 0.98
        The share of known inputs that the detector accepts.
    class_names : sequence of str, optional
        Of the known classes, in the order of their numbers.
    texts : sequence of str, optional
        One per row of the stream, in its order: new classes are then named by their keywords.
    **options
        As `OpenWorldRun.step` takes them: ``n_new``, ``growth``, ``min_size``, ``learner``, ``max_forgetting``,
        ``level``. After the last part all inputs are grouped, whatever the growth.

    Returns
    -------
    OpenWorldRun
        With ``.predict(features)``, ``.n_classes``, ``.rounds`` and ``.deployment``.

    See Also
    --------
    offmap.discover : Group everything at once.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(900) % 6
    >>> rows = 6 * np.eye(8)[truth] + rng.normal(size=(900, 8))
    >>> known = (truth < 4) & (np.arange(900) < 450)
    >>> done = run(rows[known], truth[known], rows[~known], rounds=2)
    >>> done.n_classes, [record.deployed for record in done.rounds]
    (6, [True, True])
    >>> bool((done.predict(rows[truth == 1]) == 1).mean() > 0.9)
    True
    """
    if rounds < 0:
        raise InputError(f"rounds={rounds}: 0 or more")
    check_growth(options.get("growth", GROWTH))
    features = np.asarray(known_features)
    inside, ids, codes, names = read_known(known_labels, len(features))
    if not inside.any():
        raise InputError("known_labels: no row has a label; offmap.discover groups rows without any")
    streams = cut_stream(stream_features, rounds, features.shape[1:])
    given = names if class_names is None else class_names
    learner = options.get("learner", "auto")
    state = begin(detector, codes, features=features[inside], class_names=given, tpr=tpr, learner=learner, seed=seed)
    last = begin_run(state, class_ids=ids)
    if texts is not None and len(texts) != sum(map(len, streams)):
        raise InputError(f"texts: {len(texts)} for a stream of {sum(map(len, streams))} rows; give one per row")
    first = 0
    for number, part in enumerate(streams, 1):
        own = None if texts is None else texts[first : first + len(part)]
        if number == len(streams):
            options["growth"] = 1.0
        last = last.step(LabeledInputs.of(part, texts=own), seed=seed, **options)
        first += len(part)
    return last


def begin_run(state: LearningState, class_ids: Any = None) -> OpenWorldRun:
    """Return a run before its first round.

    Parameters
    ----------
    state : LearningState
        The classes that people labelled.
    class_ids : array of int, optional
        The numbers of its classes; 0, 1, 2 … when absent.
    """
    ids = np.arange(len(state.known.class_names)) if class_ids is None else np.asarray(class_ids, np.int64)
    return OpenWorldRun(state, state, state.known.train[:0], class_ids=ids, next_id=int(ids.max()) + 1)


def run_rounds(state: LearningState, streams: Iterable[Mapping[str, Array]], **options: Any) -> Iterator[OpenWorldRun]:
    """Run one round per stream, and yield the run after each.

    Parameters
    ----------
    state : LearningState
        What to begin with; see `begin`.
    streams : iterable of mapping
        Per round the unlabelled data: ``features`` or ``inputs``, and ``texts`` where classes are named by them. After
        the last one of a list all inputs are grouped, whatever the growth; other iterables do not say which is last.
    **options
        As `OpenWorldRun.step` takes them.
    """
    check_growth(options.get("growth", GROWTH))
    current = begin_run(state)
    last = len(streams) if isinstance(streams, Sized) else 0
    for number, stream in enumerate(streams, 1):
        if number == last:
            options["growth"] = 1.0
        current = current.step(read_stream(state, **stream), **options)
        yield current


def _free_name(taken: set[str]) -> str:
    """Return a name that no class has or had."""
    number = len(taken)
    while f"new {number}" in taken:
        number += 1
    return f"new {number}"
