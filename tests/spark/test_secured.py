"""Source and sink with TLS, and with TLS and a password, in the names of the Java client; and what a wrong password says.

Against Apache Kafka: Ottla's own broker serves neither yet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla import client
from ottla.client import Cluster
from spark.queries import committed, fill, numbers, read, read_stream, run_stream, write
from support.secured import PASSWORD, USER, Secured

ALL = list(range(100))


def options_of(secured: Secured, protocol: str, password: str = PASSWORD) -> tuple[str, dict[str, str]]:
    """The address, and the options that are needed there."""
    trust = {"kafka.security.protocol": protocol, "kafka.ssl.truststore.location": secured.ca}
    if protocol == "SSL":
        return secured.ssl, {**trust, "kafka.ssl.truststore.type": "PEM"}
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    escaped = password.replace('"', '\\"')
    jaas = f'{login} username="{USER}" password="{escaped}";'
    return secured.sasl_ssl, {**trust, "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.jaas.config": jaas}


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_source_and_sink_over_tls(spark: SparkSession, secured: Secured, topic: str, tmp_path: Path, protocol: str) -> None:
    address, options = options_of(secured, protocol)
    with Cluster(secured.plaintext) as cluster:
        fill(cluster, topic, 100)
        for name in ("batch", "stream"):
            client.create_topic(cluster, f"{topic}-{name}", 2, 1)
        frame = read(spark, address, subscribe=topic, **options)
        assert numbers(frame) == ALL
        write(frame.select("key", "value"), address, topic=f"{topic}-batch", exactlyOnce="true", **options)
        assert committed(cluster, f"{topic}-batch") == ALL
        stream = read_stream(spark, address, subscribe=topic, startingOffsets="earliest", commitGroup=f"g-{topic}", **options)
        run_stream(stream.select("key", "value"), address, tmp_path, topic=f"{topic}-stream", exactlyOnce="true", **options)
        assert committed(cluster, f"{topic}-stream") == ALL
        assert sum(one.offset for one in client.committed_offsets(cluster, f"g-{topic}").values()) == 100


@pytest.mark.parametrize("use", ["read", "write", "stream"])
def test_a_wrong_password(spark: SparkSession, secured: Secured, topic: str, tmp_path: Path, use: str) -> None:
    """One line says who is refused by whom; the password is in none."""
    address, options = options_of(secured, "SASL_SSL", "guess")
    with Cluster(secured.plaintext) as cluster:
        fill(cluster, topic, 10)
    given, rows = {"subscribe": topic, **options}, spark.range(10).selectExpr("cast(id as string) value")
    uses: dict[str, Callable[[], object]] = {
        "read": lambda: read(spark, address, **given).collect(),
        "write": lambda: write(rows, address, topic=topic, **options),
        "stream": lambda: run_stream(read_stream(spark, address, **given), address, tmp_path, topic=topic, **options),
    }
    with pytest.raises(PySparkException) as caught:
        uses[use]()
    lines = str(caught.value).splitlines()
    (line,) = (one for one in lines if "AuthenticationFailed: " in one)
    assert f"AuthenticationFailed: The broker at {address} refuses user {USER}: Authentication failed" in line
    assert not any("guess" in one for one in lines)
