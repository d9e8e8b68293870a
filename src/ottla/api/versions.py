"""ApiVersions: computed from the handlers that are declared, so that what is advertised is what is served."""

from __future__ import annotations

import re

from ottla.api.registry import HANDLERS, Context, handles
from ottla.model import Error
from ottla.wire.apis.versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def supported_versions(error: Error = Error.NONE) -> ApiVersionsResponse:
    """Every API that has a handler, with the versions that its table declares."""
    served = [ApiVersion(api_key=key, min_version=request.min_version, max_version=request.max_version)
              for key, (request, _) in sorted(HANDLERS.items())]  # fmt: skip
    return ApiVersionsResponse(error_code=error, api_keys=served)


@handles(ApiVersionsRequest)
def api_versions(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if ctx.version >= 3 and not (
        _SOFTWARE.match(request.client_software_name) and _SOFTWARE.match(request.client_software_version)
    ):
        return supported_versions(Error.INVALID_REQUEST)
    return supported_versions()
