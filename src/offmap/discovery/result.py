"""The result of discovery: labels, classes a person can name, and the edits that person makes, kept in a journal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import shorten
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap import store
from offmap.discovery.assign import Floats, Labels, Rows
from offmap.discovery.counting import ClassCount
from offmap.discovery.describe import CORE, ClassInfo, describe
from offmap.discovery.naming import suggest_names
from offmap.errors import InputError, MissingError, StoreError
from offmap.text import MadeFromTexts, read_text_reference
from offmap.wording import format_count

KIND = "discovery"
SHOWN, WIDTH = 10, 48  # novel classes in a summary, characters of each example


@dataclass(frozen=True, eq=False)
class Discovery(MadeFromTexts):
    """The classes found among unlabelled rows, and which row belongs to which.

    Parameters
    ----------
    labels
        One class number per row: known classes keep theirs, novel ones follow, -1 is an outlier.
    given
        The labels that were given, as class numbers; -1 where unknown.
    known_ids
        The numbers of the known classes.
    confidence
        Per row between 0 and 1: 1 for given labels; otherwise the share of its links to near rows that stay inside its
        class, or for methods without a graph, nearness to the centre of its class compared with the next one.
    classes
        Every class with its size, exemplars and neighbours.
    count
        How the number of classes was estimated; `None` when it was given.
    settings
        Method, space and seed.
    journal
        The edits made since, in order.
    text_reference
        Of texts: what their encoder is and its checksum; see `with_text_encoder`.
    """

    labels: Labels
    given: Labels
    known_ids: Labels
    confidence: Floats
    classes: tuple[ClassInfo, ...]
    count: ClassCount | None
    settings: dict[str, Any]
    journal: tuple[dict[str, Any], ...] = ()
    rows: Floats | None = field(default=None, repr=False)
    text_reference: Mapping[str, Any] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        known = len(self.known_ids)
        told = f"{format_count(len(self), 'row')}, {format_count(known, 'known class', 'known classes')}"
        return f"Discovery({told}, {self.n_classes - known} novel)"

    @property
    def n_classes(self) -> int:
        """Known and novel classes together."""
        return len(self.classes)

    @property
    def n_classes_interval(self) -> tuple[int, int]:
        """Where the number of classes lies; both ends alike when it was given."""
        return self.count.interval if self.count is not None else (self.n_classes, self.n_classes)

    @property
    def is_novel(self) -> npt.NDArray[np.bool_]:
        """Per row: in a class without labels. Outliers are not in one."""
        return np.asarray((self.labels >= 0) & ~np.isin(self.labels, self.known_ids))

    @property
    def is_core(self) -> npt.NDArray[np.bool_]:
        """Per row: in a class with a confidence of at least 0.5. The others are at the fringe of theirs."""
        return np.asarray((self.labels >= 0) & (self.confidence >= CORE))

    @property
    def novel(self) -> tuple[ClassInfo, ...]:
        """The novel classes, the largest first."""
        return tuple(sorted((info for info in self.classes if not info.known), key=lambda one: -one.size))

    @property
    def exemplars(self) -> dict[int, list[int]]:
        """Per class the rows to look at first, the most typical one leading."""
        return {info.id: list(info.exemplars) for info in self.classes}

    @property
    def names(self) -> dict[int, str]:
        """The name of each class."""
        return {info.id: info.name for info in self.classes}

    @property
    def named_labels(self) -> list[str | None]:
        """The name of each row's class, `None` for outliers."""
        names = self.names
        return [names.get(int(label)) for label in self.labels]

    def summary(self, rows: Sequence[str] | None = None) -> str:
        """Give the answer in a few lines of text, with three examples of each of the largest novel classes.

        Parameters
        ----------
        rows : sequence of str, optional
            What each row is, its text or the name of its file, to show as examples; their numbers by default.
        """
        if rows is not None and len(rows) != len(self.labels):
            raise InputError(f"{len(rows)} names for {len(self.labels)} rows; give one each")
        novel = self.novel
        low, high = self.n_classes_interval
        unlabelled = self.given < 0
        to_known = int((unlabelled & np.isin(self.labels, self.known_ids)).sum())
        lines = [
            f"{format_count(self.n_classes, 'class', 'classes')} ({low} to {high}): {len(self.known_ids)} known, "
            f"{len(novel)} novel",
            f"{format_count(int(unlabelled.sum()), 'row')} without a label: {to_known} are of known classes, "
            f"{int(self.is_novel.sum())} of novel ones, {int((self.labels < 0).sum())} of none",
            f"grouped by {self.settings['method']}; space: {self.settings['space']}",
        ]
        if self.count is not None:
            lines.append(f"the number of classes: {self.count}")
        for info in novel[:SHOWN]:
            like = ", ".join(self.names[j] for j in info.nearest_known)
            near = f", nearest known: {like}" if like else ""
            lines.append(
                f"  {info.name}: {format_count(info.size, 'row')}, confidence {info.confidence:.2f}, "
                f"e.g. {_examples(info.exemplars[:3], rows)}{near}"
            )
        if len(novel) > SHOWN:
            lines.append(f"  and {len(novel) - SHOWN} more")
        return "\n".join(lines)

    def rename(self, names: Mapping[int, str] | Mapping[str, str]) -> Discovery:
        """Call classes, each given by its number or its name, by these names."""
        new = {self._find(one): name for one, name in names.items()}
        classes = tuple(replace(info, name=new.get(info.id, info.name)) for info in self.classes)
        return self._noted("rename", {"names": {str(k): v for k, v in new.items()}}, classes=classes)

    def name_by_texts(self, texts: Sequence[str], words: int = 3) -> Discovery:
        """Name novel classes by their keywords (c-TF-IDF)."""
        found = suggest_names(texts, self.labels, words)
        return self.rename({info.id: found[info.id] for info in self.classes if not info.known and info.size})

    def merge(self, ids: Sequence[int | str]) -> Discovery:
        """Make one class of several, by number or name; it keeps the number of the known one, else the smallest."""
        numbers = [self._find(one) for one in ids]
        known = [one for one in numbers if one in self.known_ids]
        if len(set(numbers)) < 2 or len(known) > 1:
            raise InputError(f"merge({list(ids)}): two or more classes are needed, at most one of them known")
        target = known[0] if known else min(numbers)
        labels = np.where(np.isin(self.labels, numbers), target, self.labels)
        return self._relabelled(labels, "merge", {"ids": numbers})

    def split(self, one: int | str, parts: int = 2) -> Discovery:
        """Part one class, by number or name, into several; rows with given labels stay in it."""
        from offmap.discovery.space import group

        number = self._find(one)
        members = np.flatnonzero(self.labels == number)
        if not 2 <= parts <= len(members):
            raise InputError(f"split({one}, parts={parts}): between 2 and its {len(members)} rows is needed")
        rows = self._rows_for("split")[members]
        held = np.where(self.given[members] >= 0, 0, -1)
        found, _ = group(Rows(rows), parts, int(self.settings["seed"]), held, int((held == 0).any()))
        numbers = np.concatenate([[number], self._next_id + np.arange(parts - 1)])
        labels = self.labels.copy()
        labels[members] = numbers[found]
        return self._relabelled(labels, "split", {"id": number, "parts": int(parts)})

    def discard(self, one: int | str) -> Discovery:
        """Dissolve a novel class, by number or name: its rows become outliers."""
        number = self._find(one)
        if number in self.known_ids:
            raise InputError(f"discard({one}): a known class stays; only novel classes can be discarded")
        return self._relabelled(np.where(self.labels == number, -1, self.labels), "discard", {"id": number})

    def relabel(self, labels: Labels) -> Discovery:
        """Put rows into other classes: one class number per row, as many as there are rows; -1 for none."""
        if len(labels) != len(self.labels):
            raise InputError(f"relabel: {len(labels)} labels for {len(self.labels)} rows; give one per row")
        return self._relabelled(np.asarray(labels, np.int64), "relabel", {"rows": int((labels != self.labels).sum())})

    def to_html(self, path: str | os.PathLike[str], items: Any = None) -> None:
        """Write a page that shows every class with its exemplars and doubtful rows.

        Parameters
        ----------
        path
            The file to write.
        items
            What the rows were made from: texts, or images as ``uint8`` arrays; row numbers are shown without.
        """
        from offmap.discovery.gallery import page

        page(self, items).write(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write labels, classes and journal to one file; features are not in it."""
        config: dict[str, Any] = {
            "classes": [info.to_json() for info in self.classes],
            "settings": self.settings,
            "journal": list(self.journal),
            "count": None if self.count is None else asdict(self.count),
        }
        if self.text_reference is not None:
            config["text_encoder"] = dict(self.text_reference)
        tensors: dict[str, npt.NDArray[Any]] = {
            "labels": self.labels,
            "given": self.given,
            "known_ids": self.known_ids,
            "confidence": self.confidence,
        }
        store.save(path, KIND, config, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str], rows: Floats | None = None) -> Discovery:
        """Read a saved result; with `rows` (its `.rows` when it was made) classes can be merged and split again."""
        found = cls.restore(store.load(path, KIND))
        if rows is not None and len(rows) != len(found):
            raise InputError(f"load(rows of {len(rows)}): the result has {len(found)} rows")
        return replace(found, rows=rows)

    @classmethod
    def restore(cls, stored: store.Stored) -> Discovery:
        """Make a result from what a file held."""
        config = stored.config
        store.check_fields(KIND, config, {"classes": list, "settings": dict, "journal": list, "count": dict | None})
        kinds = {"labels": ("iu", 1), "given": ("iu", 1), "known_ids": ("iu", 1), "confidence": ("f", 1)}
        store.check_arrays(KIND, stored.tensors, kinds, ("labels", "given", "confidence"))
        count = config["count"]
        with store.restoring(KIND):
            found = cls(
                classes=tuple(ClassInfo.from_json(values) for values in config["classes"]),
                settings=config["settings"],
                journal=tuple(config["journal"]),
                count=None if count is None else ClassCount.from_json(count),
                text_reference=read_text_reference(config),
                **{name: stored.tensors[name] for name in kinds},
            )
            ids = [*found.names, -1]
            if not (np.isin(found.labels, ids).all() and np.isin(found.known_ids, ids).all()):
                raise StoreError(f"not a whole {KIND}: it holds labels of classes that it does not describe")
            found.summary()  # which reads all of a description
        return found

    @property
    def _next_id(self) -> int:
        used = [info.id for info in self.classes]
        used += [number for entry in self.journal for number in entry.get("ids", [])]
        return max(used, default=-1) + 1

    def _rows_for(self, action: str) -> Floats:
        if self.rows is None:
            raise MissingError(f"{action}: the features are not in the file; Discovery.load(path, rows=...)")
        return self.rows

    def _find(self, one: int | str) -> int:
        """Return the number of a class that is given by its number or by its name."""
        there = self.names
        found = [number for number, name in there.items() if one in (number, name)]
        if not found:
            raise InputError(f"class {one}: there is no such class; there are {list(there)}, called {_listed(there)}")
        if len(found) > 1:
            raise InputError(f"class {one}: {len(found)} classes are called so; give its number, one of {found}")
        return found[0]

    def _relabelled(self, labels: Labels, action: str, details: dict[str, Any]) -> Discovery:
        infos, confidence = describe(self._rows_for(action), labels, self.given, self.known_ids, self.names)
        return self._noted(action, details, labels=labels, classes=tuple(infos), confidence=confidence)

    def _noted(self, action: str, details: dict[str, Any], **changes: Any) -> Discovery:
        return replace(self, journal=(*self.journal, {"action": action, **details}), **changes)


def _listed(names: Mapping[int, str]) -> str:
    """List the first names."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(list(names.values())[:SHOWN]) + more


def _examples(numbers: Sequence[int], rows: Sequence[str] | None) -> str:
    """Show a few rows: what they are where that is known, else their numbers."""
    if rows is None:
        return f"rows {list(numbers)}"
    return " | ".join(shorten(str(rows[number]), WIDTH, placeholder=" …") or f"row {number}" for number in numbers)
