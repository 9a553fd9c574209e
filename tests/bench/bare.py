"""The limit: an aiohttp handler that does nothing but answer, in a process of its own, on the loop that the daemon has.

`python -m tests.bench.bare` reads one line of JSON from standard input, {"headers": {...}, "bytes": n}, then the n bytes of
the body, and says where it listens. GET answers them; POST reads the request's body and answers 201 with them.
"""

import asyncio
import json
import sys

import uvloop
from aiohttp import web
from multidict import CIMultiDict


async def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline())
    body = sys.stdin.buffer.read(asked["bytes"])

    async def get(request: web.Request) -> web.Response:
        return web.Response(body=body, headers=CIMultiDict(asked["headers"]))

    async def post(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=201, body=body, headers=CIMultiDict(asked["headers"]))

    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/{path:.*}", get)
    app.router.add_post("/{path:.*}", post)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()  # until it is killed, by who started it or with them


if __name__ == "__main__":
    uvloop.run(main())
