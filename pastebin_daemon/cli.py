"""The commands. Exit status: 0 done, 1 failed, 2 wrong usage, 75 another process holds the database, 78 the
configuration is wrong (sysexits.h: EX_TEMPFAIL, EX_CONFIG)."""

import asyncio
import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pastebin_daemon import config as configuration
from pastebin_daemon.errors import PastebinError, StartError

__all__ = ["main"]

config_option = click.option(
    "--config", "path", envvar="PASTEBIN_CONFIG", type=click.Path(path_type=Path), metavar="FILE",
    help="The configuration (TOML). Without one: the embedded defaults.",
)  # fmt: skip


def main() -> None:
    commands(prog_name="pastebin-daemon")


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """Errors of ours end the command in one line each and the right status; a traceback is a bug's."""
    try:
        yield
    except StartError as error:
        click.echo(f"pastebin-daemon: {error}", err=True)
        sys.exit(error.exit_status)
    except PastebinError as error:
        click.echo(f"pastebin-daemon: {error}", err=True)
        sys.exit(1)


@click.group(help="A self-hosted pastebin.")
def commands() -> None:
    pass


@commands.command(help="Run the daemon.")
@config_option
def serve(path: Path | None) -> None:
    from pastebin_daemon import daemon, logs

    with failures_told():
        config = configuration.load(path, os.environ)
        logs.configure(config.log.format, config.log.level)
        os.umask(0o077)  # pastes and tokens are nobody else's business, also in a directory that others may enter
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                gc.freeze()  # what the imports made lives as long as the process: no collection needs to look at it
                runner.run(daemon.serve(config, os.environ, lambda line: click.echo(line)))
        except ExceptionGroup as group:
            for error in _leaves(group):
                logs.get_logger().critical("daemon.failed", error=str(error) or repr(error), exc_info=error)
            sys.exit(1)


def _loop_factory() -> Any:
    """uvloop where it is installed: cached reads measured 1.1 times those on asyncio's own loop, creates 1.0 to 1.2 times."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


@commands.command("check-config", help="Check the configuration, and list every problem with its remedy.")
@config_option
def check_config(path: Path | None) -> None:
    try:
        configuration.load(path, os.environ)
    except configuration.ConfigProblems as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        click.echo(f"{len(error.problems)} {'problem' if len(error.problems) == 1 else 'problems'}", err=True)
        sys.exit(error.exit_status)
    click.echo("the configuration is good" if path else "the embedded defaults are good (no file was named)")


@commands.group(help="See the outbox and the dead letters; replay or discard those.")
def jobs() -> None:
    pass


json_option = click.option("--json", "as_json", is_flag=True, help="Print the daemon's own JSON.")


@jobs.command("list", help="What waits, and what was given up.")
@config_option
@json_option
def jobs_list(path: Path | None, as_json: bool) -> None:
    with failures_told():
        found = [*_admin(path).jobs("dead"), *_admin(path).jobs("waiting")]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for job in found:
        error = job["last_error"] or ""
        reason = f" {job['reason']}" if "reason" in job else ""
        click.echo(f"{job['id']:>8}  {job['state']:<8}{reason} {job['kind']:<14} attempts {job['attempts']}  {error}")
    if not found:
        click.echo("nothing waits, and nothing was given up")


@jobs.command("show", help="One job, whole.")
@click.argument("job", type=click.IntRange(0, 10**18), metavar="ID")
@config_option
@json_option
def jobs_show(job: int, path: Path | None, as_json: bool) -> None:
    with failures_told():
        found = _admin(path).call("GET", f"/api/v1/jobs/{job}")
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            click.echo(f"{name:<16} {value}")


@jobs.command("replay", help="Bring dead letters back.")
@click.argument("ids", type=click.IntRange(0, 10**18), nargs=-1, metavar="[ID]...")
@click.option("--all-dead", is_flag=True, help="All of them (500 at a time).")
@config_option
@json_option
def jobs_replay(ids: tuple[int, ...], all_dead: bool, path: Path | None, as_json: bool) -> None:
    if bool(ids) == all_dead:
        raise click.UsageError("name the dead letters, or give --all-dead")
    with failures_told():
        asked = {"ids": "all-dead" if all_dead else list(ids), "by": _who()}
        answer = _admin(path).call("POST", "/api/v1/jobs/replay", asked)
    _told(answer["replayed"], [] if all_dead else list(ids), "replayed", as_json)


@jobs.command("discard", help="Forget dead letters for good.")
@click.argument("ids", type=click.IntRange(0, 10**18), nargs=-1, required=True, metavar="ID...")
@config_option
@json_option
def jobs_discard(ids: tuple[int, ...], path: Path | None, as_json: bool) -> None:
    with failures_told():
        answer = _admin(path).call("POST", "/api/v1/jobs/discard", {"ids": list(ids), "by": _who()})
    _told({str(job): job for job in answer["discarded"]}, list(ids), "discarded", as_json)


def _told(done: dict[str, int], asked: list[int], verb: str, as_json: bool) -> None:
    """Say what became of each; a job that was not done makes the command fail."""
    if as_json:
        click.echo(json.dumps({verb: done}))
    else:
        for job, new in done.items():
            click.echo(f"{job} {verb}" + (f" as {new}" if str(new) != job else ""))
    missed = [job for job in asked if str(job) not in done]
    for number in missed:
        click.echo(f"{number} is no dead letter", err=True)
    if missed:
        sys.exit(1)


@commands.command(help="End a paste as the operator, through the same transaction as its owner's delete.")
@click.argument("paste_id", metavar="ID")
@click.option("--reason", required=True, help="Kept in the log.")
@config_option
def takedown(paste_id: str, reason: str, path: Path | None) -> None:
    with failures_told():
        _admin(path).call("POST", "/api/v1/takedown", {"id": paste_id, "reason": reason, "by": _who()})
    click.echo(f"{paste_id} is gone here now; from caches within a minute")


def _who() -> str:
    """Who asks, for the log: a name, or the number of a user that has none."""
    from getpass import getuser

    try:
        return getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _admin(path: Path | None) -> Any:
    from pastebin_daemon.client import AdminClient

    return AdminClient(configuration.load(path, os.environ).admin.listen)


server_option = click.option(
    "--server", default="http://127.0.0.1:8080", show_default=True, metavar="URL", help="The pastebin's URL."
)  # fmt: skip


@commands.group(help="Put, get and remove pastes over HTTP.")
def paste() -> None:
    pass


@paste.command("put", help="Paste a file, or standard input, and print the link.")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--expires-in", metavar="TIME", help="Such as 10m, 1h, 7d.")
@click.option("--title")
@click.option("--language")
@server_option
def paste_put(file: Any, expires_in: str | None, title: str | None, language: str | None, server: str) -> None:
    from pastebin_daemon.client import PasteClient

    if title is None and file.name not in ("-", "<stdin>"):
        title = Path(file.name).name
    options = {"expires_in": expires_in, "title": title, "language": language}
    with failures_told():
        put = PasteClient(server).put(
            file.read(), {name: value for name, value in options.items() if value is not None}
        )
    click.echo(put.url)
    if put.forgotten:
        click.echo(f"the delete token could not be remembered ({put.forgotten}): {put.delete_token}", err=True)


@paste.command("get", help="Write a paste's bytes to standard output.")
@click.argument("paste_id", metavar="ID")
@server_option
def paste_get(paste_id: str, server: str) -> None:
    from pastebin_daemon.client import PasteClient

    with failures_told():
        body = PasteClient(server).get(paste_id)
    sys.stdout.buffer.write(body)


@paste.command("rm", help="Delete a paste that was put from here, or with --token any other.")
@click.argument("paste_id", metavar="ID")
@click.option("--token", help="Its delete token.")
@server_option
def paste_rm(paste_id: str, token: str | None, server: str) -> None:
    from pastebin_daemon.client import PasteClient

    with failures_told():
        PasteClient(server).remove(paste_id, token)
    click.echo(f"{paste_id} is gone there now; from caches within a minute")
