"""The part of `make demo` with Spark: rides of taxis, counted per city in windows of five seconds, exactly once into a topic.

A thread makes rides, `ottla pipeline run` counts them, and this process draws what it reads from the topic, read_committed. At
the end every window that came out is held against what was produced: none may be missing in between, none twice, none wrong.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ottla import client

CITIES = ("Praha", "Wien", "Berlin", "Zürau")
SECONDS = 20
WINDOW = 5
PATIENCE = 180
"""Seconds until the first window has to be there: Spark takes ten to start, and a minute where the machine is busy."""
PIPELINE = """\
name: rides
cluster: {cluster}
spark:
  spark.driver.memory: 1g
  spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC   # of little use for an hour, quick for a minute
  spark.sql.shuffle.partitions: 2
sources:
  rides:
    topic: rides
    decode: {{format: json, schema: "city STRING NOT NULL, at TIMESTAMP NOT NULL"}}
    watermark: {{column: at, delay: 1 second}}
steps:
  per_city:
    sql: |
      SELECT city, unix_timestamp(window.start) AS start, count(*) AS rides
      FROM rides GROUP BY city, window(at, '{window} seconds')
sinks:
  per_city: {{topic: rides-per-city, key: city, create: {{partitions: 2}}}}
"""
Windows = dict[tuple[int, str], int]


class Rides(threading.Thread):
    """Makes rides until it is told to end, and counts them by window and city."""

    def __init__(self, cluster: str) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._ending = threading.Event()
        self.made: Counter[tuple[int, str]] = Counter()

    def run(self) -> None:
        chance = random.Random(1883)
        with client.Producer(self._cluster) as producer:
            while not self._ending.wait(0.1):
                now = datetime.now(UTC)
                cities = chance.choices(CITIES, weights=[4, 3, 2, 1], k=chance.randint(100, 300))
                rides = [json.dumps({"city": city, "at": now.isoformat()}).encode() for city in cities]
                producer.write("rides", pa.table({"value": rides}))
                start = int(now.timestamp()) // WINDOW * WINDOW
                self.made.update((start, city) for city in cities)

    def end(self) -> None:
        self._ending.set()
        self.join()


def show_pipeline(cluster: str, directory: str) -> None:
    """Run it all for about half a minute after Spark has started."""
    print(f"\nStarting Spark: rides per city in windows of {WINDOW} seconds, exactly once into the topic rides-per-city ...")
    file = Path(directory, "rides.yaml")
    file.write_text(PIPELINE.format(cluster=cluster, window=WINDOW), encoding="utf-8")
    with client.Cluster(cluster) as connected:
        client.create_topic(connected, "rides", 2, 1)
        client.create_topic(connected, "rides-per-city", 2, 1)
    line = [sys.executable, "-m", "ottla", "pipeline", "--directory", f"{directory}/pipelines"]
    rides = Rides(cluster)
    rides.start()
    with open(f"{directory}/pipeline.log", "wb") as log:
        process = subprocess.Popen([*line, "run", str(file), "--master", "local[2]"], stdout=log, stderr=log)
    try:
        windows, twice = _watch(cluster, process)
        rides.end()
        subprocess.run([*line, "status", "rides"], check=False)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if not windows:
        sys.exit(f"No window came out:\n{Path(directory, 'pipeline.log').read_text(encoding='utf-8')}")
    last = max(start for start, _ in windows)  # of which some cities may still be on their way
    counted = {one: count for one, count in windows.items() if one[0] < last}
    expected = {one: count for one, count in rides.made.items() if one[0] < last}
    wrong = sum(counted.get(one) != count for one, count in expected.items()) + len(counted.keys() - expected.keys())
    told = f"{sum(counted.values()):,} rides in {len(counted)} counts"
    print(f"{told}: {wrong} wrong or missing, {twice} twice, compared with what was produced.")
    if wrong or twice:
        sys.exit("That must not be: please tell us.")


def _watch(cluster: str, process: subprocess.Popen[bytes]) -> tuple[Windows, int]:
    """Draw windows as they come; how many came more than once."""
    windows: Windows = {}
    twice = 0
    begun, first = time.monotonic(), 0.0
    console = Console()
    columns = ["value"]
    with (
        client.tail("rides-per-city", "earliest", cluster=cluster, isolation="read_committed", columns=columns) as reader,
        Live(console=console, refresh_per_second=4, transient=not console.is_terminal) as live,
    ):
        while process.poll() is None:
            now = time.monotonic()
            if (first and now - first > SECONDS) or (not first and now - begun > PATIENCE):
                break
            batch = reader.poll(0.5)
            for value in batch["value"].to_pylist() if batch is not None else ():
                found = json.loads(value)
                one = (found["start"], found["city"])
                twice += one in windows
                windows[one] = found["rides"]
                first = first or now
            if console.is_terminal:
                live.update(_chart(windows, now - begun))
    if not console.is_terminal:
        console.print(_chart(windows, time.monotonic() - begun))
    return windows, twice


def _chart(windows: Windows, seconds: float) -> Text:
    """Bars of the last window, and a line of small ones for all of them."""
    if not windows:
        return Text(f"  waiting until Spark runs and the first window is complete: {seconds:.0f} s")
    starts = sorted({start for start, _ in windows})[-24:]
    most = max(windows.values())
    last = starts[-1]
    title = f"  rides in the {WINDOW} seconds from {datetime.fromtimestamp(last, UTC):%H:%M:%S} UTC"
    text = Text(f"{title:<50}window by window\n", "bold")
    for city in CITIES:
        count = windows.get((last, city), 0)
        bar = "█" * round(count / most * 30)
        small = "".join("▁▂▃▄▅▆▇█"[round(windows.get((start, city), 0) / most * 7)] for start in starts)
        text.append(f"  {city:<8}").append(f"{bar:<31}", "cyan").append(f"{count:>6}   ").append(f"{small}\n", "green")
    return text
