"""What concerns the whole platform: its workers, and what an administrator has set for everybody."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from api.access import Admin
from api.dependencies import Reading, Writing, json_body
from api.openapi import problems
from api.schemas import SettingsChange, SettingsOut, SlotOut, WorkerOut, Workers
from db import settings, slots
from db.models import PlatformSettings

router = APIRouter(prefix="/api/v1", tags=["platform"])


@router.get("/workers", operation_id="list_workers")
def list_workers(session: Reading) -> Workers:
    """Hosts with what they offer, which run holds what, and how busy it is. A host that fell silent stays for a day."""
    return Workers(workers=[_worker(worker) for worker in slots.workers(session)])


@router.get("/settings", operation_id="get_settings")
def get_settings(session: Reading) -> SettingsOut:
    """What an administrator has set for everybody."""
    return _settings(settings.get(session))


@router.put(
    "/settings",
    operation_id="change_settings",
    dependencies=[Depends(json_body)],
    responses=problems("invalid-request", "invalid-json", "not-json", "body-too-large"),
)
def change_settings(body: SettingsChange, caller: Admin, session: Writing) -> SettingsOut:
    """Set all of them."""
    values = body.model_dump()
    with session.begin():
        before = _settings(settings.get(session)).model_dump(include=set(values))
        changed = _settings(settings.put(session, **values, changed_by=caller.name))
        caller.record(session, "settings.change", "settings", before=before, after=values)
    return changed


def _settings(row: PlatformSettings | None) -> SettingsOut:
    if row is None:
        return SettingsOut(price_per_gpu_hour=None, currency=settings.DEFAULT_CURRENCY)
    return SettingsOut.model_validate(row, from_attributes=True)


def _worker(worker: slots.Worker) -> WorkerOut:
    """Of a host that is silent nobody knows how busy it is."""
    host, silent = worker.host, worker.silent
    return WorkerOut(
        host=host.name,
        silent_since=host.expires_at if silent else None,
        cpu_use=None if silent else host.cpu_use,
        slots=[
            SlotOut.model_validate(
                {
                    "kind": held.slot.kind,
                    "device": held.slot.device,
                    "label": held.slot.label,
                    "offered": held.slot.offered,
                    "use": None if silent else held.slot.use,
                    "run_id": held.run_id,
                    "evaluation_id": held.evaluation_id,
                    "run_name": held.name,
                    "taken_at": held.slot.taken_at,
                }
            )
            for held in worker.slots
        ],
    )
