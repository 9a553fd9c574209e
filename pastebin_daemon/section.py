"""What a section of the configuration is made of: the frozen base of all sections, and the types of their keys.

Attributes have the names of the TOML keys; durations are seconds and sizes are bytes. A default stands where its key does,
spelt as it would be written in the file. Whoever adds a section (a driver of edge/, say) takes its types from here.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from pastebin_daemon.quantities import (
    Listen,
    TrustedProxies,
    base_url,
    lifetime,
    listen,
    seconds,
    size,
    trusted_proxies,
    whole_seconds,
)

__all__ = [
    "Address", "BaseUrl", "Bytes", "Directory", "Lifetime", "OptionalPath", "OptionalUrl", "Proxies", "Seconds", "Secret",
    "Section", "WholeSeconds", "count", "default", "spelt", "within",
]  # fmt: skip


def within(low: str, high: str, read: Callable[[object], float]) -> AfterValidator:
    """Bounds, both inclusive, spelt as a person would write them."""

    def check(value: float) -> float:
        if not read(low) <= value <= read(high):
            raise ValueError(f'is outside "{low}" to "{high}"; write a value within')
        return value

    return AfterValidator(check)


def count(low: int, high: int) -> AfterValidator:
    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"is outside {low} to {high}; write a number within")
        return value

    return AfterValidator(check)


def spelt(pattern: str, remedy: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(remedy)
        return value

    return AfterValidator(check)


def _directory(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError('is not a path; write one such as "/var/lib/pastebin"')
    return Path(value)


def _secret_line(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]*", value.get_secret_value()):
        raise ValueError("holds a space or a character that is not ASCII; write the secret on one line, alone")
    return value


Seconds = Annotated[float, BeforeValidator(seconds), within("1ms", "36500d", seconds)]
WholeSeconds = Annotated[int, BeforeValidator(whole_seconds)]
Bytes = Annotated[int, BeforeValidator(size)]
Lifetime = Annotated[int | None, BeforeValidator(lifetime)]  # None: never expires
Address = Annotated[Listen, BeforeValidator(listen)]
Proxies = Annotated[TrustedProxies, BeforeValidator(trusted_proxies)]
BaseUrl = Annotated[str, BeforeValidator(base_url)]
OptionalUrl = Annotated[str, BeforeValidator(lambda value: "" if value == "" else base_url(value))]
OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: None if value == "" else _directory(value))]
Secret = Annotated[SecretStr, AfterValidator(_secret_line)]  # false when empty
Directory = Annotated[Path, BeforeValidator(_directory)]


def default(text: object) -> Any:
    """A default, as it would be written in the file."""
    return Field(default=text, validate_default=True)


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, arbitrary_types_allowed=True
    )
