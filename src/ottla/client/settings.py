"""How to reach a cluster, and who we are: settings under the names that librdkafka and the Java client use for them.

Where the two differ, both names are known: `ssl.ca.location` and `ssl.truststore.location` (as PEM), `sasl.username` with
`sasl.password` and `sasl.jaas.config`, `sasl.mechanism` and `sasl.mechanisms`. Settings that only tune another client are taken
and left alone; a value that cannot be meant is refused with what is allowed.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.client.errors import InvalidSetting
from ottla.model import SECURITY_PROTOCOLS
from ottla.records.codecs import BY_NAME as CODECS

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ADDRESS = re.compile(r"(?:[A-Z_]+://)?(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]/]+)):(?P<port>[0-9]{1,5})")
_JAAS = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(f"a number of at least {least}")
        return number

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    by_folded = {one.upper(): one for one in allowed}

    def parse(text: str) -> str:
        if text.upper() not in by_folded:
            raise ValueError(f"one of {', '.join(allowed)}")
        return by_folded[text.upper()]

    return parse


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _addresses(text: str) -> tuple[Address, ...]:
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _ADDRESS.fullmatch(part)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise ValueError("HOST:PORT, several separated by commas")
        found.append(Address(match["ipv6"] or match["host"], int(match["port"])))
    if not found:
        raise ValueError("HOST:PORT, several separated by commas")
    return tuple(found)


def _acks(text: str) -> int:
    number = -1 if text.lower() == "all" else int(text)
    if number not in (-1, 0, 1):
        raise ValueError("all, 1 or 0")
    return number


@dataclass(frozen=True, slots=True)
class Settings:
    """One field for each setting that counts here; the name in Kafka's settings is in its metadata."""

    bootstrap: tuple[Address, ...]
    client_id: str = "ottla"
    rack: str = ""
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_ca: str | None = None
    ssl_ca_pem: str | None = field(default=None, repr=False)
    ssl_certificate: str | None = None
    ssl_key: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_identification: str = "https"
    ssl_verify: bool = True
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    fetch_wait_ms: int = 500
    fetch_min_bytes: int = 1
    check_crcs: bool = True
    isolation: str = "read_uncommitted"
    batch_size: int = 512 * 1024
    request_size: int = 4 * 1024 * 1024
    codec: str = "none"
    acks: int = -1
    idempotence: bool = True
    delivery_timeout_ms: int = 120_000
    transaction_timeout_ms: int = 60_000

    @property
    def tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    def ssl_context(self) -> ssl.SSLContext:
        """What TLS connections are made with."""
        try:
            context = ssl.create_default_context(cafile=self.ssl_ca, cadata=self.ssl_ca_pem)
            if self.ssl_certificate is not None:
                context.load_cert_chain(self.ssl_certificate, self.ssl_key, self.ssl_key_password)
        except (OSError, ssl.SSLError) as problem:
            where = ", ".join(filter(None, (self.ssl_ca, self.ssl_certificate, self.ssl_key)))
            raise InvalidSetting(f"The TLS certificates cannot be loaded from {where}: {problem}") from None
        context.check_hostname = self.ssl_verify and self.ssl_identification == "https"
        if not self.ssl_verify:
            context.verify_mode = ssl.CERT_NONE
        return context


_DEFAULTS = Settings(bootstrap=())
_Parse = Callable[[str], Any]
_NAMES: dict[str, tuple[str, _Parse]] = {
    "bootstrap.servers": ("bootstrap", _addresses),
    "metadata.broker.list": ("bootstrap", _addresses),
    "client.id": ("client_id", str),
    "client.rack": ("rack", str),
    "security.protocol": ("security_protocol", _one_of(*SECURITY_PROTOCOLS)),
    "sasl.mechanism": ("sasl_mechanism", _one_of(*MECHANISMS)),
    "sasl.mechanisms": ("sasl_mechanism", _one_of(*MECHANISMS)),
    "sasl.username": ("sasl_username", str),
    "sasl.password": ("sasl_password", str),
    "ssl.ca.location": ("ssl_ca", str),
    "ssl.truststore.location": ("ssl_ca", str),
    "ssl.ca.pem": ("ssl_ca_pem", str),
    "ssl.truststore.certificates": ("ssl_ca_pem", str),
    "ssl.certificate.location": ("ssl_certificate", str),
    "ssl.keystore.location": ("ssl_certificate", str),
    "ssl.key.location": ("ssl_key", str),
    "ssl.key.password": ("ssl_key_password", str),
    "ssl.endpoint.identification.algorithm": ("ssl_identification", _one_of("https", "none", "")),
    "enable.ssl.certificate.verification": ("ssl_verify", _flag),
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", _number(1)),
    "request.timeout.ms": ("request_timeout_ms", _number(1)),
    "socket.timeout.ms": ("request_timeout_ms", _number(1)),
    "default.api.timeout.ms": ("api_timeout_ms", _number(1)),
    "retry.backoff.ms": ("retry_backoff_ms", _number(1)),
    "fetch.max.wait.ms": ("fetch_wait_ms", _number(0)),
    "fetch.wait.max.ms": ("fetch_wait_ms", _number(0)),
    "fetch.min.bytes": ("fetch_min_bytes", _number(0)),
    "check.crcs": ("check_crcs", _flag),
    "isolation.level": ("isolation", _one_of("read_uncommitted", "read_committed")),
    "batch.size": ("batch_size", _number(1)),
    "max.request.size": ("request_size", _number(1)),
    "message.max.bytes": ("request_size", _number(1)),
    "compression.type": ("codec", _one_of(*CODECS)),
    "compression.codec": ("codec", _one_of(*CODECS)),
    "acks": ("acks", _acks),
    "request.required.acks": ("acks", _acks),
    "enable.idempotence": ("idempotence", _flag),
    "delivery.timeout.ms": ("delivery_timeout_ms", _number(1)),
    "transaction.timeout.ms": ("transaction_timeout_ms", _number(1)),
}


def jaas_credentials(text: str) -> dict[str, str]:
    """`username` and `password`, where a JAAS configuration gives them."""
    return {part: re.sub(r"\\(.)", r"\1", content) for part, content in _JAAS.findall(text)}


def parse(given: Settings | Mapping[str, object] | str) -> Settings:
    """Settings from a mapping of Kafka's names, or from `HOST:PORT` alone."""
    if isinstance(given, Settings):
        return given
    texts: Mapping[str, object] = {"bootstrap.servers": given} if isinstance(given, str) else given
    values: dict[str, Any] = {}
    for name, value in texts.items():
        if name == "sasl.jaas.config":
            values |= {f"sasl_{part}": content for part, content in jaas_credentials(str(value)).items()}
        elif name in _NAMES and value is not None:
            attribute, parser = _NAMES[name]
            text = str(value).lower() if isinstance(value, bool) else str(value)
            try:
                values[attribute] = parser(text)
            except ValueError as problem:
                allowed = "a number" if "invalid literal" in str(problem) else problem
                shown = "the value" if "password" in name else repr(text)
                raise InvalidSetting(f"Setting {name}: {shown} is not valid, allowed is {allowed}.") from None
    if "bootstrap" not in values:
        raise InvalidSetting("Setting bootstrap.servers is missing: give HOST:PORT, several separated by commas.")
    if "api_timeout_ms" in values:  # whoever is to give up after so long does not wait longer for one answer of it
        for part in ("request_timeout_ms", "connect_timeout_ms"):
            values[part] = min(values["api_timeout_ms"], values.get(part, getattr(_DEFAULTS, part)))
    settings = Settings(**values)
    if settings.sasl and (settings.sasl_username is None or settings.sasl_password is None):
        raise InvalidSetting(f"{settings.security_protocol} needs sasl.username and sasl.password, or sasl.jaas.config.")
    return settings
