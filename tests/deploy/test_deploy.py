"""What is in deploy/ fits the schemas of what reads it, and the flags of what it starts."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.flags import parse
from master.config import MasterConfig
from worker.config import WorkerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
VERSION = "1.29"  # of Kubernetes, the oldest that these are for
CUSTOM = {"ServiceMonitor", "PodMonitor"}  # the Prometheus operator's
CLOSE_S = 10.0

Manifest = dict[str, Any]


def manifests() -> Iterator[Manifest]:
    """Those that the kustomization lists, which must be all there are."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"} == set(listed)
    for name in listed:
        yield from yaml.safe_load_all((KUBERNETES / name).read_text())


def pods() -> Iterator[tuple[str, Manifest]]:
    for manifest in manifests():
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]


def config_of(command: str, arguments: Sequence[str]) -> MasterConfig | WorkerConfig | None:
    """Raises or exits for flags that are not there, or can't be used; None for a program that is not ours."""
    filled = [argument.replace("$(POD_IP)", "10.0.0.1").replace("$(POD_NAME)", "one") for argument in arguments]
    match Path(command).name:
        case "pdserve-master":
            return parse(MasterConfig, filled, prog=command, description="", environ={}, version="0")
        case "pdserve-worker":
            return parse(WorkerConfig, filled, prog=command, description="", environ={}, version="0")
    return None


def test_manifests_fit_kubernetes_schemas() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    kinds = set()
    for manifest in manifests():
        kinds.add(manifest["kind"])
        if manifest["kind"] not in CUSTOM:
            validator.validate(manifest, VERSION, strict=True)
    assert kinds >= {"Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler"}


def test_pods_start_what_there_is_and_get_the_time_to_drain() -> None:
    num_ours = 0
    for name, pod in pods():
        spec = pod["spec"]
        assert spec["enableServiceLinks"] is False, name  # PDSERVE_…_PORT would be a flag
        assert spec["securityContext"]["runAsNonRoot"] is True
        (container,) = spec["containers"]
        config = config_of(container["command"][0], container["args"])
        if config is None:
            continue
        num_ours += 1
        lame_duck_s = config.lame_duck_s if isinstance(config, MasterConfig) else 0.0
        assert spec["terminationGracePeriodSeconds"] >= lame_duck_s + config.drain_timeout_s + CLOSE_S, name
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        expected = (
            {"http": config.http_server_port, "grpc": config.rpc_server_port}
            if isinstance(config, MasterConfig)
            else {"http": config.port, "session": config.disagg_pd_port, "transfer": config.transfer_listen_port}
        )
        assert ports == expected
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == "http"
    assert num_ours == 3


def test_what_selects_pods_finds_some() -> None:
    labels = [pod["metadata"]["labels"] for _, pod in pods()]
    for manifest in manifests():
        spec = manifest.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= of_pod.items() for of_pod in labels), manifest


def test_the_compose_file_fits_its_schema_and_starts_what_there_is() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    pytest.importorskip("check_jsonschema")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    configs = {}
    for name, service in compose["services"].items():
        config = config_of(service["command"][0], service["command"][1:])
        if config is not None:
            configs[name] = config
            assert float(service["stop_grace_period"].removesuffix("s")) >= 60 + CLOSE_S
            assert config.advertise_host == name
    assert set(configs) == {"master", "prefill", "decode"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_what_there_is(unit: Path) -> None:
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    command, *arguments = shlex.split(line.removeprefix("ExecStart="))
    others = [argument.replace("%i", "one") for argument in arguments if not argument.startswith("--config=")]
    assert config_of(command, others) is not None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_what_systemd_reads(unit: Path, tmp_path: Path) -> None:
    """The programs are not where a unit expects them, so it is checked with one that is there."""
    text = unit.read_text().replace("/opt/pdserve/bin/pdserve-", "/bin/true pdserve-")
    path = tmp_path / unit.name.replace("@", "@one")
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
    )
    told = [line for line in done.stderr.splitlines() if unit.name.split("@")[0].removesuffix(".service") in line]
    assert told == []


def test_the_image_runs_as_nobody_in_particular() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and line[0].isalpha()]
    assert [value for name, value in instructions if name == "USER"] == ["10001"]
    assert instructions[-1][0] == "CMD"
    known = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "CMD"}
    assert {name for name, _ in instructions} <= known
