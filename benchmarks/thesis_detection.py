"""The thesis' questions about ReAct, DICE and k-NN: every ablation as one sweep and one plot, and its figures.

``OFFMAP_DATA=… python benchmarks/thesis_detection.py`` writes out/thesis/results.json and report.html; the committed
run is ``results/suite-thesis-detection.json``. ``--list`` names the sweeps, ``--sweeps`` runs some of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from thesis.ablations import run_sweeps, write_report
from thesis.sweeps import SWEEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sweeps", nargs="*", choices=[sweep.name for sweep in SWEEPS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name the sweeps with their questions and stop")
    parser.add_argument("--data", type=Path, help="folder with the sets; OFFMAP_DATA by default")
    parser.add_argument("--cache", type=Path, help="folder for activations, found again by content")
    parser.add_argument("--out", type=Path, default=Path("out/thesis"))
    parser.add_argument("--limit", type=int, default=4000, help="at most so many inputs per set")
    parser.add_argument("--passes-limit", type=int, default=400, help="and where the network runs again")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="run the network even where its features are stored")
    given = parser.parse_args()
    if given.list:
        for sweep in SWEEPS:
            print(f"{sweep.name:<28}{sweep.question}")
        return
    found = run_sweeps(
        given.sweeps,
        data=given.data,
        cache=given.cache,
        fresh=given.fresh,
        on_step=lambda words: print(words, flush=True),
        seeds=given.seeds,
        limit=given.limit,
        passes_limit=given.passes_limit,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    print(found)
    print(f"\nThe report is {write_report(found, given.out)}")


if __name__ == "__main__":
    main()
