"""The README's commands, run as written, on their default ports.

Lines that start a server run in the background, in order; every other line must succeed once the servers are ready.
What can't be run inside itself is left out: scripts/test is this run, scripts/check ran before it.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SERVERS = ("etcd ", "pdserve-master ", "pdserve-worker ")
RUN_ELSEWHERE = ("scripts/test", "scripts/check")
TIME_LIMIT_S = 240

WAIT_UNTIL_READY = """
for _ in $(seq 600); do curl -sf http://127.0.0.1:28888/readyz >/dev/null && break; sleep 0.1; done
curl -sSf http://127.0.0.1:28888/readyz
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def lines() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


def run(script: str) -> subprocess.CompletedProcess[str]:
    """This interpreter's commands come first, so that a checkout tested from elsewhere tests itself."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PDSERVE_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )


@pytest.fixture
def needs_the_venv() -> None:
    if not (ROOT / ".venv/bin/pdserve").exists():
        pytest.skip("the README's commands use .venv, which scripts/setup makes")


def test_every_command_is_run_somewhere() -> None:
    left_out = [line for line in lines() if line.startswith(RUN_ELSEWHERE)]
    assert left_out == list(RUN_ELSEWHERE)
    ci = (ROOT / ".ci/run").read_text()
    assert all(command in ci for command in RUN_ELSEWHERE)


@pytest.mark.usefixtures("needs_the_venv")
def test_the_first_command_answers_through_a_transfer() -> None:
    (command,) = [line for line in lines() if line.startswith("scripts/serve")]
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    sent = re.search(r"(\d+) blocks transferred.* by (vm_read|tcp)", done.stderr)
    assert sent is not None and int(sent[1]) > 0, done.stderr


@pytest.mark.usefixtures("needs_the_venv")
def test_the_deployment_serves_every_other_command(tmp_path: Path) -> None:
    script, has_servers, is_ready = ["trap 'kill $(jobs -p); wait' EXIT"], False, False
    for line in lines():
        if line.startswith((*RUN_ELSEWHERE, "scripts/serve")):
            continue
        if line.startswith(SERVERS):
            line = line.replace("/tmp/pdserve-etcd", shlex.quote(str(tmp_path / "etcd")))
            script.append(f"{line} >>{shlex.quote(str(tmp_path / 'servers.log'))} 2>&1 &")
            has_servers = True
            continue
        if has_servers and not is_ready:
            script.append(WAIT_UNTIL_READY)
            is_ready = True
        script.append(line)
    (program,) = blocks("python")
    script.append(f"python - <<'END'\n{program}END")
    done = run("\n".join(script))
    log = tmp_path / "servers.log"
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log.read_text() if log.exists() else ''}"
    assert "Paris" in done.stdout
    assert "PREFILL" in done.stdout and "DECODE" in done.stdout  # pdserve status
    assert "0 failed" in done.stdout  # pdserve bench
