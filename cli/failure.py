"""What the command line says when something cannot be done: sentences, never tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.client import ApiUnreachable

FAILED = 1
"""Exit status: it was asked for correctly and did not work."""
WRONG_USE = 2
"""Exit status: what was given is not accepted."""


class Failure(Exception):
    """The message says what is wrong and what to do; `code` is the exit status."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def unreachable(error: ApiUnreachable) -> Failure:
    return Failure(
        f"The API at {error.url} cannot be reached: {error.why}. Start the platform with `./pilot up`. If it runs "
        "elsewhere, set PILOT_API_URL to its address, or PILOT_HOME to its directory."
    )


@contextmanager
def told() -> Iterator[None]:
    """Turns the errors of the API's client into Failure."""
    from api.client import ApiError, ApiUnreachable

    try:
        yield
    except ApiUnreachable as error:
        raise unreachable(error) from None
    except ApiError as error:
        if error.problem.status == 401:
            raise Failure(f"{error} Set PILOT_TOKEN to a token of this platform.") from None
        raise Failure(str(error), WRONG_USE if error.problem.status in (404, 422) else FAILED) from None
