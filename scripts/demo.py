"""`make demo`: a broker for a minute, a public client that writes and reads, what that cost, and a pipeline on Spark.

Everything lives in a temporary directory and on a free port, and is gone at the end, also after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.pipelines.session import missing

RECORDS = 500_000
SIZE = 100
ROUND_TRIPS = 1_000
TOPIC = "demo"


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Broker:
    """`ottla server` in a process of its own."""

    def __init__(self, directory: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.directory = directory
        settings = (f"listeners=PLAINTEXT://{self.address}", f"log.dirs={directory}/data")
        overrides = [part for setting in settings for part in ("--override", setting)]
        self._log_path = f"{directory}/broker.log"
        begun = time.perf_counter()
        with open(self._log_path, "wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "ottla", "server", *overrides], stdout=log, stderr=log)
        self._wait_until_it_answers()
        self.start_seconds = time.perf_counter() - begun

    def _wait_until_it_answers(self) -> None:
        host, _, port = self.address.rpartition(":")
        end = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection((host, int(port)), 1) as sock:
                    sock.sendall(bytes.fromhex("0000000a00120000000000010000"))  # ApiVersions, version 0
                    if sock.recv(4):
                        return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    with open(self._log_path, encoding="utf-8") as log:
                        sys.exit(f"The broker did not start:\n{log.read()}")
                time.sleep(0.002)

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Resident memory now."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running_broker() -> Iterator[Broker]:
    """A broker and its directory, both gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as directory:
        broker = Broker(directory)
        try:
            yield broker
        finally:
            broker.stop()


def produce(address: str) -> float:
    """Write all records; the seconds until the broker has acknowledged the last of them."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": RECORDS}
    )
    value = bytes(SIZE)
    begun = time.perf_counter()
    for number in range(RECORDS):
        producer.produce(TOPIC, value)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(60):
        sys.exit("The broker did not take all records.")
    return time.perf_counter() - begun


def consume(address: str) -> float:
    """Read all records back; the seconds that took."""
    # By default librdkafka rests for a second whenever it has 100,000 records in hand; here it shall go on.
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "demo", "fetch.queue.backoff.ms": 5})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    seen, end = 0, time.monotonic() + 60
    begun = time.perf_counter()
    while seen < RECORDS and time.monotonic() < end:
        seen += len(consumer.consume(10_000, 0.2))
    seconds = time.perf_counter() - begun
    consumer.close()
    if seen != RECORDS:
        sys.exit(f"{seen} of {RECORDS} records came back.")
    return seconds


def round_trips(address: str) -> list[float]:
    """One record there and back, again and again, in milliseconds."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "demo", "fetch.wait.max.ms": 100})
    consumer.assign([confluent_kafka.TopicPartition(f"{TOPIC}-round-trip", 0, 0)])
    times = []
    for _ in range(ROUND_TRIPS + 50):  # the first ones are for connections and caches
        begun = time.perf_counter()
        producer.produce(f"{TOPIC}-round-trip", b"ping")
        while consumer.poll(1) is None:
            pass
        times.append((time.perf_counter() - begun) * 1000)
        producer.poll(0)
    producer.flush(10)
    consumer.close()
    return sorted(times[50:])


def show(rows: list[tuple[str, str]]) -> None:
    """Names on the left, figures on the right."""
    left, right = (max(len(row[side]) for row in rows) for side in (0, 1))
    rule = "  " + "-" * (left + right + 3)
    print(rule)
    for name, figure in rows:
        print(f"  {name:<{left}}   {figure:>{right}}")
    print(rule)


def show_spark(broker: Broker) -> None:
    """The pipeline, or why there is none."""
    why = missing()
    if why is not None:
        print(f"Without the pipeline: {why}")
        return
    from demo_pipeline import show_pipeline  # noqa: PLC0415 - needs Spark

    show_pipeline(broker.address, broker.directory)


def main() -> None:
    print(f"Starting a broker, then {RECORDS:,} records of {SIZE} bytes there and back with confluent-kafka ...")
    with running_broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for made in admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic(f"{TOPIC}-round-trip", 1, 1)]).values():
            made.result(10)
        megabytes = RECORDS * SIZE / 1e6
        cpu = [broker.cpu_seconds()]
        wrote = produce(broker.address)
        cpu.append(broker.cpu_seconds())
        read = consume(broker.address)
        cpu.append(broker.cpu_seconds())
        times = round_trips(broker.address)
        show(
            [
                ("start to first answer", f"{broker.start_seconds:.2f} s"),
                ("produced (acks=all, idempotent)", f"{RECORDS / wrote:,.0f} records/s   {megabytes / wrote:6.1f} MB/s"),
                ("consumed", f"{RECORDS / read:,.0f} records/s   {megabytes / read:6.1f} MB/s"),
                ("broker CPU while producing", f"{cpu[1] - cpu[0]:.2f} s of {wrote:.2f} s"),
                ("broker CPU while consuming", f"{cpu[2] - cpu[1]:.2f} s of {read:.2f} s"),
                ("one record there and back, p50", f"{statistics.median(times):.2f} ms"),
                ("one record there and back, p99", f"{times[int(len(times) * 0.99)]:.2f} ms"),
                ("broker memory", f"{broker.memory_mb():.0f} MB"),
            ]
        )
        print("The speed is mostly the client's: the broker was idle for the rest.")
        show_spark(broker)
        print("Stopping, and removing everything ...")
    print("Done. `make run` starts a broker that stays; any Kafka client finds it at 127.0.0.1:9092.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
