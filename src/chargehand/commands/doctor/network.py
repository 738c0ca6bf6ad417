"""Checks that need a call: the server, if it runs, its targets, and whether their clocks agree with this machine's."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from chargehand import __version__
from chargehand.commands.doctor.finding import Finding, failed, ok, warning
from chargehand.commands.text import plural
from chargehand.config import Config, TargetConfig

PATIENCE_SECONDS = 3.0
APART_SECONDS = 5.0  # a Date has whole seconds, and the answer takes a moment
MAX_ANSWER = 8 << 20


class HttpAnswer(msgspec.Struct, frozen=True):
    status: int
    body: Any
    apart_seconds: float | None  # how far its clock is ahead of ours


class NoTls(str):
    """Why there is no answer: a server listens, but without the TLS that was expected."""


async def call(session: aiohttp.ClientSession, url: str, token: str = "") -> HttpAnswer | str:
    """An answer, or why there is none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            body = await response.content.read(MAX_ANSWER)
            told = None
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                told = msgspec.json.decode(body)
            return HttpAnswer(response.status, told, _apart(response.headers, time.time()))
    except TimeoutError:
        return f"no answer within {PATIENCE_SECONDS:g} s"
    except aiohttp.ServerFingerprintMismatch:
        return NoTls("it has another certificate than server.tls_certificate")
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        return NoTls(getattr(error, "certificate_error", None) or getattr(error, "os_error", error))
    except (aiohttp.ClientError, OSError) as error:
        cause = getattr(error, "os_error", None)
        return str(cause.strerror if cause is not None and cause.strerror else error) or type(error).__name__


def _apart(headers: Mapping[str, str], now: float) -> float | None:
    with contextlib.suppress(KeyError, ValueError, TypeError):
        return parsedate_to_datetime(headers["Date"]).timestamp() - now
    return None


async def network(config: Config, url: str, token: str) -> list[Finding]:
    """`url`: of another server than the one of the settings; empty: that one."""
    own = "https" if config.server.tls_certificate else "http"
    async with _session() as others, _session(True if url or own == "http" else _pin(config)) as session:
        server, targets = await asyncio.gather(
            _server(session, url or f"{own}://{_callable(config.server.listen)}", token, config, bool(url)),
            _targets(others, config),
        )
    clocks = [finding for finding in (*server, *targets) if finding.check == "clock"]
    rest = [finding for finding in (*server, *targets) if finding.check != "clock"]
    return [*rest, *(clocks or [ok("clock", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))])]


def _session(trust: aiohttp.Fingerprint | bool = True) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # an answer of a few bytes must not become a gigabyte
        headers={"Accept-Encoding": "identity"},
    )


def _pin(config: Config) -> aiohttp.Fingerprint | bool:
    """Trust the configured certificate itself: it is for the server's name, and the server is called by its address."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        own = x509.load_pem_x509_certificates(Path(config.server.tls_certificate).read_bytes())[0]
    except (OSError, ValueError):
        return True  # what is wrong with the file is a finding of its own
    return aiohttp.Fingerprint(own.fingerprint(SHA256()))


def _callable(listen: str) -> str:
    """The address to call: 0.0.0.0 can only be listened on."""
    host, _, port = listen.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"  # noqa: S104 - it is not bound


# the server -------------------------------------------------------------------------------------------------------------


async def _server(session: aiohttp.ClientSession, url: str, token: str, config: Config, named: bool) -> list[Finding]:
    alive = await call(session, f"{url}/healthz")
    if isinstance(alive, str):
        if named:
            trust, start = "set SSL_CERT_FILE to the file of its authority", "start it with `chargehand serve`"
            advice = trust if isinstance(alive, NoTls) else start
            return [failed("server", f"{url}: {alive}", f"{advice}, or correct --url")]
        if isinstance(alive, NoTls):
            advice = "a server loads a new certificate within a minute; stop any other program that uses the port"
            return [failed("server", f"{url}: {alive}", advice)]
        return [_port(config.server.host, config.server.port)]
    version = alive.body.get("version") if isinstance(alive.body, dict) else None
    if alive.status != 200 or version is None:
        return [failed("server", f"another program answers at {url}", "stop it, or choose another server.listen")]
    findings = _clock("the server", alive.apart_seconds)
    ready = await call(session, f"{url}/readyz")
    if isinstance(ready, str) or ready.status != 200:
        why = ready if isinstance(ready, str) else (ready.body or {}).get("detail", f"it answered {ready.status}")
        return [failed("server", f"{url} runs, but is not ready: {why}", "its log says more"), *findings]
    if version != __version__:
        text = f"{url} runs version {version}, and this is {__version__}"
        findings.append(warning("server", text, "restart it to get the version that is installed"))
    else:
        findings.append(ok("server", f"{url} is ready, version {version}"))
    return [*findings, *await _chores(session, url, token), *await _endpoints(session, url, token)]


def _port(host: str, port: int) -> Finding:
    if port == 0:
        return ok("server", "not running; it will take any free port")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        text = f"the server cannot listen on {host}:{port}: {error.strerror}"
        return failed("server", text, "stop the program that uses it, or choose another server.listen")
    return ok("server", f"not running; {host}:{port} is free: start it with `chargehand serve`")


async def _chores(session: aiohttp.ClientSession, url: str, token: str) -> list[Finding]:
    answer = await call(session, f"{url}/engine/chores", token)
    if isinstance(answer, str) or answer.status != 200 or not isinstance(answer.body, dict):
        return []  # that the token does not allow it is a finding of `_endpoints`, which needs the same scope
    chores = answer.body["chores"]
    troubled = [finding for each in chores if (finding := chore_finding(each)) is not None]
    return troubled or [ok("chores", f"all {len(chores)} run in time")]


def chore_finding(chore: dict[str, Any]) -> Finding | None:
    name, failures = chore["name"], plural(chore["failures"], "time")
    if chore["state"] == "failing":
        return failed("chores", f"{name}: failed {failures} in a row: {chore['error']}", "the server's log says more")
    if chore["state"] == "late":
        text = f"{name}: late, it should run every {chore['every_seconds']:g} s"
        return warning("chores", text, "see whether the disk or the database is slow")
    return None


async def _endpoints(session: aiohttp.ClientSession, url: str, token: str) -> list[Finding]:
    answer = await call(session, f"{url}/engine/endpoints?limit=500", token)
    if isinstance(answer, str) or answer.status != 200 or not isinstance(answer.body, dict):
        if not isinstance(answer, str) and answer.status in (401, 403):
            text = "not checked: the server requires a token with the scope jobs:read"
            return [warning("deliveries", text, "set CHARGEHAND_TOKEN")]
        return []
    endpoints = answer.body["endpoints"]
    dead = sum(each["dead"] for each in endpoints)
    idle = [each for each in endpoints if each["state"] != "active"]
    if idle:
        text = f"{idle[0]['url']} is {idle[0]['state']}" + (f", and {len(idle) - 1} more" if len(idle) > 1 else "")
        return [warning("deliveries", text, "`chargehand deliveries resume URL` makes the server send to it again")]
    if dead:
        advice = "`chargehand deliveries list --state dead` shows them, `deliveries replay` sends them again"
        return [warning("deliveries", f"{plural(dead, 'delivery')} given up", advice)]
    return [ok("deliveries", f"no delivery was given up, {len(endpoints)} endpoints")] if endpoints else []


# targets ----------------------------------------------------------------------------------------------------------------


async def _targets(session: aiohttp.ClientSession, config: Config) -> list[Finding]:
    settings = config.inference
    if not settings.enabled:
        return []
    if not settings.targets:
        if settings.embedded != "off":
            return []
        text = "there are no targets: jobs for models wait"
        return [warning("targets", text, "set inference.targets to an Ollama, or inference.embedded to on")]
    found = await asyncio.gather(*(_target(session, target) for target in settings.targets))
    return [finding for findings in found for finding in findings]


async def _target(session: aiohttp.ClientSession, target: TargetConfig) -> Sequence[Finding]:
    name = f"target {target.name}" if target.name else "target"
    url, key = target.url.rstrip("/"), target.api_key.reveal()
    answer = await call(session, f"{url}/api/tags", key)
    if isinstance(answer, str):
        text = f"{url} is away: {answer}"
        if target.wake_mac or target.wake_command:
            return [ok(name, f"{text}; it is woken when work waits for it")]
        return [
            warning(name, text, "its jobs wait, and run when it is back; start it, or set wake_mac to have it woken")
        ]
    if answer.status in (401, 403):
        return [failed(name, f"{url} answered {answer.status}", "set its api_key in [[inference.targets]]")]
    models = answer.body.get("models") if isinstance(answer.body, dict) else None
    if answer.status != 200 or not isinstance(models, list):
        return [failed(name, f"{url} answers, but not as Ollama does ({answer.status})", "check the URL of the target")]
    clock = _clock(f"{url}'s", answer.apart_seconds)
    if not models:
        return [warning(name, f"{url} has no models", "pull one there: ollama pull llama3.2"), *clock]
    return [ok(name, f"{url} is up, {len(models)} models"), *clock]


def _clock(whose: str, apart_seconds: float | None) -> list[Finding]:
    if apart_seconds is None or abs(apart_seconds) <= APART_SECONDS:
        return []
    which = "ahead of" if apart_seconds > 0 else "behind"
    text = f"{whose} clock is {abs(apart_seconds):.0f} s {which} this machine's"
    return [warning("clock", text, "synchronise both with NTP: signatures and tokens are valid for minutes only")]
