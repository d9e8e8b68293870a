"""Fetch: the way out, for consumers (`reading`) and for followers (`follower_reading`)."""

from __future__ import annotations

from typing import Any

from ottla.api.follower_reading import FollowersReading
from ottla.api.reading import EMPTY, Reading
from ottla.api.registry import LATER, Context, handles, shapes_errors_of
from ottla.model import Error, KafkaError
from ottla.wire.apis.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData


@handles(FetchRequest)
def fetch(ctx: Context, request: FetchRequest) -> Any:
    try:
        state = request.replica_state
        follower = request.replica_id >= 0 or (state is not None and state.replica_id >= 0)
        reading = FollowersReading(ctx, request) if follower else Reading(ctx, request)
    except KafkaError as problem:
        return FetchResponse(error_code=problem.error)
    reading.start()
    return LATER


@shapes_errors_of(FetchRequest)
def fetch_error(request: FetchRequest, error: Error, message: str) -> FetchResponse:
    return FetchResponse(
        error_code=error,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=one.partition, error_code=error, high_watermark=-1, records=EMPTY)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
