"""What the console is asked for: fields that are what they should be, and words for what cannot be meant. No web framework."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from ottla.client.errors import AuthenticationFailed, BrokerUnreachable, UnsupportedByBroker
from ottla.model import Error, KafkaError

_STATUS = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: HTTPStatus.NOT_FOUND,
    Error.GROUP_ID_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Error.TRANSACTIONAL_ID_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Error.TOPIC_ALREADY_EXISTS: HTTPStatus.CONFLICT,
    Error.NON_EMPTY_GROUP: HTTPStatus.CONFLICT,
    Error.GROUP_SUBSCRIBED_TO_TOPIC: HTTPStatus.CONFLICT,
}


class BadRequest(Exception):
    """What was asked for cannot be meant, or not any more; the words say what is allowed."""

    def __init__(self, why: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(why)
        self.status = status


class Body:
    """What an action was given, field by field."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @property
    def fields(self) -> Mapping[str, Any]:
        """All of them, to be handed on."""
        return self._fields

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def text(self, name: str) -> str:
        found = self._fields.get(name)
        if not isinstance(found, str):
            raise BadRequest(f"{name} is missing: it is a text.")
        return found

    def number(self, name: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
        return number(name, self._fields.get(name), least, most)

    def sequence(self, name: str) -> list[Any]:
        found = self._fields.get(name, [])
        if not isinstance(found, list):
            raise BadRequest(f"{name} is not a list.")
        return found

    def items(self, name: str) -> list[Body]:
        """A list of things that have fields themselves."""
        found = self.sequence(name)
        if not all(isinstance(one, dict) for one in found):
            raise BadRequest(f"{name} is not a list of objects.")
        return [Body(one) for one in found]

    def mapping(self, name: str) -> dict[str, str]:
        found = self._fields.get(name, {})
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise BadRequest(f"{name} does not give a text for each name.")
        return found

    def part(self, name: str) -> Body | None:
        found = self._fields.get(name)
        return Body(found) if isinstance(found, dict) else None

    def confirmed(self, name: str) -> None:
        """What cannot be taken back is confirmed by its name, here too: not only by the page."""
        if self._fields.get("confirm") != name:
            raise BadRequest(f"Not confirmed: type {name} to do it.")


def number(name: str, given: object, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
    """A whole number of a request, as a number or as text."""
    try:
        found = int(given) if isinstance(given, str | int) and not isinstance(given, bool) else None
    except ValueError:
        found = None
    if found is None or not least <= found <= most:
        raise BadRequest(f"{name} is not valid: allowed is a whole number from {least} to {most}.")
    return found


def status_of(problem: KafkaError) -> HTTPStatus:
    """What a refusal of the cluster is called in HTTP."""
    if isinstance(problem, BrokerUnreachable | AuthenticationFailed):
        return HTTPStatus.BAD_GATEWAY
    if isinstance(problem, UnsupportedByBroker):
        return HTTPStatus.NOT_IMPLEMENTED
    return _STATUS.get(problem.error, HTTPStatus.UNPROCESSABLE_ENTITY)
