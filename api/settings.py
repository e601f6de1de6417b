"""Settings of the API process, read from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, IPvAnyNetwork, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pipeline.config import ROOT

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


class SettingsMissing(Exception):
    """The environment lacks something. The message names the variable and what to do."""


class Settings(BaseSettings):
    """DATABASE_URL and REDIS_URL are required; `./pilot up` sets them.

    allowed_hosts: names that requests may address this API by (PILOT_ALLOWED_HOSTS, separated by commas; `*`
    allows every name). The default keeps out web pages that point a name of their own at this machine.
    webhook_allow: networks that webhooks may be sent to although they are not public (PILOT_WEBHOOK_ALLOW, such as
    10.1.0.0/16,127.0.0.1).
    """

    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True)

    database_url: str = Field(min_length=1)
    redis_url: str = Field(min_length=1)
    pilot_home: Path = ROOT / ".pilot"
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        LOOPBACK_HOSTS, validation_alias="PILOT_ALLOWED_HOSTS", min_length=1
    )

    webhook_allow: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field((), validation_alias="PILOT_WEBHOOK_ALLOW")

    @field_validator("webhook_allow", mode="before")
    @classmethod
    def _networks(cls, given: str | tuple[str, ...]) -> tuple[str, ...]:
        parts = given.split(",") if isinstance(given, str) else given
        return tuple(part.strip() if isinstance(part, str) else part for part in parts if part)

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, hosts: str | tuple[str, ...]) -> tuple[str, ...]:
        parts = hosts.split(",") if isinstance(hosts, str) else hosts
        return tuple(part.strip().strip("[]").lower() for part in parts if part.strip())

    @classmethod
    def from_environment(cls) -> Self:
        """Raises SettingsMissing that names every variable that is not set or not accepted."""
        try:
            return cls()
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
            raise SettingsMissing(
                f"The API cannot start ({'; '.join(faults)}). `./pilot up` sets these variables; otherwise set "
                "them to your Postgres and your broker, e.g. DATABASE_URL=postgresql://... and REDIS_URL=redis://..."
            ) from None
