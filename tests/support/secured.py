"""An Apache Kafka that is reached in three ways: openly, with TLS, and with TLS and a password."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import confluent_kafka.admin as confluent_admin

from support.kafka import ApacheKafka, ZooKeeper
from support.server import free_port

USER, PASSWORD = "reader", 'se"cret,=1'


class Secured(NamedTuple):
    """An Apache Kafka with its listeners, and the certificate that its TLS is to be trusted by."""

    plaintext: str
    sasl_ssl: str
    ssl: str
    ca: str
    log_dir: str


@contextlib.contextmanager
def open_secured(place: Path) -> Iterator[Secured]:
    """The broker, with a ZooKeeper of its own, and a user that all mechanisms know."""
    certificate = _certificate(place)
    plain, secured, encrypted = free_port(), free_port(), free_port()
    module = "org.apache.kafka.common.security"
    escaped = PASSWORD.replace('"', '\\\\"')  # once for the properties file, once for JAAS
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secured},SSL://127.0.0.1:{encrypted}",
        "transaction.state.log.num.partitions": 4,
        "replica.high.watermark.checkpoint.interval.ms": 100,  # for those who read the files beside the broker
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(place / "keystore.pem"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_{USER}="{escaped}";',
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }
    with ZooKeeper(str(place)) as zookeeper:
        broker = ApacheKafka(str(place), zookeeper, settings)
        broker.port = plain
        with broker:
            admin = confluent_admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            kinds = (confluent_admin.ScramMechanism.SCRAM_SHA_256, confluent_admin.ScramMechanism.SCRAM_SHA_512)
            for kind in kinds:
                info = confluent_admin.ScramCredentialInfo(kind, 4096)
                wanted = confluent_admin.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
                admin.alter_user_scram_credentials([wanted])[USER].result(20)
            places = (broker.bootstrap_servers, f"127.0.0.1:{secured}", f"127.0.0.1:{encrypted}")
            yield Secured(*places, str(certificate), broker.log_dir)


def _certificate(place: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and a keystore of it and its key."""
    key, certificate = place / "key.pem", place / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    (place / "keystore.pem").write_text(key.read_text() + certificate.read_text())
    return certificate
