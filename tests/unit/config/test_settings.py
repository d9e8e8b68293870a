"""One setting: its type, its range, and the words of a refusal."""

from __future__ import annotations

import pytest

from ottla.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError, Kind, Setting, to_text
from ottla.config.types import boolean, double, integer, klass, listing, long, password, short, string

ALL = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (boolean("b", False), "true", True),
        (boolean("b", True), " FALSE ", False),
        (integer("i", 0), "-7", -7),
        (integer("i", 0), "+7", 7),
        (integer("i", 0), "2147483647", 2**31 - 1),
        (integer("i", 0), "-2147483648", -(2**31)),
        (integer("i", 0, 1, 9), "1", 1),
        (integer("i", 0, 1, 9), "9", 9),
        (short("s", 0), "32767", 32767),
        (long("l", 0), "9223372036854775807", 2**63 - 1),
        (double("d", 0.5), "0.25", 0.25),
        (double("d", 0.5), "1e3", 1000.0),
        (double("d", 0.5, 0, 1), "1", 1.0),
        (string("t", None), " kept ", "kept"),
        (string("t", "a", "a", "b"), "b", "b"),
        (listing("l", ""), "x, y,,z ", ["x", "y", "z"]),
        (listing("l", ""), "", []),
        (listing("l", "delete", "compact", "delete"), "compact,delete", ["compact", "delete"]),
        (klass("c", None), "org.example.Policy", "org.example.Policy"),
        (password("p"), "s3cret", "s3cret"),
    ],
)
def test_what_is_taken(setting: Setting, text: str, value: object) -> None:
    parsed = setting.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("setting", "text", "allowed"),
    [
        (boolean("b", False), "yes", "true or false"),
        (boolean("b", False), "", "true or false"),
        (integer("i", 0), "", "a whole number"),
        (integer("i", 0), "ten", "a whole number"),
        (integer("i", 0), "1.5", "a whole number"),
        (integer("i", 0), "1_000", "a whole number"),
        (integer("i", 0), "٣", "a whole number"),
        (integer("i", 0), "2147483648", "out of the type's range"),
        (integer("i", 0), "-2147483649", "out of the type's range"),
        (integer("i", 0), "9" * 5000, "a whole number"),
        (integer("i", 0, 1), "0", "a whole number from 1"),
        (integer("i", 0, -1, 9), "10", "a whole number from -1 up to 9"),
        (short("s", 0), "32768", "out of the type's range"),
        (long("l", 0), "9223372036854775808", "out of the type's range"),
        (double("d", 0.5), "nan", "a number"),
        (double("d", 0.5), "half", "a number"),
        (double("d", 0.5, 0, 1), "1.01", "a number from 0 up to 1"),
        (string("t", "a", "a", "b"), "c", "one of: a, b"),
        (string("t", "a", "a", "b"), "A", "one of: a, b"),
        (listing("l", "delete", "compact", "delete"), "compact,burn", "a list of: compact, delete"),
        (TOPIC_SETTINGS["leader.replication.throttled.replicas"], "0-1", "partition:broker"),
    ],
)
def test_what_is_refused(setting: Setting, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        setting.parse(text)
    sentence = str(refusal.value)
    assert sentence.startswith(f"{setting.name}={text} is not valid")
    assert allowed in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("text", ["", "*", "0:1", "0:1,1:2", " 0:1 , 1:2 "])
def test_throttled_replicas(text: str) -> None:
    TOPIC_SETTINGS["follower.replication.throttled.replicas"].parse(text)


@pytest.mark.parametrize("setting", ALL, ids=lambda one: one.name)
def test_every_default_is_allowed_by_its_own_row(setting: Setting) -> None:
    text = to_text(setting.default)
    if text is not None and not (text == "" and setting.kind not in (Kind.STRING, Kind.LIST, Kind.CLASS)):
        assert setting.parse(text) == setting.default


@pytest.mark.parametrize("setting", [one for one in ALL if one.low is not None], ids=lambda one: one.name)
def test_every_low_bound_holds(setting: Setting) -> None:
    assert setting.low is not None
    assert setting.parse(f"{setting.low:.0f}") == setting.low
    with pytest.raises(ConfigError):
        setting.parse(f"{setting.low - 1:.0f}")


@pytest.mark.parametrize("setting", [one for one in ALL if one.high is not None], ids=lambda one: one.name)
def test_every_high_bound_holds(setting: Setting) -> None:
    assert setting.high is not None
    assert setting.parse(f"{setting.high:.0f}") == setting.high
    with pytest.raises(ConfigError):
        setting.parse(f"{setting.high + 1:.0f}")


def test_every_fallback_of_a_topic_setting_is_a_broker_setting() -> None:
    assert {name for setting in TOPIC_SETTINGS.values() for name, _ in setting.fallbacks} <= BROKER_SETTINGS.keys()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (True, "true"), (False, "false"), (7, "7"), (0.5, "0.5"), (["a", "b"], "a,b"), ([], ""), ("x", "x")],
)
def test_values_as_kafka_writes_them(value: object, text: str | None) -> None:
    assert to_text(value) == text  # type: ignore[arg-type]
