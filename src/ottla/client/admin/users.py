"""Client quotas, and the SCRAM credentials of users."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, check, refusal
from ottla.model import Error
from ottla.wire.apis.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuota,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntity,
    QuotaFilterComponent,
    QuotaOperation,
)
from ottla.wire.apis.sasl import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_EXACT, _DEFAULT, _ANY = 0, 1, 2  # how a filter matches

Entity = tuple[tuple[str, str | None], ...]
"""Whom a quota is for: (`user`, `client-id` or `ip`) with a name, or None for those without a quota of their own."""


class Anyone(NamedTuple):
    """In a filter: whatever the name."""


class Credential(NamedTuple):
    """How a user may prove who it is; never the secret."""

    mechanism: str
    iterations: int


class NewCredential(NamedTuple):
    """A password to set. It is salted and hashed here and does not leave this process."""

    user: str
    mechanism: str
    iterations: int
    password: str


def describe_quotas(
    cluster: Cluster, wanted: Mapping[str, str | Anyone | None], *, strict: bool = False
) -> dict[Entity, dict[str, float]]:
    """The quotas that match; with `strict`, only those of entities that have no other parts."""
    components = [
        QuotaFilterComponent(
            entity_type=kind,
            match_type=_ANY if isinstance(name, Anyone) else _DEFAULT if name is None else _EXACT,
            match=None if isinstance(name, Anyone) else name,
        )
        for kind, name in wanted.items()
    ]
    request = DescribeClientQuotasRequest(components=components, strict=strict)

    def look() -> dict[Entity, dict[str, float]]:
        answer: DescribeClientQuotasResponse = cluster.ask(request)
        check(answer.error_code, "Quotas cannot be read", answer.error_message)
        return {
            tuple((part.entity_type, part.entity_name) for part in one.entity): {value.key: value.value for value in one.values}
            for one in answer.entries or ()
        }

    return cluster.patiently(look)


def alter_quotas(cluster: Cluster, changes: Mapping[Entity, Mapping[str, float | None]]) -> dict[Entity, ClientError | None]:
    """Set quotas; None removes one. What became of each entity."""
    request = AlterClientQuotasRequest(
        entries=[
            AlterQuota(
                entity=[QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity],
                ops=[
                    QuotaOperation(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in quotas.items()
                ],
            )
            for entity, quotas in changes.items()
        ]
    )

    def alter() -> dict[Entity, ClientError | None]:
        answer: AlterClientQuotasResponse = cluster.ask(request, cluster.controller())
        found: dict[Entity, ClientError | None] = {}
        for one in answer.entries:
            entity = tuple((part.entity_type, part.entity_name) for part in one.entity)
            named = ", ".join(f"{kind} {name or '<default>'}" for kind, name in entity)
            found[entity] = refusal(one.error_code, f"The quotas of {named} were not changed", one.error_message)
        return found

    return cluster.patiently(alter)


def describe_users(cluster: Cluster, users: Sequence[str] | None = None) -> dict[str, tuple[Credential, ...]]:
    """The SCRAM credentials of these users, or of all that have some."""
    request = DescribeUserScramCredentialsRequest(users=None if users is None else [UserName(name=name) for name in users])
    names = {number: name for name, number in MECHANISMS.items()}

    def look() -> dict[str, tuple[Credential, ...]]:
        answer: DescribeUserScramCredentialsResponse = cluster.ask(request)
        check(answer.error_code, "Users cannot be read", answer.error_message)
        found = {}
        for one in answer.results:
            if one.error_code != Error.RESOURCE_NOT_FOUND:
                check(one.error_code, f"The credentials of user {one.user} cannot be read", one.error_message)
            infos = one.credential_infos
            found[one.user] = tuple(Credential(names.get(info.mechanism, "UNKNOWN"), info.iterations) for info in infos)
        return found

    return cluster.patiently(look)


def alter_users(
    cluster: Cluster, upsertions: Sequence[NewCredential] = (), deletions: Sequence[tuple[str, str]] = ()
) -> dict[str, ClientError | None]:
    """Set passwords, and delete credentials by (user, mechanism). What became of each user."""
    prepared = []
    for one in upsertions:
        salt = secrets.token_bytes(24)
        salted = hashlib.pbkdf2_hmac(_HASHES[one.mechanism], one.password.encode(), salt, one.iterations)
        prepared.append(
            ScramCredentialUpsertion(
                name=one.user,
                mechanism=MECHANISMS[one.mechanism],
                iterations=one.iterations,
                salt=salt,
                salted_password=salted,
            )
        )
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=user, mechanism=MECHANISMS[mechanism]) for user, mechanism in deletions],
        upsertions=prepared,
    )

    def alter() -> dict[str, ClientError | None]:
        answer: AlterUserScramCredentialsResponse = cluster.ask(request, cluster.controller())
        return {
            one.user: refusal(one.error_code, f"The credentials of user {one.user} were not changed", one.error_message)
            for one in answer.results
        }

    return cluster.patiently(alter)
