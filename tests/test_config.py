"""The configuration as its users meet it: a file, an environment, and either sections or a list of mistakes."""

import os
import re
import tomllib
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from pastebin_daemon import quantities
from pastebin_daemon.config import Config, ConfigProblems, credential, defaults, keys, load
from pastebin_daemon.errors import Misconfigured
from pastebin_daemon.quantities import Listen, duration_text, size_text

EXAMPLE = Path(__file__).parent.parent / "config.example.toml"

Load = Callable[..., Config]
Problems = Callable[..., list[str]]


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    def _loaded(text: str, **environ: str) -> Config:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return load(path, environ)

    return _loaded


@pytest.fixture
def problems(loaded: Load) -> Problems:
    def _problems(text: str, **environ: str) -> list[str]:
        with pytest.raises(ConfigProblems) as caught:
            loaded(text, **environ)
        assert str(caught.value) == "\n".join(caught.value.problems)
        assert all("\n" not in line for line in caught.value.problems)
        return caught.value.problems

    return _problems


# The example and the defaults


def test_the_example_is_the_defaults() -> None:
    assert load(EXAMPLE, {}) == defaults()


@pytest.mark.parametrize("key", sorted(keys()))
def test_the_example_shows_every_key_uncommented(key: str) -> None:
    value: Any = tomllib.loads(EXAMPLE.read_text())
    for name in key.split("."):
        assert name in value
        value = value[name]


def test_the_example_shows_how_to_keep_each_secret_in_a_file() -> None:
    shown = re.findall(r"^# (\w+_file) =", EXAMPLE.read_text(), re.MULTILINE)
    assert shown == ["access_key_id_file", "secret_access_key_file", "token_file"]


def test_values_arrive_in_seconds_bytes_and_parsed_addresses() -> None:
    config = defaults()
    assert config.outbox.lease == 60
    assert config.pastes.body_bytes_max == 1 << 20
    assert config.pastes.expiry_choices == (600, 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
    assert config.server.listen == Listen("tcp", "127.0.0.1", 8080)
    assert config.server.trusted_proxies.networks == (ip_network("127.0.0.0/8"), ip_network("::1"))
    assert not config.server.trusted_proxies.unix
    assert config.storage.directory == Path("pastebin-data")
    assert config.access.create_tokens_file is None


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        defaults().server.grace = 7


# All mistakes at once


def test_five_different_mistakes_are_reported_at_once_each_with_its_remedy(problems: Problems) -> None:
    found = problems("""
        [server]
        listen = "8080"
        grcae = "5s"
        [bodies]
        store = "s3"
        [bodies.s3]
        bucket = ""
        [inbox]
        retention = "7d"
        [idempotency]
        retention = "25 hours"
    """)
    assert sorted(found) == [
        '[bodies.s3] bucket = "": is needed with [bodies] store = "s3"; write the name of your bucket',
        '[idempotency] retention = "25 hours": is not a duration; '
        'write whole seconds, or a whole number with its unit, such as "500ms", "30s", "10m", "25h", "8d"',
        '[inbox] retention = "7d": must be longer than [outbox] replay_window, or a replayed job could be done twice; '
        'write "8d", or a shorter replay_window',
        "[server] grcae: is not known; did you mean grace?",
        '[server] listen = "8080": is not an address to listen on; write one such as "127.0.0.1:8080", "[::1]:8080", '
        '"unix:/run/pastebin/http.sock", or "systemd"',
    ]


def test_a_wrong_configuration_ends_the_process_with_78() -> None:
    with pytest.raises(Misconfigured) as caught:
        load(None, {"PASTEBIN_LOG__LEVEL": "loud"})
    assert caught.value.exit_status == 78


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[server]\nlisten_ = 1", "[server] listen_: is not known; did you mean listen?"),
        ("[outbox]\nretention = 1", "[outbox] retention: is not known here; it belongs to [idempotency] or [inbox]"),
        ("[outbx]\nbatch = 1", "[outbx]: is not known; did you mean outbox?"),
        ("[garden]\nname = 'x'", "[garden]: is not known; remove it; config.example.toml shows every key"),
        ("listen = ':1'", "[listen]: is not known here; it belongs to [admin] or [server]"),
        ('[log]\n"a\\nb" = 1', '[log] "a\\nb": is not known; remove it; config.example.toml shows every key'),
        ("log = 3", "[log]: is not a section; write [log] on a line of its own, and its keys below it"),
        ("[[log]]\nlevel = 'info'", "[log]: is not a section; write [log] on a line of its own, and its keys below it"),
        (
            "[bodies]\ns3 = 1",
            "[bodies] s3: is not a section; write [bodies.s3] on a line of its own, and its keys below it",
        ),
        ("[log]\nlevel = 'loud'", '[log] level = "loud": is not known; write "debug", "info", "warning" or "error"'),
        (
            "[server]\nread_only = 1",
            "read_only = 1: is neither true nor false; write one of these, without quotes",
        ),
        ("[outbox]\nbatch = '9'", '[outbox] batch = "9": is not a whole number; write one without quotes, such as 100'),
        ("[outbox]\nbatch = 0", "[outbox] batch = 0: is outside 1 to 1000; write a number within"),
        ("[outbox]\nattempts_max = 21", "[outbox] attempts_max = 21: is outside 1 to 20; write a number within"),
        (
            "[limits]\ncreates_per_minute = -1",
            "creates_per_minute = -1: is outside 0 to 1000000; write a number within",
        ),
        ("[bodies.s3]\nregion = 1", '[bodies.s3] region = 1: is not a text; write it in quotes: "..."'),
        ("[bodies.s3]\nbucket = 'a/b'", 'bucket = "a/b": is not the name of a bucket; write one such as "pastes"'),
        ("[storage]\ndirectory = ''", '[storage] directory = "": is not a path; write one such as "/var/lib/pastebin"'),
        ("[edge]\ndriver = 'nginx'", '[edge] driver = "nginx": is not in this version; use "http" or "varnish"'),
        ("[edge]\ndriver = 'squid'", '[edge] driver = "squid": is not known; write "none", "http" or "varnish"'),
        ("[edge.http]\nheaders = 'x'", 'headers: is not a table; write one such as { X-Purge = "{tag}" }'),
        ("[pastes]\nexpiry_choices = '1h'", 'expiry_choices = "1h": is not a list; write one such as ["10m", "1d"]'),
        ("[pastes]\nexpiry_choices = ['1h', '0']", '["1h", "0"]: item 2 is no time at all; write "1s" or more'),
        ("[pastes]\nexpiry_default = '1500ms'", 'is not a whole number of seconds; write one such as "30s"'),
        ("[server]\ngrace = '81s'", '[server] grace = "81s": is outside "1s" to "80s"; write a value within'),
        ("[server]\ngrace = '500ms'", '[server] grace = "500ms": is outside "1s" to "80s"; write a value within'),
        ("[edge]\nmax_age = '61s'", '[edge] max_age = "61s": is outside "1s" to "60s"; write a value within'),
        ("[edge]\nmax_age = 0", '[edge] max_age = 0: is outside "1s" to "60s"; write a value within'),
        ("[outbox]\npoll_interval = '49ms'", 'poll_interval = "49ms": is outside "50ms" to "1h"; write a value within'),
        ("[outbox]\nlease = 0", '[outbox] lease = 0: is outside "1ms" to "36500d"; write a value within'),
        ("[pastes]\nbody_bytes_max = '65MiB'", '"65MiB": is outside "1" to "64MiB"; write a value within'),
        (f"[cache]\nbytes_max = 0x{'f' * 9000}", "bytes_max = a huge number: is too large; write at most"),
    ],
)
def test_one_mistake_is_one_line_that_says_what_to_write(text: str, line: str, problems: Problems) -> None:
    (found,) = problems(text)
    assert line in found


# Contradictions between keys


@pytest.mark.parametrize(
    ("text", "blamed", "rule"),
    [
        ("inbox.retention = '7d'", "[inbox] retention", "longer than [outbox] replay_window"),
        ("outbox.replay_window = '8d'", '[inbox] retention = "8d" (the default)', "longer than [outbox] replay_window"),
        ("idempotency.retention = '24h'", "[idempotency] retention", "longer than the 24h"),
        ("outbox.effect_timeout = '30s'", "[outbox] effect_timeout", 'half of [outbox] lease, .* less than "30s"'),
        ("outbox.poll_interval = '30s'", "[outbox] poll_interval", "half of [outbox] lease"),
        ("bodies.s3.connect_timeout = '11s'", "[bodies.s3] connect_timeout", 'not be longer .* at most "10s"'),
        (
            "bodies.store = 's3'\nbodies.s3.timeout = '20s'",
            "[bodies.s3] timeout",
            "shorter than [outbox] effect_timeout",
        ),
        ("edge.driver = 'varnish'\nedge.varnish.timeout = '20s'", "[edge.varnish] timeout", "[outbox] effect_timeout"),
        (
            "edge.driver = 'http'\nedge.http.url = '{url}'\nedge.http.timeout = '20s'",
            "[edge.http] timeout",
            "[outbox] effect_timeout",
        ),
        ("uploads.reap_after = '40s'", "[uploads] reap_after", "longer than four times [bodies.s3] timeout"),
        ("bodies.s3.timeout = '15m'", "[uploads] reap_after", "longer than four times [bodies.s3] timeout"),
        ("uploads.memory_max = '512KiB'", "[uploads] memory_max", 'at least "1MiB"'),
        ("bodies.store = 's3'\nbodies.s3.bucket = ''", "[bodies.s3] bucket", 'needed with [bodies] store = "s3"'),
        ("bodies.s3.access_key_id = 'x'", "[bodies.s3] secret_access_key:", "give both, or neither"),
        ("bodies.s3.secret_access_key = 'x'", "[bodies.s3] access_key_id:", "give both, or neither"),
        ("admin.listen = '127.0.0.1:8080'", "[admin] listen", "must differ from [server] listen"),
        ("pastes.expiry_default = '366d'", "[pastes] expiry_default", 'longer than [pastes] expiry_max = "365d"'),
        ("pastes.expiry_default = 'never'", "[pastes] expiry_default", 'longer than [pastes] expiry_max = "365d"'),
        ("pastes.expiry_choices = ['1h', 'never']", "[pastes] expiry_choices", 'write ["1h"], or a longer expiry_max'),
        ("edge.driver = 'http'", "[edge.http] url:", 'needed with [edge] driver = "http"'),
        (
            "edge.driver = 'http'\nedge.http = {url = '{url}', headers = {A = '{token}'}}",
            "[edge.http] token:",
            "a header uses {token}; write the token",
        ),
        (
            "edge.driver = 'http'\nedge.http = {url = '{url}', token = 'x'}",
            "[edge.http] headers:",
            'write { Authorization = "Bearer {token}" }',
        ),
    ],
)
def test_a_contradiction_names_the_key_the_rule_and_the_remedy(
    text: str, blamed: str, rule: str, problems: Problems
) -> None:
    (line,) = problems(text)
    assert line.startswith(blamed)
    assert re.search(".*".join(map(re.escape, rule.split(" .* "))), line), line


@pytest.mark.parametrize(
    "text",
    [
        "pastes.expiry_max = 0\npastes.expiry_default = 'never'\npastes.expiry_choices = ['1h', 'never']",
        "outbox.poll_interval = '50ms'\noutbox.lease = '200ms'\noutbox.effect_timeout = '90ms'",
        "server.listen = '127.0.0.1:0'\nadmin.listen = '127.0.0.1:0'",
        "uploads.reap_after = '41s'",
        "outbox.effect_timeout = '2s'",  # neither the s3 store nor an edge is in use
        "bodies.store = 's3'\nbodies.s3.access_key_id = 'x'\nbodies.s3.secret_access_key = 'y'",
        "edge.driver = 'http'\nedge.http = {method = 'BAN', url = 'http://h/', headers = {xkey = '{tag}'}}",
        "edge.driver = 'http'\nedge.http.url = 'https://api.example/purge?tag={tag}'",
        "edge.driver = 'http'\nedge.http = {url = '{url}', token = 'x', headers = {A = 'Bearer {token} {id}'}}",
    ],
)
def test_what_contradicts_nothing_is_accepted(text: str, loaded: Load) -> None:
    assert loaded(text) != defaults()


def test_a_contradiction_with_a_key_that_is_itself_wrong_is_not_reported(problems: Problems) -> None:
    (line,) = problems("outbox.replay_window = 'x'\ninbox.retention = '1d'")
    assert line.startswith("[outbox] replay_window")


def test_never_arrives_as_none(loaded: Load) -> None:
    pastes = loaded("[pastes]\nexpiry_max = 0\nexpiry_default = 'never'\nexpiry_choices = ['1h', 'never']").pastes
    assert (pastes.expiry_max, pastes.expiry_default, pastes.expiry_choices) == (None, None, (3600, None))


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("http://edge/purge", "names no paste, nor does a header"),
        ("{path}", "is not an http or https URL"),
        ("ftp://edge/{id}", "is not an http or https URL"),
        ("http://u:p@edge/{id}", "holds a user name or a password"),
        ("http://edge:99999/{id}", "has a port over 65535"),
        ("http:///{id}", "is not an http or https URL"),
        ("http://edge/{id} x", "is not an http or https URL"),
        ("http://edge/{name}", "unknown placeholder"),
        ("http://edge/{token}/{id}", "unknown placeholder"),
        ("http://edge/{id}/{", "stray brace"),
        ("http://edge/{id!r}", "unknown placeholder"),
        ("http://edge/{{id}}", "stray brace"),
    ],
)
def test_a_purge_url_has_a_known_placeholder_and_a_scheme(url: str, wrong: str, problems: Problems) -> None:
    (line,) = problems(f"[edge]\ndriver = 'http'\n[edge.http]\nurl = '{url}'")
    assert wrong in line


@pytest.mark.parametrize("header", ['"X Y" = "v"', '"" = "v"', 'X = "a\\r\\nb"', 'X = "ä"', 'X = "{secret}"', "X = 1"])
def test_a_header_that_could_not_be_sent_is_refused(header: str, problems: Problems) -> None:
    (line,) = problems(f"[edge.http]\nheaders = {{ {header} }}")
    assert line.startswith("[edge.http] headers: the header ")


# Durations, sizes, addresses


@pytest.mark.parametrize(
    ("text", "value"),
    [("500ms", 0.5), ("30s", 30), ("10m", 600), ("25h", 90_000), ("8d", 691_200), ("90", 90), (90, 90), (0, 0)],
)
def test_a_duration_is_whole_seconds_or_a_number_with_a_unit(text: object, value: float) -> None:
    assert quantities.seconds(text) == value
    assert quantities.seconds(duration_text(value)) == value


ABSURD: list[object] = [
    "", " ", "-1", "-1s", "+1s", "1.5", "1.5s", "1h30", "1h30m", "1 h", " 1h", "1h ", "1h\n", "1H", "h", "s30",
    "1e308", "1e3",
    "NaN", "nan", "inf", "Infinity", "0x10", "1_000", "٣s", "²s", "1w", "1y", "never", "99999999999999999999",
    "9" * 5000,
    "36501d", -1, 10**30, 1.5, float("nan"), float("inf"), True, None, [], {},
]  # fmt: skip


@pytest.mark.parametrize("text", ABSURD)
def test_an_absurd_duration_is_refused_with_what_to_write(text: object) -> None:
    for read in (quantities.seconds, quantities.whole_seconds):
        with pytest.raises(ValueError, match=r"; write .*\"") as caught:
            read(text)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", [x for x in ABSURD if x != "never"])
def test_an_absurd_lifetime_is_refused_too(text: object) -> None:
    with pytest.raises(ValueError, match="; write "):
        quantities.lifetime(text)


@pytest.mark.parametrize("text", ["0", "0s", 0, "999ms"])
def test_a_lifetime_is_at_least_a_whole_second(text: object) -> None:
    with pytest.raises(ValueError, match="; write "):
        quantities.lifetime(text)


@pytest.mark.parametrize(("text", "value"), [("64KiB", 65_536), ("1MiB", 1 << 20), ("2GiB", 2 << 30), ("7", 7), (0, 0)])
def test_a_size_is_bytes_or_a_number_with_a_unit(text: object, value: int) -> None:
    assert quantities.size(text) == value
    assert quantities.size(size_text(value)) == value


@pytest.mark.parametrize(
    "text", ["", "1MB", "1M", "1mib", "1 MiB", "1.5MiB", "-1", "1025TiB", "9" * 5000, "٣", -1, 1.0, True, None, 10**30]
)
def test_an_absurd_size_is_refused_with_what_to_write(text: object) -> None:
    with pytest.raises(ValueError, match="; write "):
        quantities.size(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("127.0.0.1:8080", Listen("tcp", "127.0.0.1", 8080)),
        ("localhost:0", Listen("tcp", "localhost", 0)),
        ("[::1]:80", Listen("tcp", "::1", 80)),
        ("unix:/run/pastebin/http.sock", Listen("unix", path="/run/pastebin/http.sock")),
        ("systemd", Listen("systemd")),
    ],
)
def test_a_listener_is_read_and_spelt_the_same(text: str, value: Listen) -> None:
    assert quantities.listen(text) == value
    assert str(value) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "8080", ":8080", "host:", "host:-1", "host:65536", "host:http", "host:٣", "::1:80", "[::1]",
        "[host]:80", "[]:80",
        "127.0.0.1.5:80", "999.0.0.1:80", "*:80", "a b:80", "-a:80", "http://x:80", "unix:", "unix:run/x", "unix:/run/",
        "unix:@x", "unix:/" + "x" * 107, "Systemd", "systemd:http", 8080, None, ["127.0.0.1:80"],
    ],
)  # fmt: skip
def test_an_absurd_listener_is_refused_with_what_to_write(text: object) -> None:
    with pytest.raises(ValueError, match="; write "):
        quantities.listen(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("https://Paste.Example.org/", "https://paste.example.org"),
        ("HTTP://h:80/a/b/", "http://h/a/b"),
        ("https://h:8443/a", "https://h:8443/a"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_a_public_url_is_kept_without_slash_and_default_port(text: str, value: str) -> None:
    assert quantities.base_url(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "paste.example.org", "ftp://h", "//h", "http://", "http:///a", "http://h?x", "http://h/#x", "http://u:p@h",
        "http://h:0", "http://h:99999", "http://h:x", "http://h//a", "http://h/../a", "http://h/./a",
        "http://h/a b", "http://h\n",
        "http://ä.example", "http://[::1", "http://1.2.3", "http://h/%2e", " http://h", 5, None,
    ],
)  # fmt: skip
def test_a_public_url_that_could_mislead_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="; write "):
        quantities.base_url(text)


def test_trusted_proxies_are_networks_addresses_and_the_unix_socket() -> None:
    trusted = quantities.trusted_proxies(["10.0.0.0/8", "192.0.2.7", "fd00::/8", "unix"])
    assert trusted.networks == (ip_network("10.0.0.0/8"), ip_network("192.0.2.7/32"), ip_network("fd00::/8"))
    assert trusted.unix


@pytest.mark.parametrize(
    "value", ["10.0.0.0/8", [1], ["proxy.example"], ["10.0.0.1/8"], ["::1/64"], ["10.0.0.0/33"], [""], None]
)
def test_what_is_no_list_of_networks_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="; write "):
        quantities.trusted_proxies(value)


# Files


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbf[log]\nlevel = 'debug'\n")
    assert load(tmp_path / "c.toml", {}).log.level == "debug"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[server\n", "is not TOML: .*line 1"),
        (b"a = 1\na = 2\n", "is not TOML: "),
        (b"a = " + b"9" * 5000, "is not TOML: "),
        (b"a = " + b"[" * 100_000, "is nested too deeply"),
        (b"\n[server]\ngrace = '\xff'", r"is not UTF-8 text \(line 3\); save it as UTF-8"),
        (b"#" * 2_000_000, "is larger than 1MiB"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_one_clear_problem(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigProblems) as caught:
        load(path, {})
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: ")
    assert re.search(problem, line)


@pytest.mark.parametrize(
    ("name", "problem"), [("none.toml", "there is no such file"), (".", "can't be read"), ("\0", "can't be read")]
)
def test_a_file_that_cannot_be_read_is_one_clear_problem(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match=problem) as caught:
        load(tmp_path / name, {})
    assert len(caught.value.problems) == 1


# The environment


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("PASTEBIN_BODIES__S3__BUCKET", "123", "123"),
        ("PASTEBIN_SERVER__READ_ONLY", "true", True),
        ("PASTEBIN_OUTBOX__BATCH", "7", 7),
        ("PASTEBIN_OUTBOX__LEASE", "90", 90),
        ("PASTEBIN_OUTBOX__LEASE", "90s", 90),
        ("PASTEBIN_CACHE__BYTES_MAX", "1KiB", 1024),
        ("PASTEBIN_PASTES__EXPIRY_DEFAULT", "60", 60),
        ("PASTEBIN_PASTES__EXPIRY_CHOICES", '["1h", 60]', (3600, 60)),
        ("PASTEBIN_EDGE__HTTP__HEADERS", '{ X = "{id}" }', {"X": "{id}"}),
        ("PASTEBIN_SERVER__LISTEN", "systemd", Listen("systemd")),
        ("PASTEBIN_ACCESS__CREATE_TOKENS_FILE", "/etc/tokens", Path("/etc/tokens")),
    ],
)
def test_the_environment_goes_over_the_file(name: str, text: str, value: object) -> None:
    found: Any = load(EXAMPLE, {name: text})
    for part in name.removeprefix("PASTEBIN_").lower().split("__"):
        found = getattr(found, part)
    assert found == value


def test_a_mistake_in_the_environment_says_where_it_is(problems: Problems) -> None:
    assert problems("[outbox]\nbatch = 5", PASTEBIN_OUTBOX__BATCH="1\nlease = 2") == [
        '[outbox] batch = "1\\nlease = 2" (from PASTEBIN_OUTBOX__BATCH): '
        "is not a whole number; write one without quotes, such as 100"
    ]


def test_an_unknown_name_in_the_environment_is_guessed_and_its_value_not_shown(problems: Problems) -> None:
    assert problems("", PASTEBIN_SERVR__GRACE="hunter2", PASTEBIN_CONFIG="/etc/x", PASTEBINX="y", PATH="/bin") == [
        "'PASTEBIN_SERVR__GRACE' in the environment: no key has this name; did you mean PASTEBIN_SERVER__GRACE?"
    ]


def test_the_environment_over_a_section_that_is_no_table_is_no_traceback(problems: Problems) -> None:
    (line,) = problems("bodies = 3", PASTEBIN_BODIES__S3__BUCKET="x", PASTEBIN_BODIES__STORE="s3")
    assert line.startswith("[bodies]: is not a section")


def test_bytes_in_the_environment_that_are_not_text_are_refused_in_ascii() -> None:
    with pytest.raises(ConfigProblems) as caught:
        load(None, {"PASTEBIN_LOG__LEVEL": os.fsdecode(b"\xff"), "PASTEBIN_BODIES__S3__REGION": os.fsdecode(b"\xff")})
    assert len(caught.value.problems) == 2
    assert str(caught.value).isascii()


def test_systemds_state_directory_is_the_default_directory(loaded: Load) -> None:
    assert loaded("", STATE_DIRECTORY="/var/lib/pastebin:/x").storage.directory == Path("/var/lib/pastebin")
    assert loaded("storage.directory = '/data'", STATE_DIRECTORY="/var/lib/p").storage.directory == Path("/data")
    environ = {"STATE_DIRECTORY": "/var/lib/p", "PASTEBIN_STORAGE__DIRECTORY": "/env"}
    assert load(None, environ).storage.directory == Path("/env")


# Secrets

PAIR = "[bodies.s3]\naccess_key_id = 'id'\n"


def secret(config: Config) -> str:
    return config.bodies.s3.secret_access_key.get_secret_value()


def test_a_secret_comes_from_the_key_a_file_or_a_credential(loaded: Load, tmp_path: Path) -> None:
    file = tmp_path / "bodies.s3.secret_access_key"
    file.write_text("hunter2\n")
    assert secret(loaded(PAIR + "secret_access_key = 'hunter2'")) == "hunter2"
    assert secret(loaded(PAIR + f"secret_access_key_file = '{file}'")) == "hunter2"
    assert secret(loaded(PAIR, PASTEBIN_BODIES__S3__SECRET_ACCESS_KEY_FILE=str(file))) == "hunter2"
    assert secret(loaded(PAIR, PASTEBIN_BODIES__S3__SECRET_ACCESS_KEY="hunter2")) == "hunter2"
    assert secret(loaded(PAIR, CREDENTIALS_DIRECTORY=str(tmp_path))) == "hunter2"


@pytest.mark.parametrize("name", ["bodies.s3.access_key_id", "edge.http.token"])
def test_the_other_secrets_come_from_credentials_too(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("hunter2")
    (tmp_path / "bodies.s3.secret_access_key").write_text("x")
    (tmp_path / "bodies.s3.access_key_id").write_text("hunter2")
    found: Any = load(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    for part in name.split("."):
        found = getattr(found, part)
    assert found.get_secret_value() == "hunter2"


def test_a_secret_given_in_two_ways_is_refused(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "edge.http.token").write_text("hunter2")
    assert problems("[edge.http]\ntoken = 'hunter2'\ntoken_file = '/x'", CREDENTIALS_DIRECTORY=str(tmp_path)) == [
        "[edge.http] token: is given in more than one way "
        "(token, token_file, the systemd credential edge.http.token); keep one of them"
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"can't be read \(No such file or directory\); name a small file that the user of the daemon may read"),
        (b"", "token_file is empty"),
        (b"\n", "token_file is empty"),
        (b"\xff", "does not hold UTF-8 text"),
        (b"hunter2\nhunter2\n", "holds a space or a character that is not ASCII"),
        (b"x" * 70_000, "larger than 64KiB"),
    ],
)
def test_a_secret_file_that_holds_no_secret_is_refused(
    content: bytes | None, problem: str, problems: Problems, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    (line,) = problems(f"[edge.http]\ntoken_file = '{path}'")
    assert line.startswith("[edge.http] token: ")
    assert re.search(problem, line)
    assert "hunter2" not in line


def test_a_credential_is_given_as_it_is_and_absence_is_none(tmp_path: Path) -> None:
    (tmp_path / "delete-token-secret").write_bytes(b"\x00\xff\n")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert credential("delete-token-secret", environ) == b"\x00\xff\n"
    assert credential("other", environ) is None
    assert credential("delete-token-secret", {}) is None


def test_a_credential_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "delete-token-secret").mkdir()
    with pytest.raises(ConfigProblems, match=r"delete-token-secret.* can't be read"):
        credential("delete-token-secret", {"CREDENTIALS_DIRECTORY": str(tmp_path)})


@pytest.mark.parametrize(
    "text",
    [
        "[bodies.s3]\nsecret_access_key = 'hunter2 x'",
        "[bodies.s3]\nsecret_access_key = ['hunter2']",
        "[bodies.s3]\nsecret_access_key = 'hunter2'",
        "[bodies.s3]\nsecret_acces_key = 'hunter2'",
        "[bodies.s3]\nendpoint_url = 'https://user:hunter2@h'",
        "[server]\npublic_url = 'https://user:pass/hunter2@h'",
        "[edge.http]\ntoken = 'hunter2 '",
        "[edge.http]\nheaders = { X = 'hunter2{x}' }",
        "[edge.http]\nheaders = 'hunter2'",
        "[edge.http]\nurl = 'ftp://h/?key=hunter2'",
        "secret_access_key = 'hunter2'",
        "edge = 'hunter2'",
        "x = 'hunter2",
    ],
)
def test_a_secret_is_never_shown(text: str, problems: Problems) -> None:
    assert "hunter2" not in "\n".join(problems(text))


def test_a_secret_is_not_in_the_exception_that_python_prints(loaded: Load) -> None:
    with pytest.raises(ConfigProblems) as caught:
        loaded("[bodies.s3]\nsecret_access_key = ['hunter2']")
    assert caught.value.__context__ is None


def test_a_secret_is_not_in_the_text_of_the_sections(loaded: Load) -> None:
    text = "[edge.http]\ntoken = 'hunter2'\nheaders = { Authorization = 'hunter2' }"
    config = loaded(text + "\n[bodies.s3]\naccess_key_id = 'hunter2'\nsecret_access_key = 'hunter2'")
    assert "hunter2" not in repr(config) + str(config)
