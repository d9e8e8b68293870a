"""`ottla transactions`: which transactions hang, what is printed, and one line for all that goes wrong.

Tables beside Apache's tool are in tests/clients; here are the rules, the broker of `ottla.testing`, and peers that misbehave.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.cli import main
from ottla.cli.output import Column, print_rows
from ottla.client.admin import transactions
from ottla.client.admin.hanging import ActiveProducer, OpenTransaction, hanging, older_than, open_transactions
from ottla.client.cluster import Cluster
from ottla.client.settings import Address
from ottla.model import Error, TopicPartition
from ottla.testing import Broker
from ottla.wire.apis.versions import ApiVersionsResponse
from ottla.wire.frame import encode_response
from support.peers import closed_port, peer

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def is_open(partition: TopicPartition, producer: int = 1, *, last: int = 0) -> OpenTransaction:
    return OpenTransaction(partition, producer, 0, -1, 10, last)


# Which transactions hang


@pytest.mark.parametrize(
    ("ids", "spans", "expected"),
    [
        ({}, {}, [A0, A1]),  # no coordinator knows the producer
        ({2: "other"}, {"other": [A0, A1]}, [A0, A1]),  # it knows another one
        ({1: "x"}, {"x": []}, [A0, A1]),  # the transaction is over, or never began
        ({1: "x"}, {"x": [A0]}, [A1]),  # it goes on, in another partition
        ({1: "x"}, {"x": [A0, A1, B0]}, []),  # its coordinator will end it
        ({1: "x"}, {}, [A0, A1]),  # the id expired between two questions
    ],
)
def test_a_transaction_hangs_that_no_coordinator_will_end(
    ids: Mapping[int, str], spans: Mapping[str, Sequence[TopicPartition]], expected: Sequence[TopicPartition]
) -> None:
    assert [one.partition for one in hanging([is_open(A0), is_open(A1)], ids, spans)] == expected


@pytest.mark.parametrize(("last", "old"), [(100, False), (99, True), (-1, True), (1000, False)])
def test_only_what_is_older_than_the_largest_timeout_is_a_candidate(last: int, old: bool) -> None:
    one = is_open(A0, last=last)
    assert older_than([one], now_ms=1100, limit_ms=1000) == ([one] if old else [])


def test_producers_without_a_transaction_are_left_out() -> None:
    idle = ActiveProducer(producer_id=1)
    busy = ActiveProducer(producer_id=2, producer_epoch=3, coordinator_epoch=4, transaction_start_offset=0, last_timestamp=5)
    assert open_transactions({B0: [busy], A0: [idle, busy]}) == [
        OpenTransaction(A0, 2, 3, 4, 0, 5),
        OpenTransaction(B0, 2, 3, 4, 0, 5),
    ]


def test_a_transaction_that_ends_during_the_search_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition was asked while it was open, its coordinator when it was over: only a second look tells."""
    begun = ActiveProducer(producer_id=1, transaction_start_offset=7)
    begun_again = ActiveProducer(producer_id=1, transaction_start_offset=9)
    answers = iter([{A0: [begun], A1: [begun]}, {A0: [begun_again], A1: [begun]}])
    monkeypatch.setattr(transactions, "describe_producers", lambda *_: next(answers))
    monkeypatch.setattr(transactions, "list_transactions", lambda *_, **__: [])
    monkeypatch.setattr(Cluster, "brokers", lambda _: {0: Address("h", 1)})
    found = transactions.find_hanging(Cluster("h:1"), [A0, A1], None, now_ms=1000, limit_ms=10)
    assert [one.partition for one in found] == [A1]


# What is printed

_COLUMNS = (Column("Name", "name"), Column("N", "n"), Column("In", "in"))


def test_a_table_is_as_wide_as_its_cells_and_shows_no_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(_COLUMNS, [("x\x1b[31m\n", None, [A0, A1]), ("é", 1000, [])], as_json=False)
    assert capsys.readouterr().out == (
        "Name         \tN   \tIn     \t\n"  # every cell is filled up and ended by a tab
        "x\\x1b[31m\\x0a\tNone\ta-0,a-1\t\n"
        "é            \t1000\t       \t\n"
    )


def test_json_keeps_numbers_and_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(_COLUMNS, [("x\n", None, [A0])], as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"name": "x\n", "n": None, "in": [{"topic": "a", "partition": 0}]}]
    print_rows(_COLUMNS, [], as_json=True)
    assert json.loads(capsys.readouterr().out) == []


# The command at a broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("known", partitions=2)
        yield running


def invoke(servers: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["transactions", "--bootstrap-server", servers, *arguments], catch_exceptions=False)


def test_help_names_the_command_and_its_subcommands() -> None:
    assert "transactions" in CliRunner().invoke(main, ["--help"]).output
    helped = CliRunner().invoke(main, ["transactions", "--help"])
    assert helped.exit_code == 0
    assert all(name in helped.output for name in ("list", "describe", "describe-producers", "find-hanging", "abort"))


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("list", []),
        ("describe", ["--transactional-id", "x"]),
        ("describe-producers", ["--topic", "t", "--partition", "0"]),
        ("find-hanging", []),
        ("abort", ["--topic", "t", "--partition", "0"]),
    ],
)
def test_help_needs_no_cluster_but_work_does(name: str, needed: list[str]) -> None:
    helped = CliRunner().invoke(main, ["transactions", name, "--help"])
    assert helped.exit_code == 0
    assert f"transactions {name} [OPTIONS]" in helped.output
    asked = CliRunner().invoke(main, ["transactions", name, *needed])
    assert asked.exit_code == 1
    assert "Missing option '--bootstrap-server'" in asked.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "--duration-filter", "-5"],
        ["describe-producers", "--topic", "known", "--partition", "1"],
        ["find-hanging", "--topic", "known"],
        ["find-hanging", "--broker-id", "1001", "--max-transaction-timeout", "0"],
    ],
)
def test_nothing_to_show_is_a_header_or_an_empty_list(broker: Broker, arguments: list[str]) -> None:
    table = invoke(broker.bootstrap_servers, *arguments)
    assert table.exit_code == 0, table.stderr
    assert table.stdout.count("\n") == 1
    assert json.loads(invoke(broker.bootstrap_servers, *arguments, "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing command"),
        (["lst"], "Did you mean 'list'?"),
        (["list", "--nope"], "No such option '--nope'"),
        (["list", "--duration-filter", "1h"], "'1h' is not a valid whole number"),
        (["describe"], "Missing option '--transactional-id'"),
        (["describe", "--transactional-id", "no\x1bid"], "Transactional id no\\x1bid could not be found"),
        (["describe", "--transactional-id", "\udcff"], "cannot carry these values"),
        (["describe-producers", "--topic", "known"], "Missing option '--partition'"),
        (["describe-producers", "--topic", "known", "--partition", "2"], "Partition known-2 does not exist"),
        (["describe-producers", "--topic", "known", "--partition", "-1"], "not in the range"),
        (["describe-producers", "--topic", "nope", "--partition", "0"], "Topic nope does not exist"),
        (["describe-producers", "--topic", "a b", "--partition", "0"], "'a b' cannot be the name of a topic"),
        (["describe-producers", "--topic", "known", "--partition", "0", "--broker-id", "7"], "alive are 1001"),
        (["find-hanging"], "requires either --topic or --broker-id"),
        (["find-hanging", "--broker-id", "1001", "--partition", "0"], "requires --topic"),
        (["find-hanging", "--topic", "nope"], "Topic nope does not exist"),
        (["find-hanging", "--topic", "nope", "--partition", "0"], "Topic nope does not exist"),
        (["abort", "--topic", "known", "--partition", "0"], "either with --start-offset"),
        (["abort", "--topic", "known", "--partition", "0", "--producer-id", "1"], "--producer-epoch"),
        (
            ["abort", "--topic", "known", "--partition", "0", "--producer-id", "1", "--producer-epoch", "0"],
            "--coordinator-epoch",
        ),
        (["abort", "--topic", "known", "--partition", "0", "--start-offset", "3"], "none is open there"),
        (["abort", "--topic", "nope", "--partition", "0", "--start-offset", "3"], "Topic nope does not exist"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(broker: Broker, arguments: list[str], words: str) -> None:
    result = invoke(broker.bootstrap_servers, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("ottla transactions: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_looking_at_a_topic_does_not_create_it(broker: Broker) -> None:
    for _ in range(2):
        assert "Topic fresh does not exist" in invoke(broker.bootstrap_servers, "find-hanging", "--topic", "fresh").stderr


@pytest.mark.parametrize("error", [Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE])
def test_what_passes_is_waited_for(broker: Broker, error: Error) -> None:
    broker.faults.fail("FindCoordinator", error)
    assert "could not be found" in invoke(broker.bootstrap_servers, "describe", "--transactional-id", "x").stderr


def test_what_does_not_pass_is_told_with_its_name(broker: Broker) -> None:
    broker.faults.fail("DescribeProducers", Error.TOPIC_AUTHORIZATION_FAILED)
    result = invoke(broker.bootstrap_servers, "describe-producers", "--topic", "known", "--partition", "0")
    assert result.exit_code == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in result.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("security.protocol=SASL_SSL", "SASL_SSL needs sasl.username and sasl.password"),
        ("security.protocol=SSH", "Setting security.protocol: 'SSH' is not valid"),
        ("default.api.timeout.ms=soon", "Setting default.api.timeout.ms: 'soon' is not valid"),
        (None, "cannot be read"),
    ],
)
def test_a_config_file_that_cannot_be_followed(tmp_path: Path, settings: str | None, words: str) -> None:
    file = tmp_path / "admin.properties"
    if settings is not None:
        file.write_text(settings)
    result = invoke("127.0.0.1:1", "--command-config", str(file), "list")
    assert result.exit_code == 1
    assert words in result.stderr


def test_a_config_file(tmp_path: Path, broker: Broker) -> None:
    file = tmp_path / "admin.properties"
    file.write_text("security.protocol=PLAINTEXT\ndefault.api.timeout.ms=20000\nclient.id=me\n")
    assert invoke(broker.bootstrap_servers, "--command-config", str(file), "list").exit_code == 0


def test_a_version_costs_no_imports() -> None:
    program = (
        "import sys; from ottla.__main__ import main; sys.argv[1:] = ['--version']; main(); "
        "sys.exit(' '.join(m for m in sys.modules if m in ('asyncio', 'ssl', 'json', 'click', 'ottla.config')) or None)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"loaded: {result.stderr}"


def garbage(sock: socket.socket) -> None:
    sock.recv(1000)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def wrong_number(sock: socket.socket) -> None:
    sock.recv(1000)
    sock.sendall(b"".join(encode_response(12345, ApiVersionsResponse(), 3)))


def hang_up(sock: socket.socket) -> None:
    sock.recv(1000)


def half_an_answer(sock: socket.socket) -> None:
    sock.recv(1000)
    sock.sendall(struct.pack(">ii", 100, 1))


def say_nothing(sock: socket.socket) -> None:
    while sock.recv(1000):
        pass


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (garbage, "does not speak Kafka's protocol"),
        (wrong_number, "does not speak Kafka's protocol"),
        (hang_up, "closed the connection"),
        (half_an_answer, "closed the connection"),
        (say_nothing, "does not answer"),
    ],
)
def test_a_peer_that_misbehaves_is_told_in_one_line(
    tmp_path: Path, behaviour: Callable[[socket.socket], None], words: str
) -> None:
    file = tmp_path / "admin.properties"
    file.write_text("default.api.timeout.ms=300")
    with peer(behaviour) as port:
        result = invoke(f"127.0.0.1:{port}", "--command-config", str(file), "list")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("ottla transactions: ")
    assert words in result.stderr
    assert f"127.0.0.1:{port}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_nobody_listens() -> None:
    result = invoke(f"127.0.0.1:{closed_port()}", "list")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Connection refused" in result.stderr
