"""A clock that was two hours wrong at the start and is corrected while the daemon runs: nothing expires by the correction
within the pause, nothing is lost, and all work is done at the latest when the clock has caught up."""

import signal
from pathlib import Path

import aiohttp
import pytest

from tests.machine.clients import Record
from tests.machine.judge import SETTINGS, examined, work_off
from tests.process import child, rows
from tests.real import poll
from tests.traffic import edge

WRONG_S = 7200


@pytest.mark.parametrize("ahead_s", [-WRONG_S, WRONG_S])
async def test_a_clock_that_is_corrected_ends_nothing_early_and_loses_no_job(tmp_path: Path, ahead_s: int) -> None:
    record = Record()
    options = ["--brisk", "--ahead", str(ahead_s), "--step", str(-ahead_s), "--jump", str(WRONG_S + 3700)]
    async with edge() as cache:
        settings = SETTINGS | cache.settings()
        async with child(tmp_path, settings, options=options) as it, aiohttp.ClientSession() as http:
            first = await record.create(http, it.url, b"deleted before the correction")
            kept = await record.create(http, it.url, b"kept")
            assert first is not None
            assert kept is not None
            async with http.post(f"{it.url}/", data=b"mortal", params={"expires_in": "3600"}) as answer:
                assert answer.status == 201
                mortal = answer.headers["Location"].rpartition("/")[2]
            assert await record.delete(http, it.url, first) == 204

            it.send(signal.SIGUSR2)

            async def is_noticed() -> bool:
                return "clock.stepped" in it.log()

            await poll(is_noticed, "the step is noticed")
            assert await record.read(http, it.url, kept) == 200
            second = await record.create(http, it.url, b"deleted after the correction")
            assert second is not None
            assert await record.delete(http, it.url, second) == 204
            await poll(lambda: _purged(cache.purged[second.id]), "what is due now is done now, whatever the clock was")
            assert "pastes.expired" not in it.log(), "expiry pauses"
            assert (mortal,) in rows(tmp_path / "state" / "pastebin.sqlite", "select id from pastes")

            await work_off(it, http, record)  # time passes: the pause is over, and the clock has caught up

            async def is_swept() -> bool:
                return mortal not in (await examined(it))["live"]

            await poll(is_swept, "then it expires")
            assert cache.purged[first.id] >= 2
            it.send(signal.SIGTERM)
            assert await it.ended() == 0, it.log()[-2000:]


async def _purged(times: int) -> bool:
    return times >= 1
