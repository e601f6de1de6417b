"""The hosts that run things: their CPU slots and GPUs, which run holds each, and how busy they are."""

from __future__ import annotations

from html import escape

import streamlit as st

from api.client import ApiUnreachable
from api.schemas import SlotOut, WorkerOut
from ui import blocks, palette, text
from ui.connection import api_errors, client, show_lost

EVERY_S = 5


def render() -> None:
    st.title("Workers", anchor=False)
    with api_errors():
        st.session_state["workers"] = client().workers().workers
        st.fragment(_hosts, run_every=EVERY_S)()


def _hosts() -> None:
    banner = st.empty()
    try:
        st.session_state["workers"] = client().workers().workers
    except ApiUnreachable as error:  # the last known ones stay
        with banner:
            show_lost(error)
    workers: list[WorkerOut] = st.session_state["workers"]
    if not workers:
        blocks.empty(
            "No worker runs",
            "Runs wait in the queue until one does. <code>./pilot up</code> starts one on this machine; on another "
            "machine <code>python -m worker</code> with its <code>DATABASE_URL</code> and <code>REDIS_URL</code>.",
        )
        return
    _summary(workers)
    for worker in workers:
        _host(worker)


def _summary(workers: list[WorkerOut]) -> None:
    offered = [slot for worker in workers if worker.silent_since is None for slot in worker.slots if slot.offered]
    meters = [blocks.meter("Hosts", text.hover(sum(worker.silent_since is None for worker in workers)))]
    for kind, name in (("cuda", "GPUs in use"), ("cpu", "CPU slots in use")):
        mine = [slot for slot in offered if slot.kind == kind]
        taken = sum(slot.run_id is not None for slot in mine)
        share = taken / len(mine) if mine else None
        meters.append(blocks.meter(name, f"{taken} of {len(mine)}" if mine else "none", share=share))
    busy = [slot.use for slot in offered if slot.use is not None]
    known = f"of {len(busy)} that tell" if busy else "no GPU tells"
    meters.append(blocks.meter("GPU use", text.percent(sum(busy) / len(busy), 0) if busy else "–", known))
    st.html(f'<div class="pc-meters pc-few">{"".join(meters)}</div>')


def _host(worker: WorkerOut) -> None:
    with st.container(border=True, key=f"host-{worker.host}"):
        silent = worker.silent_since
        chip = "silent" if silent else "answers"
        colour = palette.STATE_COLOURS["failed" if silent else "succeeded"]
        words = f"silent for {text.since(silent)}" if silent else f"cores {_use(worker.cpu_use)}"
        st.html(
            f'<div class="pc-heading"><h2>{escape(worker.host)}</h2>'
            f'<b class="pc-chip" style="--c:{colour}"><i></i>{chip}</b><span>{words}</span></div>'
        )
        if silent:
            st.markdown(
                "Its worker has stopped, or cannot reach the database. Its runs go on elsewhere from their newest "
                "checkpoints; start the worker again with `./pilot up` or `python -m worker`."
            )
        if not worker.slots:
            st.caption("It offers nothing: `PILOT_SLOTS` is 0 and it has no GPU.")
            return
        rows = [_slot(slot) for slot in worker.slots]
        blocks.table(["device", "in use by", "since", "GPU use"], rows, right=(3,), caption=f"Devices of {worker.host}")


def _slot(slot: SlotOut) -> list[str]:
    label = escape(slot.label) + (
        "" if slot.kind == "cpu" else f' <span class="pc-faint">GPU {escape(slot.device)}</span>'
    )
    if not slot.offered:
        label += ' <span class="pc-tag" title="its host has it no more; the run is still ending">gone</span>'
    if slot.run_id is None:
        holder = '<span class="pc-faint">free</span>'
    elif slot.run_name is None:
        holder = '<span class="pc-faint">a deleted run, whose processes are ending</span>'
    else:
        what = "" if slot.evaluation_id is None else "an evaluation of "
        holder = f'{what}<a href="run?run={slot.run_id}" target="_self">{escape(slot.run_name)}</a>'
    return [label, holder, text.when(slot.taken_at), "" if slot.kind == "cpu" else _use(slot.use)]


def _use(share: float | None) -> str:
    if share is None:
        return '<span class="pc-faint" title="nothing on its host tells">not known</span>'
    return f"{text.percent(share, 0)} busy"


render()
