"""A scripted trainer: `fake_trainer.py MODE RUN_DIR --attempt N`. It takes tiny steps and misbehaves as MODE says.

good          trains all steps; stops when asked
stubborn      ignores SIGTERM, and so does the child that it detaches from itself
crash         saves at step 2 of its first attempt and dies with status 3 at step 4
always_crash  the same in every attempt, without ever saving anything new
slow_import   takes long until it listens to signals and writes its first event
dead_on_start dies with a message before its first event
silent_child  leaves a detached child behind when it ends well
garbage       writes something into its log that is no event
chatty        prints a megabyte in every step, each line with its number
silent_end    cannot write its last event
greedy        goes on when its budget is spent
hangs         never comes to the end of its second step, and ignores SIGTERM then
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pipeline.events import (
    EXIT_SILENT,
    AttemptFinished,
    AttemptStarted,
    Count,
    EventLog,
    MarkRecord,
    MarksApplied,
    SamplingStarted,
    StepFinished,
    events_path,
    read_events,
)
from pipeline.rundir import MARKS
from tests.worker import logs

mode, run_dir, attempt = sys.argv[1], Path(sys.argv[2]), int(sys.argv[4])
config = json.loads((run_dir / "config.json").read_text())
steps, step_s = config["budget"]["steps"], float(config["name"].split()[-1])
saved = run_dir / "saved"  # stands for the checkpoints: the last step saved

assert "DATABASE_URL" not in os.environ and "REDIS_URL" not in os.environ
(run_dir / "devices").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
tests, supervisor = int(os.environ["PILOT_TEST_PID"]), os.getppid()


def end_with_the_tests() -> None:
    """Should the test run be killed, nobody else would ever end us or a supervisor that lost its database."""
    while os.path.exists(f"/proc/{tests}"):
        time.sleep(0.5)
    if os.getppid() == supervisor:
        os.kill(supervisor, signal.SIGTERM)
        os.kill(supervisor, signal.SIGCONT)  # it may be suspended
    os._exit(1)


threading.Thread(target=end_with_the_tests, daemon=True).start()
if mode == "dead_on_start":
    sys.exit("the model folder is missing")
if mode == "slow_import":
    time.sleep(60)

stop_asked = False


def stop(*_: object) -> None:
    global stop_asked
    stop_asked = mode != "stubborn"


signal.signal(signal.SIGTERM, stop)

if mode in ("stubborn", "silent_child"):
    # Twice forked and in a session of its own: only the environment and the sub-reaper tell whose it is.
    script = (
        "import os, signal, time; signal.signal(15, signal.SIG_IGN); end = time.monotonic() + 600\n"
        f"while os.path.exists('/proc/{tests}') and time.monotonic() < end: time.sleep(0.5)"
    )
    quiet = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {script!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", quiet], check=True)


def save(step: int) -> None:
    """Whole or not at all, whenever we are killed."""
    draft = run_dir / f"saved.{os.getpid()}"
    draft.write_text(str(step))
    draft.replace(saved)


def new_marks(applied: set[int]) -> list[MarkRecord]:
    wished = [MarkRecord(*mark) for mark in json.loads((run_dir / MARKS).read_text())["marks"]]
    new = [mark for mark in wished if mark.id not in applied]
    applied.update(mark.id for mark in new)
    return new


def sampled_before() -> tuple[int, dict[int, int]]:
    """Rollouts of all earlier attempts, and per step that stands."""
    total, live = 0, dict[int, int]()
    for earlier in range(1, attempt):
        if not events_path(run_dir, earlier).exists():
            continue  # it ended before its first event
        under_way = 0
        for event, _ in read_events(events_path(run_dir, earlier)):
            if isinstance(event, AttemptStarted):
                live = {s: n for s, n in live.items() if s <= event.from_step}
            if isinstance(event, SamplingStarted):
                under_way += event.rollouts
            if isinstance(event, StepFinished):
                live[event.step] = sum(c.rollouts for c in event.fates.values())
                total, under_way = total + live[event.step], 0
        # A key that no step has: it counts as later than any checkpoint.
        live[10**9], total = live.get(10**9, 0) + under_way, total + under_way
    return total, live


applied = set[int]()
step = int(saved.read_text()) if saved.exists() else 0
rollouts, live = sampled_before()
lost = sum(n for s, n in live.items() if s > step)
print(f"attempt {attempt} goes on from step {step}")
events = EventLog(events_path(run_dir, attempt))
events.append(logs.started(attempt, step, Count(rollouts=lost, tokens=10 * lost)))
events.append(logs.prompts())
if step == 0:
    events.append(logs.evaluation(0, 0.25))
while (step < steps or mode == "greedy") and not stop_asked:
    step += 1
    if marks := new_marks(applied):
        events.append(MarksApplied(step=step, marks=marks))
    events.append(logs.sampling(step))
    if mode == "hangs" and step == 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if mode == "chatty":
        for i in range(20_000):
            print(f"{step} {i:>45}")
    time.sleep(step_s)
    visits = [logs.visit(logs.POOL[step % 6], "ready"), logs.visit(logs.POOL[(step + 1) % 6], "deferred", p=0.0)]
    events.append(logs.step(step, visits, before=rollouts))
    rollouts += 8
    if mode == "garbage":
        with events_path(run_dir, attempt).open("a") as file:
            file.write("not an event\n")
        time.sleep(5)  # the next event would lie over it
    if (mode == "crash" and step == 2) or (mode in ("good", "greedy") and step % 2 == 0):
        save(step)
        events.append(logs.checkpoint(step))
    if mode in ("crash", "always_crash") and step == 4 and (attempt == 1 or mode == "always_crash"):
        print("out of luck", file=sys.stderr)
        os._exit(3)
save(step)
events.append(logs.checkpoint(step))
if mode == "silent_end":
    sys.exit(EXIT_SILENT)
outcome = "stopped" if stop_asked else "succeeded"
words = f"stopped on request after step {step}" if stop_asked else "all steps done"
events.append(AttemptFinished.model_validate({"outcome": outcome, "reason": words, "step": step}))
events.close()
