"""Taking a paste in: every way in gives the same bytes, or a reason (G15). How they are read is receiving.py's.

- JSON is text: what is not Unicode text (a lone surrogate) is refused.
- The HTML form's route alone turns CRLF into LF, since browsers rewrite every newline of a textarea on submit. A file that
  the form carries is not rewritten, so neither is it here. A form that began as a clone names the paste: a text that
  differs from it by nothing but what browsers rewrite is that paste's own bytes, and a changed one keeps its CRLF.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import BaseModel, ConfigDict, ValidationError

from pastebin_daemon.creation import Draft
from pastebin_daemon.errors import BadRequest, TooLarge, UnsupportedMediaType, did_you_mean
from pastebin_daemon.quantities import duration_text, lifetime, size_text
from pastebin_daemon.web.receiving import FRAMING_BYTES, Hold, read_body, read_form
from pastebin_daemon.web.routing import Request

__all__ = [
    "Asked", "Expiries", "ask_form", "draft_of_form", "draft_of_json", "draft_of_terminal", "is_language",
]  # fmt: skip

TITLE_CHARS = 200
OPTIONS = ("expires_in", "title", "language")
FORM_SURPLUS_BYTES = 4 << 20
"""What a form may be over the limit and still be read, to give the text back with the refusal instead of losing it."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_LANGUAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+#._ -]{0,39}")


@dataclass(frozen=True, slots=True)
class Expiries:
    """The section `[pastes]` as far as lifetimes go, in seconds; None: never, or no limit."""

    default_s: int | None
    max_s: int | None

    def read(self, value: object) -> int | None:
        """The lifetime for an `expires_in`, or the default for none. Raises `BadRequest`."""
        if value is None:
            return self.default_s
        try:
            wanted = lifetime(int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value) else value)
        except ValueError as error:
            raise BadRequest(f'expires_in {error}, or "never" where that is allowed') from error
        if self.max_s is not None and (wanted is None or wanted > self.max_s):
            raise BadRequest(
                f'expires_in is more than this pastebin keeps a paste; write at most "{duration_text(self.max_s)}"'
            )
        return wanted


async def draft_of_terminal(request: Request, limit: int, expiries: Expiries, hold: Hold) -> Draft:
    """A raw body whatever its type, or multipart with one part. Options from the query, or from parts of their names."""
    options = _query_options(request)
    title = _file_title(request.argument or None)
    if request.content_type == "multipart/form-data":
        form = await read_form(request, limit, partial(_too_large, limit), hold, OPTIONS)
        if len(form.contents) != 1:
            raise BadRequest(f"the form has {len(form.contents)} parts with content; send one (-F file=@NAME)")
        (body, file_name) = form.contents[0]
        title = _file_title(file_name) or title
        options = form.options | options
    else:
        body = await read_body(request, limit, partial(_too_large, limit), hold)
    return _draft(body, options, expiries, title)


async def draft_of_json(request: Request, limit: int, expiries: Expiries, hold: Hold) -> Draft:
    """A JSON document, or any other type as the body itself with its options in the query."""
    options = _query_options(request)
    if request.content_type != "application/json":
        return _draft(await read_body(request, limit, partial(_too_large, limit), hold), options, expiries, None)
    if options:
        raise BadRequest("options of a JSON request stand in the document, not in the query")
    document = await read_body(request, limit + FRAMING_BYTES, partial(_document_too_large, limit), hold)
    try:
        asked = _Document.model_validate_json(document)
    except ValidationError as error:
        raise BadRequest("the JSON is not what is taken here: " + "; ".join(_mistakes(error))) from error
    body = asked.content.encode()  # it is Unicode text: pydantic takes no lone surrogate from a document
    if len(body) > limit:
        raise _too_large(limit)
    given = {name: getattr(asked, name) for name in OPTIONS if getattr(asked, name) is not None}
    return _draft(body, given, expiries, None)


@dataclass(frozen=True, slots=True)
class Asked:
    """What stands in the page's form: the text with LF newlines, a file with its name, and the options given."""

    text: bytes = b""
    options: Mapping[str, object] = field(default_factory=dict)
    file: tuple[bytes, str] | None = None
    token: str = ""
    clone_of: str = ""


async def ask_form(request: Request, limit: int, hold: Hold) -> Asked:
    """Read the page's form. Somewhat more than `limit` bytes are read too: `draft_of_form` refuses them."""
    if request.content_type != "multipart/form-data":
        raise UnsupportedMediaType("the form posts multipart/form-data; use POST / for anything else")
    most = limit + FORM_SURPLUS_BYTES
    form = await read_form(request, most, partial(_too_large, limit), hold, (*OPTIONS, "create_token", "clone_of"))
    texts = [body for body, file_name in form.contents if file_name is None]
    files = [(body, file_name) for body, file_name in form.contents if file_name is not None]
    if len(texts) > 1 or len(files) > 1:
        raise BadRequest(f"the form has {len(texts)} texts and {len(files)} files; send one")
    options = {name: value for name, value in form.options.items() if value}
    token, clone_of = str(options.pop("create_token", "")), str(options.pop("clone_of", ""))
    text = texts[0].replace(b"\r\n", b"\n") if texts else b""
    return Asked(text, options, files[0] if files else None, token, clone_of)


def draft_of_form(asked: Asked, original: bytes | None, limit: int, expiries: Expiries) -> Draft:
    """`original`: the body of the paste that the form was a clone of, while that lives."""
    body, title = asked.text, None
    if asked.file is not None:
        if body:
            raise BadRequest("there is a text and a file; send one of them")
        body, title = asked.file[0], _file_title(asked.file[1])
    elif original is not None:
        if _as_typed(body) == _as_typed(original):
            body = original
        elif original.count(b"\r\n") == original.count(b"\n") == original.count(b"\r") > 0:
            body = body.replace(b"\n", b"\r\n")
    if len(body) > limit:
        raise _too_large(limit)
    return _draft(body, asked.options, expiries, title)


def _as_typed(body: bytes) -> bytes:
    """What a browser's textarea makes of a text."""
    return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\0", "\ufffd".encode())


def is_language(name: str) -> bool:
    return _LANGUAGE.fullmatch(name) is not None


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    content: str
    title: str | None = None
    language: str | None = None
    expires_in: int | str | None = None


def _mistakes(error: ValidationError) -> list[str]:
    """In our words where pydantic's would show what stands in the document, to the log too."""
    found = []
    for each in error.errors(include_url=False, include_input=False)[:10]:
        match each["type"]:
            case "json_invalid":
                found.append(f"{each['msg']} (what is no Unicode text goes in as the body itself, with another type)")
            case "extra_forbidden":
                found.append(f"a name is not known; {_hint(str(each['loc'][-1]), tuple(_Document.model_fields))}")
            case _:
                found.append(f"{each['loc'][0] if each['loc'] else 'document'}: {each['msg']}")
    return found


def _draft(body: bytes, options: Mapping[str, object], expiries: Expiries, file_title: str | None) -> Draft:
    """Raises `BadRequest` with every mistake at once."""
    mistakes = [] if body else ["there is nothing to paste: the body has zero bytes"]
    title, language, lifetime_s = options.get("title"), options.get("language"), None
    if isinstance(title, str) and (len(title) > TITLE_CHARS or _UNPRINTABLE.search(title)):
        mistakes.append(f"title is longer than {TITLE_CHARS} characters, or holds control characters")
    if isinstance(language, str) and language and not is_language(language):
        mistakes.append("language is not a name of one; write one such as python, or leave it out")
    try:
        lifetime_s = expiries.read(options.get("expires_in"))
    except BadRequest as error:
        mistakes.append(str(error))
    if mistakes:
        raise BadRequest("; ".join(mistakes))
    return Draft(body, lifetime_s, str(title) if title else file_title, str(language).lower() if language else None)


def _query_options(request: Request) -> dict[str, object]:
    options: dict[str, object] = {}
    for name, value in request.query.items():
        if name not in OPTIONS:
            raise BadRequest(f"an option of that name is not known; {_hint(name, OPTIONS)}")
        options[name] = value
    return options


def _hint(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f"write {', '.join(known)}"


def _file_title(name: str | None) -> str | None:
    """A file's name as a title: cleaned and cut, never refused, since nobody wrote it as one. "-" is standard input."""
    if not name or name == "-":
        return None
    return _UNPRINTABLE.sub("_", name)[:TITLE_CHARS]


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a paste may have {size_text(limit)} ({limit} bytes) here; this is more")


def _document_too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"a JSON document may have {limit + FRAMING_BYTES} bytes here, its escapes counted as they are written; "
        f"this is more. Send the text as the body itself: then only its {size_text(limit)} count"
    )
