"""Where the queries of a source begin that have no checkpoint yet: the same offsets for all of them, resolved once and kept.

Guards: a sink passes over a bad record only if the dead-letter query reads it. `latest`, and a time that no record has reached
yet, mean another offset each moment, so that two queries that ask for themselves may leave a gap between them. Here one asks,
and what it was told lies beside the checkpoints, also for a query that is added later or was killed before its first batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ottla.client import Cluster, TopicPartition
from ottla.client.admin.offsets import EARLIEST, LATEST
from ottla.pipelines.keeping import keep
from ottla.spark.offsets import Position, from_json, to_json
from ottla.spark.options import End, Offsets, SourceOptions, source_options
from ottla.spark.positions import bound, earliest, latest, selected


def first_offsets(given: Mapping[str, str], kept: Path, cluster: Cluster) -> str | None:
    """The value of `startingOffsets` for a stream with these options; None where they mean the same at any time."""
    options = source_options(given, streaming=True)
    if not _moves(options):
        return None
    partitions = selected(cluster, options.selection)
    ids = {tp.topic: known for tp, known in partitions.items() if known}
    meant = repr(options.start)
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if known.get("start") != meant:
        position = Position(bound(cluster, options, partitions, options.start, is_start=True), ids)
        keep(kept, json.dumps({"start": meant, "position": to_json(position)}))
    else:
        position = from_json(known["position"])
    written = to_json(Position(_still_there(position, ids, earliest(cluster, partitions), latest(cluster, options).offsets)))
    return json.dumps(written)


def _moves(options: SourceOptions) -> bool:
    """Whether a start means another offset later on."""
    if isinstance(options.start, End):
        return options.start.offset != EARLIEST
    return not isinstance(options.start, Offsets) or LATEST in options.start.of.values()


def _still_there(
    position: Position, ids: Mapping[str, str], first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Offsets within the logs as they are now; partitions and topics that came since are read from their beginning."""
    return {
        tp: min(max(position.offsets[tp], begin), end[tp])
        if tp in position.offsets and position.ids.get(tp.topic) == ids.get(tp.topic)
        else begin
        for tp, begin in first.items()
    }
