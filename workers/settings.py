"""The settings: one table that says what exists, and one function that reads flag > environment > relight.toml > default.

Every value is checked where it enters; a bad one is refused with its name, the value and where it came from. An empty
environment variable counts as not set.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from ..models.errors import SettingError

FILE = "relight.toml"
PREFIX = "RELIGHT_"
LANES = ("main", "subagent")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one process was told; see SETTINGS for the meaning of each."""

    home: Path
    app: tuple[str, ...] = ()
    durability: str = "power"
    lease_ms: int = 30_000
    sweep_ms: int = 1_000
    max_losses: int = 3
    grace_ms: int = 10_000
    gate_ms: int = 500
    poll_ms: int = 5_000
    main_concurrency: int = 2
    subagent_concurrency: int = 4
    max_payload_bytes: int = 1_048_576
    max_blob_bytes: int = 1 << 30
    retention_days: int = 30
    trace_retention_days: int = 30
    pulse_retention_days: int = 7
    allow_network_fs: bool = False
    log_format: str = "text"
    log_level: str = "info"
    test_clock: Path | None = None


@dataclass(frozen=True)
class Setting:
    """One name that may be set: how a value is read (`folder` is what relative paths start from) and what it is for."""

    name: str
    read: Callable[[Any, Path], Any]
    about: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def load(
    *, home: Path | None = None, env: Mapping[str, str] = os.environ, cwd: Path | None = None, **flags: Any
) -> Settings:
    """Return the settings of this process; refuse the first value that cannot be used."""
    here = (cwd or Path.cwd()).absolute()
    file = nearest_file(here)
    stored = _stored(file) if file else {}
    given = {"home": home, **flags}
    _refuse_unknown(given, "a flag")
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        value = _first(setting, given, env, stored, here, file)
        if value is not None:
            found[setting.name] = value
    found.setdefault("home", file.parent / ".relight" if file else user_state_path("relight"))
    concurrency = found.pop("concurrency", {})
    return Settings(**found, **{f"{lane}_concurrency": count for lane, count in concurrency.items()})


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables by which a child, wherever it runs, reads the same settings."""
    given = {name: value for name, value in vars(settings).items() if not name.endswith("_concurrency")}
    given["app"] = ",".join(settings.app)
    given["concurrency"] = ",".join(f"{lane}={getattr(settings, f'{lane}_concurrency')}" for lane in LANES)
    return {PREFIX + name.upper(): str(value) for name, value in given.items() if value is not None}


def pin(settings: Settings) -> None:
    """Let all code of this process read these settings, also after it changed the current folder."""
    os.environ.update(environment(settings))


def unpinned() -> dict[str, str]:
    """Return the environment that this process was started with: a new start reads relight.toml anew."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}, **_AT_START}


_AT_START = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}


def nearest_file(folder: Path) -> Path | None:
    """Return the relight.toml of this folder or of the nearest one above it."""
    for parent in (folder, *folder.parents):
        if (parent / FILE).is_file():
            return parent / FILE
    return None


def _first(
    setting: Setting,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    stored: Mapping[str, Any],
    here: Path,
    file: Path | None,
) -> Any:
    if flags.get(setting.name) is not None:
        return _read(setting, flags[setting.name], here, f"the flag --{setting.name.replace('_', '-')}")
    if env.get(setting.variable):
        return _read(setting, env[setting.variable], here, f"the environment variable {setting.variable}")
    if file and setting.name in stored:
        return _read(setting, stored[setting.name], file.parent, str(file))
    return None


def _read(setting: Setting, value: Any, folder: Path, source: str) -> Any:
    try:
        return setting.read(value, folder)
    except (ValueError, OSError) as error:
        raise SettingError(f"{setting.name} = {value!r}, from {source}: {error}") from None


def _stored(file: Path) -> dict[str, Any]:
    try:
        stored = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{file} cannot be read: {error}") from error
    _refuse_unknown(stored, str(file))
    return stored


def _refuse_unknown(given: Mapping[str, Any], source: str) -> None:
    names = [setting.name for setting in SETTINGS]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(f"{name}, from {source}: there is no such setting{hint}")


def _whole(least: int, unit: str) -> Callable[[Any, Path], int]:
    def read(value: Any, _folder: Path) -> int:
        number = _number(value)
        if number is None or not least <= number < 1 << 63:
            raise ValueError(f"must be a whole number{unit}, {least} or more")
        return number

    return read


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*-?[0-9]+(_[0-9]+)*\s*", value, re.ASCII) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _word(*words: str) -> Callable[[Any, Path], str]:
    def read(value: Any, _folder: Path) -> str:
        if not isinstance(value, str) or value.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value.lower()

    return read


def _flag(value: Any, _folder: Path) -> bool:
    known = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    word = str(value).strip().lower()
    if word not in known:
        raise ValueError("must be true or false")
    return known[word]


def _path(value: Any, folder: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be a path")
    return Path(os.path.normpath(folder / Path(value).expanduser()))


def _apps(value: Any, folder: Path) -> tuple[str, ...]:
    """Return modules as they stand and files as absolute paths."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(entry, str) for entry in values):
        raise ValueError("must name modules or files, separated by commas")
    entries = [entry.strip() for text in values for entry in text.split(",")]
    return tuple(_app(entry, folder) for entry in entries if entry)


def _app(entry: str, folder: Path) -> str:
    if entry.endswith(".py") or os.sep in entry:
        return str(_path(entry, folder))
    if not all(part.isidentifier() for part in entry.split(".")):
        raise ValueError(f"{entry!r} is neither a module name nor a path to a .py file")
    return entry


def _concurrency(value: Any, folder: Path) -> dict[str, int]:
    """Return the count of each lane that is named; a bare number counts for both."""
    count = _whole(1, "")
    if isinstance(value, str) and "=" in value:
        pairs = [entry.partition("=") for entry in value.split(",")]
        value = {lane.strip(): number.strip() for lane, _, number in pairs}
    if not isinstance(value, dict):
        return dict.fromkeys(LANES, count(value, folder))
    if not set(value) <= set(LANES):
        raise ValueError(f"must be a number, or one for each lane, like {'=2,'.join(LANES)}=4")
    return {lane: count(number, folder) for lane, number in value.items()}


_MS = _whole(0, " of milliseconds")

SETTINGS = (
    Setting("home", _path, "the state directory"),
    Setting("app", _apps, "modules or files that register agents, separated by commas"),
    Setting(
        "durability",
        _word("power", "process"),
        "what an acknowledged write survives: a power cut, or a process death only",
    ),
    Setting(
        "lease_ms",
        _whole(100, " of milliseconds"),
        "how long an owner may stay silent, when its lock proves nothing",
    ),
    Setting("sweep_ms", _whole(10, " of milliseconds"), "time between two recovery passes"),
    Setting("max_losses", _whole(1, ""), "lost workers in a row before a task is quarantined"),
    Setting("grace_ms", _MS, "how long a worker that was told to stop lets its tasks finish"),
    Setting("gate_ms", _MS, "how long a writer queues at the write gate before it goes on without"),
    Setting("poll_ms", _MS, "longest time between two looks when no bell rings; 0 trusts the bells alone"),
    Setting("concurrency", _concurrency, "tasks at a time: a number, or one for each lane"),
    Setting("max_payload_bytes", _whole(1, " of bytes"), "largest input of a task"),
    Setting("max_blob_bytes", _whole(1, " of bytes"), "largest outcome of a step that is kept whole"),
    Setting(
        "retention_days",
        _whole(1, " of days"),
        "how long a task is kept after its end, with its key and its result",
    ),
    Setting(
        "trace_retention_days",
        _whole(1, " of days"),
        "how long the traces and events of a task are kept after its end",
    ),
    Setting("pulse_retention_days", _whole(0, " of days"), "how long pulse events are kept"),
    Setting(
        "allow_network_fs", _flag, "run workers although the state directory lies on a network file system"
    ),
    Setting("log_format", _word("text", "json"), "how log lines on stderr look"),
    Setting("log_level", _word("debug", "info", "warning", "error"), "the least severe log lines to write"),
    Setting(
        "test_clock",
        _path,
        "for tests: a file of epoch milliseconds that replaces the wall clock, leases excepted",
    ),
)

VARIABLES = tuple(setting.variable for setting in SETTINGS)
