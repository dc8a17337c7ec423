"""How a verb is found, what every verb accepts, and how every error leaves: a message, a JSON document, an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ...models.errors import NotFoundError, RelightError
from . import printing

if TYPE_CHECKING:
    from ..home import Home
    from ..settings import Settings

# Verb → the module that holds it; the order is that of the help.
VERBS = {
    "init": "running",
    "up": "running",
    "worker": "running",
    "demo": "running",
    "status": "watching",
    "enqueue": "asking",
    "list": "watching",
    "show": "watching",
    "trace": "watching",
    "events": "watching",
    "wait": "asking",
    "result": "asking",
    "cancel": "asking",
    "why": "explaining",
    "retry": "explaining",
    "pause": "explaining",
    "unpause": "explaining",
    "confirmations": "answering",
    "approve": "answering",
    "reject": "answering",
    "resolve": "answering",
    "recover": "running",
    "doctor": "operating",
    "migrate": "operating",
    "backup": "operating",
    "restore": "operating",
    "prune": "operating",
}
INTERRUPTED = 130  # as a shell reports a program that ended by INT


@dataclass
class Call:
    """What was said beside the verb: where the state is, which agents are known, how to print."""

    home_folder: Path | None = None
    app: tuple[str, ...] = ()
    json: bool = False

    def settings(self, **flags: Any) -> Settings:
        """Return the settings of this call, with further flags of its verb."""
        from .. import settings

        return settings.load(home=self.home_folder, app=self.app or None, **flags)

    def home(self, *, create: bool = False, **flags: Any) -> Home:
        """Open the state directory; from here on the whole process, agent code included, means this one.

        Only verbs that begin something create one that does not exist.
        """
        from .. import home, settings

        told = self.settings(**flags)
        if not create:
            home.refuse_absent(told.home)
        settings.pin(told)
        return home.Home.current()

    def show(self, document: Any, text: str) -> None:
        """Print an answer: the document under --json, else the words for people."""
        printing.line(printing.json_text(document) if self.json else text)

    def show_table(
        self, document: Any, columns: Sequence[str], rows: Sequence[Sequence[object]], *, none: str
    ) -> None:
        """Print an answer that is a list: the document under --json, else a table, or `none` where it is empty."""
        if self.json or not rows:
            self.show(document, none)
        else:
            printing.table(columns, rows)


class Verb(click.Command):
    """A verb; it accepts after its name what may also stand before it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params += _shared_options()

    def invoke(self, ctx: click.Context) -> Any:
        _take_shared(ctx)
        return super().invoke(ctx)


class Verbs(click.Group):
    """The verbs, each imported when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module(f".{VERBS[cmd_name]}", __package__)
        command: click.Command = getattr(module, f"{cmd_name}_verb")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no verb {args[0]!r}{printing.meant(args[0], VERBS)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = Call()
        _take_shared(ctx)
        return super().invoke(ctx)


def verb(name: str) -> Callable[[Callable[..., Any]], Verb]:
    """Make a function a verb; its docstring is the help."""
    return click.command(name, cls=Verb)


def _show_version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            printing.line(f"relight {metadata.version('relight')}")
        except metadata.PackageNotFoundError:
            printing.line("relight, from a checkout that is not installed")
        ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def relight() -> None:
    """A durable task queue for AI agents: what was accepted is never lost, what was done is never done again."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one call and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # real streams, in a real process
    sys.exit(run(words))


def run(words: list[str]) -> int:
    """Run one call; return its exit code once its error, if any, was told."""
    try:
        code = relight.main(words, prog_name="relight", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (RelightError, click.ClickException) as error:
        return _tell(error, as_json=_json_was_asked(words))
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED


def _tell(error: RelightError | click.ClickException, *, as_json: bool) -> int:
    if isinstance(error, click.ClickException):
        error.show()
        message, fields = error.format_message(), {}
    else:
        message, fields = str(error) + _where(error), vars(error)
        printing.complain(message)
    if as_json:
        printing.line(printing.json_text({"error": {**_plain(fields), **_named(error, message)}}))
    return error.exit_code


def _where(error: RelightError) -> str:
    """The state directory in which something was not found: often it is the wrong one."""
    stored = isinstance(error, NotFoundError) and error.kind in ("task", "confirmation")
    home = os.environ.get("RELIGHT_HOME") if stored else None  # pinned when it was opened
    return f" (in {home})" if home else ""


def _named(error: Exception, message: str) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": message, "exit_code": getattr(error, "exit_code", 1)}


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if isinstance(value, str | int | list | None)}


def _json_was_asked(words: list[str]) -> bool:
    """Look at the words themselves: the error may be that they could not be parsed."""
    return "--json" in words[: words.index("--") if "--" in words else len(words)]


def _shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--home", "_home"], type=click.Path(path_type=Path), metavar="DIR", help="State directory."
        ),
        click.Option(
            ["-A", "--app", "_app"],
            metavar="APP",
            multiple=True,
            help="A module or file that registers agents; may be repeated.",
        ),
        click.Option(["--json", "_json"], is_flag=True, help="Print JSON on stdout, and nothing else."),
    ]


relight.params += _shared_options()


def _take_shared(ctx: click.Context) -> None:
    call = ctx.find_object(Call)
    assert call is not None
    call.home_folder = ctx.params.pop("_home") or call.home_folder
    call.app = ctx.params.pop("_app") or call.app
    call.json = ctx.params.pop("_json") or call.json
