"""Client quotas."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, boolean, float64, int8, int16, int32, string


class QuotaFilterComponent(Struct):
    entity_type = string()
    match_type = int8()
    match = string(nullable=True)


class DescribeClientQuotasRequest(Request, key=48, versions="0-1", flexible=1):
    """Read quotas that match a filter.

    v1: flexible.
    """

    components = array(QuotaFilterComponent)
    strict = boolean()


class QuotaEntity(Struct):
    entity_type = string()
    entity_name = string(nullable=True)


class QuotaValue(Struct):
    key = string()
    value = float64()


class DescribedQuota(Struct):
    entity = array(QuotaEntity)
    values = array(QuotaValue)


class DescribeClientQuotasResponse(Response, answers=DescribeClientQuotasRequest):
    """Quotas by entity; null entries mean an error."""

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True)
    entries = array(DescribedQuota, nullable=True)


class QuotaOperation(Struct):
    key = string()
    value = float64()
    remove = boolean()


class AlterQuota(Struct):
    entity = array(QuotaEntity)
    ops = array(QuotaOperation)


class AlterClientQuotasRequest(Request, key=49, versions="0-1", flexible=1):
    """Set and remove quotas.

    v1: flexible.
    """

    entries = array(AlterQuota)
    validate_only = boolean()


class AlteredQuota(Struct):
    error_code = int16()
    error_message = string(nullable=True)
    entity = array(QuotaEntity)


class AlterClientQuotasResponse(Response, answers=AlterClientQuotasRequest):
    """One result per entity."""

    throttle_time_ms = int32()
    entries = array(AlteredQuota)
