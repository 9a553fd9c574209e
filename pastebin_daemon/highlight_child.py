"""The child process that reads strangers' text with Pygments and markdown-it, for highlighting.py.

A regular expression can take for ever on the right input, and in a thread of the daemon it would stop everybody, since
it holds the interpreter. So it runs here, and ends here: by the parent's hand at the time limit, by `SIGALRM` should the
parent be gone, and at the end of standard input.

A request on standard input is one line of JSON (`bytes` and `extra` are counts) and then the text, in UTF-8; the answer
is `count language\\n` and then that many bytes of HTML, in which only `<span class=x>` and what markdown-it writes are
not escaped text. Before the first, the child says `ready\\n`.

Lexers read the text as it is: their own clean-up (newlines stripped, CRLF to LF, BOM dropped) would change what is
shown. CR before LF is taken out for the lexer and put back. A lexer whose tokens do not add up to the text is not used.

What takes longer than `soft_s` is highlighted as far as that goes, and plain from there on: lexers read forward, so the
beginning is right. Only a single expression that does not come back costs the process.
"""

import html
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from pastebin_daemon.clock import SystemClock

ALARM_S = 5
MEMORY_BYTES = 512 << 20
CLASSES = {
    "Comment": "c",
    "Comment.Preproc": "p",
    "Keyword": "k",
    "Keyword.Constant": "m",
    "Keyword.Type": "t",
    "Literal.Number": "m",
    "Literal.String": "s",
    "Literal.String.Escape": "e",
    "Literal.String.Interpol": "e",
    "Literal.String.Regex": "e",
    "Name.Attribute": "a",
    "Name.Builtin": "b",
    "Name.Class": "f",
    "Name.Constant": "m",
    "Name.Decorator": "a",
    "Name.Exception": "t",
    "Name.Function": "f",
    "Name.Namespace": "b",
    "Name.Tag": "k",
    "Name.Variable": "v",
    "Operator.Word": "k",
    "Generic.Deleted": "d",
    "Generic.Inserted": "i",
    "Generic.Heading": "h",
    "Generic.Subheading": "h",
    "Generic.Prompt": "c",
    "Generic.Strong": "h",
    "Generic.Error": "d",
}
"""Token types that have a colour (style.css), by their shortest name; what is not here looks like its parent."""

_now = SystemClock().monotonic


def _lexer(language: str, name: str) -> Any:
    """Pygments' lexer for a language's alias or name, else for a file name; None when there is none."""
    from pygments.lexers import find_lexer_class, get_lexer_by_name, get_lexer_for_filename
    from pygments.util import ClassNotFound

    if language:
        try:
            return get_lexer_by_name(language)
        except ClassNotFound:
            found = find_lexer_class(language) or find_lexer_class(language.title())
            return found() if found is not None else None
    try:
        return get_lexer_for_filename(name) if name else None
    except ClassNotFound:
        return None


def _tokens(lexer: Any, text: str, soft_s: float) -> Iterator[tuple[str, str]]:
    """Pieces of the text and their classes ("" for none); plain after `soft_s`."""
    known: dict[Any, str] = {}
    ends = _now() + soft_s
    at = 0
    for start, kind, value in lexer.get_tokens_unprocessed(text):
        if start != at:
            raise ValueError("the lexer's tokens are not the text")
        at = start + len(value)
        if kind not in known:
            parts, found = str(kind).removeprefix("Token.").split("."), ""
            while parts and not found:
                found = CLASSES.get(".".join(parts), "")
                parts.pop()
            known[kind] = found
        yield known[kind], value
        if _now() > ends:
            break
    if text[at:]:
        yield "", text[at:]


def lines_of(pieces: Iterable[tuple[str, str]]) -> list[str]:
    """HTML of each line, without its newline. Neighbours of one class share a span, and no span crosses a line."""
    lines, line = [], ""
    last = ""
    for kind, value in pieces:
        for number, part in enumerate(value.split("\n")):
            if number:
                lines.append(line + ("</span>" if last else ""))
                line, last = "", ""
            if not part:
                continue
            here = last if part.isspace() else kind  # white space has no colour
            if here != last:
                line += ("</span>" if last else "") + (f"<span class={here}>" if here else "")
                last = here
            line += html.escape(part, quote=False)
    lines.append(line + ("</span>" if last else ""))
    return lines


def highlight(text: str, language: str, name: str, soft_s: float) -> tuple[str, str]:
    """The text as HTML lines, and the language's name ("" when none is known; then the lines are plain)."""
    rows = text.split("\n")
    returns = [row.endswith("\r") for row in rows]
    lexer = _lexer(language, name)
    read = text.replace("\r\n", "\n")
    if lexer is None:
        lines, spoken = lines_of([("", read)]), ""
    else:
        spoken = lexer.name
        try:
            lines = lines_of(_tokens(lexer, read, soft_s))
        except Exception:  # noqa: BLE001  # 600 lexers by many hands: none may cost more than the colours
            lines = lines_of([("", read)])
    if any(returns):
        last = len(rows) - 1
        lines = [
            line + "\r" if cut and number < last else line
            for number, (line, cut) in enumerate(zip(lines, returns, strict=True))
        ]
    return "\n".join(lines), spoken


def markdown(text: str, _language: str, _name: str, _soft_s: float) -> tuple[str, str]:
    """CommonMark with tables and strikethrough. HTML in it stays text, links lead away without a referrer, and images
    are links: a page makes no request elsewhere."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    reader.add_render_rule("image", _image)
    reader.add_render_rule("link_open", _link)
    reader.add_render_rule("heading_open", _heading)
    reader.add_render_rule("heading_close", _heading)
    rendered: str = reader.render(text)
    return rendered, "Markdown"


def _link(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:
    tokens[at].attrSet("rel", "nofollow noopener noreferrer ugc")
    rendered: str = self.renderToken(tokens, at, options, env)
    return rendered


def _image(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:
    """The words instead of the picture, and its address as text: it may stand inside of a link."""
    words = self.renderInlineAsText(tokens[at].children or [], options, env)
    return f"<em>[{html.escape(words or 'image')}: {html.escape(str(tokens[at].attrGet('src') or ''))}]</em>"


def _heading(self: Any, tokens: Any, at: int, options: Any, env: Any) -> str:
    """One level down: the page's own title is the h1."""
    tokens[at].tag = f"h{min(6, int(tokens[at].tag[1]) + 1)}"
    rendered: str = self.renderToken(tokens, at, options, env)
    return rendered


WORK: dict[str, Callable[[str, str, str, float], tuple[str, str]]] = {"highlight": highlight, "markdown": markdown}


def answer(requests: BinaryIO, answers: BinaryIO) -> bool:
    """Serve one request. False at the end of the requests."""
    line = requests.readline()
    if not line:
        return False
    asked = json.loads(line)
    text = requests.read(asked["bytes"]).decode()
    signal.alarm(ALARM_S)
    rendered, language = WORK[asked["work"]](text, asked["language"], asked["name"], asked["soft_s"])
    signal.alarm(0)
    body = rendered.encode()
    answers.write(f"{len(body)} {language}\n".encode() + body)
    answers.flush()
    return True


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is the parent's business
    with suppress(OSError, ValueError):  # a sandbox may forbid it, or have set less
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with suppress(OSError):  # systemd's filter of @resources does
        os.nice(5)
    import pygments.lexers  # noqa: F401  # before the first request waits for it

    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    while answer(sys.stdin.buffer, sys.stdout.buffer):
        pass


if __name__ == "__main__":
    main()
