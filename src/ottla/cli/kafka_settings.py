"""Properties of Apache Kafka's clients as librdkafka takes them: what a script passes with --producer-property carries over.

Guards: a setting means the same here as there. Where the two have different names or values, the table below translates; where
librdkafka has nothing of the kind, the setting is left out, and the person is told so once. Defaults that matter to what is
written are Apache's: keys find the same partitions, producers are idempotent unless the other settings forbid it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ottla.cli.tool import Failure, read_properties
from ottla.client.settings import jaas_credentials

Settings = dict[str, str]

_RENAMED: Final = {
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
# They choose Java classes or tune what another client has no counterpart for: nobody needs to hear that they do nothing.
_SILENT: Final = frozenset(
    {
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "max.poll.records",
        "exclude.internal.topics",
        "default.api.timeout.ms",
        "max.block.ms",
    }
)
_ASSIGNORS: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_PKCS12: Final = (".p12", ".pfx", ".pkcs12")


def parse_pairs(pairs: Iterable[str]) -> Settings:
    """`key=value` each; the value may hold further equals signs, or be missing, which makes it empty."""
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def properties_in(path: str | None, option: str) -> Settings:
    """What stands in the properties file that an option names; nothing where it names none."""
    return {} if path is None else read_properties(path, option)


def producer_settings(properties: Mapping[str, str]) -> Settings:
    """A producer as Apache's would be with these properties."""
    settings = _translate(properties)
    settings.setdefault("partitioner", "murmur2_random")  # the hash of Apache's producer
    settings.setdefault("queue.buffering.max.kbytes", "32768")
    settings.setdefault("queue.buffering.max.messages", "0")  # bytes are the limit, as they are there
    acks = settings.setdefault("acks", "all")
    if settings.get("transactional.id"):
        return settings  # idempotent by nature, and its records wait no longer than its transaction
    settings.setdefault("delivery.timeout.ms", "120000")
    may_be = acks in {"all", "-1"} and settings.get("retries") != "0" and _in_flight(settings) <= 5
    settings.setdefault("enable.idempotence", "true" if may_be else "false")
    return settings


def consumer_settings(properties: Mapping[str, str]) -> Settings:
    """A consumer as Apache's would be with these properties; offsets are stored by hand, once a record is done with."""
    settings = _translate(properties)
    if "request.timeout.ms" in settings:
        settings["socket.timeout.ms"] = settings.pop("request.timeout.ms")
    settings.setdefault("check.crcs", "true")
    # Once enough is fetched ahead, librdkafka rests for a second unless told otherwise: long enough to run dry.
    settings.setdefault("fetch.queue.backoff.ms", "10")
    settings.setdefault("allow.auto.create.topics", "true")
    settings.setdefault("enable.auto.offset.store", "false")
    if settings.get("group.protocol", "").lower() == "consumer":
        # The broker decides these in the new protocol, and librdkafka refuses to hear them.
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            settings.pop(name, None)
    return settings


def _in_flight(settings: Settings) -> int:
    text = settings.get("max.in.flight.requests.per.connection", "5")
    return int(text) if text.isascii() and text.isdigit() else 5


def _translate(properties: Mapping[str, str]) -> Settings:
    settings: Settings = {}
    for name, value in properties.items():
        if name in _SPECIAL:
            settings |= _SPECIAL[name](value)
        elif name not in _SILENT:
            settings[_RENAMED.get(name, name)] = value
    for name in ("socket.send.buffer.bytes", "socket.receive.buffer.bytes"):
        if settings.get(name) == "-1":  # both say in their own way: what the system thinks best
            settings[name] = "0"
    _translate_keystore(settings)
    return settings


def _buffer_memory(value: str) -> Settings:
    return {"queue.buffering.max.kbytes": str(max(1, int(value) // 1024)) if value.isdigit() else value}


def _offset_reset(value: str) -> Settings:
    return {"auto.offset.reset": "error" if value == "none" else value}


def _assignors(value: str) -> Settings:
    names = []
    for one in filter(None, map(str.strip, value.split(","))):
        plain = one.rpartition(".")[2]
        if plain not in _ASSIGNORS and one not in _ASSIGNORS.values():
            allowed = ", ".join((*_ASSIGNORS, *_ASSIGNORS.values()))
            raise Failure(f"partition.assignment.strategy={one} cannot be used with librdkafka: allowed are {allowed}")
        names.append(_ASSIGNORS.get(plain, one))
    return {"partition.assignment.strategy": ",".join(names)}


def _jaas(value: str) -> Settings:
    return {f"sasl.{part}": content for part, content in jaas_credentials(value).items()}


def _identification(value: str) -> Settings:
    return {"ssl.endpoint.identification.algorithm": value.lower() or "none"}


def _truststore(value: str) -> Settings:
    return {"ssl.ca.location": value}


_SPECIAL: Final[dict[str, Callable[[str], Settings]]] = {
    "auto.offset.reset": _offset_reset,
    "buffer.memory": _buffer_memory,
    "partition.assignment.strategy": _assignors,
    "sasl.jaas.config": _jaas,
    "ssl.endpoint.identification.algorithm": _identification,
    "ssl.truststore.location": _truststore,
    "ssl.truststore.password": lambda _: {},
    "ssl.truststore.type": lambda _: {},
}


def _translate_keystore(settings: Settings) -> None:
    """A keystore is PKCS#12 for both; as PEM, Apache's client has key and certificates in one file."""
    kind = settings.pop("ssl.keystore.type", None)
    path = settings.get("ssl.keystore.location")
    if path is not None and (kind == "PEM" or (kind is None and not path.lower().endswith(_PKCS12))):
        del settings["ssl.keystore.location"]
        settings["ssl.certificate.location"] = settings["ssl.key.location"] = path


NO_SUCH: Final = re.compile(r'No such configuration property: "([^"]+)"')
"""How librdkafka says that it does not know a setting."""
