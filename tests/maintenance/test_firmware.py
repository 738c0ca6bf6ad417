"""Firmware: downloaded, verified, and passed to the vendor's tool, which nothing interrupts."""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision.errors import Exit, Trouble
from provision.firmware import MOST, download
from provision.wire import fetch
from tests.api.serving import until
from tests.maintenance.machine import Machine
from tests.provisioning.registering import a_registry, calling, digest


async def test_firmware_is_fetched_checked_and_given_to_the_vendors_tool(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    tool = machine.root / "opt/sum/sum"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\necho "$@" > "$0.asked"; cp "$4" "$0.given"\n')
    async with calling(a_registry(tmp_path / "registry")) as client:
        await client.push("firmware", b"BIOS" * 1000)
        wanted = digest(b"BIOS" * 1000)
        url = f"http://{client.address}/v2/firmware/blobs/{wanted}?signature=tiddlywinks"
        machine.places.write("recipe.json", {"firmware_url": url, "env": {"USER_FIRMWARE_SHA256": wanted}})
        ran = await machine.agent("step", "firmware")
        assert "holds no tool that updates firmware" in ran.said
        tool.chmod(0o755)
        ran = await machine.agent("step", "firmware")
        assert (ran.code, tool.with_name("sum.given").read_bytes()) == (0, b"BIOS" * 1000), ran.said
        assert tool.with_name("sum.asked").read_text() == f"-c UpdateBios --file {machine.run}/firmware.bin\n"
        assert "tiddlywinks" not in ran.said
        tool.with_name("sum.given").unlink()
        machine.places.write("recipe.json", {"firmware_url": url, "env": {"USER_FIRMWARE_SHA256": "0" * 64}})
        assert (await machine.agent("step", "firmware")).code == Exit.DIGEST
        assert not tool.with_name("sum.given").exists()
        for env in ({}, {"USER_FIRMWARE_SHA256": ""}, {"USER_FIRMWARE_SHA256": "any"}):
            machine.places.write("recipe.json", {"firmware_url": url, "env": env})
            ran = await machine.agent("step", "firmware")
            assert (ran.code, "no firmware without its digest" in ran.said) == (Exit.DIGEST, True), ran.said


async def test_sigterm_does_not_stop_a_running_flash(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    tool = machine.root / "opt/saa/saa"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\ntouch "$0.begun"\nwhile [ ! -e "$0.may-end" ]; do sleep 0.05; done\ntouch "$0.done"\n')
    tool.chmod(0o755)
    async with calling(a_registry(tmp_path / "registry")) as client:
        await client.push("firmware", b"BIOS")
        wanted = digest(b"BIOS")
        url = f"http://{client.address}/v2/firmware/blobs/{wanted}"
        machine.places.write("recipe.json", {"firmware_url": url, "env": {"USER_FIRMWARE_SHA256": wanted}})
        argv = [sys.executable, "-m", "provision", "step", "firmware"]
        process = await asyncio.create_subprocess_exec(*argv, env=machine.env(), stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        await until(tool.with_name("saa.begun").exists)
        assert machine.places.has("flashing")
        process.terminate()
        while b"not while firmware is being written" not in await asyncio.wait_for(process.stderr.readline(), 20):
            pass
        tool.with_name("saa.may-end").touch()
        said = await process.stderr.read()
        assert (await process.wait(), tool.with_name("saa.done").exists()) == (0, True), said
        assert not machine.places.has("flashing")


def test_a_download_that_takes_too_long_times_out(tmp_path: Path) -> None:
    times = iter([0.0, 10.0, MOST + 1])
    with (
        serving_slowly(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"BI", b"OS") as url,
        pytest.raises(Trouble, match="did not come within"),
    ):
        download(url, tmp_path / "firmware.bin", lambda *_: None, lambda: next(times))


def test_a_body_without_a_length_is_accepted_only_with_a_digest() -> None:
    answer = b"HTTP/1.0 200 OK\r\n\r\nhalf of it"
    with serving_slowly(answer) as url, pytest.raises(Trouble, match="does not say how long it is"):
        list(fetch(url))
    with serving_slowly(answer) as url:
        assert b"".join(fetch(url, verified=True)) == b"half of it"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nBIOS\r\n0\r\n\r\n"
    with serving_slowly(chunked) as url:
        assert b"".join(fetch(url)) == b"BIOS"


@contextmanager
def serving_slowly(*pieces: bytes) -> Iterator[str]:
    """Answer one request byte by byte, each in its own packet."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield "http://{}:{}/".format(*server.getsockname())
        finally:
            thread.join()
