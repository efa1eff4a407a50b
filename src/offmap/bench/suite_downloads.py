"""Everything that a suite needs, fetched and checked: its sets, and published weights in the form that suites read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from offmap.bench.downloads import Remote, fetch, fetch_set
from offmap.bench.networks import make_network
from offmap.bench.sets import load_set
from offmap.bench.suites import Suite
from offmap.errors import InputError, StoreError

TOLERANCE = 0.1  # per cent: rounding may turn a few of 10,000 pictures
BATCH = 200


def get_suite(
    suite: Suite, data: Path, *, mirror: str | None = None, on_step: Callable[[str], None] = lambda words: None
) -> tuple[list[Path], float | None]:
    """Fetch what a suite needs into the data folder; what is there and right is left alone.

    Parameters
    ----------
    suite : Suite
        Which declares [sources].
    data : Path
        The data folder.
    mirror : str, optional
        Address to fetch from instead: file names are appended to it, checksums stay the same.
    on_step : callable, optional
        Called with a short text when a step begins.

    Returns
    -------
    files : list of Path
        What was fetched, and weights as suites read them.
    accuracy : float or None
        Of the network with those weights on the suite's test inputs, in per cent, where the suite says what it is.

    Raises
    ------
    InputError
        If the suite does not say where its sets or weights are published.
    StoreError
        If a checksum is wrong, or the network is not as accurate as it was published to be.
    """
    sources = suite.sources
    if not sources.sets and not sources.weights:
        raise InputError(f"suite {suite.name}: it does not say where its sets are published; see --downloads")
    files = [
        file for name in sources.sets for file in fetch_set(name, data, mirror=mirror, on_step=on_step)
    ]  # fmt: skip
    if not sources.weights:
        return files, None
    target = data / str(suite.networks[0].options["weights"])
    if not target.is_file():
        remote = Remote(sources.weights, sources.sha256, "sha256")
        url = remote.url if mirror is None else f"{mirror.rstrip('/')}/{remote.name}"
        on_step(f"fetching {url}")
        target.parent.mkdir(parents=True, exist_ok=True)
        packed = target.with_name(f"{target.stem}-{remote.name}")
        fetch(Remote(url, remote.checksum, remote.algorithm), packed)
        convert_weights(packed, target)
    accuracy = None if sources.accuracy is None else check_accuracy(suite, data, on_step)
    return [*files, target], accuracy


def convert_weights(file: Path, target: Path) -> Path:
    """Write the tensors of a checkpoint as ``.safetensors``; nothing in the checkpoint is run.

    Parameters
    ----------
    file : Path
        What ``torch.save`` wrote of a state dict, alone or in a training script's dictionary.
    target : Path
        The new file.

    Returns
    -------
    Path
        The new file.
    """
    from safetensors.torch import save

    from offmap.models.weights import read_tensors
    from offmap.store import write_atomically

    tensors = {name: tensor.contiguous() for name, tensor in read_tensors(file).items()}
    write_atomically(target, save(tensors))
    return target


def check_accuracy(suite: Suite, data: Path, on_step: Callable[[str], None] = lambda words: None) -> float:
    """Send a suite's test inputs through its network and compare the accuracy with the published one.

    Parameters
    ----------
    suite : Suite
        With an accuracy in [sources].
    data : Path
        The data folder.
    on_step : callable, optional
        Called with a short text when a step begins.

    Returns
    -------
    float
        In per cent.

    Raises
    ------
    StoreError
        If it is another one.
    """
    test = load_set(suite.test, data)
    spec = suite.networks[0]
    on_step(f"checking {spec.name} on {len(test)} inputs of {suite.test.name}")
    network = make_network(spec, None, data, data)
    acts = network.net.extract(network.batches(test, BATCH), progress=False)
    found = 100 * float(np.mean(acts.predictions == np.asarray(test.samples.labels)))
    wanted = suite.sources.accuracy
    if wanted is not None and abs(found - wanted) > TOLERANCE:
        raise StoreError(
            f"{data / str(spec.options['weights'])}: {found:.2f} % of {suite.test.name} right, published are "
            f"{wanted:.2f} %; delete the file, and the test set if it is not the published one, and fetch them again"
        )
    return found
