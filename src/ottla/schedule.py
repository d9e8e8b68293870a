"""What a broker does from time to time, and how often: retention, flushes, checkpoints, expiry, in-sync replicas, leaders."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ottla.api.services import Services
from ottla.housekeeping import Housekeeping
from ottla.storage import deletion

log = logging.getLogger("ottla.broker")

_CLEAN_UP_EVERY_MS = 1000
_FLUSH_CHECK_EVERY_MS = 1000
_DIRECTORY_CHECK_EVERY_MS = 1000


def schedule(housekeeping: Housekeeping, services: Services) -> None:
    """Give the housekeeping its steps."""
    every, setting = housekeeping.every, services.config.integer
    logs, replicas, controller = services.logs, services.replicas, services.controller
    run_blocking = services.run_blocking
    delay = setting("log.initial.task.delay.ms")

    async def retention() -> None:
        logs.check_retention()

    async def look_after_directories() -> None:
        await run_blocking(logs.look_after_directories)

    async def flush() -> None:
        for one, job in logs.flush_jobs():
            try:
                await run_blocking(job.run)
            except OSError as problem:
                log.error("%s could not be brought to the disk: %s", one.topic_partition, problem)
                logs.io_failed(one, problem)
            else:
                one.flushed(job)

    async def write_all(writes: Callable[[], list[Callable[[], None]]]) -> None:
        for write in writes():
            try:
                await run_blocking(write)
            except OSError as problem:
                log.error("A checkpoint could not be written: %s", problem)

    async def clean_up() -> None:
        due = logs.due_deletions()
        if due:
            await run_blocking(deletion.remove, due)

    async def expire_producers() -> None:
        logs.expire_producers()

    async def shrink_isrs() -> None:
        replicas.shrink_isrs(services.clock.monotonic())

    async def rebalance_leaders() -> None:
        if services.config.flag("auto.leader.rebalance.enable"):
            await controller.rebalance_leaders(setting("leader.imbalance.per.broker.percentage"))

    every(setting("log.retention.check.interval.ms"), retention, first_ms=delay)
    every(_DIRECTORY_CHECK_EVERY_MS, look_after_directories)
    every(min(_FLUSH_CHECK_EVERY_MS, setting("log.flush.scheduler.interval.ms")), flush)
    every(
        setting("log.flush.offset.checkpoint.interval.ms") or 1, partial(write_all, logs.recovery_point_writes), first_ms=delay
    )
    every(
        setting("log.flush.start.offset.checkpoint.interval.ms") or 1, partial(write_all, logs.log_start_writes), first_ms=delay
    )
    every(
        setting("replica.high.watermark.checkpoint.interval.ms"),
        partial(write_all, lambda: logs.high_watermark_writes(replicas.high_watermarks())),
    )
    every(setting("producer.id.expiration.check.interval.ms"), expire_producers)
    every(setting("transaction.abort.timed.out.transaction.cleanup.interval.ms"), services.transactions.abort_timed_out)
    every(setting("transaction.remove.expired.transaction.cleanup.interval.ms"), services.transactions.expire_ids)
    every(_CLEAN_UP_EVERY_MS, clean_up)
    every(max(setting("replica.lag.time.max.ms") // 2, 1), shrink_isrs)
    every(setting("leader.imbalance.check.interval.seconds") * 1000, rebalance_leaders)
