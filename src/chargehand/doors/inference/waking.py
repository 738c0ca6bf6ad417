"""Waking a target that sleeps: by a magic packet, by a command, or by both."""

import asyncio
import socket

from chargehand.config import TargetConfig
from chargehand.observability.logs import get_logger

COMMAND_SECONDS = 60

log = get_logger(__name__)


async def wake(name: str, config: TargetConfig) -> None:
    if config.wake_mac:
        log.info("waking a target by magic packet", target=name)
        await asyncio.to_thread(_send_magic_packet, magic_packet(config.wake_mac))
    if config.wake_command:
        log.info("waking a target by command", target=name)
        await _run(config.wake_command)


def magic_packet(mac: str) -> bytes:
    return b"\xff" * 6 + bytes.fromhex(mac.replace(":", "").replace("-", "")) * 16


def _send_magic_packet(packet: bytes) -> None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sender.sendto(packet, ("255.255.255.255", 9))
    except OSError as error:
        log.warning("the magic packet could not be sent", error=str(error))


async def _run(command: tuple[str, ...]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        log.warning("the wake command could not be started", command=command[0], error=str(error))
        return
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            if await process.wait():
                log.warning("the wake command failed", command=command[0], exit=process.returncode)
    except TimeoutError:
        process.kill()
        log.warning("the wake command took over 60 s and was stopped", command=command[0])
