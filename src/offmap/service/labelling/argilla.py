"""Argilla: a dataset with the inputs of each group, and the answers that people submitted."""

from __future__ import annotations

from typing import Any

from offmap.service.labelling.client import OTHER, TriageClient, ask, reading

_PAGE = 100


class ArgillaDataset:
    """A dataset of an Argilla server, version 2.

    Parameters
    ----------
    url, key : str
        Of the server, and the API key of a user.
    workspace : str
        The number (UUID) of the workspace that holds the dataset.
    """

    def __init__(self, url: str, key: str, workspace: str) -> None:
        self.url, self._headers, self.workspace = url.rstrip("/"), {"X-Argilla-Api-Key": key}, workspace

    def push(self, client: TriageClient, name: str = "unknown-inputs", per_group: int = 10) -> str:
        """Make a dataset of the groups on the triage page, their proposed names as suggestions; return its number."""
        tasks = client.make_tasks(per_group)
        kind = "text" if any(task.text is not None for task in tasks) else "image"
        with reading(self.url):
            place = str(self._ask("", {"name": name, "workspace_id": self.workspace})["id"])
        options = [{"value": one, "text": one} for one in client.list_choices()]
        label = {"type": "label_selection", "options": options, "visible_options": max(len(options), 3)}
        self._ask(f"/{place}/fields", _part("input", {"type": kind}))
        with reading(self.url):
            question = self._ask(f"/{place}/questions", _part("class", label))["id"]
        self._ask(f"/{place}/questions", _part("other", {"type": "text"}, required=False))
        self._ask(f"/{place}/publish", method="PUT")
        items = [
            {
                "fields": {"input": task.text if task.image is None else task.data_uri},
                "external_id": task.id,
                "suggestions": [{"question_id": question, "value": task.suggestion, "agent": "offmap"}],
            }
            for task in tasks
        ]
        for start in range(0, len(items), _PAGE):
            self._ask(f"/{place}/records/bulk", {"items": items[start : start + _PAGE]})
        return place

    def pull(self, place: str) -> dict[str, str]:
        """Read the submitted labels of a dataset, for `TriageClient.apply_labels`; the last one of a record counts."""
        labels: dict[str, str] = {}
        with reading(self.url):
            for start in range(0, 10**6, _PAGE):
                page = self._ask(f"/{place}/records?include=responses&offset={start}&limit={_PAGE}")["items"]
                for record in page:
                    for response in (one for one in record.get("responses") or [] if one["status"] == "submitted"):
                        said = {name: str(answer["value"]) for name, answer in response["values"].items()}
                        labels[record["external_id"]] = said.get("other") or said.get("class", "")
                if len(page) < _PAGE:
                    break
        return {id: label for id, label in labels.items() if label not in ("", OTHER)}

    def _ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        return ask(f"{self.url}/api/v1/datasets{path}", self._headers, body, method)[0]


def _part(name: str, settings: dict[str, Any], required: bool = True) -> dict[str, Any]:
    return {"name": name, "title": name.capitalize(), "required": required, "settings": settings}
