"""One example of every command, shown under its ``--help``."""

from __future__ import annotations

EXAMPLES = {
    "demo": "offmap demo --out out/demo",
    "guard": "offmap guard --model model.onnx --known pictures/ --out guard/",
    "extract": "offmap extract pictures/ --model model.onnx --to known/",
    "fit": "offmap fit known/ auto --calibrate held-out/ --out guard.offmap",
    "score": "offmap score guard.offmap new-pictures/ --model model.onnx --out scores.csv",
    "recalibrate": "offmap recalibrate guard.offmap confirmed/ --out newer.offmap",
    "compare": 'offmap compare "auto, msp" --known known/ --id-test held-out/ --ood unknown/ --out compare.html',
    "discover": "offmap discover all-rows/ --out found.csv --report found.html",
    "finetune": "offmap finetune intents.csv --text-column utterance --label-column intent --out encoder/",
    "learn": "offmap learn --data all-rows/ --out learned/ --report learned.html",
    "loop": "offmap loop --data digits --rounds 2 --out out/loop",
    "explain": "offmap explain known/ --out explain.html",
    "export": "offmap export model.onnx guard.offmap --out guarded.onnx",
    "serve": "offmap serve guard.offmap --model model.onnx --store unknown/",
    "methods": "offmap methods",
    "bench": "offmap bench digits --seeds 3 --out out/bench",
    "scope fit": "offmap scope fit examples.txt --tpr 0.97 --out topic.offmap",
    "scope check": 'offmap scope check topic.offmap "how do I reset my card?"',
}


def show_example(command: str) -> str:
    """Return the line that stands under the help of a command.

    Parameters
    ----------
    command : str
        Such as ``"fit"`` or ``"scope fit"``.

    Returns
    -------
    str
        The example, after a word that says so.

    Examples
    --------
    >>> show_example("methods")
    'Example: offmap methods'
    """
    return f"Example: {EXAMPLES[command]}"
