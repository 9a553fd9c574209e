"""The sections of the configuration: keys, types, defaults and bounds. What holds between keys is in `config_rules.py`.

A section goes only to the component that it configures. The tables of the edge's drivers are in the drivers' own files.
"""

import json
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, create_model

from pastebin_daemon.edge import DriverSettings
from pastebin_daemon.edge.drivers import drivers
from pastebin_daemon.quantities import seconds, size, whole_seconds
from pastebin_daemon.section import (
    Address,
    BaseUrl,
    Bytes,
    Directory,
    Lifetime,
    OptionalPath,
    OptionalUrl,
    Proxies,
    Seconds,
    Secret,
    Section,
    WholeSeconds,
    count,
    default,
    spelt,
    within,
)

__all__ = [
    "S3", "Access", "Admin", "Bodies", "Cache", "Config", "Edge", "Idempotency", "Inbox", "Limits", "Log", "Outbox",
    "Pastes", "Server", "Site", "Storage", "Uploads",
]  # fmt: skip

_LATER = ("nginx", "cloudflare", "fastly", "bunny", "cloudfront")


class Server(Section):
    listen: Address = default("127.0.0.1:8080")
    public_url: BaseUrl = default("http://127.0.0.1:8080")
    trusted_proxies: Proxies = default(["127.0.0.0/8", "::1"])
    grace: Annotated[Seconds, within("1s", "80s", seconds)] = default("5s")  # systemd kills at 90 s
    read_only: bool = False


class Admin(Section):
    listen: Address = default("127.0.0.1:8081")


class Storage(Section):
    directory: Directory = default("pastebin-data")


class S3(Section):
    endpoint_url: OptionalUrl = ""
    bucket: Annotated[
        str, spelt(r"([A-Za-z0-9][A-Za-z0-9._-]{0,254})?", 'is not the name of a bucket; write one such as "pastes"')
    ] = "pastes"
    prefix: Annotated[
        str,
        spelt(
            r"([A-Za-z0-9._=-][A-Za-z0-9._/=-]{0,511})?", 'is not a plain prefix of keys; write one such as "pastes/"'
        ),
    ] = ""
    region: Annotated[str, spelt(r"[A-Za-z0-9._-]{1,100}", 'is not a region; write one such as "us-east-1"')] = (
        "us-east-1"
    )
    addressing: Literal["path", "virtual"] = "path"
    access_key_id: Secret = SecretStr("")
    secret_access_key: Secret = SecretStr("")
    connect_timeout: Seconds = default("3s")
    timeout: Seconds = default("10s")


class Bodies(Section):
    store: Literal["local", "s3"] = "local"
    bytes_max: Bytes = 0
    s3: S3 = S3()


def _driver(value: str) -> str:
    if value in _LATER:
        raise ValueError(f"is not in this version; use {' or '.join(json.dumps(name) for name in drivers())}")
    names = [json.dumps(name) for name in ("none", *drivers())]
    if value != "none" and value not in drivers():
        raise ValueError(f"is not known; write {', '.join(names[:-1])} or {names[-1]}")
    return value


class EdgeBase(Section):
    driver: Annotated[str, AfterValidator(_driver)] = "none"
    max_age: Annotated[WholeSeconds, within("1s", "60s", seconds)] = default("60s")  # G11 promises the 60

    @property
    def settings(self) -> DriverSettings | None:
        """The table of the driver in use; None for none."""
        found: DriverSettings | None = None if self.driver == "none" else getattr(self, self.driver)
        return found


if TYPE_CHECKING:
    Edge = EdgeBase
else:  # with a table for each driver there is, such as [edge.varnish]
    Edge = create_model(
        "Edge", __base__=EdgeBase, **{name: (driver.Settings, driver.Settings()) for name, driver in drivers().items()}
    )


class Pastes(Section):
    """A lifetime of None is "never"; `expiry_max` of None is no limit."""

    body_bytes_max: Annotated[Bytes, within("1", "64MiB", size)] = default("1MiB")
    expiry_default: Lifetime = default("30d")
    expiry_max: Annotated[int | None, BeforeValidator(lambda value: whole_seconds(value) or None)] = default("365d")
    expiry_choices: Annotated[tuple[Lifetime, ...], Field(strict=False)] = default(
        ["10m", "1h", "1d", "7d", "30d", "365d"]
    )


class Outbox(Section):
    poll_interval: Annotated[Seconds, within("50ms", "1h", seconds)] = default("1s")
    batch: Annotated[int, count(1, 1000)] = 100
    lease: Seconds = default("60s")
    effect_timeout: Seconds = default("20s")
    attempts_max: Annotated[int, count(1, 20)] = 8
    retry_span: Seconds = default("1h")
    replay_window: Seconds = default("7d")


class Inbox(Section):
    retention: Seconds = default("8d")


class Idempotency(Section):
    retention: Seconds = default("25h")


class Uploads(Section):
    reap_after: Seconds = default("1h")
    memory_max: Bytes = default("64MiB")


class Cache(Section):
    bytes_max: Bytes = default("64MiB")


class Limits(Section):
    creates_per_minute: Annotated[int, count(0, 1_000_000)] = 30  # 0: off


class Access(Section):
    create_tokens_file: OptionalPath = default("")  # None: anyone may create


_LINE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]"


class Site(Section):
    name: Annotated[
        str, spelt(rf"{_LINE}{{1,60}}", 'is not a name; write one line of 1 to 60 characters, such as "Pastebin"')
    ] = "Pastebin"
    notice: Annotated[
        str, spelt(rf"{_LINE}{{0,300}}", "is not a line of text of at most 300 characters; write one")
    ] = ""
    contact: Annotated[
        str,
        spelt(rf"{_LINE}{{0,200}}", "is not a line of text; write an address of mail or of the web, or leave it out"),
    ] = ""


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
    site: Site = Site()
    log: Log = Log()
