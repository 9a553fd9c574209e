"""What the supervisor hears and hands over, and the unit files, which must agree with the code and with systemd."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from pastebin_daemon import config, systemd
from pastebin_daemon.errors import Held, Misconfigured
from tests.real import require

UNITS = Path(__file__).parent.parent / "systemd"
SERVICE = (UNITS / "pastebin-daemon.service").read_text()
SOCKET = (UNITS / "pastebin-daemon.socket").read_text()


def receiver(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(5)
    receiver.bind(address)
    return receiver


@pytest.mark.parametrize("abstract", [False, True])
def test_the_supervisor_hears_lines_in_one_datagram(tmp_path: Path, abstract: bool) -> None:
    name = f"{tmp_path}/notify"
    with receiver("\0" + name if abstract else name) as supervisor:
        environ = {"NOTIFY_SOCKET": "@" + name if abstract else name}
        assert systemd.notify("READY=1", "STATUS=on 127.0.0.1:8080 – ready", environ=environ)
        assert supervisor.recv(4096).decode() == "READY=1\nSTATUS=on 127.0.0.1:8080 – ready"


def test_a_line_break_in_a_status_begins_no_new_assignment(tmp_path: Path) -> None:
    with receiver(f"{tmp_path}/notify") as supervisor:
        assert systemd.notify("STATUS=trouble\nMAINPID=1\r\nREADY=1", environ={"NOTIFY_SOCKET": f"{tmp_path}/notify"})
        assert supervisor.recv(4096) == b"STATUS=trouble MAINPID=1 READY=1"


def test_a_supervisor_that_is_absent_gone_or_odd_is_no_error(tmp_path: Path) -> None:
    assert not systemd.notify("READY=1", environ={})
    for address in (
        "",
        f"{tmp_path}/nothing",
        f"@{tmp_path}/nothing",
        "vsock:2:1234",
        "relative",
        "/" + "x" * 200,
        "@",
    ):
        assert not systemd.notify("READY=1", environ={"NOTIFY_SOCKET": address}), address
    receiver(f"{tmp_path}/closed").close()
    assert not systemd.notify("READY=1", environ={"NOTIFY_SOCKET": f"{tmp_path}/closed"})


def test_a_supervisor_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    with receiver(f"{tmp_path}/notify"):
        environ = {"NOTIFY_SOCKET": f"{tmp_path}/notify"}
        queued = 0
        while systemd.notify("STATUS=" + "x" * 60_000, environ=environ):
            queued += 1
        assert queued < 1_000


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "me"}, None),
        ({"WATCHDOG_USEC": "500000"}, 0.25),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "9" * 5_000}, None),
    ],
)
def test_a_sign_of_life_is_sent_twice_in_the_tolerated_silence(
    environ: dict[str, str], interval_s: float | None
) -> None:
    assert systemd.watchdog_interval_s(environ) == interval_s


CHILD = """
import json, os, socket, sys
from pastebin_daemon import systemd
for i, fd in enumerate(map(int, sys.argv[1:])):
    os.dup2(os.dup(fd), 3 + i)
if sys.argv[1:]:
    os.environ["LISTEN_PID"] = str(os.getpid())
given = systemd.listen_sockets()
print(json.dumps({
    "sockets": {n: [[s.getsockname()[1], s.getblocking(), s.get_inheritable()] for s in given[n]] for n in given},
    "left": sorted(name for name in os.environ if name.startswith("LISTEN_")),
    "again": len(systemd.listen_sockets()),
}))
"""


def handed_over(*sockets: socket.socket, names: str) -> "subprocess.CompletedProcess[str]":
    """Runs CHILD with the sockets at descriptors 3 and up, as the supervisor does it."""
    fds = [s.fileno() for s in sockets]
    environ = {**os.environ, "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names}
    command = [sys.executable, "-c", CHILD, *map(str, fds)]
    return subprocess.run(command, env=environ, pass_fds=fds, capture_output=True, text=True, timeout=30, check=False)


def test_sockets_are_taken_over_by_name_once_and_not_by_children() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
        socket.create_server(("127.0.0.1", 0)) as three,
    ):
        ports = [s.getsockname()[1] for s in (one, two, three)]
        result = handed_over(one, two, three, names="http:other:http")
    assert result.stderr == ""
    assert json.loads(result.stdout) == {
        "sockets": {"http": [[ports[0], False, False], [ports[2], False, False]], "other": [[ports[1], False, False]]},
        "left": [],
        "again": 0,
    }


def test_a_socket_without_a_name_is_called_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        assert {name: len(s) for name, s in json.loads(handed_over(one, two, names="").stdout)["sockets"].items()} == {
            "unknown": 2
        }


def test_a_socket_that_does_not_listen_is_refused_with_the_remedy() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        result = handed_over(datagrams, names="http")
    assert result.returncode != 0
    assert "Misconfigured: the supervisor passed descriptor 3 (http), which doesn't listen" in result.stderr
    assert "ListenStream=" in result.stderr


@pytest.mark.parametrize("pid", ["1", "", "x", None])
def test_sockets_for_another_process_are_left_alone(pid: str | None) -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "http", "PATH": "/bin"} | (
        {} if pid is None else {"LISTEN_PID": pid}
    )
    assert systemd.listen_sockets(environ) == {}
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize("count", ["0", "", "-1", "many"])
def test_no_sockets_are_no_sockets(count: str) -> None:
    assert systemd.listen_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count}) == {}


def test_systemd_itself_hands_a_socket_over(tmp_path: Path) -> None:
    activate = require("systemd-socket-activate")
    address = str(tmp_path / "http.sock")
    child = CHILD.replace("s.getsockname()[1]", "s.getsockname()")
    command = [activate, "-l", address, "--fdname=http", sys.executable, "-c", child]
    environ = {"PYTHONPATH": str(UNITS.parent), "PATH": os.environ["PATH"]}
    command[3:3] = [f"-EPYTHONPATH={environ['PYTHONPATH']}"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            assert "Listening on" in process.stderr.readline()
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.connect(address)
                out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert out, err
    assert json.loads(out) == {"sockets": {"http": [[address, False, False]]}, "left": [], "again": 0}


# The unit files.


def setting(unit: str, key: str) -> str:
    (value,) = re.findall(rf"(?m)^{key}=(.*)$", unit)
    return str(value)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Copies of the units whose program exists, which `verify` asks for."""
    program = setting(SERVICE, "ExecStart").split()[0]
    (tmp_path / "pastebin-daemon.service").write_text(SERVICE.replace(program, sys.executable))
    (tmp_path / "pastebin-daemon.socket").write_text(SOCKET)
    return tmp_path


Analyze = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def analyze() -> Analyze:
    program = require("systemd-analyze")

    def run(*args: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([program, *args], capture_output=True, text=True, timeout=60, check=False)

    return run


def test_systemd_finds_nothing_to_say_about_the_units(installed: Path, analyze: Analyze) -> None:
    result = analyze("verify", installed / "pastebin-daemon.service", installed / "pastebin-daemon.socket")
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_service_is_shut_in(installed: Path, analyze: Analyze) -> None:
    result = analyze(
        "security", "--offline=true", "--no-pager", "--threshold=20", installed / "pastebin-daemon.service"
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_wrong_configuration_ends_it_and_a_held_database_is_tried_again() -> None:
    final = setting(SERVICE, "RestartPreventExitStatus").split()
    wrong_usage = "2"
    assert final == [wrong_usage, str(Misconfigured.exit_status)]
    assert Held.exit_status == 75
    assert str(Held.exit_status) not in final
    assert setting(SERVICE, "Restart") == "on-failure"


def test_the_longest_permitted_grace_ends_before_systemd_kills() -> None:
    stop_s = int(setting(SERVICE, "TimeoutStopSec").removesuffix("s"))
    assert config.load(None, {"PASTEBIN_SERVER__GRACE": "80s"}).server.grace == 80 < stop_s
    with pytest.raises(config.ConfigProblems):
        config.load(None, {"PASTEBIN_SERVER__GRACE": f"{stop_s - 9}s"})


def test_the_credentials_of_the_unit_are_the_secrets_of_the_configuration() -> None:
    offered = re.findall(r"(?m)^#LoadCredential=([^:]+):/", SERVICE)
    secrets = [key for key, field in config.keys().items() if field.annotation is SecretStr]
    assert sorted(offered) == sorted([*secrets, "delete-token-secret"])


def test_the_units_fit_together() -> None:
    public = config.defaults().server.listen
    assert setting(SOCKET, "ListenStream") == f"{public.host}:{public.port}"
    assert setting(SOCKET, "FileDescriptorName") == "http"
    assert setting(SERVICE, "Type") == "notify"
    assert setting(SERVICE, "ExecStart").endswith("/pastebin-daemon serve")
    assert "Requires=" not in SERVICE
    assert "Sockets=" not in SERVICE
