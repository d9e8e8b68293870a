"""Where a follower cuts its log so that it is the beginning of its leader's. Pure.

Two logs agree up to the end of the last epoch that both have, as far as both have it: one leader wrote each epoch, and a leader
writes each offset once. The high watermark is no such bound. A follower's lags behind, and to cut there would throw away what
others rely on; and it says nothing of who wrote what lies below.
"""

from __future__ import annotations

from ottla.model import UNKNOWN_EPOCH, UNKNOWN_OFFSET
from ottla.replication.leaders import EpochEnd


def cut_at(leaders: EpochEnd, own: EpochEnd, log_end: int, high_watermark: int) -> int:
    """Where to cut a log that ends at `log_end`.

    `leaders` is the leader's largest epoch not above our last one, with its end; `own` our largest not above that one. Where
    ours is smaller, the next fetch will tell the rest. Where the leader knows nothing, the high watermark is all there is.
    """
    if leaders.end_offset == UNKNOWN_OFFSET:
        return min(high_watermark, log_end)
    if leaders.epoch == UNKNOWN_EPOCH or own.end_offset == UNKNOWN_OFFSET:
        return min(leaders.end_offset, log_end)
    if own.epoch != leaders.epoch:
        return min(own.end_offset, log_end)
    return min(own.end_offset, leaders.end_offset, log_end)
