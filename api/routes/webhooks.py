"""Webhooks: addresses that are told of changes of state and of alerts."""

from __future__ import annotations

import uuid
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Path, Query, Request, status
from pydantic import BaseModel, ConfigDict, Field

from api import cursors
from api.access import Admin, needs_admin
from api.dependencies import CleanText, Reading, Writing, json_body
from api.openapi import problems
from api.outbound import AddressRefused, check_url
from api.problems import refused
from api.schemas import DeliveryOut, DeliveryPage, WebhookCreate, WebhookMade, WebhookOut, Webhooks
from db import webhooks

router = APIRouter(prefix="/api/v1/webhooks", tags=["webhooks"])

WebhookId = Annotated[uuid.UUID, Path(description="The webhook's id.")]


class DeliveriesQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    limit: int = Field(50, ge=1, le=200, description="Most deliveries in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    operation_id="create_webhook",
    dependencies=[Depends(json_body)],
    responses=problems("invalid-request", "invalid-json", "not-json", "body-too-large"),
)
def create_webhook(body: WebhookCreate, caller: Admin, session: Writing, request: Request) -> WebhookMade:
    """Tell an address of events. The secret that signs them is in this answer only.

    Deliveries follow the Standard Webhooks specification and come at least once. Anything but an answer from 200 to
    299 within ten seconds is tried again, later and later, for about a day.
    """
    try:
        check_url(body.url, request.app.state.settings.webhook_allow)
    except AddressRefused as error:
        raise refused("body.url", body.url[:200], str(error)) from None
    with session.begin():
        webhook = webhooks.create(session, url=body.url, events=body.events, created_by=caller.name)
        made = WebhookMade.model_validate(webhook, from_attributes=True)
        caller.record(session, "webhook.create", made.id, after=_summary(webhook.url, webhook.events))
    return made


@router.get("", operation_id="list_webhooks", dependencies=[Depends(needs_admin)])
def list_webhooks(session: Reading) -> Webhooks:
    """All webhooks, oldest first, without their secrets."""
    return Webhooks(webhooks=[WebhookOut.model_validate(w, from_attributes=True) for w in webhooks.listed(session)])


@router.delete(
    "/{webhook_id}", operation_id="delete_webhook", responses=problems("webhook-not-found", "invalid-request")
)
def delete_webhook(webhook_id: WebhookId, caller: Admin, session: Writing) -> WebhookOut:
    """Tell it nothing more; what was not delivered yet never is."""
    with session.begin():
        deleted = WebhookOut.model_validate(webhooks.delete(session, webhook_id), from_attributes=True)
        caller.record(session, "webhook.delete", webhook_id, before=_summary(deleted.url, deleted.events))
    return deleted


@router.post(
    "/{webhook_id}/test",
    status_code=status.HTTP_202_ACCEPTED,
    operation_id="test_webhook",
    responses=problems("webhook-not-found", "invalid-request"),
)
def test_webhook(webhook_id: WebhookId, caller: Admin, session: Writing) -> DeliveryOut:
    """Deliver an event of the type `test`; its deliveries tell what came of it."""
    with session.begin():
        webhooks.get(session, webhook_id)
        delivery = webhooks.add(session, webhook_id, "test", {"asked_by": caller.name})
        caller.record(session, "webhook.test", webhook_id)
        return DeliveryOut.model_validate(delivery, from_attributes=True)


@router.get(
    "/{webhook_id}/deliveries",
    operation_id="list_deliveries",
    dependencies=[Depends(needs_admin)],
    responses=problems("webhook-not-found", "invalid-request"),
)
def list_deliveries(
    webhook_id: WebhookId, query: Annotated[DeliveriesQuery, Query()], session: Reading
) -> DeliveryPage:
    """What was sent, or is to be, newest first; kept for 30 days."""
    after = None
    if query.cursor is not None:
        after = cursors.decode(cursors.DeliveriesCursor, query.cursor, webhook=str(webhook_id)).id
    rows, following = webhooks.deliveries(session, webhook_id, limit=query.limit, after=after)
    next_cursor = None
    if following is not None:
        next_cursor = cursors.encode(cursors.DeliveriesCursor(webhook=str(webhook_id), id=following))
    return DeliveryPage(
        deliveries=[DeliveryOut.model_validate(row, from_attributes=True) for row in rows], next_cursor=next_cursor
    )


def _summary(url: str, events: list[str]) -> dict[str, object]:
    """For the audit log: paths of such URLs are often secrets."""
    return {"host": urlsplit(url).hostname, "events": events}
