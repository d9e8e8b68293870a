"""What it costs Ottla to be looked at: counting every request, and scrapes of ten thousand partitions beside a steady producer.

Apache Kafka has no such page of its own, so there is nothing to stand beside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

from bench.figures import SCRAPED_PARTITIONS, STEADY_RATE, Samples, Subject
from bench.load import Figures
from bench.scenarios import Bench, Maker, Sizes
from ottla.api.registry import Context
from ottla.metrics import RequestCounters
from ottla.wire.frame import RequestHeader

_SCRAPE_EVERY = 5.0
_TOPICS = 10
_COUNTED = 300_000


def monitoring(maker: Maker, subject: Subject, sizes: Sizes, samples: Samples, say: Callable[[str], None]) -> None:
    """Only Ottla can be asked this."""
    if subject is not Subject.OTTLA:
        return
    with maker.place().started() as broker:
        bench = Bench(broker, subject, sizes, samples, say)
        hot = bench.create_topic(4)
        for _ in range(sizes.rounds):
            request = bench.small(hot, sizes.small)["cpu_us"]
            counting = bench.load("count_requests")["us"]
            bench.add("monitoring.count", counting)
            bench.add("monitoring.share", counting / request * 100)
        per_topic = SCRAPED_PARTITIONS // _TOPICS
        for number in range(_TOPICS):
            bench.load("create_topic", topic=f"many-{number}", partitions=per_topic)
        for _ in range(sizes.scrape_rounds):
            _beside_a_producer(bench, hot)


def _beside_a_producer(bench: Bench, hot: str) -> None:
    """Scrapes come as often in both phases of a round as they do in life, or not at all."""
    page = f"http://{bench.broker.bootstrap}/metrics"
    with bench.running("steady_producer", topic=hot, rate=STEADY_RATE) as producer:
        producer.wait_until_ready()
        producer.tell("alone")
        time.sleep(bench.sizes.scrape_s)
        producer.tell("beside")
        end = time.monotonic() + bench.sizes.scrape_s
        while time.monotonic() < end:
            began = time.monotonic()
            with urlopen(page, timeout=60) as answer:
                size = len(answer.read())
            bench.add("monitoring.scrape", (time.monotonic() - began) * 1000)
            time.sleep(max(began + _SCRAPE_EVERY - time.monotonic(), 0))
        figures = producer.end()
    bench.add("monitoring.page", size / 1e6)
    bench.add("monitoring.alone.p99", figures["alone_p99_ms"])
    bench.add("monitoring.beside.p99", figures["beside_p99_ms"])
    bench.add("monitoring.grows", figures["beside_p99_ms"] / figures["alone_p99_ms"])


def count_requests(bootstrap: str) -> Figures:
    """What counting one request takes, here and now: a request that is made and counted, less one that is only made."""
    del bootstrap  # all loads are told it
    nobody: Any = SimpleNamespace(last_active=0.0)
    header = RequestHeader(0, 9, 1, "bench")
    counters = RequestCounters()

    def seconds(count: bool) -> float:
        began = time.process_time()
        for _ in range(_COUNTED):
            context = Context(nobody, nobody, header, counters)
            if count:
                context.count()
        return time.process_time() - began

    times = [(seconds(True) - seconds(False)) / _COUNTED for _ in range(5)]
    clock = min(_of_the_clock() for _ in range(5))  # making a context asks for the time already, which is for counting too
    return {"us": (min(times) + clock) * 1e6}


def _of_the_clock() -> float:
    began = time.process_time()
    for _ in range(_COUNTED):
        time.monotonic()
    return (time.process_time() - began) / _COUNTED
