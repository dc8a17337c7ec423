"""Every error that Relight raises, and the exit code that the command line gives for it.

RelightError (1)
├── InputError (2)               a bad call: the message names the parameter
├── SettingError (2)             a setting that cannot be used
├── NotFoundError (3)            no such task, confirmation, step or agent
├── ConflictError (4)
│   ├── StaleMove                someone else moved the task first
│   ├── DuplicateTaskError       the id is taken
│   ├── KeyConflictError         the key is taken by a different input
│   ├── AlreadyDecidedError      the confirmation was answered before
│   └── StepInDoubtError         an approve that would leave a step in doubt
├── WaitTimeoutError (5)         the task did not end in time
├── RefusedError (6)
│   ├── TooLargeError            over a configured limit
│   └── MisuseError              a call that is not allowed where it was made
│       ├── StepNeedsAwait       a synchronous step called directly on the event loop
│       ├── StepNotAwaited       a step was created and never awaited
│       └── StepOutsideRun       a step called in a worker without its run
├── StorageError (7)
│   ├── StorageLockedError       another process holds the write lock for too long
│   ├── StorageFullError         no space left
│   ├── StorageUnreadableError   the file is missing, damaged or not permitted
│   └── NewerSchemaError         the file was written by a newer Relight
├── TaskFailedError (1)          the awaited task ended failed
├── StepFailed (1)               a recorded exception whose class cannot be rebuilt
├── StepAbandoned (1)            a person gave up a step that was in doubt
├── NotDone (1)                  raised by a step: the effect did certainly not happen
├── SealedStepError (1)          a recorded outcome cannot be read back
└── UnreadableTraceError (1)     a recorded trace event is of no known kind or shape

ControlFlow (BaseException)      never an outcome; agent code cannot swallow it for good
├── Cancelled                    the task was cancelled
├── LeaseLost                    another attempt owns the task now
├── Asked                        a step waits for a person
├── Diverged                     the code asked for something else than was recorded
├── Unreadable                   a recorded outcome cannot be read back: the task fails
└── Suspended                    the run waits and gives its worker back
"""

from __future__ import annotations

from dataclasses import dataclass


class RelightError(Exception):
    """Base of everything that Relight raises."""

    exit_code = 1


class InputError(RelightError):
    """The arguments of a call do not fit; the message names each parameter."""

    exit_code = 2


class SettingError(RelightError):
    """A setting has a value that cannot be used; the message names the setting and its source."""

    exit_code = 2


class NotFoundError(RelightError):
    """Nothing goes by this id or name."""

    exit_code = 3

    def __init__(self, kind: str, ident: str, *, hint: str = "") -> None:
        self.kind, self.ident = kind, ident
        super().__init__(f"no {kind} {ident!r}" + (f"; {hint}" if hint else ""))


class ConflictError(RelightError):
    """The state is not what the call assumed; nothing was changed."""

    exit_code = 4


class StaleMove(ConflictError):
    """Someone else moved the task first; the loser stops quietly."""

    def __init__(self, task_id: str, move: str, found: str) -> None:
        self.task_id, self.move, self.found = task_id, move, found
        super().__init__(f"task {task_id}: cannot {move}, it is {found}")


class DuplicateTaskError(ConflictError):
    """A task with this id exists already."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"a task with id {task_id} exists already")


class KeyConflictError(ConflictError):
    """The key names a task that was enqueued with another input."""

    def __init__(self, key: str, task_id: str) -> None:
        self.key, self.task_id = key, task_id
        super().__init__(
            f"key {key!r} belongs to task {task_id}, which has a different agent or input; use another key"
        )


class AlreadyDecidedError(ConflictError):
    """The confirmation was answered before; the message names the decision."""

    def __init__(self, confirmation_id: str, decision: str, by: str | None) -> None:
        self.confirmation_id, self.decision, self.by = confirmation_id, decision, by
        who = f", by {by}" if by else ""
        super().__init__(f"confirmation {confirmation_id} is already decided: {decision}{who}")


class StepInDoubtError(ConflictError):
    """Approving is not enough while a step is in doubt; each such step needs its own answer."""

    def __init__(self, confirmation_id: str, step_keys: list[str]) -> None:
        self.confirmation_id, self.step_keys = confirmation_id, step_keys
        super().__init__(
            f"confirmation {confirmation_id} has steps in doubt: {', '.join(step_keys)}; "
            f"answer each with: relight resolve {confirmation_id} --step KEY (--ran JSON | --again | --abandon)"
        )


class WaitTimeoutError(RelightError, TimeoutError):
    """The task did not end within the time given; it goes on."""

    exit_code = 5

    def __init__(self, task_id: str, status: str, seconds: float, why: str = "") -> None:
        self.task_id, self.status, self.why = task_id, status, why
        waited = f" after {seconds:g} s" if seconds else ""
        super().__init__(f"task {task_id} is still {status}{waited}" + (f": {why}" if why else ""))


class RefusedError(RelightError):
    """Policy or a limit forbids this; nothing was changed."""

    exit_code = 6


class TooLargeError(RefusedError):
    """A value is larger than its limit, in bytes."""

    def __init__(self, what: str, size: int, limit: int, setting: str) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"{what} has {size} bytes, the limit is {limit} ({setting}); pass a path or a reference"
        )


class MisuseError(RefusedError):
    """The call is not allowed in this place; the message names the form that is."""


class StepNeedsAwait(MisuseError):
    """A blocking call was made on the event loop."""


class StepNotAwaited(MisuseError):
    """A step was created in a run and never awaited, so it never ran."""


class StepOutsideRun(MisuseError):
    """A step was called without its run in a process that runs tasks."""


class StorageError(RelightError):
    """The state cannot be read or written now."""

    exit_code = 7


class StorageLockedError(StorageError):
    """Another process holds the write lock for longer than the busy timeout."""


class StorageFullError(StorageError):
    """There is no space left for the state."""


class StorageUnreadableError(StorageError):
    """The state file is missing, damaged, not ours or not permitted; it is never replaced."""


class NewerSchemaError(StorageError):
    """The file holds migrations that this version does not know."""


class TaskFailedError(RelightError):
    """The awaited task ended failed; `reason` is its code and `detail` its recorded error."""

    def __init__(self, task_id: str, reason: str, detail: str) -> None:
        self.task_id, self.reason, self.detail = task_id, reason, detail
        super().__init__(f"task {task_id} failed ({reason}): {detail}")


class StepFailed(RelightError):
    """A recorded exception of a class that cannot be rebuilt safely: its type name and text."""

    def __init__(self, type_name: str, text: str) -> None:
        self.type_name, self.text = type_name, text
        super().__init__(f"{type_name}: {text}")


class StepAbandoned(RelightError):
    """A person abandoned this step while it was in doubt; the agent decides how to go on."""


class NotDone(RelightError):
    """Raise it in a write step when the effect did certainly not happen: the step may run again."""


class SealedStepError(RelightError):
    """A recorded outcome cannot be read back: its blob is missing or does not match its digest."""


class UnreadableTraceError(RelightError):
    """A recorded trace event is not JSON, is of no known kind or lacks a key; the message names it."""


class ControlFlow(BaseException):
    """Ends a run without being its outcome; once raised, every later call on that run raises it again."""


class Cancelled(ControlFlow):
    """The task was cancelled; the run stops at this step boundary."""


class LeaseLost(ControlFlow):
    """This attempt no longer owns the task; another one does or the task has ended."""


class Suspended(ControlFlow):
    """The run waits for something and gives its worker back."""


@dataclass
class Asked(ControlFlow):
    """A step waits for a person: it may have happened, and nobody allowed it to happen again."""

    step_key: str
    why: str


@dataclass
class Unreadable(ControlFlow):
    """Replay stopped: the outcome of `step_key` cannot be read back, and an agent must not take that for its error."""

    step_key: str
    cause: SealedStepError


@dataclass
class Diverged(ControlFlow):
    """Replay stopped: at `step_key` the record says one thing and the code asks another."""

    step_key: str
    recorded: str
    asked: str

    def __str__(self) -> str:
        return f"at step {self.step_key}: recorded {self.recorded}, asked {self.asked}"
