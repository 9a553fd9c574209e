"""The configuration: TOML, environment and credentials in, frozen sections out, or every mistake at once.

Guarantees, so that nothing behind this module has to doubt a setting:

- **Strict.** An unknown key or section, a value of the wrong kind, a text that is not exactly one of the accepted
  spellings: each is a mistake, and none is a guess at what was meant. A typing error that silently leaves a default in
  place is found months later, by an incident.
- **All mistakes at once, each with its remedy**: `[section] key = value: what is wrong; what to write instead`.
  Contradictions between valid keys are reported beside the mistakes in others. A secret is never shown.
- **Nested limits are ordered** (G14): what runs inside a limit ends before it. A call to the store or the edge ends
  inside its effect, an effect well inside its lease, an upload long before the reaper may look, a stop before systemd
  kills; and dedupe outlives replay (G9). `config_rules.py` is the list.
- **A section goes only to the component that it configures.** Nobody but the composition root sees a `Config`.

`config_sections.py` has the keys, `config_rules.py` what holds between them, `config_sources.py` the ways in, and
`quantities.py` the spellings. The defaults are shown by `config.example.toml` too, and a test compares the two.
"""

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pastebin_daemon.config_rules import contradictions
from pastebin_daemon.config_sections import (
    S3,
    Access,
    Admin,
    Bodies,
    Cache,
    Config,
    Edge,
    Idempotency,
    Inbox,
    Limits,
    Log,
    Outbox,
    Pastes,
    Server,
    Site,
    Storage,
    Uploads,
)
from pastebin_daemon.config_sources import (
    ConfigProblems,
    Table,
    credential,
    guess,
    overlay_environment,
    read_file,
    resolve_secret,
)
from pastebin_daemon.quantities import TrustedProxies
from pastebin_daemon.section import Section

__all__ = [
    "S3", "Access", "Admin", "Bodies", "Cache", "Config", "ConfigProblems", "Edge", "Idempotency", "Inbox",
    "Limits", "Log", "Outbox", "Pastes", "Server", "Site", "Storage", "Uploads", "credential", "defaults",
    "keys", "load",
]  # fmt: skip


def defaults() -> Config:
    return load(None, {})


def load(path: Path | None, environ: Mapping[str, str]) -> Config:
    """The configuration from a file (None: defaults) with the environment over it. ConfigProblems when it is wrong."""
    table = {} if path is None else read_file(path)
    problems: list[str] = []
    bad: set[str] = set()
    fields = keys()
    secrets = [key for key, field in fields.items() if field.annotation is SecretStr]
    known = {key: _is_toml(field) for key, field in fields.items()} | {f"{key}_file": False for key in secrets}
    origins = overlay_environment(table, environ, known, problems)
    for key in secrets:
        if problem := resolve_secret(table, key, environ):
            problems.append(f"{_named(_split(key))}: {problem}")
            bad.add(key)
            _drop(table, _split(key))
    state = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if state and isinstance(table.setdefault("storage", {}), dict):
        table["storage"].setdefault("directory", state)

    def report(where: tuple[str, ...], text: str) -> None:
        problems.append(f"{_named(where)}{_shown(table, where, fields, origins)}: {text}")

    config, errors = _validated(table)
    for error in errors:
        where = _path(error)
        report(where, _explained(error, where, fields))
        bad.add(".".join(where))
    for names, text in contradictions(config):
        if not any(name == wrong or name.startswith(f"{wrong}.") for name in names for wrong in bad):
            report(_split(names[0]), text)
    if problems:
        raise ConfigProblems(problems)
    return config


def keys(section: type[Section] = Config, prefix: str = "") -> dict[str, FieldInfo]:
    """Every key there is, dotted (`bodies.s3.bucket`)."""
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= keys(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found


def _is_toml(field: FieldInfo) -> bool:
    """Whether a text from the environment may be a number, a truth value, a list or a table."""
    kind = field.annotation
    return kind in (int, float, bool, TrustedProxies) or get_origin(kind) in (tuple, dict) or int in get_args(kind)


def _validated(table: Table) -> tuple[Config, list[ErrorDetails]]:
    """The sections, and what is wrong. Where something is, the default stands in, so that the rest can be judged."""
    try:
        return Config.model_validate(table), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_input=False)
    sound = copy.deepcopy(table)
    for error in errors:
        _drop(sound, _path(error))
    return Config.model_validate(sound), errors


def _path(error: ErrorDetails) -> tuple[str, ...]:
    """The key, or the section, that an error is about: pydantic also goes into lists and tables."""
    section: type[Section] = Config
    path = []
    for name in map(str, error["loc"]):
        path.append(name)
        kind = section.model_fields[name].annotation if name in section.model_fields else None
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            break
        section = kind
    return tuple(path)


def _split(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def _drop(table: Table, path: tuple[str, ...]) -> None:
    for name in path[:-1]:
        table = table.get(name, {})
    table.pop(path[-1], None)


def _named(path: tuple[str, ...]) -> str:
    *sections, key = (name if re.fullmatch(r"[\w-]{1,60}", name, re.ASCII) else json.dumps(name[:60]) for name in path)
    return f"[{'.'.join(sections)}] {key}" if sections else f"[{key}]"


def _shown(table: Table, path: tuple[str, ...], fields: Mapping[str, FieldInfo], origins: Mapping[str, str]) -> str:
    """` = value`, as it was written; nothing for what may be secret, is unknown or is no single value."""
    key = ".".join(path)
    field = fields.get(key)
    if field is None or field.annotation is SecretStr or not field.repr:
        return ""
    value: object = table
    for name in path:
        if not (isinstance(value, dict) and name in value):
            return f" = {_as_toml(field.default)} (the default)"
        value = value[name]
    return f" = {_as_toml(value)}" + (f" (from {origins[key]})" if key in origins else "")


def _as_toml(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**40:  # Python refuses to spell the longest ones
        return "a huge number"
    try:
        text = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        return "..."
    text = re.sub(r"//.*@", "//***@", text)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _explained(error: ErrorDetails, path: tuple[str, ...], fields: Mapping[str, FieldInfo]) -> str:
    """Pydantic's finding in our words, always with what to write."""
    inside = error["loc"][len(path) :]
    where = ""
    if inside:
        where = f"item {inside[0] + 1} " if isinstance(inside[0], int) else f"the header {json.dumps(inside[0][:60])} "
    match error["type"]:
        case "value_error":
            return where + str(error["ctx"]["error"])
        case "literal_error":
            return f"is not known; write {error['ctx']['expected']}".replace("'", '"')
        case "int_type":
            return f"is not a whole number; write one without quotes, such as {fields['.'.join(path)].default}"
        case "bool_type":
            return "is neither true nor false; write one of these, without quotes"
        case "string_type" | "string_unicode":
            return where + 'is not a text; write it in quotes: "..."'
        case "tuple_type":
            return 'is not a list; write one such as ["10m", "1d"]'
        case "dict_type":
            return 'is not a table; write one such as { X-Purge = "{tag}" }'
        case "model_type":
            return f"is not a section; write [{'.'.join(path)}] on a line of its own, and its keys below it"
        case "extra_forbidden":
            return _unknown(path, fields)
        case other:
            return f"{where}is not accepted ({other}); write it as config.example.toml does"


def _unknown(path: tuple[str, ...], fields: Mapping[str, FieldInfo]) -> str:
    *parents, name = path
    section = ".".join(parents)
    here = [
        key.removeprefix(f"{section}.").split(".")[0] for key in fields if not section or key.startswith(f"{section}.")
    ]
    elsewhere = sorted(key.rpartition(".")[0] for key in fields if key.rpartition(".")[2] == name)
    if elsewhere:
        return f"is not known here; it belongs to {' or '.join(f'[{home}]' for home in elsewhere)}"
    return f"is not known; {guess(name, here)}"
