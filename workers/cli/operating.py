"""The verbs of whoever runs an installation: doctor, migrate, backup, restore, prune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import printing, progress
from .door import Call, verb

if TYPE_CHECKING:
    from ..doctor.findings import Finding
    from ..settings import Settings
    from ..tidying import Tidied


@verb("doctor")
@click.pass_obj
def doctor_verb(call: Call) -> int:
    """Examine the installation and change nothing; exit 1 if something is wrong. With -A, agents too."""
    from ..doctor import examination, findings

    settings = call.settings()
    found = examination.examine(settings)
    told = "\n".join(line for one in found for line in _finding(one))
    call.show(examination.document(settings.home, found), told)
    return int(findings.worst(found) == findings.Level.FAULT)


@verb("migrate")
@click.option("--dry-run", is_flag=True, help="Say what is pending, and do nothing.")
@click.pass_obj
def migrate_verb(call: Call, dry_run: bool) -> None:
    """Bring the state file to this version; a copy is made before."""
    from .. import upgrading

    settings = _existing(call)
    with progress.shown(quiet=call.json) as told:
        done = upgrading.plan(settings) if dry_run else upgrading.migrate(settings, told=told)
    rows = [[name, "pending"] for name in done.pending] + [[name, "applied now"] for name in done.now]
    rows += [[name, printing.moment(at)] for name, at in done.applied.items() if name not in done.now]
    call.show_table(vars(done), ["migration", ""], rows, none="no migrations")


@verb("backup")
@click.argument("dest", metavar="DEST", type=click.Path(path_type=Path))
@click.pass_obj
def backup_verb(call: Call, dest: Path) -> int:
    """Back up the state to the new folder DEST while work goes on; exit 1 if outcomes were missing."""
    from .. import upgrading

    settings = _existing(call)
    with progress.shown(quiet=call.json) as told:
        made = upgrading.backup(settings, dest.absolute(), told=told)
    text = f"{made.tasks} tasks and {made.blobs} blobs are in {made.path}" + _missing(made.missing)
    call.show({**vars(made), "path": str(made.path)}, text)
    return int(bool(made.missing))


@verb("restore")
@click.argument("src", metavar="SRC", type=click.Path(path_type=Path))
@click.pass_obj
def restore_verb(call: Call, src: Path) -> int:
    """Put the backup SRC in the place of the state, which is kept; refused while anything runs."""
    from .. import clock, restoring

    settings = call.settings()
    with progress.shown(quiet=call.json) as told:
        done = restoring.restore(
            settings.home, src.absolute(), now=clock.now_ms(settings.test_clock), told=told
        )
    kept = f"; what was there is {done.replaced}" if done.replaced else ""
    text = f"{done.tasks} tasks are back in {done.state}{kept}; policy.toml: {done.policy}" + _missing(
        done.missing
    )
    call.show(done.document(), text)
    return int(bool(done.missing))


@verb("prune")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.pass_obj
def prune_verb(call: Call, dry_run: bool) -> None:
    """Remove what is older than the retention settings say, and give the room back to the disk."""
    from .. import tidying

    _existing(call)
    home = call.home()
    with progress.shown(quiet=call.json) as told:
        done = (
            tidying.due(home)
            if dry_run
            else tidying.tidy(home, told=lambda what, count: told(what, count, 0))
        )
    call.show({"dry_run": dry_run, **done.document()}, _pruned(done, dry_run=dry_run))


def _existing(call: Call) -> Settings:
    """The settings of this call, where there is a state already: none of these verbs makes one."""
    from .. import home

    settings = call.settings()
    home.refuse_absent(settings.home)
    return settings


def _finding(found: Finding) -> list[str]:
    line = f"{found.level:<8} {found.check:<17} {printing.shown(found.text)}"
    return [line, f"{'':<26} → {printing.shown(found.advice)}"] if found.advice else [line]


def _missing(digests: list[str]) -> str:
    return f"; {len(digests)} blobs are missing or damaged: {', '.join(digests)}" if digests else ""


def _pruned(done: Tidied, *, dry_run: bool) -> str:
    rows: dict[str, Any] = {
        "pulse events": done.pulses,
        "traces and events of ended tasks": done.records,
        "ended tasks": done.tasks,
        "blobs": done.blobs.removed,
    }
    said = ", ".join(f"{count} {what}" for what, count in rows.items())
    if dry_run or done.before is None or done.after is None:
        return f"would go: {said}"
    return f"removed: {said}; the state file had {done.before.file_bytes:,} bytes and has {done.after.file_bytes:,}"
