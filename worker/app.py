"""The Celery application. A message says "look at this run"; everything that matters is in the database.

So messages may be lost, doubled or late without harm: a run is claimed in Postgres, a sweep starts what was missed, and
a message that nobody took in time expires.
"""

from __future__ import annotations

import os
from typing import Final

from celery import Celery

LAUNCH: Final = "pilot.launch"
MESSAGE_EXPIRES_S: Final = 60

app = Celery("pilot", broker=os.environ.get("REDIS_URL") or None, include=["worker.tasks"])
app.conf.update(
    task_default_queue="pilot",
    task_serializer="json",
    accept_content=["json"],
    result_backend=None,
    task_ignore_result=True,
    task_acks_late=False,  # taken is taken: a run's second launch is the sweep's to decide, never the broker's
    worker_prefetch_multiplier=1,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # the broker may be away for as long as it likes
    broker_transport_options={"socket_connect_timeout": 3, "socket_timeout": 10, "socket_keepalive": True},
    timezone="UTC",
)
