"""What real processes tell Prometheus, as Prometheus's own tools judge it, and what the boards and rules make of it."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster import HOST, Cluster

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
BOARD = DEPLOY / "grafana" / "pdserve.json"
RULE_CASES = DEPLOY / "prometheus" / "rules_test.yml"
PROMTOOL = shutil.which("promtool")
NAME = re.compile(r"\b(?:pdserve|process)_\w+")
# The variables of a board, as Grafana would fill them in.
VARIABLES = {"$__rate_interval": "1m", "$master": ".*", "$worker": ".*"}

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's prometheus")


def promtool(*arguments: str, stdin: str = "") -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def scraped(cluster: Cluster) -> dict[str, str]:
    with cluster.client() as client:
        client.generate("a", max_tokens=4)
    return {process.name: process.get("/metrics")[1] for process in (cluster.master, *cluster.workers.values())}


def expressions() -> list[str]:
    """Those of the board's panels, with their variables filled in."""
    found = [target["expr"] for panel in json.loads(BOARD.read_text())["panels"] for target in panel.get("targets", ())]
    for name, value in VARIABLES.items():
        found = [expression.replace(name, value) for expression in found]
    return found


@needs_promtool
def test_names_and_units_are_as_prometheus_wants_them(cluster: Cluster) -> None:
    for name, text in scraped(cluster).items():
        assert promtool("check", "metrics", stdin=text) == "", name


def test_open_metrics_are_given_to_whoever_asks(cluster: Cluster) -> None:
    for process in (cluster.master, *cluster.workers.values()):
        wanted = urllib.request.Request(
            f"http://{HOST}:{process.http_port}/metrics", headers={"Accept": "application/openmetrics-text"}
        )
        with urllib.request.urlopen(wanted, timeout=10) as response:
            assert response.headers["content-type"].startswith("application/openmetrics-text")
            assert response.read().endswith(b"# EOF\n")


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", str(RULE_CASES))


@needs_promtool
def test_the_boards_queries_are_queries(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    path = tmp_path / "board.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_boards_and_rules_ask_for_what_there_is(cluster: Cluster) -> None:
    """A counter that has not counted yet shows its family only."""
    names: set[str] = set()
    for text in scraped(cluster).values():
        for family in text_string_to_metric_families(text):
            names |= {
                family.name,
                f"{family.name}_total",
                *(f"{family.name}_{end}" for end in ("bucket", "sum", "count")),
            }
    rules = yaml.safe_load(RULES.read_text())
    asked = expressions() + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(asked) > 20
    unknown = {name for expression in asked for name in NAME.findall(expression)} - names
    assert not unknown


def test_every_alert_has_its_lines_in_the_runbook() -> None:
    runbook = (DEPLOY.parent / "docs" / "operate.md").read_text()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert f"`{rule['alert']}`" in runbook
                assert rule["annotations"]["runbook"].startswith("docs/operate.md")
