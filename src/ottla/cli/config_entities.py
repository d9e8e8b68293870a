"""Whom `ottla configs` is about, and which settings it was given, out of its options.

Guards: what Apache's tool refuses is refused here, before anything is changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.cli.tool import Failure, read_properties

TOPICS, CLIENTS, USERS, BROKERS, LOGGERS, IPS = "topics", "clients", "users", "brokers", "broker-loggers", "ips"
TYPES = (TOPICS, CLIENTS, USERS, BROKERS, LOGGERS, IPS)
DEFAULT = ""
"""As a name: whoever has none of its own."""

_NEED_A_NAME = (TOPICS, LOGGERS)
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?=[^\]]*(?:\[|$))")


class Entity(NamedTuple):
    """Whose settings these are: a type, and a name. None stands for all of the type."""

    type: str
    name: str | None

    @property
    def kind(self) -> str:
        """The type, of one."""
        return self.type.removesuffix("s")


def entities(
    types: Sequence[str], names: Sequence[str], flags: Mapping[str, str | None], defaults: Mapping[str, bool]
) -> list[Entity]:
    """Out of --entity-type and --entity-name, or of flags such as --topic and --client-defaults."""
    found = [Entity(kind, name) for kind, name in flags.items() if name is not None]
    found += [Entity(kind, DEFAULT) for kind, wanted in defaults.items() if wanted]
    if found and (types or names):
        raise Failure("--entity-type, --entity-name and --entity-default cannot be used beside flags such as --topic.")
    if not found:
        if len(names) > len(types):
            raise Failure("There are more entity names than entity types: give an --entity-type for each.")
        found = [Entity(kind, names[at] if at < len(names) else None) for at, kind in enumerate(types)]
    if not found:
        raise Failure(f"No entity is given: use --entity-type ({', '.join(TYPES)}), or a flag such as --topic.")
    for one in found:
        _check(one)
    kinds = [one.type for one in found]
    if len(set(kinds)) != len(kinds):
        raise Failure(f"An entity type is given twice: {', '.join(kinds)}.")
    if len(found) > 1 and set(kinds) != {USERS, CLIENTS}:
        raise Failure("Only users and clients may be given together.")
    return found


def _check(entity: Entity) -> None:
    if entity.type not in TYPES:
        raise Failure(f"Entity type {entity.type} is not valid: allowed are {', '.join(TYPES)}.")
    if entity.type in _NEED_A_NAME and entity.name == DEFAULT:
        raise Failure(f"There is no default for {entity.type}: give an --entity-name.")
    if entity.type in (BROKERS, LOGGERS) and entity.name and not (entity.name.isascii() and entity.name.isdigit()):
        raise Failure(f"{entity.name} is not the id of a broker: it is a number.")


def check_alter(found: Sequence[Entity], added: Mapping[str, str], deleted: Sequence[str]) -> None:
    """Refuse a change that says too little."""
    if any(one.name is None for one in found):
        raise Failure("--alter needs an entity name, or a default, for each entity type.")
    if not added and not deleted:
        raise Failure("--alter needs at least one of --add-config, --add-config-file and --delete-config.")


def settings(text: str | None, path: str | None) -> dict[str, str]:
    """Out of `a=1,b=[2,3]`, or of a properties file."""
    if text is not None and path is not None:
        raise Failure("--add-config and --add-config-file cannot be used together.")
    if path is not None:
        return read_properties(path, "--add-config-file")
    if text is None:
        return {}
    found = {}
    for part in _COMMA_OUTSIDE_BRACKETS.split(text):
        name, separator, value = part.partition("=")
        if not separator or not name.strip():
            raise Failure(f"--add-config {part} is not valid: allowed is NAME=VALUE, several between commas, lists as [A,B].")
        found[name.strip()] = value.strip().removeprefix("[").removesuffix("]")
    return found


def names(text: str | None) -> list[str]:
    """Out of `a,b`."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
