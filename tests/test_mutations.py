"""The list of breaks that the searchers must see is up to date: each text is where it says, and the break is a program.

Trying them takes half an hour: `python -m tests.mutations`, by hand and before a release.
"""

import pytest

from tests.mutations.__main__ import SEARCHERS
from tests.mutations.edits import EDITS, Edit
from tests.process import ROOT


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_every_break_of_the_list_can_be_made(edit: Edit) -> None:
    whole = (ROOT / "pastebin_daemon" / edit.file).read_text()
    assert whole.count(edit.old) == 1
    compile(whole.replace(edit.old, edit.new), edit.file, "exec")
    assert edit.searchers
    assert set(edit.searchers) <= set(SEARCHERS)


def test_no_two_breaks_are_the_same() -> None:
    assert len({(edit.file, edit.old, edit.new) for edit in EDITS}) == len(EDITS) == len({edit.name for edit in EDITS})
