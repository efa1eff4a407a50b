"""Measure the loop on digits: known classes kept, new ones learned, in one round and one by one, beside an oracle.

A small network that knows six digits meets the others, all in one round or one per round. After every round test digits
are judged: those it was taught (has it forgotten?), and all met so far. Nothing is learned or chosen from test digits
or from the true classes of the stream; defaults were set on seeds 0 to 4, and other seeds are reported.

    python benchmarks/loop.py            # all cases; --seeds 3 for fewer; --limit 1 for one more run; --show

Runs that are in the results already are not repeated; remove the file to begin anew.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "loop.json"
FIRST_SEED = 10
MAX_FALL = 0.03  # what a round may lose on held-out digits of known classes by default
CASES = [
    {"rounds": rounds, "n_new": n_new, "learner": learner}
    for rounds, n_new in ((1, "auto"), (4, "true"), (4, "auto"))
    for learner in ("finetune", "prototypes", "opencon")
]


def run(case: dict[str, Any], seed: int) -> dict[str, Any]:
    from offmap.openworld.simulation import digits_world, simulate

    began = time.perf_counter()
    world = digits_world(6, case["rounds"], seed)
    # nothing is refused here, so that forgetting is measured and not prevented; what the gate says is kept beside it
    journey = simulate(world, case["n_new"], learner=case["learner"], max_forgetting=1.0)
    steps = []
    for step in journey.steps:
        done = step.round
        steps.append(
            {
                "flagged": step.flagged,
                "flagged_unknown": step.flagged_unknown,
                "new_classes": 0 if done is None else len(done.new_names),
                "fall_held_out": None if done is None else done.before.known - done.after.known,
                **asdict(step.measured),
            }
        )
    return {
        "seed": seed,
        "before": asdict(journey.before),
        "steps": steps,
        "oracle": journey.oracle,
        "seconds": round(time.perf_counter() - began, 1),
    }


def mean(values: list[float]) -> str:
    """Per cent, with the standard error over seeds."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * np.mean(values):.1f} ± {100 * error:.1f}"


def table(found: dict[str, Any]) -> str:
    """Both tables as the documentation has them."""
    words = {"auto": "estimated", "true": "given"}
    lines = [
        "| rounds | number of new classes | learner | taught digits before | after | all ten after | oracle | kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in found["cases"]:
        runs = case["runs"]
        if not runs:
            continue
        last = [one["steps"][-1] for one in runs]
        falls = [step["fall_held_out"] for one in runs for step in one["steps"] if step["fall_held_out"] is not None]
        lines.append(
            f"| {case['rounds']} | {words[case['n_new']]} | `{case['learner']}` "
            f"| {mean([one['before']['known'] for one in runs])} | {mean([step['known'] for step in last])} "
            f"| {mean([step['all'] for step in last])} | {mean([one['oracle'] for one in runs])} "
            f"| {sum(fall <= MAX_FALL for fall in falls)} of {len(falls)} |"
        )
    lines += ["", "| `finetune`, one digit per round | round 1 | 2 | 3 | 4 |", "|---|---|---|---|---|"]
    for n_new, word in words.items():
        (case,) = (c for c in found["cases"] if (c["rounds"], c["n_new"], c["learner"]) == (4, n_new, "finetune"))
        for key, name in (("known", "taught digits right"), ("all", "all met so far right")):
            cells = [mean([one["steps"][number][key] for one in case["runs"]]) for number in range(case["rounds"])]
            lines.append(f"| {name}, number {word} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {"known": 6, "cases": [{**case, "runs": []} for case in CASES]}
    if RESULTS.exists():
        found = json.loads(RESULTS.read_text())
    if given.show:
        print(table(found))
        return
    from offmap.report import versions

    found["versions"] = versions()
    left = given.limit
    for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
        for case in found["cases"]:
            if left and seed not in [one["seed"] for one in case["runs"]]:
                case["runs"].append(run(case, seed))
                left -= 1
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
