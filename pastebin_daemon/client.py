"""The commands that talk to a daemon: the small paste client, and the operator's.

Standard library only and blocking, since a command does one thing and ends. The paste client remembers delete tokens
under `$XDG_STATE_HOME/pastebin-daemon/tokens` (mode 0600), a line each: server, id, token.
"""

import http.client
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pastebin_daemon.errors import PastebinError
from pastebin_daemon.quantities import Listen

__all__ = ["AdminClient", "ClientError", "PasteClient", "Put"]

TIMEOUT_S = 30.0


class ClientError(PastebinError):
    """The daemon could not be reached, or refused."""


class AdminClient:
    """The operator's API of the daemon that runs under this configuration."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen

    def jobs(self, state: str) -> Iterator[dict[str, Any]]:
        after, more = 0, True
        while more:
            answer = self.call("GET", f"/api/v1/jobs?state={state}&after={after}")
            yield from answer["jobs"]
            more = answer["more"]
            after = answer["jobs"][-1]["id"] if answer["jobs"] else 0

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The answer's JSON. Raises `ClientError`."""
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            status, _, answer = _ask(self._connection(), method, path, content, headers)
        except OSError as error:
            raise ClientError(f"no daemon answers on {self._listen} ({error}): start the daemon first") from error
        if not 200 <= status < 300:
            raise ClientError(_reason(status, answer))
        return _parsed(answer, str(self._listen))

    def _connection(self) -> http.client.HTTPConnection:
        listen = self._listen
        if listen.kind == "systemd":
            raise ClientError('[admin] listen = "systemd" names no address to reach the daemon at; write one there')
        if listen.kind == "unix":
            return _UnixConnection(listen.path)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104  a wildcard is here too
        return http.client.HTTPConnection(host, listen.port, timeout=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Put:
    """A paste that was made. `forgotten`: why its delete token could not be remembered, or ""."""

    url: str
    delete_token: str
    forgotten: str


class PasteClient:
    def __init__(self, server: str, state: Path | None = None) -> None:
        try:
            parts = urlsplit(server)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port or a bracket that is none
            known = False
        if not known:
            raise ClientError(f"--server {server} is no URL: write one such as http://127.0.0.1:8080")
        self._parts = parts
        self._server = server.rstrip("/")
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        self._tokens = (state or Path(home) / "pastebin-daemon") / "tokens"

    def put(self, body: bytes, options: Mapping[str, str]) -> Put:
        """Paste the bytes, and remember the delete token if possible."""
        query = f"?{urlencode(options)}" if options else ""
        headers = {"Content-Type": "application/octet-stream"}
        _, _, answer = self._call("POST", f"/api/v1/pastes{query}", body, headers)
        made = _parsed(answer, self._server)
        try:
            paste_id, url, token = str(made["id"]), str(made["url"]), str(made["delete_token"])
        except (KeyError, TypeError) as error:
            raise ClientError(f"what answers on {self._server} is no pastebin") from error
        try:
            self._remember(paste_id, token)
        except OSError as error:
            return Put(url, token, f"{self._tokens}: {error.strerror}")
        return Put(url, token, "")

    def get(self, paste_id: str) -> bytes:
        return self._call("GET", f"/{quote(paste_id, safe='')}/raw", None, {})[2]

    def remove(self, paste_id: str, token: str | None) -> None:
        """Delete by the token given, or else by the one remembered."""
        token = token or self._remembered(paste_id)
        if token is None:
            raise ClientError(f"no delete token of {paste_id} is remembered in {self._tokens}: give it by --token")
        self._call("DELETE", f"/api/v1/pastes/{quote(paste_id, safe='')}", None, {"X-Delete-Token": token})

    def _call(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_S)
        try:
            answer = _ask(connection, method, self._parts.path.rstrip("/") + path, body, headers)
        except OSError as error:
            raise ClientError(f"{self._server} does not answer ({error})") from error
        if not 200 <= answer[0] < 300:
            raise ClientError(_reason(answer[0], answer[2]))
        return answer

    def _remember(self, paste_id: str, token: str) -> None:
        self._tokens.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(self._tokens, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
            file.write(f"{self._server} {paste_id} {token}\n")

    def _remembered(self, paste_id: str) -> str | None:
        try:
            lines = self._tokens.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ClientError(f"{self._tokens} can't be read ({error.strerror}): give the token by --token") from error
        for line in lines:
            match line.split(" "):
                case [server, found, token] if server == self._server and found == paste_id:
                    return token
        return None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], bytes]:
    """Raises OSError when there is no answer."""
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    except http.client.HTTPException as error:
        raise OSError(f"the answer is no HTTP: {error!r}") from error
    finally:
        connection.close()


def _parsed(answer: bytes, where: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError as error:
        raise ClientError(f"what answers on {where} is no pastebin") from error


def _reason(status: int, answer: bytes) -> str:
    """The detail of a problem document, or else the answer's beginning."""
    try:
        return str(json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status} {' '.join(answer[:200].decode('utf-8', 'replace').split())}".strip()
