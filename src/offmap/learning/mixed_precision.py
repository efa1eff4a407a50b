"""Check that a processor can train in mixed precision before a whole run is lost to it."""

from __future__ import annotations

import functools
import subprocess
import sys

from offmap.errors import InputError

TRIAL = "import torch; rows = torch.ones(64, 64, dtype=torch.bfloat16); rows @ rows"


def check_mixed_precision(device: str, trial: str = TRIAL) -> None:
    """Refuse mixed precision on a processor where its products end the process.

    Some virtual machines announce a unit for such products (AMX) and do not let programs use it: the first product is
    an illegal instruction, which nothing in Python can catch. So another process tries one first.

    Parameters
    ----------
    device : str
        Where the network is trained; only the processor is tried.
    trial : str, default=a product in bfloat16
        The program that is tried.

    Raises
    ------
    InputError
        If the trial was ended by a signal.

    Examples
    --------
    >>> check_mixed_precision("cpu", trial="")
    """
    if device == "cpu" and _ends_by_signal(trial):
        raise InputError(
            "amp='bfloat16': products in bfloat16 end the process on this machine, as where its AMX unit may not be "
            "used; leave amp out, or start with the variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )


@functools.cache
def _ends_by_signal(program: str) -> bool:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode < 0
