"""A process's flags, read from the command line, the environment and a YAML file into its frozen dataclass.

    @dataclass(frozen=True)
    class WorkerConfig:
        port: int = flag(8010, "HTTP port for health and metrics", group="Network", check=checks.port)

A flag on the command line beats the environment (PDSERVE_<FLAG>), that beats the file of --config, that the default.
"""

import argparse
import difflib
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, overload

from config.settings_file import Setting, read_settings
from config.value import Kind, Value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound="DataclassInstance")

ENVIRONMENT_PREFIX = "PDSERVE_"
CONFIG, HELP, VERSION = "config", "help", "version"
LONG_FLAG = re.compile(r"--([A-Za-z0-9_-]+)(=.*)?", re.DOTALL)


class FlagError(ValueError):
    """A flag cannot be used: `flag` is its name, None if no flag is to blame; `problem` repeats the given value."""

    def __init__(self, flag: str | None, problem: str) -> None:
        super().__init__(f"--{flag}: {problem}" if flag else problem)
        self.flag = flag
        self.problem = problem


@dataclass(frozen=True)
class Declaration(Generic[T]):
    """What `flag` keeps about a field, in the field's metadata."""

    help: str
    group: str
    unit: str | None
    check: Callable[[T], None] | None
    is_hidden: bool


@overload
def flag(
    default: None,
    help: str,
    *,
    group: str,
    unit: str | None = None,
    check: Callable[[T], None] | None = None,
    is_hidden: bool = False,
) -> T | None: ...
@overload
def flag(
    default: T,
    help: str,
    *,
    group: str,
    unit: str | None = None,
    check: Callable[[T], None] | None = None,
    is_hidden: bool = False,
) -> T: ...
def flag(
    default: T | None,
    help: str,
    *,
    group: str,
    unit: str | None = None,
    check: Callable[[T], None] | None = None,
    is_hidden: bool = False,
) -> T | None:
    """Declares a dataclass field as a flag; its annotation says which values it takes (config/value.py).

    unit: shown in the help; with BYTES an int also takes sizes such as 4GiB.
    check: raises ValueError saying what the value must be; it is not called for None.
    is_hidden: --help says nothing about it.
    """
    if check is not None and default is not None:
        check(default)
    return field(default=default, metadata={Declaration: Declaration(help, group, unit, check, is_hidden)})


def parse(
    cls: type[ConfigT], argv: Sequence[str], *, prog: str, description: str, environ: Mapping[str, str], version: str
) -> ConfigT:
    """Builds `cls` from `argv` (without the program's name), `environ` and the file of --config.

    Raises FlagError naming the flag, the value and where it was given; what `cls.__post_init__` raises is completed
    with the latter. --help and --version print and raise SystemExit.
    """
    flags = {one.name: one for one in _flags_of(cls)}
    texts = _read_command_line(argv, flags, _parser(flags.values(), prog, description, version))
    config_path = texts.pop(CONFIG, None) or environ.get(_variable(CONFIG))
    settings = _read_file(Path(config_path), flags) if config_path else {}

    given = {name: found for name in flags if (found := _find(name, texts, environ, settings))}
    values = {name: flags[name].read(found) for name, found in given.items()}
    build: Callable[..., ConfigT] = cls
    try:
        return build(**values)
    except FlagError as error:
        place = given[error.flag].place if error.flag in given else None
        raise FlagError(error.flag, _placed(error.problem, place)) from error


def fail(prog: str, error: Exception) -> NoReturn:
    """Ends the process with one line about `error` on stderr and status 2, as for a wrong flag."""
    print(f"{prog}: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    raise SystemExit(2)


@dataclass(frozen=True)
class _Given:
    """A value as someone wrote it; `place` is None for the command line."""

    value: str | tuple[str, ...]
    place: str | None


@dataclass(frozen=True)
class _Flag:
    name: str
    kind: Kind
    default: Value
    declaration: Declaration[Value]

    @property
    def is_bool(self) -> bool:
        return self.kind.scalar is bool and not self.kind.is_tuple

    def read(self, given: _Given) -> Value:
        try:
            value = self.kind.read(given.value) if isinstance(given.value, str) else self.kind.read_items(given.value)
            if self.declaration.check is not None and value is not None:
                self.declaration.check(value)
        except ValueError as error:
            shown = given.value if isinstance(given.value, str) else ",".join(given.value)
            raise FlagError(self.name, _placed(f"{shown!r} {error}", given.place)) from error
        return value

    def help(self) -> str:
        default = self.kind.show(self.default)
        unit = self.declaration.unit
        if unit and self.default is not None and not self.kind.is_size:
            default += f" {unit}"
        return f"{self.declaration.help} (default: {default or 'empty'}; env {_variable(self.name)})"


def _flags_of(cls: "type[DataclassInstance]") -> list[_Flag]:
    annotations = typing.get_type_hints(cls)
    flags = []
    for one in fields(cls):
        declaration = one.metadata[Declaration]
        assert one.name not in (CONFIG, HELP, VERSION) and one.default is not MISSING, one.name
        flags.append(_Flag(one.name, Kind.of(annotations[one.name], declaration.unit), one.default, declaration))
    return flags


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _placed(problem: str, place: str | None) -> str:
    return f"{problem} ({place})" if place else problem


def _parser(flags: Iterable[_Flag], prog: str, description: str, version: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [--flag=value ...]",
        description=description,
        epilog="Flags may be spelled with dashes too. A flag beats its environment variable, that the --config file. "
        "--name and --noname switch a BOOL on and off. An empty variable counts as not set.",
        allow_abbrev=False,
        exit_on_error=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
    )
    general = parser.add_argument_group("General")
    general.add_argument("-h", f"--{HELP}", action="help", help="show this help and exit")
    general.add_argument(
        f"--{VERSION}", action="version", version=f"{prog} {version}", help="show the version and exit"
    )
    general.add_argument(
        f"--{CONFIG}", metavar="FILE", help=f"YAML file with flags as `name: value` lines (env {_variable(CONFIG)})"
    )
    groups = {}
    for one in flags:
        group = one.declaration.group
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        groups[group].add_argument(
            f"--{one.name}",
            metavar=one.kind.placeholder(),
            nargs="?" if one.is_bool else None,
            const="true" if one.is_bool else None,
            help=argparse.SUPPRESS if one.declaration.is_hidden else one.help().replace("%", "%%"),
        )
    return parser


def _read_command_line(
    argv: Sequence[str], flags: Mapping[str, _Flag], parser: argparse.ArgumentParser
) -> dict[str, str]:
    """The last text given for each flag on the command line, --config among them."""
    try:
        texts, unknown = parser.parse_known_args([_normal(argument, flags) for argument in argv])
    except argparse.ArgumentError as error:
        name = (error.argument_name or "").split("/")[-1].lstrip("-")
        raise FlagError(name or None, error.message) from error
    for argument in unknown:
        raise _unknown_argument(argument, flags)
    return dict(vars(texts))


def _normal(argument: str, flags: Mapping[str, _Flag]) -> str:
    """`--no-enable-x` → `--enable_x=false`, `--some-flag=v` → `--some_flag=v`; anything else as it is."""
    match = LONG_FLAG.fullmatch(argument)
    if match is None:
        return argument
    name, value = match[1].replace("-", "_"), match[2] or ""
    positive = name.removeprefix("no").removeprefix("_")
    if name not in flags and name.startswith("no") and positive in flags and flags[positive].is_bool:
        if value:
            raise FlagError(name, f"takes no value, {value[1:]!r} was given")
        return f"--{positive}=false"
    return f"--{name}{value}"


def _unknown_argument(argument: str, flags: Mapping[str, _Flag]) -> FlagError:
    if LONG_FLAG.fullmatch(argument) is None:
        return FlagError(None, f"unexpected argument {argument!r}; flags begin with --")
    name = argument.removeprefix("--").partition("=")[0]
    return FlagError(name, f"unknown flag{_suggestion(name, [*flags, CONFIG, HELP, VERSION])}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean --{near[0]}?" if near else ""


def _read_file(path: Path, flags: Mapping[str, _Flag]) -> Mapping[str, Setting]:
    try:
        settings = read_settings(path)
    except ValueError as error:
        raise FlagError(CONFIG, str(error)) from error
    for name, setting in settings.items():
        if name not in flags:
            raise FlagError(name, _placed(f"unknown flag{_suggestion(name, flags)}", setting.place))
    return settings


def _find(
    name: str, texts: Mapping[str, str], environ: Mapping[str, str], settings: Mapping[str, Setting]
) -> _Given | None:
    if name in texts:
        return _Given(texts[name], None)
    if text := environ.get(_variable(name)):
        return _Given(text, f"environment variable {_variable(name)}")
    if setting := settings.get(name):
        return _Given(setting.value, setting.place)
    return None
