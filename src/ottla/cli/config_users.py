"""Quotas of clients, users and addresses, and SCRAM credentials of users, as `ottla configs` shows and changes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from ottla.cli.config_entities import CLIENTS, DEFAULT, IPS, USERS, Entity
from ottla.cli.tool import Failure
from ottla.client.admin.users import (
    MECHANISMS,
    Anyone,
    Credential,
    NewCredential,
    alter_quotas,
    alter_users,
    describe_quotas,
    describe_users,
)
from ottla.client.cluster import Cluster

_PARTS = {USERS: "user", CLIENTS: "client-id", IPS: "ip"}
_SHOWN = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
_CLIENT_QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_QUOTAS = {USERS: _CLIENT_QUOTAS, CLIENTS: _CLIENT_QUOTAS, IPS: ("connection_creation_rate",)}
_FEWEST_ITERATIONS, _MOST_ITERATIONS = 4096, 16384
_CREDENTIAL = re.compile(r"(?:iterations=(?P<iterations>-?[0-9]+),)?password=(?P<password>.+)")


class Quotas(NamedTuple):
    """What an entity may use."""

    entity: dict[str, str | None]
    values: dict[str, float]

    def __str__(self) -> str:
        parts = sorted(self.entity.items(), key=lambda part: list(_SHOWN).index(part[0]))
        whose = ", ".join(f"the default {_SHOWN[kind]}" if name is None else f"{_SHOWN[kind]} '{name}'" for kind, name in parts)
        return f"Quota configs for {whose} are {', '.join(f'{key}={_double(value)}' for key, value in self.values.items())}"


class Scram(NamedTuple):
    """How a user may prove who it is."""

    user: str
    credentials: tuple[Credential, ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{one.mechanism}=iterations={one.iterations}" for one in self.credentials)
        return f"SCRAM credential configs for user-principal '{self.user}' are {shown}"


def describe(cluster: Cluster, found: Sequence[Entity]) -> tuple[list[Quotas], list[Scram]]:
    """Quotas of those who are meant; for users alone, also their credentials."""
    wanted = {_PARTS[one.type]: Anyone() if one.name is None else one.name or None for one in found}
    quotas = [Quotas(dict(entity), values) for entity, values in describe_quotas(cluster, wanted, strict=True).items()]
    (first, *others) = found
    if others or first.type != USERS or first.name == DEFAULT:
        return quotas, []
    users = describe_users(cluster, None if first.name is None else [first.name])
    return quotas, [Scram(user, credentials) for user, credentials in users.items() if credentials]


def alter(cluster: Cluster, found: Sequence[Entity], added: Mapping[str, str], deleted: Sequence[str]) -> None:
    """Change quotas, or credentials; not both at once, because that could not be done as one."""
    given = [*added, *deleted]
    credentials = [name for name in given if name in MECHANISMS]
    only_a_user = [one.type for one in found] == [USERS] and found[0].name != DEFAULT
    if credentials and only_a_user:
        if len(credentials) != len(given):
            raise Failure("Quotas and SCRAM credentials cannot be changed at once: use two commands.")
        _alter_credentials(cluster, found[0].name or "", added, deleted)
        return
    allowed = _QUOTAS[found[0].type]
    unknown = [name for name in given if name not in allowed]
    if unknown:
        raise Failure(f"{', '.join(unknown)} is no quota of {found[0].type}: allowed are {', '.join(allowed)}.")
    _alter_quotas(cluster, found, added, deleted)


def _alter_quotas(cluster: Cluster, found: Sequence[Entity], added: Mapping[str, str], deleted: Sequence[str]) -> None:
    changes: dict[str, float | None] = {}
    for name, value in added.items():
        try:
            changes[name] = float(value)
        except ValueError:
            raise Failure(f"{name}={value} is not valid: allowed is a number.") from None
    entity = tuple((_PARTS[one.type], one.name or None) for one in found)
    if deleted:
        known = describe_quotas(cluster, dict(entity), strict=True)
        unset = [name for name in deleted if not any(name in values for values in known.values())]
        if unset:
            raise Failure(f"Nothing is set that could be deleted: {', '.join(unset)}.")
        changes |= dict.fromkeys(deleted, None)
    for refused in alter_quotas(cluster, {entity: changes}).values():
        if refused is not None:
            raise refused


def _alter_credentials(cluster: Cluster, user: str, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    new = []
    for mechanism, text in added.items():
        match = _CREDENTIAL.fullmatch(text)
        if match is None:
            raise Failure(f"{mechanism} of user {user} is not valid: allowed is {mechanism}=[iterations=8192,password=SECRET].")
        iterations = int(match["iterations"] or _FEWEST_ITERATIONS)
        if iterations == -1:
            iterations = _FEWEST_ITERATIONS
        if not _FEWEST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
            raise Failure(f"iterations={iterations} is not valid: allowed is {_FEWEST_ITERATIONS} to {_MOST_ITERATIONS}.")
        new.append(NewCredential(user, mechanism, iterations, match["password"]))
    for refused in alter_users(cluster, new, [(user, mechanism) for mechanism in deleted]).values():
        if refused is not None:
            raise refused


def _double(value: float) -> str:
    """A number as Java prints it."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    shown = "".join(map(str, digits))
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{len(shown) - 1 + int(exponent)}"
