"""TLS and SASL, against Apache Kafka; and the pure parts of SCRAM against the example of its RFC."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from client.tables import everything, same
from ottla import client
from ottla.cli import main
from ottla.client import sasl
from ottla.client.settings import parse
from support.secured import PASSWORD, USER, Secured


def _settings(apache: Secured, **changes: object) -> dict[str, object]:
    settings: dict[str, object] = {
        "bootstrap.servers": apache.sasl_ssl,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": apache.ca,
        "request.timeout.ms": 10_000,
    }
    return settings | {name.replace("_", "."): value for name, value in changes.items()}


@pytest.mark.java
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_table_there_and_back_over_tls(apache: Secured, topic: str, mechanism: str) -> None:
    settings = _settings(apache, sasl_mechanism=mechanism)
    with client.Cluster(settings) as cluster:
        client.create_topic(cluster, topic, 2, 1)
    client.write(topic, everything(3000), cluster=settings)
    assert same(client.read(topic, cluster=settings, columns=client.SCHEMA.names).table()) == same(everything(3000))


@pytest.mark.java
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password(apache: Secured, mechanism: str) -> None:
    with pytest.raises(client.AuthenticationFailed, match=f"refuses user {USER}: "):
        client.read("t", cluster=_settings(apache, sasl_mechanism=mechanism, sasl_password="guess"))


@pytest.mark.java
def test_a_certificate_that_nobody_vouches_for(apache: Secured) -> None:
    settings = _settings(apache)
    del settings["ssl.ca.location"]
    with pytest.raises(client.AuthenticationFailed, match=r"is not trusted: self.signed certificate.*Check ssl\.ca\.location"):
        client.read("t", cluster=settings)
    unchecked = settings | {"enable.ssl.certificate.verification": "false"}
    with pytest.raises(client.UnknownTopic):
        client.read("surely-not-there", cluster=unchecked)


@pytest.mark.java
def test_a_command_with_the_properties_of_an_admin_client(apache: Secured, topic: str, tmp_path: Path) -> None:
    """In the names of the Java client."""
    escaped = PASSWORD.replace('"', '\\\\"')  # once for the properties file, once for JAAS
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file = tmp_path / "admin.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="{USER}" password="{escaped}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={apache.ca}\n"
    )
    arguments = ["--bootstrap-server", apache.sasl_ssl, "--command-config", str(file)]
    for action in (["--create", "--topic", topic], ["--list"]):
        done = CliRunner().invoke(main, ["topics", *arguments, *action], catch_exceptions=False)
        assert (done.exit_code, done.stderr) == (0, "")
    assert topic in done.stdout.splitlines()


@pytest.mark.java
def test_plaintext_to_a_listener_with_tls(apache: Secured) -> None:
    with pytest.raises(client.ClientError, match=apache.sasl_ssl.replace(".", r"\.")):
        client.read("t", cluster={"bootstrap.servers": apache.sasl_ssl, "request.timeout.ms": 2000})


def test_scram_as_in_the_rfc() -> None:
    """RFC 7677, section 3."""
    steps = sasl._scram("sha256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert next(steps) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = steps.send(challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        steps.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "challenge",
    [b"", b"r=other,s=QQ==,i=4096", b"r=nonce1,s=QQ==,i=1", b"r=nonce1,s=QQ==,i=99999999", b"r=nonce1,s=QQ==,i=x", b"\xff"],
)
def test_a_server_that_makes_it_up(challenge: bytes) -> None:
    steps = sasl._scram("sha512", "u=s,er", "p", "nonce")
    assert next(steps) == b"n,,n=u=3Ds=2Cer,r=nonce"
    with pytest.raises(client.AuthenticationFailed):
        steps.send(challenge)
    proving = sasl._scram("sha512", "u", "p", "nonce")
    next(proving)
    proving.send(b"r=nonce1,s=QQ==,i=4096")
    with pytest.raises(client.AuthenticationFailed, match="could not prove"):
        proving.send(b"v=QUJD")


def test_names_of_both_worlds() -> None:
    java = parse(
        {
            "bootstrap.servers": "[::1]:9092,b:1",
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'org.x.ScramLoginModule required username="a" password="b\\"c";',
            "max.poll.records": 5,
        }
    )
    assert (java.sasl_username, java.sasl_password) == ("a", 'b"c')
    assert [str(one) for one in java.bootstrap] == ["[::1]:9092", "b:1"]
    rdkafka = parse({"metadata.broker.list": "a:1", "sasl.mechanisms": "PLAIN", "acks": "all", "socket.timeout.ms": "5"})
    assert (rdkafka.sasl_mechanism, rdkafka.acks, rdkafka.request_timeout_ms) == ("PLAIN", -1, 5)
    assert "b\\" not in repr(java)
    assert 'b"c' not in repr(java)
