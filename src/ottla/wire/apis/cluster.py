"""The cluster as a whole."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, bytes_, int8, int16, int32, string


class DescribeClusterRequest(Request, key=60, versions="0-1", flexible=0):
    """Brokers, controller and cluster id.

    v1: endpoint type: 1 brokers, 2 controllers.
    """

    include_cluster_authorized_operations = boolean()
    endpoint_type = int8(since=1, default=1)


class DescribeClusterBroker(Struct):
    broker_id = int32()
    host = string()
    port = int32()
    rack = string(nullable=True, default=None)


class DescribeClusterResponse(Response, answers=DescribeClusterRequest):
    """The cluster.

    v1: endpoint type.
    """

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True, default=None)
    endpoint_type = int8(since=1, default=1)
    cluster_id = string()
    controller_id = int32(default=-1)
    brokers = array(DescribeClusterBroker)
    cluster_authorized_operations = int32(default=-0x80000000)


class FeatureUpdateKey(Struct):
    feature = string()
    max_version_level = int16()
    allow_downgrade = boolean(until=0)
    upgrade_type = int8(since=1, default=1)


class UpdateFeaturesRequest(Request, key=57, versions="0-1", flexible=0):
    """Raise or lower finalized feature levels.

    v1: upgrade type, validate_only.
    """

    timeout_ms = int32(default=60000)
    feature_updates = array(FeatureUpdateKey)
    validate_only = boolean(since=1)


class UpdatableFeatureResult(Struct):
    feature = string()
    error_code = int16()
    error_message = string(nullable=True)


class UpdateFeaturesResponse(Response, answers=UpdateFeaturesRequest):
    """One result per feature."""

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True)
    results = array(UpdatableFeatureResult)


class EnvelopeRequest(Request, key=58, versions="0", flexible=0):
    """A request that a broker forwards to the controller for its client."""

    request_data = bytes_()
    request_principal = bytes_(nullable=True)
    client_host_address = bytes_()


class EnvelopeResponse(Response, answers=EnvelopeRequest):
    """The controller's answer, as the client is to get it."""

    response_data = bytes_(nullable=True, default=None)
    error_code = int16()
