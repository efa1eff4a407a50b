"""Scopes: their promise on on-topic texts, files, the command line, and a real FastAPI application."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import offmap
from offmap import store
from offmap.cli import app
from offmap.deploy import fit_scope
from offmap.deploy.scope_adapters import REFUSAL, make_litellm_hook, make_nemo_action, require_on_topic
from offmap.errors import DependencyError, InputError, OffmapError, StoreError
from text_kit import FOREIGN, encode_words, known_texts

ENCODER = offmap.TextEncoder(encode_words)
ROWS = np.random.default_rng(0).normal(size=(4000, 6)) + 2
NUMBERED = offmap.TextEncoder(lambda texts: ROWS[[int("".join(filter(str.isdigit, text)) or 0) for text in texts]])


def test_on_topic_texts_are_accepted_and_others_are_not(tmp_path: Path) -> None:
    scope = fit_scope(known_texts()[0], tpr=0.9, encoder=ENCODER)
    assert scope.check("repay loan early why")
    verdict = scope.check(FOREIGN[0])
    assert (verdict.on_topic, verdict.p_value < 0.1) == (False, True)
    assert scope.check("repay loan early why").nearest.startswith("repay loan")  # type: ignore[union-attr]
    scope.save(tmp_path / "scope.offmap")
    again = offmap.scope(tmp_path / "scope.offmap", ENCODER)
    assert again.check_all(FOREIGN) == scope.check_all(FOREIGN)
    with pytest.raises(StoreError, match="a Python object that no file holds"):
        offmap.load(tmp_path / "scope.offmap")
    with pytest.raises(StoreError, match="is not the encoder"):
        offmap.scope(tmp_path / "scope.offmap", offmap.TextEncoder(lambda texts: -encode_words(texts)))


@pytest.mark.parametrize("with_off", [False, True])
def test_the_promise_holds_on_average(with_off: bool) -> None:
    off = [f"off {n}" for n in range(3900, 3950)] if with_off else None
    shares = []
    for seed in range(12):
        names = np.random.default_rng(seed).permutation(3900)
        scope = fit_scope([f"text {n}" for n in names[:200]], off, tpr=0.9, encoder=NUMBERED, seed=seed)
        shares.append(np.mean([one.on_topic for one in scope.check_all([f"text {n}" for n in names[200:800]])]))
    assert 0.9 - 0.02 <= float(np.mean(shares)) <= 0.9 + 0.04  # a split of 80: the mean over seeds is within two errors


def test_off_topic_examples_sharpen_it() -> None:
    near = ["loan of a bicycle", "loan of a library book", "card game rules", "card tricks"]
    plain = fit_scope(known_texts()[0], tpr=0.9, encoder=ENCODER)
    sharp = fit_scope(known_texts()[0], near, tpr=0.9, encoder=ENCODER)
    assert sharp.off_topic is not None
    for text in ("loan of a library ticket", "card game evening"):
        assert sharp.check(text).p_value <= plain.check(text).p_value
    assert not sharp.check("loan of a library ticket")


def test_a_guard_from_texts_is_a_scope(tmp_path: Path) -> None:
    guarded = offmap.guard(ENCODER, known_texts()[0], detector="knn(3)")
    guarded.save(tmp_path / "guard.offmap")
    scope = offmap.scope(tmp_path / "guard.offmap", ENCODER)
    assert [one.on_topic for one in scope.check_all(["repay loan early why", *FOREIGN])] == [True, *[False] * 4]
    assert scope.check("repay loan early why").nearest is not None
    offmap.detector("knn(1)").fit(offmap.Activations(np.eye(3))).save(tmp_path / "other.offmap")
    with pytest.raises(StoreError, match="a scope, or a guard made from texts, is needed"):
        offmap.scope(tmp_path / "other.offmap")


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(InputError, match=r"tpr=0.97 cannot be promised from 8 calibration inputs; at least 33"):
        fit_scope(list(dict.fromkeys(known_texts()[0]))[:20], encoder=ENCODER)
    with pytest.raises(InputError, match="too few to set some aside"):
        fit_scope(["only"], tpr=0.5, encoder=ENCODER)


def test_the_command_line_makes_and_asks_a_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples.txt").write_text("\n".join(known_texts(60)[0]))
    encoder = ["--encoder", "text_kit:encode_words"]
    done = CliRunner().invoke(app, ["scope", "fit", "examples.txt", "--tpr", ".9", *encoder, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scope"] == "scope.offmap"
    done = CliRunner().invoke(app, ["scope", "check", "scope.offmap", "repay loan early why", FOREIGN[0], *encoder])
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == ["on topic", "off topic"]
    for texts, words in (([""], "the text is empty"), ([FOREIGN[0], " "], "text 2 is empty")):
        done = CliRunner().invoke(app, ["scope", "check", "scope.offmap", *texts, *encoder])
        assert (done.exit_code, words in done.stderr) == (1, True)
    (tmp_path / "asked.csv").write_text(f"id,text\n7,repay loan early why\n8,{FOREIGN[0]}\n")
    done = CliRunner().invoke(app, ["score", "scope.offmap", "asked.csv", *encoder, "--out", "said.csv", "--json"])
    assert (json.loads(done.stdout)["inputs"], json.loads(done.stdout)["unknown"]) == (2, 1)
    with (tmp_path / "said.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["known"]) for row in rows] == [("7", "true"), ("8", "false")]
    assert set(rows[0]) == {"text", "id", "known", "p_value", "score", "nearest"}
    done = CliRunner().invoke(app, ["score", "scope.offmap", "asked.csv", *encoder, "--fdr", "0.1"])
    assert (done.exit_code, "a scope judges each text by itself" in done.stderr) == (1, True)
    done = CliRunner().invoke(app, ["scope", "fit", "nowhere.txt", *encoder])
    assert (done.exit_code, "no such file" in done.stderr) == (1, True)


def test_a_fastapi_application_refuses_what_is_off_topic() -> None:
    import uvicorn
    from fastapi import Depends, FastAPI

    scope = fit_scope(known_texts()[0], tpr=0.9, encoder=ENCODER)
    on_topic = Depends(require_on_topic(scope))
    service = FastAPI()

    @service.post("/chat")
    async def chat(verdict=on_topic):
        return {"p_value": verdict.p_value}

    server = uvicorn.Server(uvicorn.Config(service, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        pass
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/chat"

    def ask(body: object) -> tuple[int, dict]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(url, content, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    try:
        assert ask({"message": "repay loan early why"})[0] == 200
        assert ask({"message": FOREIGN[0]}) == (422, {"detail": REFUSAL})
        assert ask({"message": ""})[0] == 422
        assert ask(["message"])[0] == 422
        assert ask({"message": "half of a character \ud83d"})[0] == 422
        assert ask(b"{")[0] == 422
    finally:
        server.should_exit = True
        thread.join(10)


def test_the_hook_refuses_what_it_cannot_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is not installed here: a class stands in for the one that its hooks are made from."""
    parts = {
        name: ModuleType(name) for name in ("litellm", "litellm.integrations", "litellm.integrations.custom_logger")
    }
    parts["litellm.integrations.custom_logger"].CustomLogger = object  # type: ignore[attr-defined]
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)
    hook = make_litellm_hook(fit_scope(known_texts()[0], tpr=0.9, encoder=ENCODER))

    def passes(call: str = "completion", **data: object) -> bool:
        return asyncio.run(hook.async_pre_call_hook(None, None, data, call)) == data

    good, bad = "repay loan early why", FOREIGN[0]
    assert passes(messages=[{"role": "user", "content": good}])
    assert passes(messages=[{"role": "user", "content": [{"type": "text", "text": good}]}])
    assert passes("text_completion", prompt=good)
    assert passes("responses", input=good)
    assert passes("embeddings", input=bad)
    assert not passes(messages=[{"role": "user", "content": bad}])
    assert not passes(messages=[{"role": "user", "content": [{"type": "input_text", "text": bad}]}])
    assert not passes(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])
    assert not passes(messages=[{"role": "system", "content": bad}])
    assert not passes(messages=[{"role": "user", "content": "half of a character \ud83d"}])
    assert not passes(messages=[], prompt=good)
    assert not passes("text_completion", prompt=bad)
    assert not passes("text_completion", prompt=[1, 2, 3])
    assert not passes("responses", input=[{"role": "user", "content": bad}])


def test_a_tampered_scope_is_refused_when_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    texts = known_texts()[0]
    fit_scope(texts, FOREIGN, tpr=0.9, encoder=ENCODER).save(tmp_path / "scope.offmap")
    whole, other = store.load(tmp_path / "scope.offmap"), tmp_path / "other.offmap"
    values = (None, "text", -1, [], {}, 7.5)
    changes = [({**whole.config, name: value}, {}) for name in whole.config for value in values]
    changes += [({key: kept for key, kept in whole.config.items() if key != name}, {}) for name in whole.config]
    changes += [({**whole.config, "on.": {"texts": value}}, {}) for value in (texts, [1] * 72, None)]
    for name, array in whole.tensors.items():
        wrong = [array[:-1], array[None], array[..., :-1], array.astype(np.int8), np.zeros(0, array.dtype), None]
        changes += [(whole.config, {name: value}) for value in (*wrong, np.full(array.shape, np.nan, np.float32))]
    for config, tensors in changes:
        arrays = {name: array for name, array in (whole.tensors | tensors).items() if array is not None}
        store.save(other, whole.kind, config, arrays)
        try:
            loaded = offmap.scope(other, ENCODER)
        except OffmapError:
            continue
        loaded.check("repay loan early why")
    turned = {"calibration.scores": whole.tensors["calibration.scores"][::-1].copy()}
    store.save(other, whole.kind, whole.config, whole.tensors | turned)
    with pytest.raises(StoreError, match="not in order"):
        offmap.scope(other, ENCODER)


@pytest.mark.parametrize(("make", "package"), [(make_litellm_hook, "litellm"), (make_nemo_action, "nemoguardrails")])
def test_adapters_name_what_is_not_installed(make, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DependencyError, match=f"pip install {package}"):
        make(None)
