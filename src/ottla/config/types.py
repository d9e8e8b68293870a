"""What a setting is: its name, its type, its default, and what it allows.

A setting is declared once (`broker.py`, `topic.py`); parsing, range checks, the words of an error and DescribeConfigs' type
numbers all come from that one row. Values are typed Python values after parsing; the text form is Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

Value = bool | int | float | str | list[str] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Kind(IntEnum):
    """Kafka's type numbers, as DescribeConfigs sends them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(IntEnum):
    """Where a value comes from, in Kafka's numbers; a smaller number wins."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigError(ValueError):
    """A setting that cannot be used: one line that names the key, the value and what is allowed."""


@dataclass(slots=True, frozen=True)
class Setting:
    """One row of the settings table."""

    name: str
    kind: Kind
    default: Value
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    # Other names that supply this setting's value when it is not set itself, best first, each with its factor
    # (log.retention.hours supplies log.retention.ms with 3,600,000).
    fallbacks: tuple[tuple[str, int], ...] = ()
    dynamic: bool = False
    check: Callable[[str], str | None] | None = None

    @property
    def allowed(self) -> str:
        """In words, what this setting takes."""
        if self.choices:
            return ("a list of: " if self.kind is Kind.LIST else "one of: ") + ", ".join(self.choices)
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.kind in (Kind.INT, Kind.SHORT, Kind.LONG, Kind.DOUBLE):
            what = "a number" if self.kind is Kind.DOUBLE else "a whole number"
            low = f" from {self.low:g}" if self.low is not None else ""
            high = f" up to {self.high:g}" if self.high is not None else ""
            return what + low + high
        return "a comma-separated list" if self.kind is Kind.LIST else "text"

    def refuse(self, text: object, why: str = "") -> ConfigError:
        """The error for a value that this setting does not take."""
        reason = f" ({why})" if why else ""
        return ConfigError(f"{self.name}={text} is not valid{reason}: allowed is {self.allowed}")

    def parse(self, text: str) -> Value:
        """The typed value of `text`; raises ConfigError with a full sentence."""
        text = text.strip()
        value: Value
        if self.kind is Kind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self.refuse(text)
            return text.lower() == "true"
        if self.kind in (Kind.INT, Kind.SHORT, Kind.LONG, Kind.DOUBLE):
            try:
                if not text.isascii() or "_" in text:  # Python would take ٣ and 1_000
                    raise ValueError
                number = float(text) if self.kind is Kind.DOUBLE else int(text)
            except ValueError:
                raise self.refuse(text) from None
            top = {Kind.INT: INT_MAX, Kind.SHORT: 2**15 - 1, Kind.LONG: LONG_MAX}.get(self.kind)
            if (top is not None and not -top - 1 <= number <= top) or number != number:  # noqa: PLR0124 - NaN
                raise self.refuse(text, "out of the type's range")
            if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
                raise self.refuse(text)
            return number
        if self.kind is Kind.LIST:
            value = [part.strip() for part in text.split(",") if part.strip()]
            if self.choices and not set(value) <= set(self.choices):
                raise self.refuse(text)
        else:
            value = text
            if self.choices and text not in self.choices:
                raise self.refuse(text)
        if self.check is not None:
            why = self.check(text)
            if why:
                raise ConfigError(f"{self.name}={text} is not valid: {why}")
        return value


def to_text(value: Value) -> str | None:
    """The form of a value in a properties file and in DescribeConfigs."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return str(value)


def boolean(name: str, default: bool, *, dynamic: bool = False, fallbacks: tuple[tuple[str, int], ...] = ()) -> Setting:
    return Setting(name, Kind.BOOLEAN, default, dynamic=dynamic, fallbacks=fallbacks)


def integer(
    name: str,
    default: int | None,
    low: float | None = None,
    high: float | None = None,
    *,
    dynamic: bool = False,
    fallbacks: tuple[tuple[str, int], ...] = (),
) -> Setting:
    return Setting(name, Kind.INT, default, low, high, dynamic=dynamic, fallbacks=fallbacks)


def short(name: str, default: int, low: float | None = None, high: float | None = None) -> Setting:
    return Setting(name, Kind.SHORT, default, low, high)


def long(
    name: str,
    default: int | None,
    low: float | None = None,
    high: float | None = None,
    *,
    dynamic: bool = False,
    fallbacks: tuple[tuple[str, int], ...] = (),
) -> Setting:
    return Setting(name, Kind.LONG, default, low, high, dynamic=dynamic, fallbacks=fallbacks)


def double(
    name: str,
    default: float,
    low: float | None = None,
    high: float | None = None,
    *,
    dynamic: bool = False,
    fallbacks: tuple[tuple[str, int], ...] = (),
) -> Setting:
    return Setting(name, Kind.DOUBLE, default, low, high, dynamic=dynamic, fallbacks=fallbacks)


def string(
    name: str,
    default: str | None,
    *choices: str,
    dynamic: bool = False,
    fallbacks: tuple[tuple[str, int], ...] = (),
    check: Callable[[str], str | None] | None = None,
) -> Setting:
    return Setting(name, Kind.STRING, default, choices=choices, dynamic=dynamic, fallbacks=fallbacks, check=check)


def listing(
    name: str, default: str, *choices: str, dynamic: bool = False, fallbacks: tuple[tuple[str, int], ...] = ()
) -> Setting:
    parts = [part for part in default.split(",") if part]
    return Setting(name, Kind.LIST, parts, choices=choices, dynamic=dynamic, fallbacks=fallbacks)


def klass(name: str, default: str | None) -> Setting:
    return Setting(name, Kind.CLASS, default)


def password(name: str, default: str | None = None) -> Setting:
    return Setting(name, Kind.PASSWORD, default)
