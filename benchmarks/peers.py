"""An environment of their own for the libraries that offmap is measured against.

``python benchmarks/peers.py`` makes it and prints its interpreter; the benchmarks do so by themselves. It is kept in
the user's cache folder and made anew when the lists below change.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAIN = (
    "torch", "numpy", "scipy", "scikit-learn", "typing_extensions", "safetensors", "pillow", "datasketches==5.2.0",
    "statsmodels==0.15.0", "faiss-cpu", "tqdm",
)  # fmt: skip
WITHOUT_DEPENDENCIES = ("pytorch-ood==0.4.0", "torchvision==0.29.2")  # torchvision's compiled part is never called


def environment() -> Path:
    """The interpreter of the peers' environment, made when it is not there."""
    constrained = ("--constraint", str(ROOT / "constraints.txt"))
    return make_environment("peers", PLAIN, WITHOUT_DEPENDENCIES, constrained)


def make_environment(
    name: str, plain: tuple[str, ...], bare: tuple[str, ...] = (), options: tuple[str, ...] = ()
) -> Path:
    """The interpreter of an environment with these packages, made when it is not there; `bare` without dependencies."""
    wanted = repr((plain, bare, sys.version_info[:2]))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "offmap" / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *options]
    subprocess.run([*install, *plain], check=True)
    if bare:
        subprocess.run([*install, "--no-deps", *bare], check=True)
    ready.touch()
    return python


def versions() -> dict[str, dict[str, str]]:
    """What is measured, by version: our environment first, then the peers'."""
    script = (
        "import importlib.metadata as m, json, platform;"
        "n = ('offmap', 'torch', 'numpy', 'scipy', 'scikit-learn', 'pytorch-ood', 'datasketches');"
        "d = {x.metadata['Name'].lower(): x.version for x in m.distributions()};"
        "print(json.dumps({'python': platform.python_version()} | {k: d[k] for k in n if k in d}))"
    )
    answers = [
        json.loads(subprocess.run([str(python), "-c", script], check=True, capture_output=True, text=True).stdout)
        for python in (sys.executable, environment())
    ]
    return {"ours": answers[0], "peers": answers[1]}


if __name__ == "__main__":
    print(environment())
