"""Tokens and the audit log: who may use the API, and who changed what with it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, status
from pydantic import BaseModel, ConfigDict, Field

from api import cursors
from api.access import Admin, Anyone, needs_admin
from api.dependencies import CleanText, Reading, Writing, json_body
from api.openapi import problems
from api.schemas import AuditPage, AuditRow, TokenCreate, TokenMade, TokenOut, TokenPage
from db import audit, tokens
from db.paging import Place

router = APIRouter(prefix="/api/v1", tags=["access"])

TokenId = Annotated[uuid.UUID, Path(description="The token's id.")]


class TokensQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    everything: bool = Field(False, alias="all", description="Revoked and expired tokens, too.")
    limit: int = Field(50, ge=1, le=200, description="Most tokens in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")


class AuditQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    target: CleanText | None = Field(None, max_length=100, description="Only what was done to this id.")
    limit: int = Field(50, ge=1, le=500, description="Most entries in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")


@router.get("/me", operation_id="get_me")
def get_me(caller: Anyone, session: Reading) -> TokenOut:
    """The token that this request was sent with."""
    return TokenOut.model_validate(tokens.get(session, caller.id), from_attributes=True)


@router.post(
    "/tokens",
    status_code=status.HTTP_201_CREATED,
    operation_id="create_token",
    dependencies=[Depends(json_body)],
    responses=problems("invalid-request", "invalid-json", "not-json", "body-too-large"),
)
def create_token(body: TokenCreate, caller: Admin, session: Writing) -> TokenMade:
    """Make a token. Its secret is in this answer and nowhere else."""
    lasts = None if body.days is None else dt.timedelta(days=body.days)
    with session.begin():
        token, secret = tokens.create(session, body.name, body.scope, lasts=lasts, created_by=caller.name)
        made = TokenOut.model_validate(token, from_attributes=True)
        caller.record(session, "token.create", made.id, after=made.model_dump(mode="json", include=_TOLD))
    return TokenMade(**made.model_dump(), secret=secret)


@router.get(
    "/tokens",
    operation_id="list_tokens",
    dependencies=[Depends(needs_admin)],
    responses=problems("invalid-request"),
)
def list_tokens(query: Annotated[TokensQuery, Query()], session: Reading) -> TokenPage:
    """Tokens, newest first, without their secrets."""
    after, everything = None, str(query.everything)
    if query.cursor is not None:
        at = cursors.decode(cursors.TokensCursor, query.cursor, everything=everything)
        after = Place(at.created_at, at.id)
    rows, following = tokens.page(session, everything=query.everything, limit=query.limit, after=after)
    next_cursor = None
    if following is not None:
        next_cursor = cursors.encode(cursors.TokensCursor(everything=everything, **following._asdict()))
    return TokenPage(
        tokens=[TokenOut.model_validate(token, from_attributes=True) for token in rows], next_cursor=next_cursor
    )


@router.delete(
    "/tokens/{token_id}", operation_id="revoke_token", responses=problems("token-not-found", "invalid-request")
)
def revoke_token(token_id: TokenId, caller: Admin, session: Writing) -> TokenOut:
    """Revoke a token: from now on it opens nothing. Its row stays, for the audit log."""
    with session.begin():
        before = TokenOut.model_validate(tokens.get(session, token_id), from_attributes=True)
        revoked = TokenOut.model_validate(tokens.revoke(session, token_id), from_attributes=True)
        caller.record(
            session,
            "token.revoke",
            token_id,
            before=before.model_dump(mode="json", include=_TOLD),
            after=revoked.model_dump(mode="json", include=_TOLD),
        )
    return revoked


@router.get(
    "/audit", operation_id="list_audit", dependencies=[Depends(needs_admin)], responses=problems("invalid-request")
)
def list_audit(query: Annotated[AuditQuery, Query()], session: Reading) -> AuditPage:
    """Every change made through the API, newest first. Calls that were refused changed nothing and are not here."""
    after = None
    if query.cursor is not None:
        after = cursors.decode(cursors.AuditCursor, query.cursor, target=query.target).id
    rows, following = audit.page(session, target=query.target, limit=query.limit, after=after)
    next_cursor = None
    if following is not None:
        next_cursor = cursors.encode(cursors.AuditCursor(target=query.target, id=following))
    return AuditPage(
        entries=[AuditRow.model_validate(row, from_attributes=True) for row in rows], next_cursor=next_cursor
    )


_TOLD = {"name", "scope", "expires_at", "revoked_at"}
