"""Putting a run before the workers. This is all that the API knows of Celery."""

from __future__ import annotations

import os
import uuid
from typing import Final
from urllib.parse import urlsplit

_CONNECT_TIMEOUT_S: Final = 3.0


class BrokerUnavailable(Exception):
    """The broker cannot be reached. The message says what to do and hides the password."""


def enqueue(run_id: uuid.UUID) -> None:
    """Tell the workers that a run is queued. Call it after the transaction that queued it.

    Should the message be lost, or the broker be away, a worker's sweep starts the run all the same.
    Raises BrokerUnavailable.
    """
    # Imported on first use: most processes that import this module never send anything.
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    from worker.app import LAUNCH, MESSAGE_EXPIRES_S, app

    url = os.environ.get("REDIS_URL", "")
    if not url:
        raise BrokerUnavailable(
            "REDIS_URL is not set. `./pilot up` starts a private broker and sets it; otherwise give the address of "
            "yours, such as redis://:password@host:6379/0."
        )
    try:
        # A connection of its own: none is kept that the broker may have closed since, and no retry waits for long.
        with app.connection_for_write(url, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
            connection.transport_options = {
                "socket_connect_timeout": _CONNECT_TIMEOUT_S,
                "socket_timeout": _CONNECT_TIMEOUT_S,
                "max_retries": 1,
                "interval_start": 0,
            }
            app.send_task(
                LAUNCH,
                args=[str(run_id)],
                connection=connection,
                retry=False,
                expires=MESSAGE_EXPIRES_S,
                ignore_result=True,
            )
    except (OperationalError, RedisError, OSError, ValueError, KeyError) as error:
        raise BrokerUnavailable(
            f"The broker at {_masked(url)} cannot be reached: {_masked(url, str(error))}. "
            "Check that it runs and that REDIS_URL is right."
        ) from None


def _masked(url: str, text: str | None = None) -> str:
    """The address, or a text about it, without the password."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return "REDIS_URL" if text is None else text.replace(url, "REDIS_URL")
    words = url if text is None else " ".join(text.split()).rstrip(".")
    return words.replace(f":{password}@", ":***@") if password else words
