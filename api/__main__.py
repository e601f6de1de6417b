"""`python -m api`: serve the API, on this machine only unless told otherwise."""

from __future__ import annotations

import argparse
import sys

import uvicorn

from api.app import create_app
from api.notify import Notifier
from api.settings import SettingsMissing
from db import DatabaseUnavailable


def main() -> int:
    """Serves until SIGTERM or Ctrl-C. Returns 1 with a message when it cannot start."""
    parser = argparse.ArgumentParser(prog="python -m api", description="Serve the Pilot-Commit API.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    try:
        app = create_app()
    except (SettingsMissing, DatabaseUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    server = uvicorn.Server(
        uvicorn.Config(app, host=given.host, port=given.port, access_log=False, timeout_graceful_shutdown=10)
    )
    app.state.ending = lambda: server.should_exit  # a stream that goes on would hold the server up
    notifier = Notifier(app.state.engine, app.state.settings.webhook_allow)
    notifier.start()
    server.run()
    notifier.stop()
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
