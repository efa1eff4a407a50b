"""`offmap loop`: flag the unknown, discover its classes, learn them, go on."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offmap.cli.options import InputOptions, Json, say, show, with_inputs

if TYPE_CHECKING:
    from offmap.openworld import Deployment, LabeledInputs, RoundRecord

DETECTOR = "maxlogit + knn(5)"
OTHERS = DETECTOR, 0.98  # as in offmap.openworld.run, which looks again at what was accepted
# few texts set the threshold: at 0.98 it would be the least familiar one of them, and hardly anything would be flagged
TEXTS_TPR = 0.95


@with_inputs
def loop(
    inputs: InputOptions,
    data: Annotated[
        str,
        typer.Option(
            help="digits, which is built in; or labelled inputs: .npz/.parquet with features or pictures and labels, a "
            "folder of pictures in class folders, inputs for --model, or texts (.csv, .jsonl). Rows labelled -1, and "
            "texts without a label, are the stream."
        ),
    ] = "digits",
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Labelled inputs that the network was not trained on, to calibrate and to look for forgetting; a part "
            "of --data otherwise."
        ),
    ] = None,
    stream: Annotated[
        list[Path] | None,
        typer.Option("--stream", help="Inputs without labels; may be given again: each is a round."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds; one stream is cut into as many parts.")] = 1,
    known: Annotated[int, typer.Option(help="With digits: how many are known at first.")] = 6,
    detector: Annotated[
        str | None,
        typer.Option(
            help="What calls inputs unknown, as text; maxlogit + knn(5) by default, for texts what guard uses."
        ),
    ] = None,
    tpr: Annotated[
        float | None,
        typer.Option(help="The share of known inputs to accept; 0.98 by default, 0.95 for texts."),
    ] = None,
    learner: Annotated[str, typer.Option(help="auto, or one of {learners}.")] = "auto",
    new: Annotated[str, typer.Option("--new", help="How many new classes a round looks for, or auto.")] = "auto",
    max_forgetting: Annotated[
        float, typer.Option(help="By how much accuracy on known classes may fall; a round beyond that is not kept.")
    ] = 0.02,
    min_size: Annotated[int, typer.Option(min=5, help="Groups smaller than this wait.")] = 10,
    growth: Annotated[
        float,
        typer.Option(
            min=1, help="Inputs are grouped again once there were so many times as many; 1 does it in every round."
        ),
    ] = 1.25,
    space: Annotated[str, typer.Option(help="What is grouped: auto, inputs or features.")] = "auto",
    out: Annotated[Path, typer.Option(help="The folder for the report, the deployment and what was learned.")] = Path(
        "out/loop"
    ),
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    as_json: Json = False,
) -> None:
    """Flag what is unknown, find its classes, learn them beside the old ones, calibrate a new detector, go on."""
    from offmap.cli.checks import check_folder, check_page
    from offmap.errors import InputError

    if new != "auto" and not new.isdigit():
        raise InputError(f"--new {new}: a whole number or auto is needed")
    options: dict[str, Any] = {
        "n_new": "auto" if new == "auto" else int(new),
        "learner": learner,
        "max_forgetting": max_forgetting,
        "min_size": min_size,
        "growth": growth,
        "space": space,
    }
    check_page(None)
    check_folder(out)
    if tpr is not None and not 0 < tpr < 1:
        raise InputError(f"--tpr {tpr}: a share between 0 and 1")
    if data == "digits":
        if tpr is not None:
            raise InputError(f"--tpr {tpr}: the built-in digits have their own; name your --data")
        _digits(known, rounds, detector or DETECTOR, seed, out, as_json, options)
        return
    usual = (_text_detector(), TEXTS_TPR) if inputs.is_text(Path(data)) else OTHERS
    guard = detector or usual[0], usual[1] if tpr is None else tpr
    _own(Path(data), held_out, stream or [], rounds, guard, seed, out, as_json, inputs, options)


def _text_detector() -> str:
    from offmap.deploy.texts import DETECTOR as FOR_TEXTS

    return FOR_TEXTS


def _digits(
    known: int, rounds: int, detector: str, seed: int, out: Path, as_json: bool, options: dict[str, Any]
) -> None:
    from offmap.bench.digits_page import build_simulation_page, describe_errors
    from offmap.bench.digits_simulation import make_digits_scenario, simulate

    out.mkdir(parents=True, exist_ok=True)
    tell = say if sys.stderr.isatty() else lambda words: None
    tell(f"training a small network on {known} digits")
    simulation = simulate(make_digits_scenario(known, rounds, seed, detector), on_step=tell, **options)
    report = build_simulation_page(simulation).write(out / "report.html")
    last = simulation.steps[-1].measured
    wrong = describe_errors(simulation)
    result = {
        "report": str(report),
        "still_wrong": wrong,
        "before": simulation.before.all,
        "after": last.all,
        "oracle": simulation.oracle,
        "known_before": simulation.before.known,
        "known_after": last.known,
        "deployed": simulation.deployed,
        "rounds": [
            {
                "flagged_unknown": step.flagged_unknown,
                **step.record.to_json(),
                "known": step.measured.known,
                "all": step.measured.all,
            }
            for step in simulation.steps
        ],
        **_written(simulation.run.deployment, out),
    }
    lines = [
        f"A network that knows {known} digits meets {len(simulation.scenario.class_names)}.",
        *(f"round {number}: {step.record.summary()}" for number, step in enumerate(simulation.steps, 1)),
        f"all digits right: {simulation.before.all:.1%} before, {last.all:.1%} after, {simulation.oracle:.1%} by the "
        "oracle with all labels",
        f"the digits it was taught: {simulation.before.known:.1%} before, {last.known:.1%} after",
        f"what is still wrong: {wrong}",
        f"The report is {report}; the deployment is {result['deployment']}",
    ]
    show(result, as_json, "\n".join(lines))


@dataclass(frozen=True)
class _Rows:
    """The rows of a file or folder: inputs ready for the network or features, and what is known of each."""

    arrays: dict[str, Any]
    labels: Any  # -1 where unknown; `None` without any
    classes: tuple[str, ...]
    head: Any
    columns: dict[str, Any]  # by which rows are found again in a table: path, or text and what its file says besides

    def unlabelled(self) -> _Rows:
        """The rows without a label."""
        import numpy as np

        chosen = self.labels < 0
        arrays = {name: array[chosen] for name, array in self.arrays.items()}
        columns = {name: np.asarray(values)[chosen] for name, values in self.columns.items()}
        return _Rows(arrays, None, self.classes, self.head, columns)

    def stream(self) -> dict[str, Any]:
        """The arrays that rounds read; texts go with their features, to name classes by."""
        import numpy as np

        texts = self.columns.get("text")
        return self.arrays if texts is None else {**self.arrays, "texts": np.array(texts, object)}


def _own(
    data: Path,
    held_out: Path | None,
    files: list[Path],
    rounds: int,
    guard: tuple[str, float],
    seed: int,
    out: Path,
    as_json: bool,
    inputs: InputOptions,
    options: dict[str, Any],
) -> None:
    """Run the loop on a user's own data: read, start, run the rounds, write what came of them."""
    from offmap import data as data_files
    from offmap.openworld.openworld_run import run_rounds
    from offmap.openworld.preparation import begin, cut

    out.mkdir(parents=True, exist_ok=True)
    known, arriving = _read_sources(data, files, inputs)
    aside: dict[str, Any] = {}
    if held_out is not None:
        kept = _read(held_out, inputs)
        aside = {"held_out": (kept.labels, kept.arrays)}
    detector, tpr = guard
    if inputs.is_text(data) and options["learner"] == "auto":
        options = {**options, "learner": "linear"}  # what an encoder of texts gives is told apart by a linear head
    network = None if inputs.model is None else inputs.network()
    state = begin(
        detector, known.labels, network=network, head=known.head, class_names=known.classes or None, tpr=tpr,
        learner=options["learner"], seed=seed, **aside, **known.arrays,
    )  # fmt: skip
    streams = [rows.stream() for rows in arriving]
    if len(streams) == 1:
        streams = cut(streams[0], rounds)
    entries: list[dict[str, Any]] = []
    lines: list[str] = []
    deployment = state.deployment
    for number, now in enumerate(run_rounds(state, streams, seed=seed, **options), 1):
        deployment = now.deployment
        entry, line = _tell_round(number, now.rounds[-1], out)
        entries.append(entry)
        lines.append(line)
    table = _write_stream(deployment, arriving, out)
    if inputs.is_text(data):
        deployment = _with_texts(deployment, data, now.store, inputs)
    elif data_files.holds_pictures(data):
        deployment = replace(deployment, pictures=inputs.picture_settings())
    written = _written(deployment, out) | {"table": str(table)}
    lines.append(
        f"The deployment is {written['deployment']}{inputs.tell_model()}; what it says about the stream is {table}"
    )
    show({"rounds": entries, **written}, as_json, "\n".join(lines))


def _read_sources(data: Path, files: list[Path], inputs: InputOptions) -> tuple[_Rows, list[_Rows]]:
    """Read the labelled inputs and those that arrive: of files of their own, or the unlabelled ones among the first."""
    from offmap.errors import InputError

    known = _read(data, inputs)
    if known.labels is None:
        raise InputError(f"{data}: it has no labels; give labelled inputs, -1 where unknown")
    if files:
        return known, [_read(path, inputs) for path in files]
    if (known.labels >= 0).all():
        raise InputError(f"{data}: every row has a label; name a file of others with --stream")
    return known, [known.unlabelled()]


def _tell_round(number: int, record: RoundRecord, out: Path) -> tuple[dict[str, Any], str]:
    """Write the report of a round, if it found classes, and say what it did: for scripts and for people."""
    from offmap.openworld.result import render_pictures

    entry, line = record.to_json(), f"round {number}: {record.summary()}"
    if record.round is not None:
        report = out / f"round-{number}.html"
        seen = record.round.candidates
        record.round.to_html(report, seen.texts if seen.texts is not None else render_pictures(seen.inputs))
        entry["report"] = str(report)
        line += f"\n{record.round.summary()}\nThe report is {report}"
    return entry, line


def _with_texts(deployment: Deployment, data: Path, learned: LabeledInputs, inputs: InputOptions) -> Deployment:
    """Return the deployment with its encoder, and with the texts of its classes, which answers are shown beside."""
    import numpy as np

    from offmap.deploy.texts import warn_of_trained
    from offmap.openworld import KnownExamples

    reader = inputs.texts()
    texts = reader.read_texts(data)
    labels = texts.encode_labels(reader.classes)
    kept = np.flatnonzero(labels >= 0)
    own = [texts.texts[place] for place in kept]
    warn_of_trained(reader.encoder, own)
    examples = KnownExamples(own, reader.encoder.encode(own), labels[kept])
    more = learned[learned.labels >= 0]
    if more.texts is not None:
        examples = examples.add(KnownExamples(more.texts.tolist(), more.features, more.labels))
    return replace(deployment, encoder=reader.encoder, examples=examples.sample())


def _write_stream(deployment: Deployment, arriving: list[_Rows], out: Path) -> Path:
    """Write what the last deployment says about every input that arrived."""
    import numpy as np

    from offmap.data import join_columns, write_table

    parts = []
    for rows in arriving:
        ((kind, values),) = rows.arrays.items()
        verdicts = deployment.verdicts(
            values, "features" if kind == "features" and deployment.network is None else "inputs"
        )
        parts.append(join_columns(rows.columns, verdicts.columns(deployment.class_names)))
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    columns = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in shared}
    write_table(out / "stream.csv", columns)
    return out / "stream.csv"


def _read(path: Path, inputs: InputOptions) -> _Rows:
    import numpy as np

    from offmap import data

    if inputs.is_text(path):
        inputs.texts().with_head = False  # over all labelled texts it would have seen those that calibrate and measure
        found = inputs.samples(path)
        columns = inputs.texts().read_texts(path).named()
        return _Rows({"features": found.features}, found.labels, found.classes, None, columns)
    options = _folder_options(path, inputs)
    samples = data.read(path, **options)
    columns = {}
    if data.holds_pictures(path):
        columns = {"path": [str(file) for file in data.image_folder(path, **options).files]}
    ready = inputs.batches(path)
    if "inputs" not in samples.arrays and inputs.model is None:
        head = samples.head if inputs.head is None else data.read_head(inputs.head)
        return _Rows({"features": samples.features}, samples.labels, samples.classes, head, columns)
    made = np.concatenate([batch[0] if isinstance(batch, tuple) else batch for batch in ready])
    return _Rows({"inputs": made}, samples.labels, samples.classes, None, columns)


def _folder_options(path: Path, inputs: InputOptions) -> dict[str, Any]:
    if not path.is_dir():
        return {}
    return {
        "size": inputs.image_size,
        "mode": "L" if inputs.gray else "RGB",
        "unreadable": "skip" if inputs.skip_unreadable else "error",
    }


def _written(deployment: Deployment, out: Path) -> dict[str, str]:
    """Save the deployment, which holds the detector, the network and the class names, and say where."""
    deployment.save(out / "deployment.offmap")
    return {"deployment": str(out / "deployment.offmap")}
