import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config import checks
from config.flags import FlagError, fail, flag, parse
from config.value import BYTES


class Role(Enum):
    DEFAULT = auto()
    PREFILL = auto()
    DECODE = auto()
    MIX = auto()


@dataclass(frozen=True)
class Worker:
    port: int = flag(8010, "HTTP port for health and metrics", group="Network", check=checks.port)
    etcd_addr: str | None = flag(None, "Registry", group="Network")
    devices: tuple[str, ...] = flag(("cpu",), "Torch devices", group="Engine")
    instance_role: Role = flag(Role.DEFAULT, "What masters may send here", group="Engine")
    enable_disagg_pd: bool = flag(True, "Take part in PD", group="Engine")
    enable_trace: bool = flag(False, "Log 100% of steps", group="Engine")
    kv_cache_bytes: int = flag(4 * 2**30, "Memory for KV", group="Engine", unit=BYTES, check=checks.more_than(0))
    lease_s: float = flag(10.0, "Life of a lease", group="Engine", unit="s", check=checks.more_than(0.0))
    max_sequences: int | None = flag(None, "Sequences at once", group="Engine", check=checks.at_least(1))
    model: Path | None = flag(None, "Model folder", group="Engine")

    def __post_init__(self) -> None:
        if self.enable_trace and self.lease_s < 1:
            raise FlagError("lease_s", f"{self.lease_s} is too short to trace")


def read(*argv: str, environ: Mapping[str, str] | None = None) -> Worker:
    return parse(Worker, argv, prog="pdserve-worker", description="One worker.", environ=environ or {}, version="1.2.3")


def refused(*argv: str, environ: Mapping[str, str] | None = None) -> FlagError:
    with pytest.raises(FlagError) as raised:
        read(*argv, environ=environ)
    assert "\n" not in str(raised.value)
    return raised.value


def test_defaults_are_those_of_the_dataclass() -> None:
    assert read() == Worker()


@pytest.mark.parametrize(
    "argv",
    [
        ["--instance_role=PREFILL"],
        ["--instance-role=PREFILL"],
        ["--instance_role", "PREFILL"],
        ["--instance-role", "prefill"],
        ["--instance-role=Prefill"],
        ["--instance_role=DECODE", "--instance-role=PREFILL"],
    ],
)
def test_every_spelling_of_a_flag_means_the_same(argv: Sequence[str]) -> None:
    assert read(*argv) == Worker(instance_role=Role.PREFILL)


@pytest.mark.parametrize(
    "argument",
    ["--enable_trace", "--enable-trace", *(f"--enable_trace={word}" for word in ["true", "TRUE", "1", "yes", "on"])],
)
def test_a_boolean_is_switched_on(argument: str) -> None:
    assert read(argument).enable_trace


@pytest.mark.parametrize(
    "argument",
    [
        "--noenable_disagg_pd",
        "--noenable-disagg-pd",
        "--no-enable-disagg-pd",
        "--no_enable_disagg_pd",
        *(f"--enable_disagg_pd={word}" for word in ["false", "False", "0", "no", "off"]),
    ],
)
def test_a_boolean_is_switched_off(argument: str) -> None:
    assert not read(argument).enable_disagg_pd


def test_a_bare_boolean_takes_the_next_word_but_no_next_flag() -> None:
    config = read("--enable_disagg_pd", "false", "--enable_trace", "--port", "1")
    assert (config.enable_disagg_pd, config.enable_trace, config.port) == (False, True, 1)


def test_values_get_the_types_of_their_fields() -> None:
    config = read(
        "--etcd_addr=[::1]:2379",
        "--devices=cuda:0, cuda:1",
        "--kv_cache_bytes=1.5GiB",
        "--lease_s=2.5",
        "--max_sequences=8",
        "--model=/models/a-b",
    )
    assert config == Worker(
        etcd_addr="[::1]:2379",
        devices=("cuda:0", "cuda:1"),
        kv_cache_bytes=3 * 2**29,
        lease_s=2.5,
        max_sequences=8,
        model=Path("/models/a-b"),
    )


def test_a_value_may_hold_dashes_and_equals_signs_and_begin_with_them() -> None:
    assert read("--etcd_addr=--a-b=c").etcd_addr == "--a-b=c"
    assert refused("--port", "-1").problem == "'-1' must be between 0 and 65535"


def test_empty_text_is_absence_where_the_field_is_optional() -> None:
    assert read("--etcd_addr=", environ={"PDSERVE_ETCD_ADDR": "a:1"}).etcd_addr is None
    assert refused("--port=").problem == "'' is not a whole number"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--port=abc", "--port: 'abc' is not a whole number"),
        ("--port=70000", "--port: '70000' must be between 0 and 65535"),
        ("--instance-role=boss", "--instance_role: 'boss' is not one of DEFAULT, PREFILL, DECODE, MIX"),
        ("--enable_disagg_pd=maybe", "--enable_disagg_pd: 'maybe' is not true or false"),
        ("--noenable_trace=false", "--noenable_trace: takes no value, 'false' was given"),
        ("--max_sequences=0", "--max_sequences: '0' must be at least 1"),
        ("--lease_s=nan", "--lease_s: 'nan' is not a number"),
        ("--devices=cpu,,cpu", "--devices: 'cpu,,cpu' has an empty item"),
        ("--prt=8010", "--prt: unknown flag; did you mean --port?"),
        ("--noport", "--noport: unknown flag; did you mean --port?"),
        ("--enable_dissag_pd", "--enable_dissag_pd: unknown flag; did you mean --enable_disagg_pd?"),
        ("--zzzzzz", "--zzzzzz: unknown flag"),
        ("--port", "--port: expected one argument"),
        ("8010", "unexpected argument '8010'; flags begin with --"),
        ("-port=8010", "unexpected argument '-port=8010'; flags begin with --"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(argument: str, message: str) -> None:
    assert str(refused(argument)) == message


def test_flags_cannot_be_abbreviated() -> None:
    assert refused("--enable_dis").flag == "enable_dis"


def test_the_error_names_the_environment_variable() -> None:
    error = refused(environ={"PDSERVE_PORT": "x"})
    assert error.flag == "port"
    assert str(error) == "--port: 'x' is not a whole number (environment variable PDSERVE_PORT)"


def test_unknown_and_empty_variables_are_ignored() -> None:
    environ = {"PDSERVE_CACHE": "x", "ENABLE_DECODE_RESPONSE_TO_SERVICE": "1", "PORT": "1", "PDSERVE_PORT": ""}
    assert read(environ=environ) == Worker()


def test_a_settings_file_gives_values(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text(
        "port: 0\ninstance-role: mix\ndevices: [cuda:0, cuda:1]\n"
        "etcd_addr:\nenable_disagg_pd: no\nkv_cache_bytes: 2GiB\n"
    )
    expected = Worker(
        port=0,
        instance_role=Role.MIX,
        devices=("cuda:0", "cuda:1"),
        enable_disagg_pd=False,
        kv_cache_bytes=2**31,
    )
    assert read("--config", str(file)) == expected
    assert read(environ={"PDSERVE_CONFIG": str(file)}) == expected


def test_text_in_a_settings_file_stays_as_written(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("etcd_addr: off\ndevices: [1_0, 007]\n")
    assert read(f"--config={file}") == Worker(etcd_addr="off", devices=("1_0", "007"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "--a: unknown flag ({file} line 1, key a)"),
        ("# x\nprot: 1", "--prot: unknown flag; did you mean --port? ({file} line 2, key prot)"),
        ("port: x", "--port: 'x' is not a whole number ({file} line 1, key port)"),
        ("port: [1, 2]", "--port: '1,2' is a list, one value expected ({file} line 1, key port)"),
        ("port: 1\nport: 2", "--config: {file} line 2, key port stands there twice"),
        ("port: {{a: 1}}", "--config: {file} line 1, key port must be one value or a list of values"),
        ("- port", "--config: {file} must hold flags as `name: value` lines"),
    ],
)
def test_the_error_names_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text(text.replace("{{", "{").replace("}}", "}"))
    assert str(refused(f"--config={file}")) == message.format(file=file)


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    error = refused(f"--config={tmp_path / 'none.yaml'}")
    assert error.flag == "config"
    assert str(tmp_path / "none.yaml") in str(error)


def test_what_the_dataclass_refuses_tells_where_the_value_came_from() -> None:
    assert str(refused("--enable_trace", "--lease_s=0.5")) == "--lease_s: 0.5 is too short to trace"
    error = refused("--enable_trace", environ={"PDSERVE_LEASE_S": "0.5"})
    assert str(error) == "--lease_s: 0.5 is too short to trace (environment variable PDSERVE_LEASE_S)"


def test_a_default_that_fails_its_own_check_is_refused_at_declaration() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        flag(0, "Nothing", group="None", check=checks.at_least(1))


ports = st.none() | st.integers(0, 65535)


@given(on_line=ports, in_environment=ports, in_file=ports)
def test_flag_beats_environment_beats_file_beats_default(
    tmp_path_factory: pytest.TempPathFactory, on_line: int | None, in_environment: int | None, in_file: int | None
) -> None:
    argv = []
    if in_file is not None:
        file = tmp_path_factory.getbasetemp() / "precedence.yaml"
        file.write_text(yaml.safe_dump({"port": in_file}))
        argv.append(f"--config={file}")
    environ = {} if in_environment is None else {"PDSERVE_PORT": str(in_environment)}
    if on_line is not None:
        argv.append(f"--port={on_line}")
    expected = next(port for port in (on_line, in_environment, in_file, 8010) if port is not None)
    assert read(*argv, environ=environ).port == expected


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_passes_through_unchanged(text: str) -> None:
    assert read(f"--etcd_addr={text}").etcd_addr == text


@given(st.lists(st.text(max_size=12).filter(lambda text: not text.startswith("-h")), max_size=4))
def test_any_command_line_is_taken_or_refused_in_one_line(argv: list[str]) -> None:
    try:
        read(*argv)
    except FlagError as error:
        assert str(error)


def test_help_shows_groups_defaults_units_and_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as exit:
        read("--help")
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    headings = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["General:", "Network:", "Engine:"]
    text = " ".join(shown.split())
    for expected in [
        "--port N HTTP port for health and metrics (default: 8010; env PDSERVE_PORT)",
        "--lease_s X Life of a lease (default: 10.0 s; env PDSERVE_LEASE_S)",
        "--kv_cache_bytes SIZE Memory for KV (default: 4GiB; env PDSERVE_KV_CACHE_BYTES)",
        "--model PATH Model folder (default: none; env PDSERVE_MODEL)",
        "--devices TEXT,... Torch devices (default: cpu; env PDSERVE_DEVICES)",
        "--enable_trace [BOOL] Log 100% of steps (default: false; env PDSERVE_ENABLE_TRACE)",
        "--instance_role {DEFAULT,PREFILL,DECODE,MIX} What masters may send here (default: DEFAULT;",
    ]:
        assert expected in text
    for name in Worker.__dataclass_fields__:
        assert f"env PDSERVE_{name.upper()})" in text


@dataclass(frozen=True)
class Probed:
    port: int = flag(8010, "HTTP port", group="Network")
    probe: str = flag("", "For tests", group="Network", is_hidden=True)


def test_a_hidden_flag_works_and_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"prog": "p", "description": "", "version": "1"}
    assert parse(Probed, ["--probe=x"], environ={}, **settings).probe == "x"
    assert parse(Probed, [], environ={"PDSERVE_PROBE": "y"}, **settings).probe == "y"
    with pytest.raises(SystemExit):
        parse(Probed, ["--help"], environ={}, **settings)
    shown = capsys.readouterr().out
    assert "--port" in shown and "probe" not in shown.lower()


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        read("--version")
    assert exit.value.code == 0
    assert capsys.readouterr().out == "pdserve-worker 1.2.3\n"


def test_fail_prints_one_line_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        fail("pdserve-worker", OSError("port 8010\nis taken"))
    assert exit.value.code == 2
    assert capsys.readouterr().err == "pdserve-worker: port 8010 is taken\n"


PROGRAM = """
import os, sys
from dataclasses import dataclass
from config.flags import FlagError, fail, flag, parse

@dataclass(frozen=True)
class Config:
    port: int = flag(8010, "Port", group="Network")

try:
    parse(Config, sys.argv[1:], prog="pdserve-worker", description="", environ=os.environ, version="0")
except FlagError as error:
    fail("pdserve-worker", error)
"""


def test_a_process_with_a_wrong_flag_leaves_one_line_and_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--port", b"\xff\n\xfe"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pdserve-worker: --port: '\\udcff\\n\\udcfe' is not a whole number\n"
