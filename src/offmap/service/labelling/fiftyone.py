"""FiftyOne: pictures of unknown inputs with their groups, as a folder that it reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from offmap.errors import InputError
from offmap.service.labelling.client import TriageClient
from offmap.store import write_atomically


def export_fiftyone(client: TriageClient, folder: str | os.PathLike[str], per_group: int = 10**6) -> int:
    """Write the pictures of each group on the triage page as a ``FiftyOneImageClassificationDataset``.

    Parameters
    ----------
    client : TriageClient
        The service.
    folder : path
        Gets ``data/`` with a picture per input, named by its id, and ``labels.json`` with the proposed names.
    per_group : int, default=10**6
        Pictures of each group, at most; the page knows the typical and the doubtful ones.

    Returns
    -------
    int
        How many pictures were written.

    Raises
    ------
    InputError
        If an input cannot be shown as a picture.
    """
    tasks = client.make_tasks(per_group)
    folder = Path(folder)
    labels = {}
    for task in tasks:
        if task.image is None:
            raise InputError(f"the unknown input {task.id} is no picture; FiftyOne takes groups of pictures")
        (folder / "data").mkdir(parents=True, exist_ok=True)
        ending = task.content_type.removeprefix("image/").replace("jpeg", "jpg")
        if not (task.id.isalnum() and ending.isalnum()):  # they become the name of a file
            raise InputError(f"the service names an input {task.id[:80]!r} of type {task.content_type[:80]!r}")
        write_atomically(folder / "data" / f"{task.id}.{ending}", task.image)
        labels[task.id] = {"label": task.suggestion, "group": task.group}
    write_atomically(folder / "labels.json", json.dumps({"classes": None, "labels": labels}).encode())
    return len(labels)
