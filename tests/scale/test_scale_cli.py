"""`offmap fit|score --engine ray` on a real local cluster gives the guard and the scores of one process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offmap

pytestmark = pytest.mark.slow


def run(*arguments: str, cwd: Path) -> dict[str, Any]:
    (cwd / "token").write_text(secrets.token_hex(32))
    environment = os.environ | {"RAY_AUTH_TOKEN_PATH": str(cwd / "token")}
    command = [sys.executable, "-m", "offmap.cli", *arguments, "--json"]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_shards_fit_and_score_as_one(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'offmap[ray]'")
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'offmap[data]'")
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(size=(300, 8))).astype(np.float32)
    (tmp_path / "shards").mkdir()
    for number, part in enumerate(np.split(features, 3)):
        np.savez(tmp_path / "shards" / f"{number}.npz", features=part)
    run("fit", "shards", "react(90)|knn(5)", "--out", "guard.offmap", "--engine", "ray", cwd=tmp_path)
    made = run("score", "guard.offmap", "shards", "--out", "scores", "--engine", "ray", cwd=tmp_path)
    alone = offmap.detector("react(90)|knn(5)").fit(features)
    scores = [pq.read_table(file)["score"].to_numpy() for file in made["files"]]
    assert np.array_equal(np.concatenate(scores), alone.score(features))
