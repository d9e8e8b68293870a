"""Segments read without a broker, and topics as Parquet: the records that a consumer gets, also of a cluster that is dead."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from client.tables import everything, same
from ottla import client
from ottla.cli import main
from ottla.client import Cluster
from ottla.client.segments import plan_segments, read_segment, stored_partitions
from support.server import ServerProcess

SMALL = {"log.segment.bytes": 4_000}


def offline(directory: str, topic: str, isolation: str) -> pa.Table:
    ranges = [one for stored in stored_partitions([directory], [topic]).values() for one in plan_segments(stored, isolation)]
    names = client.SCHEMA.names
    return pa.Table.from_batches([batch for one in ranges for batch in read_segment(one, names)], schema=client.SCHEMA)


def by_place(table: pa.Table) -> list[object]:
    rows: list[object] = table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return rows


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_the_files_hold_is_what_a_consumer_gets(tmp_path: Path, topic: str, codec: str) -> None:
    directory = str(tmp_path / "data")
    with ServerProcess(directory, SMALL) as server, Cluster(server.bootstrap_servers) as cluster:
        client.create_topic(cluster, topic, 2, 1)
        with client.Producer(cluster, transactional_id=topic, codec=codec, batch_size=2000) as producer:
            for number in range(6):
                producer.begin()
                producer.write(topic, everything(200))
                producer.abort() if number % 2 else producer.commit()
            client.write(topic, everything(300), cluster=cluster, codec=codec, batch_size=2000)
            producer.begin()
            producer.write(topic, everything(50))  # is open when the broker ends
        read = {
            isolation: client.read(topic, cluster=cluster, isolation=isolation, columns=client.SCHEMA.names).table()
            for isolation in ("read_committed", "read_uncommitted")
        }
        assert server.stop() == 0
    assert len(list((tmp_path / "data" / f"{topic}-0").glob("*.log"))) > 2
    for isolation, table in read.items():
        assert by_place(offline(directory, topic, isolation)) == by_place(table)
    assert read["read_committed"].num_rows == 3 * 200 + 300


def test_it_ends_at_the_high_watermark_and_names_what_is_corrupt(tmp_path: Path, topic: str) -> None:
    directory = str(tmp_path / "data")
    with ServerProcess(directory) as server, Cluster(server.bootstrap_servers) as cluster:
        client.create_topic(cluster, topic, 1, 1)
        for _ in range(4):
            client.write(topic, everything(10), cluster=cluster)
        assert server.stop() == 0
    checkpoint = tmp_path / "data" / "replication-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace(f"{topic} 0 40", f"{topic} 0 25"))
    assert offline(directory, topic, "read_uncommitted")["offset"].to_pylist() == list(range(25))
    segment = tmp_path / "data" / f"{topic}-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 4 + 100] ^= 1
    segment.write_bytes(data)
    with pytest.raises(client.CorruptBatch, match=f"offset 10 of partition {topic}-0"):
        offline(directory, topic, "read_uncommitted")
    with pytest.raises(client.UnknownTopic, match="Topic none has no partition in"):
        stored_partitions([directory], ["none"])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["export", *arguments])


def test_export_goes_on_where_it_was(tmp_path: Path, topic: str) -> None:
    directory, target = str(tmp_path / "data"), tmp_path / "parquet"
    with ServerProcess(directory) as server, Cluster(server.bootstrap_servers) as cluster:
        address = ("--bootstrap-server", server.bootstrap_servers)
        client.create_topic(cluster, topic, 2, 1)
        client.write(topic, everything(500), cluster=cluster)
        first = run(topic, "--to", "parquet", str(target), *address, "--file-records", "100")
        assert first.exit_code == 0, first.output
        assert "500 records in" in first.output
        (target / "partition=0" / ".00000000000000000999.writing").write_bytes(b"of a run that was killed")
        assert "0 records in 0 files" in run(topic, "--to", "parquet", str(target), *address).output
        client.write(topic, everything(70), cluster=cluster)
        assert "70 records in" in run(topic, "--to", "parquet", str(target), *address).output
        client.write(topic, everything(30), cluster=cluster)
        expected = client.read(topic, cluster=cluster, columns=client.SCHEMA.names).table()
        assert server.stop() == 0
    assert "30 records in" in run(topic, "--to", "parquet", str(target), "--log-dirs", directory).output
    got = pq.read_table(target)
    assert same(got) == same(expected)
    places = sorted(zip(got["partition"].to_pylist(), got["offset"].to_pylist(), strict=True))
    assert places == sorted(zip(expected["partition"].to_pylist(), expected["offset"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t", "--to", "csv", "d"], "--to csv is not known: allowed is parquet"),
        (["t", "--to", "parquet", "d"], "Give either --bootstrap-server or --log-dirs"),
        (["t", "--to", "parquet", "d", "--log-dirs", "/no/such"], "/no/such is not a directory"),
        (["t", "--to", "parquet", "d", "--bootstrap-server", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_export_says_what_is_wrong(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1
