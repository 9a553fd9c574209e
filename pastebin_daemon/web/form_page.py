"""The form at `/`, empty, filled with a paste to clone, or again with what was typed when it could not be saved."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from aiohttp import web
from markupsafe import Markup, escape

from pastebin_daemon.quantities import duration_text, size_text
from pastebin_daemon.reading import Entry
from pastebin_daemon.web.intake import Asked, is_language
from pastebin_daemon.web.site import Site

__all__ = ["FormPage", "lifetime_text", "spoken_lifetime"]

_UNITS = {"d": "day", "h": "hour", "m": "minute", "s": "second"}


@dataclass(frozen=True, slots=True)
class FormPage:
    site: Site
    body_bytes_max: int
    expiry_default_s: int | None
    expiry_choices_s: Sequence[int | None]
    asks_token: bool
    read_only: bool

    def empty(self) -> web.Response:
        told = "This pastebin takes no new pastes at the moment; reading and deleting go on." if self.read_only else ""
        return self._page(Asked(), 200, told)

    def clone(self, entry: Entry) -> web.Response:
        """The text of a paste to begin with. The form names the paste, so that an unchanged text is the same bytes."""
        paste = entry.paste
        asked = Asked(entry.body, {"title": paste.title or "", "language": paste.language or ""}, clone_of=paste.id)
        return self._page(asked, 200, "")

    def again(self, asked: Asked, status: int, text: str) -> web.Response:
        """What was typed, and why it was not saved."""
        lost = " The file has to be chosen again." if asked.file is not None else ""
        return self._page(asked, status, f"Not saved: {text.rstrip('.')}.{lost}")

    def _page(self, asked: Asked, status: int, error: str) -> web.Response:
        values = {
            "content": asked.text.decode("utf-8", "replace").replace("\0", "\ufffd"),
            "title": str(asked.options.get("title", "")),
            "language": str(asked.options.get("language", "")),
            "expires_in": str(asked.options.get("expires_in", lifetime_text(self.expiry_default_s))),
            "clone_of": asked.clone_of,
        }
        limit = size_text(self.body_bytes_max)
        choices = dict.fromkeys((*self.expiry_choices_s, self.expiry_default_s))
        return self.site.page(
            "form.html", status, values=values, error=error, asks_token=self.asks_token, languages=_languages(),
            choices=[(lifetime_text(choice), spoken_lifetime(choice)) for choice in choices],
            body_bytes_max=self.body_bytes_max, limit=limit if not limit.isdigit() else f"{limit} bytes",
            example=f"curl -T FILE {self.site.public_url}",
        )  # fmt: skip


def lifetime_text(lifetime_s: int | None) -> str:
    """As `expires_in` takes it."""
    return "never" if lifetime_s is None else duration_text(lifetime_s)


def spoken_lifetime(lifetime_s: int | None) -> str:
    if lifetime_s is None:
        return "until deleted"
    short = duration_text(lifetime_s)
    count, unit = short[:-1], _UNITS[short[-1]]
    return f"{count} {unit}" if count == "1" else f"{count} {unit}s"


@cache
def _languages() -> Markup:
    """Pygments' languages, as the options of a list that the browser filters; by alias, with the name and its files."""
    from pygments.lexers import get_all_lexers  # only the form needs the table of them

    options = []
    for name, aliases, patterns, _ in sorted(get_all_lexers(plugins=False), key=lambda each: each[0].lower()):
        alias = next(filter(is_language, aliases), None)
        if alias is not None:
            label = " ".join((name, *patterns[:4]))
            options.append(f'<option value="{escape(alias)}" label="{escape(label)}">')
    return Markup("\n".join(options))  # noqa: S704  # escaped above
