"""Run a scope inside the real LiteLLM and the real NeMo Guardrails.

``python benchmarks/scope_adapters.py`` makes an environment for the two in the user's cache folder at first use, since
they pin other versions than offmap's tests do, and writes ``results/scope_adapters.json``. offmap itself and what it
needs come from this environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from peers import make_environment

RESULTS = Path(__file__).with_name("results") / "scope_adapters.json"
WORKER = Path(__file__).with_name("scope_adapters_worker.py")
PACKAGES = ("litellm[proxy]==1.106.2", "nemoguardrails==0.24.1")


def main() -> None:
    python = os.environ.get("SCOPE_ADAPTERS_PYTHON") or str(make_environment("adapters", PACKAGES))
    source = Path(__file__).resolve().parents[1] / "src"
    behind = [str(source), sysconfig.get_paths()["purelib"]]  # after that environment's own packages
    done = subprocess.run([python, str(WORKER), *behind], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    found = json.loads(done.stdout.splitlines()[-1])
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
