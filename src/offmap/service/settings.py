"""Settings of the service: from the environment (``OFFMAP_…``), the command line, or Python."""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from offmap.errors import InputError
from offmap.openworld import PictureSettings
from offmap.service.outgoing import check_address, hide_passwords
from offmap.service.stores import is_url
from offmap.service.unknown_inputs import StoreLimits

MIB = 2**20
_DATA_VARIABLE = "OFFMAP_DATA"  # where `offmap.data` keeps datasets; not a setting of the service
_log = logging.getLogger(__name__)
_MIN_TOKEN_LENGTH = 16


class Settings(BaseSettings):
    """How the service listens, what it accepts, and how much it stores.

    Every field can be set by a variable of the environment: ``OFFMAP_PORT`` for `port`. The fields are described in
    the table of the guide *Serve a guard*.

    Examples
    --------
    >>> settings = Settings(port=8080, max_rows=100)
    >>> settings.port, settings.is_loopback, settings.requests_per_second
    (8080, True, None)
    """

    model_config = SettingsConfigDict(env_prefix="OFFMAP_", extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port to listen on; 0 takes a free one.")
    store: str = Field(
        default="offmap-store", description="Where unknown inputs are kept: a folder, or postgresql://…."
    )
    folder: Path | None = Field(default=None, description="With a URL as store: the folder for everything else.")

    token: SecretStr | None = Field(default=None, description="The token of clients. Never on the command line.")
    token_file: Path | None = Field(default=None, description="A file with the token.")
    no_auth: bool = Field(default=False, description="Listen beyond this machine without a token.")
    rate: float | None = Field(
        default=None,
        ge=0,
        description="Requests per second and address; 0 for no limit. On loopback none by default, else 100.",
    )

    max_body: int = Field(default=32 * MIB, ge=1, description="Bytes in one request.")
    max_rows: int = Field(default=4096, ge=1, description="Inputs in one request.")
    max_characters: int = Field(default=100_000, ge=1, description="Characters of one text.")
    max_all_characters: int = Field(default=1_000_000, ge=1, description="Characters of all texts in one request.")
    max_pixels: int = Field(default=16_000_000, ge=1, description="Pixels of all images in one request.")
    max_requests: int = Field(default=512, ge=1, description="Requests handled at a time; more are answered 503.")
    max_waiting: int = Field(default=16384, ge=1, description="Inputs waiting to be scored; more are answered 503.")
    max_memory: int = Field(default=256 * MIB, ge=1, description="Bytes of bodies, decoded images and unread answers.")
    max_batch: int = Field(default=128, ge=1, description="Inputs scored at a time.")

    header_seconds: float = Field(
        default=10.0, gt=0, description="How long a client may take to send a request's headers."
    )
    body_seconds: float = Field(default=30.0, gt=0, description="How long it may take to send the body.")
    answer_seconds: float = Field(default=30.0, gt=0, description="How long it may take to read an answer.")
    idle_seconds: int = Field(default=15, ge=1, description="How long an unused connection is kept.")
    shutdown_seconds: int = Field(
        default=30, ge=1, description="How long accepted requests may take after a stop signal."
    )

    pile_items: int = Field(default=100_000, ge=1, description="Unknown inputs kept; the oldest are dropped first.")
    pile_bytes: int = Field(default=1024 * MIB, ge=1, description="Approximate bytes of unknown inputs kept.")
    pile_days: float = Field(default=90.0, gt=0, description="Days an unknown input is kept.")
    drift_alpha: float = Field(
        default=0.01, gt=0, lt=1, description="The probability that drift is ever reported without drift."
    )

    naming_url: str | None = Field(
        default=None,
        description="An OpenAI-compatible service (…/v1/chat/completions) that proposes names for groups of texts.",
    )
    naming_model: str = Field(default="default", description="The model that is asked for names.")
    naming_token: SecretStr | None = Field(default=None, description="The token for that service.")
    naming_seconds: float = Field(default=20.0, gt=0, description="How long it may take to propose one name.")

    events_url: str | None = Field(
        default=None, description="Where every unknown input is posted as a CloudEvent, until it is confirmed."
    )
    events_token: SecretStr | None = Field(default=None, description="The token for that address.")
    events_source: str = Field(default="/offmap", description="The source named in events.")
    events_seconds: float = Field(
        default=1.0, gt=0, description="How often new events are sent; failures double the wait, to a minute at most."
    )

    otel_url: str | None = Field(
        default=None, description="An OpenTelemetry collector (http://…:4318) that gets traces and metrics over HTTP."
    )
    otel_name: str = Field(default="offmap", description="The name of this service there.")
    otel_seconds: float = Field(default=15.0, gt=0, description="How often metrics are sent there.")

    device: str | None = Field(default=None, description="Where the network runs, such as cuda; the CPU by default.")

    learn_memory: int = Field(
        default=8192 * MIB, ge=1, description="Bytes of memory that grouping or learning may use."
    )
    learn_nice: int = Field(
        default=10, ge=0, le=19, description="By how much grouping and learning give way to other processes."
    )

    input_shape: Annotated[tuple[int, ...] | None, NoDecode] = Field(
        default=None, description="The shape of one input, such as [3, 32, 32]."
    )
    input_dtype: Literal["float32", "int64", "uint8"] = Field(
        default="float32", description="The type of numbers that the network reads."
    )
    image_size: int | None = Field(default=None, ge=1, description="Resize and crop images to this many pixels a side.")
    gray: bool = Field(default=False, description="Read one channel of images, not three.")
    mean: Annotated[tuple[float, ...], NoDecode] = Field(
        default=(0.0,), description="Subtracted from pixels in [0, 1]."
    )
    std: Annotated[tuple[float, ...], NoDecode] = Field(
        default=(1.0,), description="Divided by, after the mean was subtracted."
    )

    @field_validator("input_shape", "mean", "std", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        """Read numbers as the command line takes them, 3,32,32, or as JSON, [3, 32, 32]."""
        if not isinstance(given, str):
            return given
        parts = given.strip().removeprefix("[").removesuffix("]").split(",")
        try:
            return tuple(float(part) for part in parts)
        except ValueError as error:
            raise ValueError("numbers with commas between them are needed, such as 3,32,32") from error

    @model_validator(mode="after")
    def _check_scaling(self) -> Self:
        channels = 1 if self.gray else 3
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, channels):
                raise ValueError(f"{name}={numbers}: one number, or one per channel ({channels}) is needed")
        if not all(number > 0 for number in self.std):
            raise ValueError(f"std={self.std}: deviations are above 0")
        return self

    @field_validator("naming_url", "events_url", "otel_url")
    @classmethod
    def _check_address(cls, url: str | None) -> str | None:
        return None if url is None else check_address(url)

    @field_validator("naming_token", "events_token")
    @classmethod
    def _check_token(cls, token: SecretStr | None) -> SecretStr | None:
        text = "" if token is None else token.get_secret_value().strip()  # a file read into a variable ends in a line
        if not text.isascii() or not text.isprintable():
            raise ValueError("a token is sent in a header, so it has printable ASCII characters only")
        return SecretStr(text) if text else None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def requests_per_second(self) -> float | None:
        """The limit of requests per second and address; `None` for none."""
        if self.rate is None:
            return None if self.is_loopback else 100.0
        return self.rate or None

    @property
    def store_limits(self) -> StoreLimits:
        """The limits of the store of unknown inputs."""
        return StoreLimits(self.pile_items, self.pile_bytes, self.pile_days * 86400.0)

    @property
    def store_dir(self) -> Path:
        """The folder of this service: its lock, the journal, proposals and learned versions."""
        if is_url(self.store):
            return self.folder or Path("offmap-store")
        return Path(self.store)

    def read_token(self) -> str | None:
        """Read the token from its file or the environment.

        Returns
        -------
        str or None
            `None` when no token is set.

        Raises
        ------
        InputError
            If the file cannot be read, or the token is too short.

        Examples
        --------
        >>> Settings(token="short").read_token()
        Traceback (most recent call last):
        offmap.errors.InputError: the token has 5 characters; at least 16 are needed, such as from: openssl rand -hex 32
        """
        if self.token_file is not None:
            try:
                text = self.token_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{self.token_file}: the token cannot be read ({error})") from error
        elif self.token is not None:
            text = self.token.get_secret_value().strip()
        else:
            return None
        if len(text) < _MIN_TOKEN_LENGTH or not text.isascii() or not text.isprintable():
            raise InputError(
                f"the token has {len(text)} characters; at least {_MIN_TOKEN_LENGTH} are needed, "
                "such as from: openssl rand -hex 32"
            )
        return text

    def check_exposure(self) -> None:
        """Raise an error when the token cannot be used, or when others could connect without one."""
        token = self.read_token()
        if not self.is_loopback and token is None and not self.no_auth:
            raise InputError(
                f"--host {self.host}: others could connect, so a token is needed; set OFFMAP_TOKEN or "
                "--token-file, or say --no-auth"
            )


def load_settings(**given: object) -> Settings:
    """Load settings from the environment.

    Parameters
    ----------
    **given : object
        Values that replace those of the environment; `None` does not.

    Returns
    -------
    Settings
        All settings.

    Raises
    ------
    InputError
        If a value is not allowed.

    Examples
    --------
    >>> load_settings(port=1 << 20)
    Traceback (most recent call last):
    offmap.errors.InputError: port=1048576: Input should be less than or equal to 65535
    """
    known = {f"OFFMAP_{name.upper()}" for name in Settings.model_fields} | {_DATA_VARIABLE}
    for name in sorted(os.environ):
        if name.upper().startswith("OFFMAP_") and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.85)
            _log.warning("%s is not a setting and is ignored%s", name, f"; is {near[0]} meant?" if near else "")
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = "_".join(str(part) for part in first["loc"])
        value = "…" if where.endswith("token") else hide_passwords(str(first["input"]))
        if where and given.get(str(first["loc"][0])) is None:
            where = f"OFFMAP_{where.upper()}"  # the name that stands in the environment
        reason = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}={value}: {reason}" if where else reason) from None


def with_pictures(settings: Settings, kept: PictureSettings | None) -> Settings:
    """Prepare pictures as a deployment keeps it, unless options or the environment say otherwise.

    Parameters
    ----------
    settings : Settings
        From `load_settings`.
    kept : PictureSettings or None
        What the deployment's file says.

    Returns
    -------
    Settings
        The same, or with size, channels and scaling set.

    Examples
    --------
    >>> from offmap.openworld import PictureSettings
    >>> with_pictures(load_settings(), PictureSettings(16, gray=True)).gray
    True
    """
    names = ("image_size", "gray", "mean", "std")
    if kept is None or any(name in settings.model_fields_set for name in names):
        return settings
    found = {name: getattr(kept, name) for name in names if getattr(kept, name) is not None}
    return settings.model_copy(update=found)
