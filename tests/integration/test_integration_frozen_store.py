"""A TiKV or PD server that freezes: whoever reads from it is told so, and can ask another one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import grpc
import grpc.aio
import pytest
from changefeed.upstream.tikv.client.channels import Channels

NOTICED_S = 20.0  # keepalive after 10 s without a word, 3 s for the answer

SERVER = """
import asyncio, sys
import grpc, grpc.aio

async def feed(request, context):
    yield b"first"
    await asyncio.Event().wait()

async def serve():
    server = grpc.aio.server()
    methods = {"Feed": grpc.unary_stream_rpc_method_handler(feed)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Store", methods),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(serve())
"""


async def test_a_stream_of_a_frozen_server_ends() -> None:
    command = [sys.executable, "-c", SERVER]
    channels = Channels(None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: ASYNC220 - nobody waits
        try:
            assert server.stdout is not None
            call = channels.get(f"127.0.0.1:{int(server.stdout.readline())}").unary_stream("/test.Store/Feed")(b"")
            assert await call.read() == b"first"
            server.send_signal(signal.SIGSTOP)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await asyncio.wait_for(call.read(), NOTICED_S)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            server.kill()
            await channels.close()
