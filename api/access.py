"""Who calls, and what they may do.

Every request but those to OPEN carries `Authorization: Bearer <token>`; the guard looks the token up before anything
else is done. Each scope includes those before it: `read` sees everything but tokens and the audit log, `run` also
starts, stops and changes runs, `admin` also makes and revokes tokens.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from api.problems import CHALLENGE, ApiProblem
from db import audit, tokens
from db.models import SCOPES

OPEN: Final = ("/healthz", "/readyz", "/openapi.json", "/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js")
"""What anybody may ask: whether the platform is well, and what its API looks like."""


@dataclass(frozen=True)
class Caller:
    """The token of the request, and the request's id."""

    id: uuid.UUID
    name: str
    scope: str
    request_id: str

    def record(
        self,
        session: Session,
        action: str,
        target: object,
        *,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        """Write the change into the audit log, in the transaction that makes it; `before` and `after` sum it up."""
        audit.record(
            session,
            token_id=self.id,
            token_name=self.name,
            request_id=self.request_id,
            action=action,
            target=str(target),
            before=before,
            after=after,
        )


def authenticate(engine: Engine, authorization: str | None, request_id: str) -> Caller:
    """The caller with this Authorization header. Raises ApiProblem and TokenRefused."""
    scheme, _, secret = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise ApiProblem(
            "token-missing",
            "Send the header `Authorization: Bearer <token>`. `./pilot token create` makes a token; where `pilot up` "
            "runs, $PILOT_HOME/token holds one.",
            headers=CHALLENGE,
        )
    with Session(engine) as session, session.begin():
        token = tokens.use(session, secret.strip())
        return Caller(token.id, token.name, token.scope, request_id)


def caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


def _needs(scope: str) -> Callable[[Request], Caller]:
    def check(request: Request) -> Caller:
        who = caller(request)
        if SCOPES.index(who.scope) < SCOPES.index(scope):
            raise ApiProblem(
                "scope-missing",
                f"This needs a token with the scope {scope!r}; {who.name!r} has {who.scope!r}. "
                "Ask whoever administers the platform for one.",
            )
        return who

    return check


needs_run, needs_admin = _needs("run"), _needs("admin")
Anyone = Annotated[Caller, Depends(caller)]
Runner = Annotated[Caller, Depends(needs_run)]
Admin = Annotated[Caller, Depends(needs_admin)]
