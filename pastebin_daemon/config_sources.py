"""Where settings come from: the file, the environment, files of secrets and systemd's credentials.

The result is one table of plain values for `config.py` to judge, and the problems found on the way. A file that can't
be read or parsed is the only problem that stops the search for others. Nothing here puts a value into a message, since
any of them may be a secret in the wrong place.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pastebin_daemon.errors import Misconfigured, did_you_mean

__all__ = ["ConfigProblems", "Table", "credential", "guess", "overlay_environment", "read_file", "resolve_secret"]

Table = dict[str, Any]
_PREFIX = "PASTEBIN_"
_NO_KEY = "PASTEBIN_CONFIG"  # names the file itself
_FILE_BYTES_MAX = 1 << 20
_SECRET_BYTES_MAX = 1 << 16


class ConfigProblems(Misconfigured):
    """Everything that is wrong with the configuration, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_file(path: Path) -> Table:
    try:
        with path.open("rb") as file:
            raw = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        problem = "there is no such file; name an existing one, or none to run with the defaults"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        problem = f"can't be read ({reason}); let the user that runs the daemon read it"
    else:
        if len(raw) > _FILE_BYTES_MAX:
            problem = "is larger than 1MiB, which no configuration is; name the right file"
        else:
            try:
                return tomllib.loads(raw.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                line = raw.count(b"\n", 0, error.start) + 1
                problem = f"is not UTF-8 text (line {line}); save it as UTF-8"
            except RecursionError:
                problem = "is nested too deeply; write sections and keys as in config.example.toml"
            except ValueError as error:
                problem = f"is not TOML: {str(error)[:200]}; compare that place with config.example.toml"
    raise ConfigProblems([f"{path!s:.300}: {problem}".replace("\n", " ")])


def overlay_environment(
    table: Table, environ: Mapping[str, str], keys: Mapping[str, bool], problems: list[str]
) -> dict[str, str]:
    """Put `PASTEBIN_SECTION__KEY` over the table; gives back which keys came from where.

    `keys` holds every known key, dotted, and whether its text is to be tried as a TOML value.
    """
    names = {_PREFIX + key.upper().replace(".", "__"): key for key in keys}
    origins = {}
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or name == _NO_KEY:
            continue
        key = names.get(name)
        if key is None:
            problems.append(f"{name!a:.100} in the environment: no key has this name; {guess(name.upper(), names)}")
            continue
        *sections, last = key.split(".")
        inner: Any = table
        for section in sections:
            inner = inner.setdefault(section, {}) if isinstance(inner, dict) else None
        if isinstance(inner, dict):  # else the file has something else there, which is reported later
            inner[last] = _toml_value(environ[name]) if keys[key] else environ[name]
            origins[key] = name
    return origins


def _toml_value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def credential(name: str, environ: Mapping[str, str]) -> bytes | None:
    """The systemd credential of that name, as it is; None when there is none. ConfigProblems when it can't be read."""
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        return None
    path = Path(directory) / name
    try:
        return _read_secret(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigProblems([f"credential {name}: {_unreadable(path, error)}"]) from None


def resolve_secret(table: Table, key: str, environ: Mapping[str, str]) -> str | None:
    """Bring a secret to its plain key, whichever of three ways gave it; the result is what is wrong, if anything."""
    *sections, last = key.split(".")
    inner: Any = table
    for section in sections:
        inner = inner.setdefault(section, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        return None
    file = inner.pop(f"{last}_file", "")
    if not isinstance(file, str):
        return f"{last}_file is not a path; write one in quotes"
    try:
        given = credential(key, environ)
    except ConfigProblems as error:
        return str(error)
    ways = [last] * (inner.get(last, "") != "") + [f"{last}_file"] * (file != "")
    ways += [f"the systemd credential {key}"] * (given is not None)
    if len(ways) > 1:
        return f"is given in more than one way ({', '.join(ways)}); keep one of them"
    if file:
        try:
            given = _read_secret(Path(file))
        except (OSError, ValueError) as error:
            return f"{last}_file = {_unreadable(Path(file), error)}"
    if given is None:
        return None
    try:
        inner[last] = given.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        return f"{ways[0]} does not hold UTF-8 text; write the secret there and nothing else"
    return None if inner[last] else f"{ways[0]} is empty; write the secret there, or leave it away"


def _read_secret(path: Path) -> bytes:
    with path.open("rb") as file:
        raw = file.read(_SECRET_BYTES_MAX + 1)
    if len(raw) > _SECRET_BYTES_MAX:
        raise ValueError("larger than 64KiB")
    return raw


def _unreadable(path: Path, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return f"{str(path)[:300]!a} can't be read ({reason}); name a small file that the user of the daemon may read"


def guess(word: str, known: Iterable[str]) -> str:
    """What to do about an unknown name."""
    return did_you_mean(word, known) or "remove it; config.example.toml shows every key"
