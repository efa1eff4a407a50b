"""The pages about the service say what it does: settings, metrics and measured figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from service_kit import UNKNOWN, make_guard

from offmap.service import Deployment, Service, Settings

ROOT = Path(__file__).parents[2]


def test_tables_and_figures_are_what_settings_and_results_say():
    code = "import gen_serve as g; raise SystemExit(any(g.filled(p) != (g.DOCS / p).read_text() for p in g.PAGES))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False)
    assert done.returncode == 0, "a page is out of date: run python docs/gen_serve.py"


def test_every_metric_is_described_and_every_described_one_is_there(tmp_path):
    with Service(Deployment(make_guard()), Settings(store=str(tmp_path))) as service:
        service.score(features=UNKNOWN)
        text = service.render_metrics().decode()
    families = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    families = {name for name in families if not name.endswith("_created")}
    page = (ROOT / "docs" / "operations.md").read_text()
    named = {re.sub(r"_(total|bucket)$", "", name) for name in re.findall(r"\boffmap_[a-z0-9_]+", page)}
    assert named == families


def test_the_manifest_names_probes_settings_and_options_that_exist(tmp_path):
    import yaml
    from typer.main import get_command

    from offmap.cli import app
    from offmap.service import create_app

    parts = {part["kind"]: part for part in yaml.safe_load_all((ROOT / "examples/kubernetes/offmap.yaml").read_text())}
    pod = parts["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    with Service(Deployment(make_guard()), Settings(store=str(tmp_path))) as service:
        paths = create_app(service).openapi()["paths"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        where = container[probe]["httpGet"]
        assert "get" in paths[where["path"]]
        assert where["port"] in ports
    values = {one["name"].removeprefix("OFFMAP_").lower(): one.get("value") for one in container["env"]}
    assert values.keys() <= Settings.model_fields.keys()
    plain = {name: value for name, value in values.items() if value is not None}
    settings = Settings(**plain, store="postgresql://database", token="a token of some length")
    settings.check_exposure()
    assert settings.port in ports.values()
    assert pod["spec"]["terminationGracePeriodSeconds"] > settings.shutdown_seconds
    assert str(settings.store_dir) in [mount["mountPath"] for mount in container["volumeMounts"]]
    options = {name for one in get_command(app).commands["serve"].params for name in one.opts}
    assert {word for word in container["command"] if word.startswith("--")} <= options
    labels = pod["metadata"]["labels"].items()
    for selector in (
        parts["Service"]["spec"]["selector"],
        parts["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels
