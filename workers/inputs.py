"""The input of a task: from the arguments of a call to JSON, and back to typed arguments when the task starts.

Invariant: an argument that does not fit is an InputError that names the agent, the parameter and what is wrong.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ..models import encoding
from ..models.errors import InputError, SealedStepError
from . import functions

if TYPE_CHECKING:
    import pydantic


_LOST = '{"$lossy"'  # the mark of what JSON cannot say; quotes inside a text are escaped


class Input(NamedTuple):
    """The JSON text of an input, and the prompt in it for people to read."""

    text: str
    prompt: str


class Form:
    """The parameters of an agent function behind its run, as pydantic checks them."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self.fn, self.name = fn, name
        parameters = list(inspect.signature(fn).parameters.values())
        if not parameters or parameters[0].kind not in _POSITIONAL:
            raise InputError(
                f"agent {name}: its first parameter is the run, as in def {name}(run, prompt: str)"
            )
        if any(parameter.kind is inspect.Parameter.POSITIONAL_ONLY for parameter in parameters[1:]):
            raise InputError(
                f"agent {name}: its input is stored by name, so it takes no positional-only parameters"
            )
        self.signature = inspect.Signature(parameters[1:])

    def input_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Input:
        """The checked input of a call."""
        named = self.checked(args, kwargs)
        plain = encoding.encode({"args": [], "kwargs": named})
        if plain.lossy and _LOST in plain.text:  # else only half an emoji was replaced, and the task goes on
            culprit = next(name for name, value in named.items() if _LOST in encoding.encode(value).text)
            raise InputError(
                f"agent {self.name}, parameter {culprit!r}: a {type(named[culprit]).__name__} is no JSON value"
            )
        return Input(plain.text, _prompt(named))

    def arguments(self, text: str) -> dict[str, Any]:
        """The typed arguments by name that a stored input means."""
        try:
            stored = encoding.decode(text)
            args, kwargs = tuple(stored["args"]), dict(stored["kwargs"])
        except (SealedStepError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"agent {self.name}: its stored input cannot be read ({error})") from error
        return self.checked(args, kwargs)

    def checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, converted to what the signature says."""
        import pydantic

        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"agent {self.name}: {error}; it takes {self.signature}") from None
        spread = {
            name: value
            for name, value in bound.arguments.items()
            if self.signature.parameters[name].kind in _SPREAD
        }
        single = {name: value for name, value in bound.arguments.items() if name not in spread}
        try:
            model = self._model.model_validate(single)
        except pydantic.ValidationError as error:
            raise InputError(f"agent {self.name}, {_problems(error)}") from None
        named = {
            field.alias or name: getattr(model, name) for name, field in type(model).model_fields.items()
        }
        for name, value in spread.items():
            if self.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                raise InputError(f"agent {self.name}, parameter *{name}: pass a list by name instead")
            named.update(value)
        return named

    @cached_property
    def _model(self) -> type[pydantic.BaseModel]:
        import pydantic

        hints = functions.hints_of(self.fn)
        fields: dict[str, Any] = {}
        for place, (name, parameter) in enumerate(self.signature.parameters.items()):
            if parameter.kind not in _SPREAD:
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                if name in hints.unknown:
                    raise InputError(
                        f"agent {self.name}, parameter {name!r}: its annotation {hints.unknown[name]}; "
                        f"import the type outside of TYPE_CHECKING"
                    )
                # By alias: a parameter may have a name that a model attribute has too.
                fields[f"p{place}"] = (hints.known.get(name, Any), pydantic.Field(default, alias=name))
        config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        made: type[pydantic.BaseModel] = pydantic.create_model(
            f"{self.name}_input", __config__=config, **fields
        )
        return made


def unchecked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Input:
    """The input of an agent that is not importable here."""
    plain = encoding.encode({"args": list(args), "kwargs": kwargs})
    if plain.lossy:
        raise InputError("the input holds a value that is no JSON; import the agent, or pass plain values")
    named = dict(kwargs)
    if args:
        named.setdefault("prompt", args[0])
    return Input(plain.text, _prompt(named))


def _prompt(named: dict[str, Any]) -> str:
    found = named.get("prompt")
    if found is None:
        found = next((value for value in named.values() if isinstance(value, str)), "")
    return encoding.clean_text(found if isinstance(found, str) else json.dumps(found, default=str))


def _problems(error: pydantic.ValidationError) -> str:
    return "; ".join(
        f"parameter {'.'.join(map(str, one['loc']))!r}: {one['msg']}"
        for one in error.errors(include_url=False)
    )


_SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
