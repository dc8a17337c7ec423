"""What is stored: whether the state file can be read, is what it should be, and fits this version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...models import inspection, schema
from ...models.errors import SettingError, StorageError
from ...models.inspection import LookOnly
from ...recovery.policy import PolicyFault
from .. import apps, policy_file
from ..home import STATE_FILE
from ..settings import Settings
from . import findings
from .findings import Finding

_RESTORE = "put the last backup in its place: relight restore SRC"


def file(settings: Settings) -> Iterator[Finding]:
    """The state file as a file, before anything opens it."""
    state = settings.home / STATE_FILE
    if not state.is_file():
        yield findings.fault(
            "state file", f"{state} does not exist", "correct RELIGHT_HOME, or create it: relight init"
        )
        return
    header = inspection.header(state)
    if header is None:
        told = "is empty, so it was truncated" if state.stat().st_size == 0 else "is no database"
        yield findings.fault("state file", f"{state} {told}", _RESTORE)
        return
    yield findings.ok("state file", f"{state}, {state.stat().st_size:,} bytes")
    yield from _modes(header)


def _modes(header: inspection.Header) -> Iterator[Finding]:
    if header.is_wal and header.is_incremental:
        yield findings.ok("modes", "WAL and auto_vacuum=INCREMENTAL are on")
        return
    if not header.is_wal:
        advice = "it was switched off by another program, or the file system cannot do it; use a local disk"
        yield findings.fault("modes", "the write-ahead log is off", advice)
    if not header.is_incremental:
        advice = "another program has made or rewritten this file; restore a backup"
        yield findings.fault("modes", "auto_vacuum is not INCREMENTAL: the file would only grow", advice)


def content(settings: Settings, db: LookOnly) -> Iterator[Finding]:
    """What the file holds, as far as it can be looked at: its schema, its pages, the versions that recorded tasks."""
    try:
        yield from _schema(db)
        yield _integrity(db)
        yield from versions(settings, db)
    except StorageError as error:
        yield findings.fault("state file", str(error), _RESTORE)


def _schema(db: LookOnly) -> Iterator[Finding]:
    if not inspection.is_ours(db):
        yield findings.fault("schema", "this is no state file of Relight", _RESTORE)
        return
    plan = inspection.plan(db, schema.MIGRATIONS)
    if plan.unknown:
        told = f"written by a newer version: it has {', '.join(plan.unknown)}"
        yield findings.fault("schema", told, "upgrade Relight: this version refuses to open the file")
    elif plan.pending:
        told = f"pending: {', '.join(plan.pending)}"
        yield findings.warning(
            "schema", told, "stop the workers and run: relight migrate (the next start does it too)"
        )
    else:
        yield findings.ok("schema", f"{len(plan.applied)} migrations applied, none pending")


def _integrity(db: LookOnly) -> Finding:
    found = inspection.faults(db)
    if found:
        return findings.fault(
            "integrity", f"damaged: {'; '.join(found[:3])}", f"stop everything, then {_RESTORE}"
        )
    return findings.ok("integrity", "SQLite finds no fault")


def policy(settings: Settings) -> Finding:
    """The file that says what recovery may do by itself."""
    rules = policy_file.load(settings.home)
    if isinstance(rules, PolicyFault):
        advice = "recovery asks about every task until it is repaired; see docs/recovery.md for what it holds"
        return findings.fault("policy", str(rules), advice)
    return findings.ok("policy", str(settings.home / Path("policy.toml")))


def versions(settings: Settings, db: LookOnly) -> Iterator[Finding]:
    """Whether the loaded agents can go on with what others of their name began."""
    recorded = inspection.recorded_versions(db)
    if not settings.app:
        if recorded:
            advice = "name the agents to compare them: relight -A APP doctor"
            yield findings.ok("handler versions", f"not compared with unfinished tasks; {advice}")
        return
    try:
        apps.load(settings.app)
    except SettingError as error:
        yield findings.fault(
            "handler versions", str(error), "repair the module: workers do not start with it"
        )
        return
    told = [one for agent, version, count in recorded if (one := _changed(agent, version, count))]
    yield from told
    if not told:
        yield findings.ok("handler versions", "the loaded agents can go on with every unfinished task")


def _changed(agent: str, recorded: str | None, count: int) -> Finding | None:
    from .. import agents

    loaded = agents.known().get(agent)
    which = f"{count} unfinished task{'s' if count > 1 else ''} of {agent}"
    if loaded is None:
        advice = "a worker that knows the agent has to run; this one leaves them alone"
        return findings.warning(
            "handler versions", f"{which}: the agent is not among the loaded ones", advice
        )
    if recorded is None or recorded == loaded.handler_version:
        return None
    before, now = recorded.partition("+")[0], loaded.handler_version.partition("+")[0]
    if before != now:
        advice = "they stop as diverged and ask; let workers with the old version finish them first"
        return findings.fault(
            "handler versions", f"{which}: recorded by version {before}, loaded is {now}", advice
        )
    advice = "replay finds out whether the steps are still the same; raise version= when they are not"
    return findings.warning("handler versions", f"{which}: the source has changed since", advice)
