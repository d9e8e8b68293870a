"""Prometheus' text format, version 0.0.4: families with a help line and a type, samples with labels. Pure.

Names are those of Apache Kafka's own metrics, in the spelling that its usual exporter gives them: domain, type and name in
lower case, joined by underscores: `kafka.server:type=ReplicaManager,name=LeaderCount` becomes
`kafka_server_replicamanager_leadercount`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from ottla.metrics import BUCKETS, Durations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_BOUNDS = [f"{(1 << bucket) / 1000:g}" for bucket in range(BUCKETS - 1)]
"""In milliseconds: a bucket holds what took less."""
_FINE, _COARSE = range(4, BUCKETS - 1), range(4, BUCKETS - 1, 2)
"""Which of them are shown: below 0.016 ms nobody looks closer."""


def head(name: str, kind: str, words: str) -> str:
    """What stands before the samples of a family."""
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n"


def labels(**pairs: object) -> str:
    """`{topic="t",partition="0"}`; values may be anything."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in pairs.items()) + "}" if pairs else ""


def sample(name: str, value: float, **pairs: object) -> str:
    """One line."""
    return f"{name}{labels(**pairs)} {value + 0}\n"  # a bool as a number


def family(name: str, kind: str, words: str, samples: Iterable[tuple[dict[str, object], float]]) -> str:
    """A family that is small enough to be made at once."""
    return head(name, kind, words) + "".join(sample(name, value, **pairs) for pairs, value in samples)


def one(name: str, kind: str, words: str, value: float) -> str:
    """A family of one sample without labels."""
    return family(name, kind, words, [({}, value)])


def histogram(name: str, parts: Sequence[Durations], zeros: int = 0, *, coarse: bool = False, **pairs: object) -> str:
    """The durations of several parts together, in milliseconds; `zeros` more took no time at all."""
    counts = [sum(column) for column in zip(*(part.counts for part in parts), strict=True)]
    counts[0] += zeros
    below = list(accumulate(counts))
    total = below[-1]
    lines = [sample(f"{name}_bucket", below[at], **pairs, le=_BOUNDS[at]) for at in (_COARSE if coarse else _FINE)]
    lines.append(sample(f"{name}_bucket", total, **pairs, le="+Inf"))
    lines.append(sample(f"{name}_sum", sum(part.seconds for part in parts) * 1000, **pairs))
    lines.append(sample(f"{name}_count", total, **pairs))
    return "".join(lines)
