"""The page of a paste: made once, kept beside the body in the origin cache, and the same for everybody.

Nothing in it changes by itself and nothing in it is somebody's: the time left and the delete token are put in by the
browser (static/script.js). So its ETag is a hash of its bytes, and a cache may keep it.

The text stands in one `<pre>` exactly as it is: the line numbers are drawn by the stylesheet from an attribute, so that
they are neither selected nor copied, and a newline follows every line. Lines come in blocks of `BLOCK`, which a browser
lays out when they are looked at (`content-visibility`), so that a megabyte scrolls. More than `LINES_MAX` lines are
shown without numbers. What HTML itself would change is written around: the first newline after `<pre>`, and CR.
"""

import asyncio
import hashlib
import html
from collections.abc import Awaitable, Callable

from markupsafe import Markup

from pastebin_daemon.clock import rfc3339, spoken_time
from pastebin_daemon.highlighting import Highlighter
from pastebin_daemon.pastes import Paste
from pastebin_daemon.quantities import size_text
from pastebin_daemon.reading import Entry, Representation
from pastebin_daemon.web.represent import represent
from pastebin_daemon.web.site import PAGE_CSP, Site

__all__ = ["PastePages", "gone_text"]

BLOCK = 100
LINES_MAX = 50_000
LONG_LINE_CHARS = 1000
"""A page whose longest line is longer than this begins with wrapped lines."""
HEX_BYTES = 128

_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive, or a document that is one inside"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"\xfd7zXZ\0", "xz-compressed data"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x7fELF", "an ELF program or library"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"OggS", "an Ogg file"),
    (b"ID3", "an MP3 file"),
    (b"\xff\xfe", "text in UTF-16, by its first bytes"),
    (b"\xfe\xff", "text in UTF-16, by its first bytes"),
)


class PastePages:
    def __init__(self, site: Site, highlighter: Highlighter, keep: Callable[[Entry, Representation], None]) -> None:
        """`keep` puts a page beside its body into the origin cache, should the body still be there."""
        self._site = site
        self._highlighter = highlighter
        self._keep = keep
        self._making: dict[str, asyncio.Task[Representation]] = {}

    async def page(self, entry: Entry) -> Representation:
        """The kept page, or one that everyone who asks meanwhile shares. Awaits: look for a tombstone afterwards."""
        if entry.page is not None:
            return entry.page
        return await self._shared(entry.paste.id, lambda: self._make(entry))

    async def rendered(self, entry: Entry) -> Representation:
        """The text as markdown; it is not kept, since its address has a query string."""
        return await self._shared(f"{entry.paste.id}?", lambda: self._render(entry))

    async def _shared(self, key: str, make: Callable[[], Awaitable[Representation]]) -> Representation:
        task = self._making.get(key)
        if task is None:

            async def run() -> Representation:
                try:
                    return await make()
                finally:
                    del self._making[key]

            task = self._making[key] = asyncio.create_task(run())
        return await asyncio.shield(task)

    async def _make(self, entry: Entry) -> Representation:
        paste = entry.paste
        coloured = None
        if paste.is_text and (paste.language or paste.title):
            coloured = await self._highlighter(entry.body, paste.language or "", paste.title or "")
        if not paste.is_text:
            page = self._document(paste, entry.body, None, "")
        elif coloured is None:
            page = self._document(paste, entry.body, html.escape(entry.body.decode(), quote=False), "")
        else:
            page = self._document(paste, entry.body, coloured.html, coloured.language)
        self._keep(entry, page)
        return page

    async def _render(self, entry: Entry) -> Representation:
        paste = entry.paste
        coloured = await self._highlighter(entry.body, "", "", "markdown") if paste.is_text else None
        if coloured is None:
            return await self.page(entry)
        return self._document(paste, entry.body, "", "Markdown", rendered=Markup(coloured.html))  # noqa: S704  # by the child, which escapes

    def _document(
        self, paste: Paste, body: bytes, lines: str | None, language: str, rendered: Markup | None = None
    ) -> Representation:
        title = paste.title or paste.id
        if language == "Text only":  # Pygments' name for it
            language = "plain text"
        is_markdown = paste.is_text and (language == "Markdown" or title.lower().endswith((".md", ".markdown", ".mkd")))
        facts = [language or paste.language or ("plain text" if paste.is_text else "binary"), spoken_size(paste.size)]
        longest = 0
        text = Markup("")
        if lines is not None:
            count = body.count(b"\n") + (not body.endswith(b"\n"))
            facts.append("1 line" if count == 1 else f"{count} lines")
            longest = max(map(len, body.split(b"\n")), default=0)
            text = Markup(_numbered(lines, count))  # noqa: S704  # escaped line by line
        document = self._site.document(
            "paste.html", id=paste.id, title=title, facts=facts, is_text=paste.is_text, is_markdown=is_markdown,
            rendered=rendered, text=text, has_nul=paste.is_text and b"\0" in body, long_lines=longest > LONG_LINE_CHARS,
            url=f"{self._site.public_url}/{paste.id}", token="", gone=gone_text(paste),
            expires_at=None if paste.expires_ms is None else rfc3339(paste.expires_ms),
            what=_what(body), hexdump=_hexdump(body),
        )  # fmt: skip
        etag = f'"{hashlib.sha256(document).hexdigest()[:32]}"'
        return represent(paste, document, etag, "text/html; charset=utf-8", PAGE_CSP)


def _numbered(lines: str, count: int) -> str:
    """HTML of lines, split by newlines, with a number for each; `count` without the empty one after a last newline."""
    whole = lines.replace("\r", "&#13;").replace("\0", "\ufffd")
    if count > LINES_MAX:
        return whole
    rows = whole.split("\n")
    ended = len(rows) > count
    parts = []
    for number, row in enumerate(rows[:count], 1):
        if number % BLOCK == 1:
            parts.append("</span><span class=n>" if number > 1 else "<span class=n>")
        newline = "\n" if number < count or ended else ""
        parts.append(
            f'<span id=L{number}><a href="#L{number}" data-n={number} tabindex=-1 aria-hidden=true></a>{row}{newline}</span>'
        )
    parts.append("<br></span>" if ended else "</span>")
    return "".join(parts)


def gone_text(paste: Paste) -> str:
    return "Kept until it is deleted" if paste.expires_ms is None else f"Gone on {spoken_time(paste.expires_ms)}"


def spoken_size(size: int) -> str:
    return "1 byte" if size == 1 else f"{size} bytes" if size < 10_240 else size_text(size // 1024 * 1024)


def _what(body: bytes) -> str:
    kind = next((kind for beginning, kind in _KINDS if body.startswith(beginning)), "")
    return f"This looks like {kind}." if kind else "These bytes are no UTF-8 text."


def _hexdump(body: bytes) -> str:
    lines = []
    for at in range(0, min(len(body), HEX_BYTES), 16):
        row = body[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:04x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)
