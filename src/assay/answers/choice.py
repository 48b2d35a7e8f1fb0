"""Which rows a command is for: `--task GLOB`, `--where FIELD=VALUE`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import ColumnElement, func, select

from assay.answers.schema import answer, identity
from assay.answers.states import STATES, state_column
from assay.grading import WrongArgument

_FLAGS: Final = {"true": 1, "yes": 1, "1": 1, "false": 0, "no": 0, "0": 0}
Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows that fit all of it. The empty one fits every row."""

    task: str | None = None
    """A glob over task ids: `*`, `?`, `[abc]`, `[!abc]`."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Fields of `FIELDS` and the value that each must have; `none` for a field that is not there."""

    def conditions(self) -> list[Condition]:
        """The choice as conditions of a query on `identity`. Raises `WrongArgument` for a field or value that is none."""
        found: list[Condition] = []
        if self.task is not None:
            found.append(identity.c.task_id.regexp_match(glob_pattern(self.task)))
        for name, value in self.where.items():
            if name not in FIELDS:
                raise WrongArgument(f"where: there is no field {name!r}; there are {', '.join(FIELDS)}")
            found.append(FIELDS[name](value))
        return found


def choice_of(task: str | None = None, where: Iterable[str] = ()) -> Choice:
    """The choice that `--task` and some `--where FIELD=VALUE` make. Raises `WrongArgument`."""
    fields: dict[str, str] = {}
    for text in where:
        name, separator, value = text.partition("=")
        if not separator:
            raise WrongArgument(f"where: write FIELD=VALUE (status=failed), got {text!r}")
        if fields.setdefault(name, value) != value:
            raise WrongArgument(f"where: {name} cannot be {fields[name]} and {value} at once")
    choice = Choice(task, fields)
    choice.conditions()
    return choice


def glob_pattern(glob: str) -> str:
    """A glob as a regular expression that Python and PostgreSQL understand alike."""
    parts = ["^"]
    position = 0
    while position < len(glob):
        character = glob[position]
        position += 1
        if character == "*":
            parts.append(".*")
        elif character == "?":
            parts.append(".")
        elif character == "[" and (end := glob.find("]", position + 1)) > 0:
            inside = glob[position:end].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]")
            position = end + 1
        else:
            parts.append(re.sub(r"([^\w])", r"\\\1", character, flags=re.ASCII) if character.isascii() else character)
    return "".join(parts) + "$"


def _text(column: ColumnElement[str | None]) -> Callable[[str], Condition]:
    return lambda value: column.is_(None) if value == "none" else column == value


def _flag(name: str) -> Callable[[str], Condition]:
    def condition(value: str) -> Condition:
        if value.lower() not in _FLAGS:
            raise WrongArgument(f"where: {name} is true or false, got {value!r}")
        return identity.c[name] == _FLAGS[value.lower()]

    return condition


def _reward(value: str) -> Condition:
    try:
        return identity.c.reward == float(value)
    except ValueError:
        raise WrongArgument(f"where: reward is a number, got {value!r}") from None


def _state(value: str) -> Condition:
    if value not in STATES:
        raise WrongArgument(f"where: state is one of {', '.join(STATES)}, got {value!r}")
    return state_column() == value


def _status(value: str) -> Condition:
    if value not in ("graded", "failed", "none"):
        raise WrongArgument(f"where: status is graded, failed or none, got {value!r}")
    return _text(identity.c.status)(value)


def _agent(value: str) -> Condition:
    return identity.c.answer_id.in_(select(answer.c.id).where(answer.c.agent == value))


FIELDS: Final[Mapping[str, Callable[[str], Condition]]] = {
    "status": _status,
    "state": _state,
    "kind": _text(identity.c.kind),
    "caused_by": _text(identity.c.caused_by),
    "verifier_digest": lambda value: func.coalesce(identity.c.verifier_digest, "none").startswith(
        value, autoescape=True
    ),
    "reward": _reward,
    "proven": _flag("proven"),
    "provisional": _flag("provisional"),
    "flaky": _flag("flaky"),
    "agent": _agent,
}
"""What rows can be chosen by. A verifier digest may be given by its beginning."""
