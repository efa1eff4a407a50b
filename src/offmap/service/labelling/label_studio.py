"""Label Studio: a project with the inputs of each group, and the choices that people made."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import quoteattr

from offmap.service.labelling.client import OTHER, TriageClient, ask, reading


class LabelStudioProject:
    """A project of a Label Studio server.

    Parameters
    ----------
    url, token : str
        Of the server, and an access token of its account page.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url, self._headers = url.rstrip("/"), {"Authorization": f"Token {token}"}

    def push(self, client: TriageClient, title: str = "Unknown inputs", per_group: int = 10) -> int:
        """Make a project of the groups on the triage page, their proposed names filled in, and return its number."""
        tasks = client.make_tasks(per_group)
        kind = "Text" if any(task.text is not None for task in tasks) else "Image"
        choices = "".join(f"<Choice value={quoteattr(one)}/>" for one in client.list_choices())
        config = (
            f'<View><{kind} name="input" value="$input"/><Choices name="class" toName="input">{choices}</Choices>'
            f'<TextArea name="other" toName="input" placeholder={quoteattr(OTHER)}/></View>'
        )
        with reading(self.url):
            number = int(self._ask("", {"title": title, "label_config": config})["id"])
        items = []
        for task in tasks:
            value = {"choices": [task.suggestion]}
            guess = {"from_name": "class", "to_name": "input", "type": "choices", "value": value}
            shown = task.text if task.image is None else task.data_uri
            data = {"input": shown, "offmap_id": task.id, "group": task.group}
            items.append({"data": data, "predictions": [{"model_version": "offmap", "result": [guess]}]})
        self._ask(f"/{number}/import", items)
        return number

    def pull(self, number: int) -> dict[str, str]:
        """Read the labels of a project, for `TriageClient.apply_labels`; the last annotation of a task counts."""
        labels: dict[str, str] = {}
        with reading(self.url):
            for task in self._ask(f"/{number}/export?exportType=JSON"):
                done = [one for one in task["annotations"] if not one.get("was_cancelled")]
                said = {part["from_name"]: part["value"] for part in (done[-1]["result"] if done else [])}
                choice = said.get("class", {}).get("choices", [""])[0]
                other = said.get("other", {}).get("text", [""])
                labels[task["data"]["offmap_id"]] = str((other if isinstance(other, str) else other[0]) or choice)
        return {id: label for id, label in labels.items() if label not in ("", OTHER)}

    def _ask(self, path: str, body: Any = None) -> Any:
        return ask(f"{self.url}/api/projects{path or '/'}", self._headers, body)[0]
