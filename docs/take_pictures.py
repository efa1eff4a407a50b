"""Take the pictures of docs/gallery.md: every report made from scikit-learn's digits, opened in a browser.

``python docs/take_pictures.py`` needs chromium and takes about a minute.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

import offmap
from offmap.data import digits
from offmap.learning.learned_page import build_learned_page
from offmap.models.classify import train_classifier
from offmap.models.cnn import CNN
from offmap.openworld.result import render_pictures
from offmap.theory import explain

PICTURES = Path(__file__).with_name("gallery")
WIDTH, HEIGHT = 1000, 760
HEIGHTS = {"guard": 1010}  # down to the first figure


def write_reports(folder: Path) -> dict[str, Path]:
    """Make one page of every kind."""
    data = digits(known=6)
    model = train_classifier(CNN(6), data.train.inputs, data.train.labels, epochs=5)
    batches = {name: [(getattr(data, name).inputs, getattr(data, name).labels)] for name in ("train", "val")}
    offmap.guard(model, batches["train"], held_out=batches["val"], unknown=data.unknown.inputs, out=folder / "guard")
    network = offmap.Network(model)
    train, test = (network.extract(part.inputs, labels=part.labels) for part in (data.train, data.test))
    unknown = network.extract(data.unknown.inputs)
    noise = network.noise(300, (1, 8, 8))
    methods = "auto, msp, energy, maxlogit, react(90)|energy, mahalanobis, knn(5), vim, maxlogit + knn(5)"
    offmap.compare(methods, train, test, {"digits 6 to 9": unknown, "noise": noise}).to_html(folder / "compare.html")
    explain(train, unknown).page().write(folder / "explain.html")
    inputs = np.concatenate([data.train.inputs, data.unknown.inputs])
    labels = np.concatenate([data.train.labels, np.full(len(data.unknown.inputs), -1)])
    shown = render_pictures(inputs)
    rows = inputs.reshape(len(inputs), -1)
    offmap.discover(rows, labels).to_html(folder / "discover.html", shown)
    learned = offmap.learn(rows, labels, 10)
    build_learned_page(learned, rows, learned.predict(rows), shown).write(folder / "learn.html")
    pages = {name: folder / f"{name}.html" for name in ("compare", "explain", "discover", "learn")}
    return {"guard": folder / "guard" / "report.html", **pages}


def main() -> None:
    """Write the reports and photograph the top of each."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, file in write_reports(Path(folder)).items():
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHTS.get(name, HEIGHT)})
            page.goto(file.as_uri())
            page.screenshot(path=PICTURES / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
