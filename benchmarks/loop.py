"""Measure the rounds of `offmap.openworld`: on digits with a network, and on streams of features of three sets.

Digits: a small network that knows six digits meets the others, all in one round or one per round. Streams: half of the
classes are known and half of their rows labelled; the rest, with out-of-scope queries where the set has them, comes in
over several rounds. Beside it stands `offmap.discover`, given everything at once. Test inputs are of all classes;
nothing is learned from them or from the true classes of the stream. docs/howto/loop.md says what was chosen on what.

    python benchmarks/loop.py                # all cases; --seeds 3 for fewer; --limit 1 for one more run; --show
    python benchmarks/loop.py --only clinc150

Runs that are in the results already are not repeated; remove the file to begin anew.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results" / "loop.json"
FIRST_SEED = 10
DEVELOPMENT_SEEDS = range(8)
SETS = ("digits", "clinc150", "banking77")
PICTURES = [
    {"case": "pictures", "rounds": rounds, "n_new": n_new, "learner": learner}
    for rounds, n_new in ((1, "auto"), (4, "auto"))
    for learner in ("finetune",)
]
STREAMS = [{"case": "stream", "set": name, "rounds": rounds} for rounds in (4, 10) for name in SETS]
CASES: list[dict[str, Any]] = [*PICTURES, *STREAMS]


def run_pictures(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run the rounds of the digits scenario, and measure test digits after each."""
    from offmap.bench.digits_simulation import make_digits_scenario, simulate

    journey = simulate(make_digits_scenario(6, case["rounds"], seed), case["n_new"], learner=case["learner"])
    steps = []
    for step in journey.steps:
        kept = {key: value for key, value in step.record.to_json().items() if key not in ("round", "groups")}
        outcomes = [one.outcome for one in step.record.groups]
        steps.append({**kept, "outcomes": outcomes, **asdict(step.measured)})
    return {"before": asdict(journey.before), "steps": steps, "oracle": journey.oracle}


class Stream(NamedTuple):
    """Labelled rows, a stream without labels, test rows of all classes, and out-of-scope test rows where there are."""

    known: Any
    labels: Any
    stream: Any
    truth: Any
    test: Any
    wanted: Any
    outside: Any = None


def make_stream(name: str, seed: int) -> Stream:
    """Draw which classes are known and which of their rows are labelled; the rest is shuffled into the stream."""
    train, labels, test, wanted, extra, outside = _read_set(name, seed)
    rng = np.random.default_rng(seed)
    n_classes = int(labels.max()) + 1
    number = np.argsort(rng.permutation(n_classes))
    labels, wanted = number[labels], number[wanted]
    labelled = np.zeros(len(labels), bool)
    for label in range(n_classes // 2):
        rows = rng.permutation(np.flatnonzero(labels == label))
        labelled[rows[: len(rows) // 2]] = True
    rest = np.flatnonzero(~labelled)
    stream, truth = train[rest], labels[rest]
    if extra is not None:
        stream, truth = np.concatenate([stream, extra]), np.concatenate([truth, np.full(len(extra), -1)])
    order = rng.permutation(len(stream))
    return Stream(train[labelled], labels[labelled], stream[order], truth[order], test, wanted, outside)


def _read_set(name: str, seed: int) -> tuple[Any, ...]:
    if name == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        order = np.random.default_rng(1000 + seed).permutation(len(bunch.target))
        rows, labels = bunch.data.astype(np.float32)[order], bunch.target[order]
        cut = len(rows) // 4
        return rows[cut:], labels[cut:], rows[:cut], labels[:cut], None, None
    folder = Path(os.environ["OFFMAP_DATA"]) / "text"
    data = np.load(folder / f"{name}_minilm.npz")

    def part(key: str) -> Any:
        return data[f"{key}_features"].astype(np.float32)

    extra = outside = None
    if name == "clinc150":
        extra = np.concatenate([part("oos_train"), part("oos_val"), part("oos_test")[:500]])
        outside = part("oos_test")[500:]
    return part("train"), data["train_labels"], part("test"), data["test_labels"], extra, outside


def run_stream(case: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run the rounds on a stream of features, and measure test rows before, after and beside `discover`."""
    import offmap
    from offmap.metrics.clustering import open_world_accuracy

    made = make_stream(case["set"], seed)
    n_known = int(made.labels.max()) + 1
    known = made.wanted < n_known
    current = offmap.openworld.run(made.known, made.labels, made.stream, 0, seed)
    start = current.predict(made.test)
    current = offmap.openworld.run(made.known, made.labels, made.stream, case["rounds"], seed)
    found = current.predict(made.test)
    after = open_world_accuracy(made.wanted, found, range(n_known))
    named = current.deployment.verdicts(made.test, "features").predicted
    result = {
        "classes": int(made.wanted.max()) + 1,
        "found": current.n_classes,
        "start_known": float((start == made.wanted)[known].mean()),
        "start_flagged_new": float((start[~known] < 0).mean()),
        # by name, as before the rounds: the matching behind `all` may give a known class to a new one that it swallowed
        "known": float((found == made.wanted)[known].mean()),
        "all": after.all,
        "new": after.novel,
        "all_if_none_rejected": open_world_accuracy(made.wanted, named, range(n_known)).all,
        "learner": [None if record.round is None else record.round.settings["learner"] for record in current.rounds],
        "rejected": float((found < 0).mean()),
        "outside_flagged": None if made.outside is None else float((current.predict(made.outside) < 0).mean()),
        "deployed": [record.deployed for record in current.rounds],
        "flagged": [record.flagged for record in current.rounds],
        "n_classes": [record.n_classes for record in current.rounds],
    }
    if case["rounds"] == STREAMS[0]["rounds"]:
        rows = np.concatenate([made.known, made.stream, made.test])
        given = np.concatenate([made.labels, np.full(len(made.stream) + len(made.test), -1)])
        at_once = offmap.discover(rows, given, seed=seed)
        yardstick = open_world_accuracy(made.wanted, at_once.labels[-len(made.test) :], range(n_known))
        result |= {"discover": yardstick.all, "discover_known": yardstick.known, "discover_found": at_once.n_classes}
    return result


def mean(values: list[float]) -> str:
    """Return the mean in per cent, with the standard error over seeds."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * np.mean(values):.1f} ± {100 * error:.1f}"


def table(found: dict[str, Any]) -> str:
    """Return both tables as the documentation has them."""
    lines = [
        "| pictures, rounds | seeds | deployed | taught digits before | after | all ten before | after | oracle |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in found["cases"]:
        runs = case["runs"]
        if case["case"] != "pictures" or not runs:
            continue
        last = [one["steps"][-1] for one in runs]
        deployed = sum(any(step["deployed"] for step in one["steps"]) for one in runs)
        lines.append(
            f"| {case['rounds']} | {len(runs)} | {deployed} of {len(runs)} "
            f"| {mean([one['before']['known'] for one in runs])} | {mean([step['known'] for step in last])} "
            f"| {mean([one['before']['all'] for one in runs])} | {mean([step['all'] for step in last])} "
            f"| {mean([one['oracle'] for one in runs])} |"
        )
    lines += [
        "",
        "| stream | rounds | seeds | classes | found | known before | after | all after | `discover` | share of it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in found["cases"]:
        runs = case["runs"]
        if case["case"] != "stream" or not runs:
            continue
        at_once = [one["discover"] for one in runs if "discover" in one]
        share = [one["all"] / one["discover"] for one in runs if "discover" in one]
        lines.append(
            f"| {case['set']} | {case['rounds']} | {len(runs)} | {runs[0]['classes']} "
            f"| {', '.join(str(one['found']) for one in runs)} | {mean([one['start_known'] for one in runs])} "
            f"| {mean([one['known'] for one in runs])} | {mean([one['all'] for one in runs])} "
            f"| {mean(at_once) if at_once else ''} | {mean(share) if share else ''} |"
        )
    return "\n".join(lines)


def run_development() -> dict[str, Any]:
    """Run the stream of digits on the seeds that the learner was chosen on; they are reported apart."""
    case = next(each for each in STREAMS if each["set"] == "digits")
    runs = {str(seed): run_stream(case, seed) for seed in DEVELOPMENT_SEEDS}
    shown = ("start_known", "known", "all", "found")
    seeds = {seed: {name: round(run[name], 3) for name in shown} for seed, run in runs.items()}
    return {"set": case["set"], "rounds": case["rounds"], "seeds": seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--only", choices=("pictures", *SETS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--development", action="store_true", help="only the digits, on the seeds that were chosen on")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {"cases": [{**case, "runs": []} for case in CASES]}
    if RESULTS.exists():
        found = json.loads(RESULTS.read_text())
    if given.show:
        print(table(found))
        return
    from offmap.report import versions

    found["versions"] = versions()
    if given.development:
        found["development"] = run_development()
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found["development"], indent=1))
        return
    left = given.limit
    for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
        for case in found["cases"]:
            wanted = given.only in (None, case["case"], case.get("set")) and given.rounds in (None, case["rounds"])
            if not left or not wanted or seed in [one["seed"] for one in case["runs"]]:
                continue
            began = time.perf_counter()
            outcome = (run_pictures if case["case"] == "pictures" else run_stream)(case, seed)
            case["runs"].append({"seed": seed, **outcome, "seconds": round(time.perf_counter() - began, 1)})
            left -= 1
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
