"""Settings of the API process, read from the environment."""

from __future__ import annotations

import re
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
    cors_origins: web pages that may use the API from a browser, with a token (PILOT_CORS_ORIGINS, such as
    https://lab.example.org); none by default.
    rate_limit: requests a second that each token may send in the long run, ten times as many at once
    (PILOT_RATE_LIMIT; 0: no limit).
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

    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field((), validation_alias="PILOT_CORS_ORIGINS")
    rate_limit: float = Field(100, ge=0, le=1e6, allow_inf_nan=False, validation_alias="PILOT_RATE_LIMIT")
    webhook_allow: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field((), validation_alias="PILOT_WEBHOOK_ALLOW")

    @field_validator("webhook_allow", "cors_origins", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        return tuple(part.strip() for part in given.split(",") if part.strip()) if isinstance(given, str) else given

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise ValueError(f"{origin!r} is not an origin such as https://lab.example.org")
        return origins

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
