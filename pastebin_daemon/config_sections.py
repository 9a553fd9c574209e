"""The sections of the configuration: keys, types, defaults and bounds. What holds between keys is in `config.py`.

Attributes have the names of the TOML keys; durations are seconds and sizes are bytes. A default stands here as it would
be written in the file. A section goes only to the component that it configures.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

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
    "S3", "Access", "Admin", "Bodies", "Cache", "Config", "Edge", "HttpEdge", "Idempotency", "Inbox", "Limits", "Log",
    "Outbox", "Pastes", "Section", "Server", "Storage", "Uploads", "VarnishEdge",
]  # fmt: skip

_PLACEHOLDERS = ("url", "path", "tag", "id")


def _within(low: str, high: str, read: Callable[[object], float]) -> AfterValidator:
    """Bounds, both inclusive, spelt as a person would write them."""

    def check(value: float) -> float:
        if not read(low) <= value <= read(high):
            raise ValueError(f'is outside "{low}" to "{high}"; write a value within')
        return value

    return AfterValidator(check)


def _count(low: int, high: int) -> AfterValidator:
    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"is outside {low} to {high}; write a number within")
        return value

    return AfterValidator(check)


def _spelt(pattern: str, remedy: str) -> AfterValidator:
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


def _edge_driver(value: object) -> object:
    if value in ("nginx", "cloudflare", "fastly", "bunny", "cloudfront"):
        raise ValueError('is not in this version; use "http" or "varnish"')
    return value


def _template(text: str, allowed: tuple[str, ...]) -> str:
    """Only known placeholders and no stray brace: `str.format` can't fail on it."""
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", text) if name not in allowed]
    if unknown or re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
        raise ValueError(
            f"has an unknown placeholder or a stray brace; write {', '.join(f'{{{p}}}' for p in allowed)} only"
        )
    return text


def _purge_url(text: str) -> str:
    if not text:
        return text
    match = re.fullmatch(r"(?:\{url\}|(https?://[^/?#\s{}]+))[!-~]*", text)
    if not match:
        raise ValueError('is not an http or https URL; write one such as "{url}" or "http://127.0.0.1:6081{path}"')
    if match[1]:
        base_url(match[1])
    return _template(text, _PLACEHOLDERS)


def _purge_header(text: str) -> str:
    if not re.fullmatch(r"[ -~]{0,4096}", text):
        raise ValueError("holds characters that no header may have; write printable ASCII on one line")
    return _template(text, (*_PLACEHOLDERS, "token"))


Seconds = Annotated[float, BeforeValidator(seconds), _within("1ms", "36500d", seconds)]
WholeSeconds = Annotated[int, BeforeValidator(whole_seconds)]
Bytes = Annotated[int, BeforeValidator(size)]
Lifetime = Annotated[int | None, BeforeValidator(lifetime)]  # None: never expires
Address = Annotated[Listen, BeforeValidator(listen)]
Proxies = Annotated[TrustedProxies, BeforeValidator(trusted_proxies)]
BaseUrl = Annotated[str, BeforeValidator(base_url)]
OptionalUrl = Annotated[str, BeforeValidator(lambda value: "" if value == "" else base_url(value))]
OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: None if value == "" else _directory(value))]
Secret = Annotated[SecretStr, AfterValidator(_secret_line)]  # false when empty
HeaderName = Annotated[
    str, _spelt(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", 'is not the name of a header; write one such as "X-Purge"')
]


def _default(text: object) -> Any:
    """A default, as it would be written in the file."""
    return Field(default=text, validate_default=True)


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, arbitrary_types_allowed=True
    )


class Server(Section):
    listen: Address = _default("127.0.0.1:8080")
    public_url: BaseUrl = _default("http://127.0.0.1:8080")
    trusted_proxies: Proxies = _default(["127.0.0.0/8", "::1"])
    grace: Annotated[Seconds, _within("1s", "80s", seconds)] = _default("5s")  # systemd kills at 90 s
    read_only: bool = False


class Admin(Section):
    listen: Address = _default("127.0.0.1:8081")


class Storage(Section):
    directory: Annotated[Path, BeforeValidator(_directory)] = _default("pastebin-data")


class S3(Section):
    endpoint_url: OptionalUrl = ""
    bucket: Annotated[
        str, _spelt(r"([A-Za-z0-9][A-Za-z0-9._-]{0,254})?", 'is not the name of a bucket; write one such as "pastes"')
    ] = "pastes"
    prefix: Annotated[
        str,
        _spelt(
            r"([A-Za-z0-9._=-][A-Za-z0-9._/=-]{0,511})?", 'is not a plain prefix of keys; write one such as "pastes/"'
        ),
    ] = ""
    region: Annotated[str, _spelt(r"[A-Za-z0-9._-]{1,100}", 'is not a region; write one such as "us-east-1"')] = (
        "us-east-1"
    )
    addressing: Literal["path", "virtual"] = "path"
    access_key_id: Secret = SecretStr("")
    secret_access_key: Secret = SecretStr("")
    connect_timeout: Seconds = _default("3s")
    timeout: Seconds = _default("10s")


class Bodies(Section):
    store: Literal["local", "s3"] = "local"
    bytes_max: Bytes = 0
    s3: S3 = S3()


class HttpEdge(Section):
    """`url` and the values of `headers` are templates for `str.format`: url, path, tag, id; in headers also token."""

    method: Annotated[str, _spelt(r"[A-Z]{1,20}", 'is not an HTTP method; write one such as "PURGE"')] = "PURGE"
    url: Annotated[str, AfterValidator(_purge_url)] = ""
    headers: dict[HeaderName, Annotated[str, AfterValidator(_purge_header)]] = Field(default={}, repr=False)
    token: Secret = SecretStr("")
    timeout: Seconds = _default("5s")
    rate_per_second: Annotated[int, _count(0, 100_000)] = 50  # 0: unlimited


class VarnishEdge(Section):
    endpoint: BaseUrl = _default("http://127.0.0.1:6081")
    timeout: Seconds = _default("5s")


class Edge(Section):
    driver: Annotated[Literal["none", "http", "varnish"], BeforeValidator(_edge_driver)] = "none"
    max_age: Annotated[WholeSeconds, _within("1s", "60s", seconds)] = _default("60s")  # G11 promises the 60
    http: HttpEdge = HttpEdge()
    varnish: VarnishEdge = VarnishEdge()


class Pastes(Section):
    """A lifetime of None is "never"; `expiry_max` of None is no limit."""

    body_bytes_max: Annotated[Bytes, _within("1", "64MiB", size)] = _default("1MiB")
    expiry_default: Lifetime = _default("30d")
    expiry_max: Annotated[int | None, BeforeValidator(lambda value: whole_seconds(value) or None)] = _default("365d")
    expiry_choices: Annotated[tuple[Lifetime, ...], Field(strict=False)] = _default(
        ["10m", "1h", "1d", "7d", "30d", "365d"]
    )


class Outbox(Section):
    poll_interval: Annotated[Seconds, _within("50ms", "1h", seconds)] = _default("1s")
    batch: Annotated[int, _count(1, 1000)] = 100
    lease: Seconds = _default("60s")
    effect_timeout: Seconds = _default("20s")
    attempts_max: Annotated[int, _count(1, 20)] = 8
    retry_span: Seconds = _default("1h")
    replay_window: Seconds = _default("7d")


class Inbox(Section):
    retention: Seconds = _default("8d")


class Idempotency(Section):
    retention: Seconds = _default("25h")


class Uploads(Section):
    reap_after: Seconds = _default("1h")
    memory_max: Bytes = _default("64MiB")


class Cache(Section):
    bytes_max: Bytes = _default("64MiB")


class Limits(Section):
    creates_per_minute: Annotated[int, _count(0, 1_000_000)] = 30  # 0: off


class Access(Section):
    create_tokens_file: OptionalPath = _default("")  # None: anyone may create


class Log(Section):
    format: Literal["auto", "json", "console"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(Section):
    server: Server = Server()
    admin: Admin = Admin()
    storage: Storage = Storage()
    bodies: Bodies = Bodies()
    edge: Edge = Edge()
    pastes: Pastes = Pastes()
    outbox: Outbox = Outbox()
    inbox: Inbox = Inbox()
    idempotency: Idempotency = Idempotency()
    uploads: Uploads = Uploads()
    cache: Cache = Cache()
    limits: Limits = Limits()
    access: Access = Access()
    log: Log = Log()
