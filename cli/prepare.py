"""`python -m cli.prepare`: what `pilot up` does to the database before the platform starts.

Migrations, and the platform's own tokens: one in `<home>/token`, with which the command line on this machine
administers it, and one in `<home>/dashboard.token` that lets the dashboard start and stop runs. Both files are
readable by their owner only; tokens that still work are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sqlalchemy.orm import Session

import db
from cli.place import dashboard_token_path, home, token_path
from cli.servers.home import write_private
from db import tokens


def main() -> int:
    folder = home()
    try:
        db.upgrade()
        engine = db.create_engine(application="pilot-prepare", pool_size=1)
        with Session(engine) as session:
            _keep(session, token_path(folder), f"pilot up in {folder}", "admin")
            _keep(session, dashboard_token_path(folder), f"dashboard of pilot up in {folder}", "run")
        engine.dispose()
    except (db.DatabaseUnavailable, db.SchemaMismatch) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _keep(session: Session, path: Path, name: str, scope: str) -> None:
    """A token of this scope in the file: the one that is there, or a new one. Raises OSError."""
    with session.begin():
        try:
            kept = tokens.use(session, path.read_text().strip())
            if kept.scope == scope:
                path.chmod(0o600)
                return
        except (OSError, UnicodeDecodeError, tokens.TokenRefused):
            pass  # none yet, or one of another database, or revoked
        _, secret = tokens.create(session, name, scope)
        write_private(path, secret + "\n")


if __name__ == "__main__":
    sys.exit(main())
