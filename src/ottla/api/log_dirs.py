"""The broker's log directories: what lies where, how much room is left, and moving replicas between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ottla.api.registry import Context, handles, shapes_errors_of
from ottla.model import Error, KafkaError, TopicPartition
from ottla.wire.apis.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
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
    logs = ctx.services.logs
    by_dir: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {directory: {} for directory in logs.dirs}
    for tp, directory, row in _replicas(ctx):
        if directory in by_dir and (wanted is None or tp in wanted):
            by_dir[directory].setdefault(tp.topic, []).append(row)
    results = [
        DescribeLogDirsResult(error_code=Error.KAFKA_STORAGE_ERROR, log_dir=directory)
        for directory in sorted(logs.offline_dirs)
    ]
    for directory, topics in by_dir.items():
        try:
            room = await ctx.services.run_blocking(os.statvfs, directory)
        except OSError as problem:
            logs.directory_failed(directory, problem)
            results.append(DescribeLogDirsResult(error_code=Error.KAFKA_STORAGE_ERROR, log_dir=directory))
            continue
        results.append(
            DescribeLogDirsResult(
                error_code=Error.NONE,
                log_dir=directory,
                topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in topics.items()],
                total_bytes=room.f_blocks * room.f_frsize,
                usable_bytes=room.f_bavail * room.f_frsize,
            )
        )
    return DescribeLogDirsResponse(results=results)


def _replicas(ctx: Context) -> Iterator[tuple[TopicPartition, str, DescribeLogDirsPartition]]:
    """What lies where: the replicas, and the copies of those that are being moved."""
    for tp, log in ctx.services.logs.logs.items():
        row = DescribeLogDirsPartition(partition_index=tp.partition, partition_size=log.size)
        yield tp, os.path.dirname(log.dir), row
    for tp, move in ctx.services.mover.moves.items():
        if move.future is not None:
            size, lag = move.future.size, move.lag
            row = DescribeLogDirsPartition(
                partition_index=tp.partition, partition_size=size, offset_lag=lag, is_future_key=True
            )
            yield tp, move.target, row


@handles(AlterReplicaLogDirsRequest)
async def alter_replica_log_dirs(ctx: Context, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Answers when the moves have begun; DescribeLogDirs tells how far they are."""
    errors: dict[tuple[str, TopicPartition], Error] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                tp = TopicPartition(topic.name, number)
                errors[directory.path, tp] = await _move(ctx, directory, tp)
    return _altered(request, lambda directory, tp: errors[directory.path, tp])


async def _move(ctx: Context, directory: AlterReplicaLogDir, tp: TopicPartition) -> Error:
    logs = ctx.services.logs
    if not directory.path.startswith(os.sep) or "\0" in directory.path:
        return Error.LOG_DIR_NOT_FOUND
    target = await ctx.services.run_blocking(os.path.realpath, directory.path)
    if target in logs.offline_dirs:
        return Error.KAFKA_STORAGE_ERROR
    if target not in logs.dirs:
        return Error.LOG_DIR_NOT_FOUND
    try:
        await ctx.services.mover.move(tp, target)
    except KafkaError as problem:
        return problem.error
    return Error.NONE


@shapes_errors_of(AlterReplicaLogDirsRequest)
def alter_replica_log_dirs_error(
    request: AlterReplicaLogDirsRequest, error: Error, message: str
) -> AlterReplicaLogDirsResponse:
    return _altered(request, lambda _directory, _tp: error)


def _altered(
    request: AlterReplicaLogDirsRequest, result: Callable[[AlterReplicaLogDir, TopicPartition], Error]
) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                error = result(directory, TopicPartition(topic.name, number))
                row = AlterReplicaLogDirPartitionResult(partition_index=number, error_code=error)
                topics.setdefault(topic.name, []).append(row)
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=rows) for name, rows in topics.items()]
    )
