"""DescribeLogDirs: what lies where, and how much room is left."""

from __future__ import annotations

import os

from ottla.api.registry import Context, handles
from ottla.model import Error
from ottla.wire.apis.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(DescribeLogDirsRequest)
async def describe_log_dirs(ctx: Context, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    wanted = (
        None if request.topics is None else {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    )
    by_dir: dict[str, dict[str, DescribeLogDirsTopic]] = {directory: {} for directory in ctx.services.logs.dirs}
    for tp, log in ctx.services.logs.logs.items():
        if wanted is not None and tp not in wanted:
            continue
        topics = by_dir[log.dir.rpartition(os.sep)[0]]
        topic = topics.setdefault(tp.topic, DescribeLogDirsTopic(name=tp.topic, partitions=[]))
        row = DescribeLogDirsPartition(partition_index=tp.partition, partition_size=log.size)
        topic.partitions.append(row)  # type: ignore[attr-defined]
    results = []
    for directory, topics in by_dir.items():
        room = await ctx.services.run_blocking(os.statvfs, directory)
        results.append(
            DescribeLogDirsResult(
                error_code=Error.NONE,
                log_dir=directory,
                topics=list(topics.values()),
                total_bytes=room.f_blocks * room.f_frsize,
                usable_bytes=room.f_bavail * room.f_frsize,
            )
        )
    return DescribeLogDirsResponse(results=results)
