"""The verbs that make things run: init, up, worker, demo, recover."""

from __future__ import annotations

import os
from pathlib import Path

import click

from . import printing, progress
from .door import Call, verb

LANES = ["main", "subagent", "upkeep", "all"]


@verb("init")
@click.pass_obj
def init_verb(call: Call) -> None:
    """Create the state directory, with its policy file; an existing one stays as it is."""
    home = call.home(create=True)
    folder = str(home.settings.home)
    call.show({"home": folder}, f"The state is in {folder}")


@verb("up")
@click.option("--grace-ms", metavar="MS", help="How long tasks may finish when told to stop.")
@click.pass_obj
def up_verb(call: Call, grace_ms: str | None) -> int:
    """Run every line of the Procfile here, or the three built-in ones; restart what dies."""
    from .. import logs, supervisor
    from ..settings import environment

    settings = call.settings(grace_ms=grace_ms)
    logs.configure(settings.log_format, settings.log_level)
    report = (lambda event: printing.line(printing.json_text(event))) if call.json else None
    env = {**os.environ, **environment(settings)}
    lines = supervisor.lines_of(Path.cwd())
    prefix = settings.log_format == "text"
    return supervisor.Supervisor(
        lines, env=env, grace_ms=settings.grace_ms, prefix=prefix, report=report
    ).run()


@verb("worker")
@click.argument("lane", type=click.Choice(LANES), default="all")
@click.option("--concurrency", metavar="N", help="Tasks at a time in each lane.")
@click.option(
    "--kind",
    type=click.Choice(["thread", "process"]),
    default="thread",
    show_default=True,
    help="Where tasks run: together, or each in a process of its own.",
)
@click.pass_obj
def worker_verb(call: Call, lane: str, concurrency: str | None, kind: str) -> int:
    """Run tasks of a lane, and recovery, until told to stop."""
    from .. import consumer, lanes, lifeline, logs

    home = call.home(create=True, concurrency=concurrency)
    logs.configure(home.settings.log_format, home.settings.log_level)
    lifeline.hold()
    return consumer.run_lanes(home, list(lanes.LANES) if lane == "all" else [lane], kind=kind)


@verb("demo")
@click.option("--yes", is_flag=True, help="Answer the question yourself beforehand, for scripts.")
@click.pass_obj
def demo_verb(call: Call, yes: bool) -> int:
    """Kill a working agent and watch it finish without repeating a step."""
    from ..demo import scenario

    return scenario.run(home=call.home_folder, yes=yes)


@verb("recover")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.pass_obj
def recover_verb(call: Call, dry_run: bool) -> int:
    """Run one recovery pass now; exit 1 if it met errors."""
    from .. import apps, recovery_job

    home = call.home()
    apps.load(home.settings.app)  # a question shows what a step's own `verify` says
    with progress.shown(quiet=call.json) as told:
        told("recovering", 0, 0)
        report = vars(recovery_job.recover(home, dry_run=dry_run))
    rows = [
        [verdict, entry["id"], entry["reason"]] for verdict, entries in report.items() for entry in entries
    ]
    call.show_table(report, ["verdict", "task", "reason"], rows, none="nothing to recover")
    return int(bool(report["errors"]))
