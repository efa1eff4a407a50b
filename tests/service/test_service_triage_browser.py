"""The whole loop in a real browser: unknown digits and texts are grouped, named, learned, deployed, rolled back."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from service_kit import make_guard
from triage_kit import DigitsServer, Server, write_digits

import offmap
from offmap.data import read_texts
from text_kit import unknown_texts, write_known

OPTIONS = ("--known", "known.npz", "--held-out", "held.npz", "--max-forgetting", "0.05")
WAIT = 120_000


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    return folder, write_digits(folder)


def opened(browser, url, width=1280):
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(WAIT)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith((url, "data:", "blob:")) or complaints.append(request.url)
    )
    page.goto(url)
    page.wait_for_selector("body[data-ready=yes]")
    return page, complaints


def test_the_loop_from_the_first_unknown_digit_to_the_rollback(browser, digits):
    from playwright.sync_api import expect

    folder, data = digits
    server = DigitsServer(folder, *OPTIONS)
    try:
        results = server.score(data["stream"])
        truth = {one["id"]: int(label) for one, label in zip(results, data["stream_labels"], strict=True)}
        unknown = sum(not one["known"] for one in results)
        page, complaints = opened(browser, server.url)

        assert page.locator("#open").text_content() == str(unknown)
        assert page.locator("#share").text_content().startswith(f"{100 * unknown / len(results):.1f}")
        assert page.locator("#histogram i").count() >= 10
        drift = page.locator("#drift").text_content()
        assert drift.startswith("Inputs have drifted from those of calibration"), "four digits are new"
        for one in server.call("/v1/stats")["drift"]["classes"][:1]:
            assert f"“{one['class']}”" in drift

        page.locator("#group").click()
        page.wait_for_selector(".group", timeout=WAIT)
        page.wait_for_selector(".group img.thumb")
        groups = server.call("/v1/triage")["board"]["groups"]
        assert page.locator(".group").count() == len(groups) >= 3
        assert page.locator(f"#group-{groups[0]['id']} .near").text_content().startswith("Nearest known: ")

        one, two = groups[0]["id"], groups[1]["id"]
        page.locator(f"#group-{one}-pick").check()
        page.locator(f"#group-{two}-pick").check()
        page.locator("#merge").click()
        expect(page.locator(".group")).to_have_count(len(groups) - 1)
        page.locator("#undo").click()
        expect(page.locator(".group")).to_have_count(len(groups))

        # the expert knows digits: what most exemplars show is the name; two groups of one digit are merged
        digit = {g["id"]: Counter(truth[one] for one in g["exemplars"]).most_common(1)[0][0] for g in groups}
        for value, times in Counter(digit.values()).items():
            if times > 1:
                for group in [group for group, shown in digit.items() if shown == value]:
                    page.locator(f"#group-{group}-pick").check()
                page.locator("#merge").click()
                page.wait_for_selector("#merge", state="hidden")
        left = server.call("/v1/triage")["board"]["groups"]
        assert len(left) == len(set(digit.values()))
        for group in left:
            page.locator(f"#group-{group['id']}-name").focus()
            page.keyboard.type(f"digit {digit[group['id']]}")
            page.keyboard.press("Enter")
            page.wait_for_selector(f"#group-{group['id']}.named")

        page.locator("#learn").click()
        page.wait_for_selector("#learn-job progress")
        assert len(server.score(data["test"][:8])) == 8, "it answers while it learns"
        page.wait_for_selector("#version-1", timeout=WAIT)
        words = page.locator("#version-1").text_content()
        assert "Known classes right" in words
        assert "a fall of up to 5.0% is allowed" in words
        page.locator("#deploy-1").click()
        page.wait_for_selector("#version-1.live")
        assert "version 1" in page.locator("#guard").text_content()
        check_new_digits(server, data, deployed=True)

        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        before = server.call("/v1/triage")["journal"]
        assert complaints == []
        page.context.close()

        server.kill()
        server = DigitsServer(folder, *OPTIONS)
        again = server.call("/v1/triage")
        assert again["current"] == 1
        assert again["journal"] == before, "the journal survives a kill"
        check_new_digits(server, data, deployed=True)

        page, more = opened(browser, server.url, width=390)
        page.locator("#rollback").click()
        page.wait_for_selector("#deploy-1")
        check_new_digits(server, data, deployed=False)
        assert page.locator(".group.named").count() == len(left), "after a rollback the groups are there again"
        assert more == []
        page.context.close()
    finally:
        server.end()


def check_new_digits(server, data, deployed):
    """New digits are called by their new names, or flagged again; old ones are known throughout."""
    new = data["test_labels"] >= 6
    results = server.score(data["test"][new])
    right = [one["class"] == f"digit {label}" for one, label in zip(results, data["test_labels"][new], strict=True)]
    known = np.array([one["known"] for one in results])
    old = server.score(data["test"][~new])
    same = [one["class"] == str(label) for one, label in zip(old, data["test_labels"][~new], strict=True)]
    assert np.mean(same) > 0.9
    if deployed:
        assert np.mean(right) > 0.6
        assert known.mean() > 0.7
    else:
        assert not any(right)
        assert known.mean() < 0.4


def test_sentences_are_shown_named_learned_and_deployed(browser, tmp_path):
    from playwright.sync_api import expect

    write_known(tmp_path / "known.csv")
    offmap.guard(offmap.TextEncoder(), read_texts(tmp_path / "known.csv"), detector="knn(1)").save(
        tmp_path / "guard.offmap"
    )
    server = Server(tmp_path, "--known", "known.csv", "--max-forgetting", "0.1")
    odd = ["<b>bake</b> a \U0001f382 cake", "وصفة كعكة الليمون"]
    try:
        results = server.call("/v1/score", {"texts": [*unknown_texts(), *odd]})["results"]
        assert sum(not one["known"] for one in results) >= 38
        page, complaints = opened(browser, server.url)
        page.locator("#group").click()
        page.wait_for_selector(".group .words .thumb", timeout=WAIT)
        expect(page.locator(".group .blank")).to_have_count(0)
        assert page.locator(".group .thumb b").count() == 0, "a text is shown, not run"
        assert {"auto"} == set(page.locator(".group .thumb").evaluate_all("all => all.map(one => one.dir)"))
        groups = server.call("/v1/triage")["board"]["groups"]
        for word in ("cake", "football"):
            some = [one["id"] for one in groups if word in one["keywords"].split()]
            cards = [page.locator(f"#group-{one}") for one in some]
            assert word in cards[0].locator(".keywords").text_content()
            assert any(word in shown for shown in cards[0].locator(".thumb").all_text_contents())
            assert word in cards[0].locator("input[type=text]").get_attribute("placeholder"), "the proposed name"
            if len(some) > 1:
                for one in some:
                    page.locator(f"#group-{one}-pick").check()
                page.locator("#merge").click()
                page.wait_for_selector("#merge", state="hidden")
            page.locator(f"#group-{min(some)}-name").focus()
            page.keyboard.type(f"about {word}")
            page.keyboard.press("Enter")
            page.wait_for_selector(f"#group-{min(some)}.named")
        page.locator("#learn").click()
        page.wait_for_selector("#version-1", timeout=WAIT)
        page.locator("#deploy-1").click()
        page.wait_for_selector("#version-1.live")
        asked = {"texts": ["lemon cake recipe help", "football match result again", "repay loan early today"]}
        answers = server.call("/v1/score", asked)["results"]
        assert [one["class"] for one in answers] == ["about cake", "about football", "loan"]
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []
        page.context.close()
    finally:
        server.end()


def test_a_token_opens_the_page(browser, tmp_path):
    make_guard().save(tmp_path / "guard.offmap")
    (tmp_path / "token").write_text("0123456789abcdef0123")
    command = [
        sys.executable, "-m", "offmap.cli", "serve", "guard.offmap", "--store", "store", "--port", "0",
        "--token-file", "token",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stderr.readline().split(" on ")[1].split(",")[0]
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.goto(url)
        page.wait_for_selector("#token-dialog[open]")
        page.locator("#token").fill("wrong, but long enough")
        page.keyboard.press("Enter")
        page.wait_for_selector("#token-dialog[open]")
        page.locator("#token").fill("0123456789abcdef0123")
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-ready=yes]")
        assert "Nothing unknown has come in yet" in page.locator("#list").text_content()
        context.close()
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()
