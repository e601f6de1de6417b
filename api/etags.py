"""ETags: a client that has the current version gets 304 and no body."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Response

IfNoneMatch = Annotated[
    str | None, Header(max_length=1000, description="ETags of versions that the client has; the same one answers 304.")
]


def conditional(description: str) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`."""
    etag = {"ETag": {"description": "Names this version.", "schema": {"type": "string"}}}
    body = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}
    return {
        200: {"description": description, "headers": etag, "content": body},
        304: {"description": "The client has this version.", "headers": etag},
    }


def answered(body: Any, version: str, response: Response, if_none_match: str | None) -> Any:
    """The body with its ETag, or a 304 without one."""
    etag = f'"{version}"'
    given = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    if etag in given or "*" in given:
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return body
