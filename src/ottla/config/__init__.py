"""Every setting once: the broker's configuration as one typed object.

`BrokerConfig` is built from the text of a properties file and overrides, checks all of it at once, and afterwards is only read.
What was set by the user is kept apart from defaults, because DescribeConfigs tells the difference and because a default may be
fitted to the cluster (a cluster of one cannot hold three replicas) where a user's word may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.config.broker import BROKER_SETTINGS
from ottla.config.properties import parse_properties
from ottla.config.topic import TOPIC_SETTINGS
from ottla.config.types import ConfigError, Kind, Setting, Source, Value, to_text

__all__ = [
    "BROKER_SETTINGS",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "ConfigError",
    "Kind",
    "Listener",
    "Setting",
    "Source",
    "Value",
    "check_dynamic_settings",
    "check_topic_settings",
    "parse_properties",
    "to_text",
    "topic_values",
]

_ANY_ADDRESS = ("", "0.0.0.0", "::")


@dataclass(slots=True, frozen=True)
class Listener:
    """One address the broker listens on, or tells clients."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def any_address(self) -> bool:
        """Whether this means every address of the machine, which no client can connect to by name."""
        return self.host in _ANY_ADDRESS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class BrokerConfig:
    """The broker's settings, typed. `config["num.io.threads"]` gives a value, never text."""

    __slots__ = ("_values", "dynamic_broker", "dynamic_default", "given", "set_by_user", "unknown")

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self.set_by_user: dict[str, Value] = {}
        self.dynamic_default: dict[str, Value] = {}
        self.dynamic_broker: dict[str, Value] = {}
        self.unknown: list[str] = []
        for name, text in (texts or {}).items():
            setting = BROKER_SETTINGS.get(name)
            if setting is None:
                self.unknown.append(name)
            elif text != "" or setting.kind in (Kind.STRING, Kind.LIST, Kind.CLASS):
                self.set_by_user[name] = setting.parse(text)
        self._resolve_all()
        self._check_together()

    def set_dynamic(self, default: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take over what was set while brokers run, for all of them and for this one."""
        self.dynamic_default = {name: BROKER_SETTINGS[name].parse(text) for name, text in default.items()}
        self.dynamic_broker = {name: BROKER_SETTINGS[name].parse(text) for name, text in own.items()}
        self._resolve_all()

    def _resolve_all(self) -> None:
        self.given = {**self.set_by_user, **self.dynamic_default, **self.dynamic_broker}
        self._values = {name: _resolve(setting, self.given, BROKER_SETTINGS) for name, setting in BROKER_SETTINGS.items()}

    def sources(self, name: str) -> list[tuple[Source, Value]]:
        """Everywhere a setting was set, what is in force first."""
        layers = (
            (Source.DYNAMIC_BROKER, self.dynamic_broker),
            (Source.DYNAMIC_DEFAULT, self.dynamic_default),
            (Source.STATIC_BROKER, self.set_by_user),
        )
        return [(source, values[name]) for source, values in layers if name in values]

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def integer(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int), name
        return value

    def text(self, name: str) -> str:
        value = self._values[name]
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool:
        return self._values[name] is True

    def names(self, name: str) -> frozenset[str]:
        value = self._values[name]
        assert isinstance(value, list), name
        return frozenset(value)

    @property
    def log_dirs(self) -> list[str]:
        return [part.strip() for part in self.text("log.dirs").split(",") if part.strip()]

    @property
    def listeners(self) -> list[Listener]:
        return self._parse_listeners("listeners", self.text("listeners"))

    @property
    def advertised_listeners(self) -> list[Listener]:
        """What clients are told; empty where the bound address is to be told."""
        return self._parse_listeners("advertised.listeners", self.text("advertised.listeners"))

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener through which brokers reach each other: the one that is named for it, else the one of
        security.inter.broker.protocol."""
        name, protocol = self.text("inter.broker.listener.name").upper(), self.text("security.inter.broker.protocol")
        listeners = self.listeners
        names = [listener.name for listener in listeners]
        if name:
            if "security.inter.broker.protocol" in self.set_by_user:
                raise ConfigError(
                    "inter.broker.listener.name and security.inter.broker.protocol cannot both be set: remove one"
                )
            if name not in names:
                raise ConfigError(
                    f"inter.broker.listener.name={name} is not valid: allowed are the names in listeners, {', '.join(names)}"
                )
            return name
        speaking = [listener.name for listener in listeners if listener.protocol == protocol]
        if not speaking:
            raise ConfigError(
                f"security.inter.broker.protocol={protocol} is not valid: none of listeners={self.text('listeners')} speaks it"
            )
        return protocol if protocol in speaking else speaking[0]

    def _parse_listeners(self, key: str, text: str) -> list[Listener]:
        protocols = dict(
            part.strip().split(":", 1) for part in self.text("listener.security.protocol.map").split(",") if ":" in part
        )
        result: list[Listener] = []
        for part in (piece.strip() for piece in text.split(",") if piece.strip()):
            name, separator, address = part.partition("://")
            host, colon, port = address.rpartition(":")
            if not separator or not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
                raise ConfigError(
                    f"{key}={text} is not valid: allowed is a list of NAME://host:port, such as PLAINTEXT://0.0.0.0:9092"
                )
            name = name.upper()
            protocol = protocols.get(name)
            if protocol is None:
                raise ConfigError(f"{key}={text} is not valid: listener {name} is not in listener.security.protocol.map")
            result.append(Listener(name, protocol, host.strip("[]"), int(port)))
        if len({listener.name for listener in result}) != len(result):
            raise ConfigError(f"{key}={text} is not valid: each listener needs a name of its own")
        return result

    def _check_together(self) -> None:
        """What one setting alone cannot tell."""
        listeners = self.listeners
        if not listeners:
            raise ConfigError(
                "listeners= is not valid: allowed is a list of NAME://host:port, such as PLAINTEXT://127.0.0.1:9092"
            )
        for listener in listeners:
            if listener.protocol != "PLAINTEXT":
                raise ConfigError(
                    f"listeners={self.text('listeners')} is not valid: {listener.protocol} is not served yet, only PLAINTEXT"
                )
        for listener in self.advertised_listeners:
            if listener.any_address:
                raise ConfigError(
                    f"advertised.listeners={self.text('advertised.listeners')} is not valid: "
                    "clients cannot connect to an address that means all addresses; name a host"
                )
            if listener.name not in {bound.name for bound in listeners}:
                raise ConfigError(
                    f"advertised.listeners={self.text('advertised.listeners')} is not valid: "
                    f"{listener.name} is not one of the names in listeners"
                )
        self.inter_broker_listener  # noqa: B018 - raises where there is none
        if not self.log_dirs:
            raise ConfigError("log.dirs= is not valid: allowed is a comma-separated list of directories")
        self._check_zookeeper()

    def _check_zookeeper(self) -> None:
        address = self.text("zookeeper.connect")
        if not address:
            return
        for server in address.partition("/")[0].split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
                raise ConfigError(
                    f"zookeeper.connect={address} is not valid: allowed is host:port[,host:port...][/chroot], "
                    "such as 127.0.0.1:2181/kafka"
                )
        for name in ("zookeeper.set.acl", "zookeeper.ssl.client.enable"):
            if self.flag(name):
                raise ConfigError(f"{name}=true cannot be used yet: ZooKeeper is spoken to without TLS and access lists")


def _resolve(setting: Setting, given: Mapping[str, Value], settings: Mapping[str, Setting]) -> Value:
    """The value in force: what was set, else what a fallback was set to, else the default (a fallback's, if this has none)."""
    if setting.name in given:
        return given[setting.name]
    for name, factor in setting.fallbacks:
        if given.get(name) is not None:
            return _scaled(given[name], factor)
    if setting.default is None:
        for name, factor in setting.fallbacks:
            if settings[name].default is not None:
                return _scaled(settings[name].default, factor)
    return setting.default


def _scaled(value: Value, factor: int) -> Value:
    if factor == 1 or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else value


def topic_values(config: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Every topic setting, typed: the topic's own where it has one, else the broker's default for topics."""
    values: dict[str, Value] = {}
    for name, setting in TOPIC_SETTINGS.items():
        if name in overrides:
            values[name] = setting.parse(overrides[name])
        else:
            values[name] = _broker_default(config, setting)
    return values


def _broker_default(config: BrokerConfig, setting: Setting) -> Value:
    for name, factor in setting.fallbacks:
        if config.given.get(name) is not None:
            return _scaled(config.given[name], factor)
    return setting.default


def check_dynamic_settings(names: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigError for the first setting that a running broker does not take."""
    for name, text in names:
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"Unknown broker config name: {name}")
        if not setting.dynamic:
            raise ConfigError(f"{name} cannot be changed while the broker runs: change its properties and restart it")
        setting.parse(text)


def check_topic_settings(names: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigError for the first setting that a topic does not have, or does not take."""
    for name, text in names:
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"Unknown topic config name: {name}")
        setting.parse(text)
