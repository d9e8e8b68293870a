"""Which listener brokers use among themselves."""

from __future__ import annotations

import pytest

from ottla.config import BrokerConfig, ConfigError

TWO = {
    "listeners": "OUTSIDE://:9093,INSIDE://:9092",
    "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, "PLAINTEXT"),
        ({**TWO, "inter.broker.listener.name": "INSIDE"}, "INSIDE"),
        ({**TWO, "inter.broker.listener.name": "inside"}, "INSIDE"),
        (TWO, "OUTSIDE"),  # the first that speaks the protocol
        ({**TWO, "listeners": "OUTSIDE://:9093,PLAINTEXT://:9092"}, "PLAINTEXT"),
    ],
)
def test_the_listener_between_brokers(texts: dict[str, str], expected: str) -> None:
    assert BrokerConfig(texts).inter_broker_listener == expected


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ({**TWO, "inter.broker.listener.name": "ELSEWHERE"}, "allowed are the names in listeners, OUTSIDE, INSIDE"),
        ({"security.inter.broker.protocol": "SSL"}, "speaks it"),
        ({**TWO, "inter.broker.listener.name": "INSIDE", "security.inter.broker.protocol": "PLAINTEXT"}, "cannot both be set"),
    ],
)
def test_a_listener_that_cannot_be(texts: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BrokerConfig(texts)
