"""The whole configuration: fallbacks, what was set and what was not, listeners, and what only all together can tell."""

from __future__ import annotations

import pytest

from ottla.config import BrokerConfig, ConfigError, Listener, check_topic_settings, topic_values

HOUR = 3_600_000


def test_without_a_file() -> None:
    config = BrokerConfig()
    assert config.listeners == [Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]
    assert config.log_dirs == ["./ottla-data"]
    assert config.text("zookeeper.connect") == ""
    assert config.unknown == []
    assert config.set_by_user == {}


@pytest.mark.parametrize(
    ("given", "setting", "value"),
    [
        ({}, "retention.ms", 168 * HOUR),
        ({"log.retention.hours": "2"}, "retention.ms", 2 * HOUR),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, "retention.ms", 300_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "5", "log.retention.ms": "7"}, "retention.ms", 7),
        ({"log.retention.hours": "-1"}, "retention.ms", -1),
        ({"log.roll.hours": "1"}, "segment.ms", HOUR),
        ({"log.roll.hours": "1", "log.roll.ms": "10"}, "segment.ms", 10),
        ({"log.roll.jitter.hours": "1"}, "segment.jitter.ms", HOUR),
        ({"log.segment.bytes": "1048576"}, "segment.bytes", 1 << 20),
        ({"message.max.bytes": "1000"}, "max.message.bytes", 1000),
        ({"log.cleanup.policy": "compact,delete"}, "cleanup.policy", ["compact", "delete"]),
        ({"compression.type": "zstd"}, "compression.type", "zstd"),
        ({"min.insync.replicas": "2"}, "min.insync.replicas", 2),
        ({"log.cleaner.min.cleanable.ratio": "0.1"}, "min.cleanable.dirty.ratio", 0.1),
    ],
)
def test_what_a_topic_gets_from_its_broker(given: dict[str, str], setting: str, value: object) -> None:
    assert topic_values(BrokerConfig(given), {})[setting] == value


def test_a_topics_own_setting_wins() -> None:
    values = topic_values(BrokerConfig({"log.retention.ms": "7"}), {"retention.ms": "9", "cleanup.policy": "compact"})
    assert values["retention.ms"] == 9
    assert values["cleanup.policy"] == ["compact"]


@pytest.mark.parametrize(
    ("given", "dirs"),
    [
        ({"log.dir": "/a"}, ["/a"]),
        ({"log.dirs": "/a, /b ,"}, ["/a", "/b"]),
        ({"log.dir": "/a", "log.dirs": "/b"}, ["/b"]),
    ],
)
def test_where_the_data_lies(given: dict[str, str], dirs: list[str]) -> None:
    assert BrokerConfig(given).log_dirs == dirs


def test_unknown_settings_are_kept_apart() -> None:
    config = BrokerConfig({"num.partitons": "3", "num.partitions": "4", "Num.Partitions": "5"})
    assert config.unknown == ["num.partitons", "Num.Partitions"]
    assert config.set_by_user == {"num.partitions": 4}


def test_an_empty_number_means_the_default() -> None:
    config = BrokerConfig({"num.partitions": ""})
    assert config.integer("num.partitions") == 1
    assert "num.partitions" not in config.set_by_user


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLAINTEXT://:9092", [("PLAINTEXT", "", 9092, True)]),
        ("PLAINTEXT://0.0.0.0:0", [("PLAINTEXT", "0.0.0.0", 0, True)]),
        ("plaintext://host:65535", [("PLAINTEXT", "host", 65535, False)]),
        ("PLAINTEXT://[::1]:9092", [("PLAINTEXT", "::1", 9092, False)]),
        ("PLAINTEXT://[::]:9092", [("PLAINTEXT", "::", 9092, True)]),
    ],
)
def test_listeners(text: str, expected: list[tuple[str, str, int, bool]]) -> None:
    listeners = BrokerConfig({"listeners": text}).listeners
    assert [(one.name, one.host, one.port, one.any_address) for one in listeners] == expected


def test_listeners_of_ones_own_names() -> None:
    config = BrokerConfig(
        {
            "listeners": "INSIDE://127.0.0.1:1, OUTSIDE://127.0.0.1:2",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT, OUTSIDE:PLAINTEXT",
            "advertised.listeners": "OUTSIDE://example.org:9092",
        }
    )
    assert [str(one) for one in config.listeners] == ["INSIDE://127.0.0.1:1", "OUTSIDE://127.0.0.1:2"]
    assert [str(one) for one in config.advertised_listeners] == ["OUTSIDE://example.org:9092"]


def test_an_address_with_colons_is_written_in_brackets() -> None:
    assert str(Listener("PLAINTEXT", "PLAINTEXT", "::1", 9)) == "PLAINTEXT://[::1]:9"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"listeners": "127.0.0.1:9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:99999"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:-1"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://127.0.0.1:²"}, "NAME://host:port"),
        ({"listeners": "OTHER://127.0.0.1:9092"}, "OTHER is not in listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "a name of its own"),
        ({"listeners": "SASL_SSL://127.0.0.1:9092"}, "SASL_SSL is not served yet"),
        ({"advertised.listeners": "PLAINTEXT://[::]:9092"}, "name a host"),
        ({"advertised.listeners": "SSL://h:9092"}, "SSL is not one of the names in listeners"),
        ({"log.dirs": " , "}, "list of directories"),
        ({"zookeeper.connect": "z"}, "zookeeper.connect=z is not valid: allowed is host:port"),
        ({"zookeeper.connect": "z:2181,y:99999/kafka"}, "allowed is host:port"),
        ({"zookeeper.set.acl": "true", "zookeeper.connect": "z:2181"}, "zookeeper.set.acl=true cannot be used yet"),
    ],
)
def test_what_cannot_be(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        BrokerConfig(given)
    assert says in str(refusal.value)
    assert next(iter(given)) in str(refusal.value)


def test_what_is_set_while_the_broker_runs_wins_over_its_file() -> None:
    config = BrokerConfig({"log.retention.ms": "1"})
    config.set_dynamic({"log.retention.ms": "2"}, {})
    assert config.integer("log.retention.ms") == 2
    config.set_dynamic({"log.retention.ms": "2"}, {"log.retention.ms": "3"})
    assert config.integer("log.retention.ms") == 3
    assert topic_values(config, {})["retention.ms"] == 3
    config.set_dynamic({}, {})
    assert config.integer("log.retention.ms") == 1


@pytest.mark.parametrize("settings", [[("retention.ms", "1")], [("cleanup.policy", "compact,delete")], []])
def test_topic_settings_that_can_be(settings: list[tuple[str, str]]) -> None:
    check_topic_settings(settings)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("no.such", "1", "Unknown topic config name: no.such"),
        ("log.retention.ms", "1", "Unknown topic config name: log.retention.ms"),
        ("retention.ms", "-2", "retention.ms=-2 is not valid"),
        ("retention.ms", "soon", "retention.ms=soon is not valid"),
        ("max.message.bytes", "-1", "max.message.bytes=-1 is not valid"),
    ],
)
def test_topic_settings_that_cannot_be(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_topic_settings([("retention.ms", "5"), (name, value)])
