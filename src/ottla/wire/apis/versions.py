"""ApiVersions: what a broker can do."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Request, key=18, versions="0-4", flexible=3):
    """Which requests do you serve? The first that a client sends.

    v3: flexible; the client's name and version. The answer's header stays v0.
    v4: features of level 0 in the answer.
    """

    client_software_name = string(since=3)
    client_software_version = string(since=3)


class ApiVersion(Struct):
    api_key = int16()
    min_version = int16()
    max_version = int16()


class SupportedFeatureKey(Struct):
    name = string()
    min_version = int16()
    max_version = int16()


class FinalizedFeatureKey(Struct):
    name = string()
    max_version_level = int16()
    min_version_level = int16()


class ApiVersionsResponse(Response, answers=ApiVersionsRequest):
    """Ranges per API, and features as tagged fields.

    v1: throttle time.
    v3: features.
    """

    error_code = int16()
    api_keys = array(ApiVersion)
    throttle_time_ms = int32(since=1)
    supported_features = array(SupportedFeatureKey, since=3, tag=0)
    finalized_features_epoch = int64(since=3, default=-1, tag=1)
    finalized_features = array(FinalizedFeatureKey, since=3, tag=2)
    zk_migration_ready = boolean(since=3, tag=3)
