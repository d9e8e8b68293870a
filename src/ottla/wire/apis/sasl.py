"""SASL: the exchange itself, and the SCRAM credentials that it checks."""

from __future__ import annotations

from ottla.wire.schema import Request, Response, Struct, array, bytes_, int8, int16, int32, int64, string


class SaslHandshakeRequest(Request, key=17, versions="0-1"):
    """Choose a SASL mechanism.

    v1: tokens follow in SaslAuthenticate and not bare.
    """

    mechanism = string()


class SaslHandshakeResponse(Response, answers=SaslHandshakeRequest):
    """What is offered."""

    error_code = int16()
    mechanisms = array(string())


class SaslAuthenticateRequest(Request, key=36, versions="0-2", flexible=2):
    """One step of the exchange.

    v2: flexible.
    """

    auth_bytes = bytes_()


class SaslAuthenticateResponse(Response, answers=SaslAuthenticateRequest):
    """The server's step.

    v1: session lifetime.
    """

    error_code = int16()
    error_message = string(nullable=True)
    auth_bytes = bytes_()
    session_lifetime_ms = int64(since=1)


class UserName(Struct):
    name = string()


class DescribeUserScramCredentialsRequest(Request, key=50, versions="0", flexible=0):
    """Which users have SCRAM credentials? Null asks for all."""

    users = array(UserName, nullable=True)


class CredentialInfo(Struct):
    mechanism = int8()
    iterations = int32()


class DescribeUserScramCredentialsResult(Struct):
    user = string()
    error_code = int16()
    error_message = string(nullable=True)
    credential_infos = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(Response, answers=DescribeUserScramCredentialsRequest):
    """Mechanisms and iterations, never secrets."""

    throttle_time_ms = int32()
    error_code = int16()
    error_message = string(nullable=True)
    results = array(DescribeUserScramCredentialsResult)


class ScramCredentialDeletion(Struct):
    name = string()
    mechanism = int8()


class ScramCredentialUpsertion(Struct):
    name = string()
    mechanism = int8()
    iterations = int32()
    salt = bytes_()
    salted_password = bytes_()


class AlterUserScramCredentialsRequest(Request, key=51, versions="0", flexible=0):
    """Set and delete SCRAM credentials."""

    deletions = array(ScramCredentialDeletion)
    upsertions = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    user = string()
    error_code = int16()
    error_message = string(nullable=True)


class AlterUserScramCredentialsResponse(Response, answers=AlterUserScramCredentialsRequest):
    """One result per user."""

    throttle_time_ms = int32()
    results = array(AlterUserScramCredentialsResult)
