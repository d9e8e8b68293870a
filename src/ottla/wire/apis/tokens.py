"""Delegation tokens."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, bytes_, int16, int32, int64, string


class CreatableRenewers(Struct):
    principal_type = string()
    principal_name = string()


class CreateDelegationTokenRequest(Request, key=38, versions="0-3", flexible=2):
    """A token that stands for a principal.

    v2: flexible.
    v3: on behalf of another owner.
    """

    owner_principal_type = string(since=3, nullable=True)
    owner_principal_name = string(since=3, nullable=True)
    renewers = array(CreatableRenewers)
    max_lifetime_ms = int64()


class CreateDelegationTokenResponse(Response, answers=CreateDelegationTokenRequest):
    """The token.

    v3: who asked for it.
    """

    error_code = int16()
    principal_type = string()
    principal_name = string()
    token_requester_principal_type = string(since=3)
    token_requester_principal_name = string(since=3)
    issue_timestamp_ms = int64()
    expiry_timestamp_ms = int64()
    max_timestamp_ms = int64()
    token_id = string()
    hmac = bytes_()
    throttle_time_ms = int32()


class RenewDelegationTokenRequest(Request, key=39, versions="0-2", flexible=2):
    """Keep a token alive.

    v2: flexible.
    """

    hmac = bytes_()
    renew_period_ms = int64()


class RenewDelegationTokenResponse(Response, answers=RenewDelegationTokenRequest):
    """Its new end."""

    error_code = int16()
    expiry_timestamp_ms = int64()
    throttle_time_ms = int32()


class ExpireDelegationTokenRequest(Request, key=40, versions="0-2", flexible=2):
    """Let a token end.

    v2: flexible.
    """

    hmac = bytes_()
    expiry_time_period_ms = int64()


class ExpireDelegationTokenResponse(Response, answers=ExpireDelegationTokenRequest):
    """Its new end."""

    error_code = int16()
    expiry_timestamp_ms = int64()
    throttle_time_ms = int32()


class DescribeDelegationTokenOwner(Struct):
    principal_type = string()
    principal_name = string()


class DescribeDelegationTokenRequest(Request, key=41, versions="0-3", flexible=2):
    """List tokens by owner; null asks for all.

    v2: flexible.
    """

    owners = array(DescribeDelegationTokenOwner, nullable=True)


class DescribedDelegationTokenRenewer(Struct):
    principal_type = string()
    principal_name = string()


class DescribedDelegationToken(Struct):
    principal_type = string()
    principal_name = string()
    token_requester_principal_type = string(since=3)
    token_requester_principal_name = string(since=3)
    issue_timestamp = int64()
    expiry_timestamp = int64()
    max_timestamp = int64()
    token_id = string()
    hmac = bytes_()
    renewers = array(DescribedDelegationTokenRenewer)


class DescribeDelegationTokenResponse(Response, answers=DescribeDelegationTokenRequest):
    """The tokens that the asker may see.

    v3: who asked for them.
    """

    error_code = int16()
    tokens = array(DescribedDelegationToken)
    throttle_time_ms = int32()
