import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Protocol, cast

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from chargehand.errors import EgressRefused
from chargehand.webhooks.egress import (
    AddressRefused,
    EgressPolicy,
    PinnedResolver,
    Resolve,
    locate,
    make_connector,
    networks,
    refusal,
)
from chargehand.webhooks.exchange import CallFailed
from chargehand.webhooks.pool import ConnectionPool

CLOSED = EgressPolicy()
LOCAL = EgressPolicy(allow_local=True)
EVERYTHING = EgressPolicy(allow_local=True, allow=networks("0.0.0.0/0", "::/0"))

PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "100.128.0.0",
    "172.32.0.1",
    "2606:4700::1111",
    "2a00:1450:4001::200e",
]
PUBLIC += ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]

# Refused unless local addresses are allowed.
PRIVATE = ["127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"]
PRIVATE += ["192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "192.0.0.1"]
PRIVATE += [
    "::1",
    "fc00::1",
    "fd12:3456::1",
    "fec0::1",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "2001:10::1",
    "4000::1",
    "a::1",
]
PRIVATE += ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::8.8.8.8", "::ffff:0:10.0.0.1"]
PRIVATE += ["2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1", "64:ff9b::10.0.0.1", "64:ff9b:1::10.0.0.1"]
PRIVATE += ["64:ff9b:1::8.8.8.8", "64:ff9b:1:a00:0:100::", "2001:0:808:808:0:0:f5ff:fffe", "2001:0:a00:1:0:0:f7f7:f7f7"]

# Refused whatever is allowed.
NEVER = ["0.0.0.0", "0.1.2.3", "169.254.0.1", "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16"]
NEVER += ["192.0.0.192", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"]
NEVER += ["::", "fe80::1", "febf::1", "ff02::1"]
NEVER += ["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe"]
NEVER += ["::ffff:169.254.169.254", "::ffff:0.0.0.0", "::169.254.169.254", "::0.0.0.2", "::ffff:0:169.254.169.254"]
NEVER += ["2002:a9fe:a9fe::", "64:ff9b::169.254.169.254", "64:ff9b::", "64:ff9b:1::169.254.169.254"]
NEVER += ["64:ff9b:1:6464:64:c800::", "64:ff9b:1:64:64:64c8::", "64:ff9b:1:0:64:6464:c800:0"]  # 100.100.100.200
NEVER += ["2001:0:a9fe:a9fe:0:0:f7f7:f7f7", "2001:0:808:808:0:0:5601:5601"]
ZONED = ["fe80::1%eth0", "::1%lo", "2606:4700::1111%1"]
NOT_ADDRESSES = ["", "localhost", "127.1", "0177.0.0.1", "2130706433", "127.0.0.1\n", "example.com"]


def in_url(address: str) -> str:
    return f"[{address.replace('%', '%25')}]" if ":" in address else address


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert CLOSED.allows(address)
    assert LOCAL.allows(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_allowed_only_by_policy(address: str) -> None:
    assert LOCAL.allows(address)
    with pytest.raises(AddressRefused, match=r"webhooks\.allow_networks"):
        CLOSED.check_address(address)


@pytest.mark.parametrize("address", NEVER + ZONED + NOT_ADDRESSES)
def test_no_setting_allows_link_local_metadata_multicast_or_reserved_addresses(address: str) -> None:
    assert not EVERYTHING.allows(address)
    assert not CLOSED.allows(address)


@pytest.mark.parametrize("address", PUBLIC + PRIVATE)
def test_deny_networks_override_allow_networks_and_allow_local(address: str) -> None:
    everything = networks("0.0.0.0/0", "::/0")
    assert not EgressPolicy(allow_local=True, allow=everything, deny=everything).allows(address)
    assert not EgressPolicy(allow_local=True, deny=networks(address)).allows(address)


def test_allow_networks_permits_only_the_networks_it_lists() -> None:
    policy = EgressPolicy(allow=networks("10.1.0.0/16", "fd12::/16"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd12::1", "8.8.8.8"):
        policy.check_address(address)
    for address in ("10.2.0.1", "127.0.0.1", "::1", "fd13::1", "2002:a01:203::1", "::10.1.2.3"):
        assert not policy.allows(address)


def test_a_tunnel_address_is_allowed_only_if_the_ipv4_address_in_it_is() -> None:
    policy = EgressPolicy(allow=networks("2002::/16", "10.0.0.0/8"))
    policy.check_address("2002:a00:1::1")
    with pytest.raises(AddressRefused, match=r"2002:7f00:1::1, which leads to 127\.0\.0\.1, is loopback"):
        policy.check_address("2002:7f00:1::1")


def spellings(address: IPv4Address) -> list[str]:
    value, octets = int(address), address.packed
    long_tail, middle = value & 0xFFFFFF, value & 0xFFFF
    return [
        str(address),
        f"{address}.",
        str(value),
        f"{value:#x}",
        f"{value:#X}",
        f"0{value:o}",
        ".".join(f"{octet:#x}" for octet in octets),
        ".".join(f"0{octet:o}" for octet in octets),
        ".".join(f"000000{octet:03o}" for octet in octets),
        f"{octets[0]}.{long_tail}",
        f"{octets[0]:#x}.0{octets[1]:o}.{middle}",
        str(address).translate({ord(digit): 0xFF10 + int(digit) for digit in "0123456789"}),
        str(address).replace(".", "\u3002"),
        f"[::ffff:{address}]",
        f"[0:0:0:0:0:ffff:{value >> 16:x}:{middle:x}]",
    ]


@given(
    st.ip_addresses(v=4)
    | st.sampled_from([text for text in PUBLIC + PRIVATE + NEVER if ":" not in text]).map(IPv4Address),
    st.sampled_from([CLOSED, LOCAL, EgressPolicy(allow=networks("10.0.0.0/8"), deny=networks("8.0.0.0/8"))]),
)
def test_every_notation_of_an_address_gets_the_same_verdict(address: IPv4Address, policy: EgressPolicy) -> None:
    verdict = policy.allows(str(address))
    assert policy.allows(f"::ffff:{address}") == verdict
    for host in spellings(address):
        if verdict:
            assert policy.check_url("url", f"http://{host}/x") == f"http://{address}/x"
        else:
            with pytest.raises(EgressRefused):
                policy.check_url("url", f"http://{host}/x")


@pytest.mark.parametrize("text", [text for text in PUBLIC + PRIVATE if ":" in text])
def test_ipv6_literals_in_brackets_are_checked(text: str) -> None:
    checked = URL(LOCAL.check_url("url", f"https://[{text.upper()}]:8443/"))
    assert checked.host == str(IPv6Address(text).ipv4_mapped or IPv6Address(text))
    assert checked.port == 8443
    if text in PRIVATE:
        with pytest.raises(EgressRefused, match=r"^webhook\.url: .*webhooks\.allow_networks"):
            CLOSED.check_url("webhook.url", f"https://[{text}]:8443/")


@pytest.mark.parametrize(
    ("url", "checked"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTPS://Example.COM/Path?Q=A", "https://example.com/Path?Q=A"),
        ("https://example.com?q=1", "https://example.com/?q=1"),
        ("https://example.com:443/", "https://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("http://example.com:00080/", "http://example.com/"),
        ("http://example.com:65535/", "http://example.com:65535/"),
        ("http://example.com./a", "http://example.com./a"),
        ("http://my_service:8080/a@b:c/%0a?d=[e]", "http://my_service:8080/a@b:c/%0a?d=[e]"),
        ("http://bücher.example/ü", "http://xn--bcher-kva.example/%C3%BC"),
        ("http://a\u3002example/", "http://a.example/"),
        ("http://localhost.example/", "http://localhost.example/"),
        ("http://notlocalhost/", "http://notlocalhost/"),
        ("http://10.example/", "http://10.example/"),
        ("http://0x7f.example/", "http://0x7f.example/"),
    ],
)
def test_check_url_returns_a_valid_url_in_normal_form(url: str, checked: str) -> None:
    assert CLOSED.check_url("url", url) == checked
    assert CLOSED.check_url("url", checked) == checked


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "a.b.localhost", "a.localhost."])
def test_localhost_is_checked_as_a_loopback_address(host: str) -> None:
    assert LOCAL.check_url("url", f"http://{host}:1/") == f"http://{host.lower()}:1/"
    assert EgressPolicy(allow=networks("127.0.0.0/8")).check_url("url", f"http://{host}/")
    with pytest.raises(EgressRefused, match=rf"^url: {host.lower()} is loopback .*webhooks\.allow_networks"):
        CLOSED.check_url("url", f"http://{host}:1/")


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "//example.com/", "/path", "http:", "http:/example.com", "http://", "http:///path", "http://:80/"),
        *("ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "javascript:alert(1)", "unix:///run/x"),
        *("http\u017f://example.com/", "http+unix://%2frun%2fx/", " http://example.com/", "http://example.com/ "),
        *("http://user@example.com/", "http://user:hunter2@example.com/", "http://@example.com/", "http://a@b@c/"),
        *("http://example.com:0/", "http://example.com:65536/", "http://example.com:99999999/", "http://example.com:/"),
        *(
            "http://example.com:-1/",
            "http://example.com:8o/",
            "http://example.com:\u0661/",
            "http://example.com:80:80/",
        ),
        *("http://exa mple.com/", "http://example.com/\r\nX-Evil: 1", "http://example.com/\t", "http://example.com/\0"),
        *(
            "http://example.com\\@127.0.0.1/",
            "http://example.com/\\",
            "http://example.com/\u2028",
            "http://e\u200bvil/",
        ),
        *("http://example.com/#fragment", "http://example.com#", "http://example.com/\udc80", "http://e\u115fvil.com/"),
        *("http://127.0.0.%31/", "http://%6cocalhost/", "http://example%2ecom/", "http://[fe80::1%25eth0]/"),
        *("http://[::1%lo]/", "http://[::1/", "http://::1/", "http://[]/", "http://[::1]x/", "http://x[::1]/"),
        *("http://[127.0.0.1]/", "http://[v1.a]/", "http://[::g]/", "http://[1:2:3]/", "http://[::1][::1]/"),
        *(
            "http://256.0.0.1/",
            "http://1.2.3.4.5/",
            "http://08.0.0.1/",
            "http://4294967296/",
            "http://0x/",
            "http://1..2/",
        ),
        *("http://example.com../", "http://.example.com/", "http://./", "http://-a.example/", "http://a-.example/"),
        *("http://example.1/", "http://a.0x7f/", f"http://{'a' * 64}.example/", f"http://{'a.' * 127}example/"),
        *(
            "http://\u2100.example/",
            "http://a\uff0fb/",
            "http://a\uff20b/",
            "http://exa$mple/",
            "http://*.example.com/",
        ),
        *(f"http://example.com/{'a' * 2048}", "http://xn--a-ecp.\u00fc\u0300/../\u0000"),
    ],
)
def test_a_malformed_url_is_refused_under_every_policy(url: str) -> None:
    with pytest.raises(EgressRefused, match=r"^callbackUrl: ") as refused:
        EVERYTHING.check_url("callbackUrl", url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.com/", "must begin with http:// or https://"),
        ("http://user:hunter2@example.com/", "holds a user name or password"),
        ("http://example.com/#a", "has a fragment"),
        ("http://example.com:0/", "not between 1 and 65535"),
        ("http://example.com/ ", "white space"),
        ("http://exa%6dple.com/", "neither a name nor an address"),
        ("http://example.com/" + "a" * 2048, "over 2048 characters"),
        ("http://[::1]x/", "no valid host and port"),
    ],
)
def test_a_refusal_says_what_is_wrong(url: str, message: str) -> None:
    with pytest.raises(EgressRefused, match=message) as refused:
        EVERYTHING.check_url("url", url)
    assert refused.value.field == "url"


@pytest.mark.parametrize("address", NEVER)
def test_check_url_refuses_a_url_with_a_forbidden_address(address: str) -> None:
    with pytest.raises(EgressRefused, match="never called"):
        EVERYTHING.check_url("url", f"http://{in_url(address)}/")


@given(
    st.lists(
        st.sampled_from([*"0127.:/@%#?[]\\xf-aA ", "http://", "localhost", "127.0.0.1", "::ffff:", "169.254", "\uff11"])
        | st.characters(),
        max_size=12,
    ).map("".join)
)
def test_aiohttp_parses_an_accepted_url_as_the_policy_did(text: str) -> None:
    try:
        checked = CLOSED.check_url("url", f"http://{text}")
    except EgressRefused:
        return
    assert CLOSED.check_url("url", checked) == checked
    read = URL(checked)
    assert read.scheme == "http"
    assert read.user is read.password is None
    assert read.raw_authority == checked.removeprefix("http://").partition("/")[0]
    with contextlib.suppress(ValueError):
        CLOSED.check_address(ip_address(read.raw_host or ""))


# From here on with real sockets.


@pytest.fixture(autouse=True)
def only_loopback_is_ever_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        assert ip_address(address[0]).is_loopback, f"a packet would have left for {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


HOSTS = ["127.0.0.1", "127.0.0.2", *(["::1"] if has_ipv6() else [])]


class Receiver:
    """Listens on one port of several loopback addresses and records which of them were called."""

    def __init__(self) -> None:
        self.port = 0
        self.called: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.called.append(request.transport.get_extra_info("sockname")[0])
        return web.Response()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    for host in HOSTS:
        await web.TCPSite(runner, host, receiver.port).start()
        receiver.port = runner.addresses[0][1]
    yield receiver
    await runner.cleanup()


def answers(*each: Iterable[str]) -> Resolve:
    """Return a resolver that gives each answer once and repeats the last."""
    left = list(each)

    async def resolve(host: str, family: socket.AddressFamily) -> Iterable[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


class Calls(Protocol):
    async def post(self, host: str, port: int) -> int: ...

    def forget_names(self) -> None: ...

    def use_resolver(self, resolver: PinnedResolver) -> None: ...


class ByConnector:
    """The client that calls BMCs."""

    def __init__(self, session: aiohttp.ClientSession, connector: aiohttp.TCPConnector) -> None:
        self._session = session
        self._connector = connector

    async def post(self, host: str, port: int) -> int:
        async with self._session.post(f"http://{host}:{port}/", headers={"Connection": "close"}) as response:
            return response.status

    def forget_names(self) -> None:
        self._connector.clear_dns_cache()

    def use_resolver(self, resolver: PinnedResolver) -> None:
        self._connector._resolver = resolver


class ByPool:
    """The client that sends webhooks."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def post(self, host: str, port: int) -> int:
        return (await self._pool.post(f"http://{host}:{port}/", {"Connection": "close"}, b"")).status

    def forget_names(self) -> None:
        self._pool._dialler._lookups.clear()

    def use_resolver(self, resolver: PinnedResolver) -> None:
        self._pool._dialler._resolver = resolver


Client = Callable[..., contextlib.AbstractAsyncContextManager[Calls]]


@contextlib.asynccontextmanager
async def by_connector(policy: EgressPolicy, resolve: Resolve | None = None) -> AsyncIterator[Calls]:
    connector = make_connector(policy, limit=10, limit_per_host=5, resolve=resolve)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield ByConnector(session, connector)


@contextlib.asynccontextmanager
async def by_pool(policy: EgressPolicy, resolve: Resolve | None = None) -> AsyncIterator[Calls]:
    async with ConnectionPool(policy, timeout_seconds=30, answer_bytes=100, max_idle=5, resolve=resolve) as pool:
        yield ByPool(pool)


@pytest.fixture(params=[by_connector, by_pool])
def client(request: pytest.FixtureRequest) -> Client:
    """Run a test with each client."""
    return cast(Client, request.param)


async def failed(calls: Calls, host: str, port: int) -> Exception:
    # ValueError: the pool refuses the URL itself.
    with pytest.raises((aiohttp.ClientConnectorError, CallFailed, ValueError)) as error:
        await calls.post(host, port)
    return error.value


async def refused(calls: Calls, host: str, port: int) -> str:
    error = await failed(calls, host, port)
    reason = str(error) if isinstance(error, ValueError) else refusal(error)
    assert reason is not None
    return reason


@pytest.mark.parametrize("host", HOSTS)
async def test_literal_addresses_are_checked_although_they_are_not_resolved(
    client: Client, receiver: Receiver, host: str
) -> None:
    async with client(CLOSED) as calls:
        assert "webhooks.allow_networks" in await refused(calls, in_url(host), receiver.port)
    assert receiver.called == []
    async with client(LOCAL) as calls:
        assert await calls.post(in_url(host), receiver.port) == 200
    assert receiver.called == [host]


@pytest.mark.parametrize("address", NEVER + ZONED)
async def test_no_packet_leaves_for_a_forbidden_address(client: Client, address: str) -> None:
    async with client(EVERYTHING, answers([address])) as calls:
        assert "hooks.example resolves to an address that" in await refused(calls, "hooks.example", 9)
        assert await refused(calls, in_url(address), 9)


@pytest.mark.parametrize("address", PRIVATE)
async def test_no_packet_leaves_for_a_private_address(client: Client, address: str) -> None:
    async with client(CLOSED, answers([address])) as calls:
        assert "hooks.example resolves to an address that" in await refused(calls, "hooks.example", 9)
        assert await refused(calls, in_url(address), 9)


@pytest.mark.parametrize("answer", [text for text in NOT_ADDRESSES if text])
async def test_a_name_server_that_answers_with_a_name_is_refused(client: Client, answer: str) -> None:
    async with client(EVERYTHING, answers([answer])) as calls:
        assert "is not an IP address" in await refused(calls, "hooks.example", 9)


async def test_localhost_is_resolved_and_its_addresses_are_checked(client: Client, receiver: Receiver) -> None:
    async with client(LOCAL) as calls:
        assert await calls.post("localhost", receiver.port) == 200
    async with client(CLOSED) as calls:
        assert "localhost resolves to" in await refused(calls, "localhost", receiver.port)
    assert len(receiver.called) == 1


async def test_a_refusal_does_not_reveal_the_address_of_the_name(client: Client) -> None:
    async with client(CLOSED, answers(["10.20.30.40"])) as calls:
        assert "10.20" not in await refused(calls, "db.internal", 9)


@pytest.mark.parametrize("pair", [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["::1", "127.0.0.2"]])
async def test_a_name_with_one_forbidden_address_is_refused(
    client: Client, receiver: Receiver, pair: list[str]
) -> None:
    policy = EgressPolicy(allow_local=True, deny=networks("127.0.0.2/32"))
    async with client(policy, answers(pair)) as calls:
        assert "webhooks.deny_networks" in await refused(calls, "hooks.example", receiver.port)
    assert receiver.called == []


async def test_only_the_address_that_was_checked_is_connected_to(client: Client, receiver: Receiver) -> None:
    policy = EgressPolicy(allow_local=True, deny=networks("127.0.0.2/32"))
    async with client(policy, answers(["127.0.0.1"], ["127.0.0.2"])) as calls:
        assert await calls.post("hooks.example", receiver.port) == 200
        assert await calls.post("hooks.example", receiver.port) == 200
        calls.forget_names()
        assert await refused(calls, "hooks.example", receiver.port)
    assert receiver.called == ["127.0.0.1", "127.0.0.1"]


async def test_the_address_of_a_socket_is_checked_even_if_the_resolver_checked_nothing(
    client: Client, receiver: Receiver
) -> None:
    policy = EgressPolicy(allow_local=True, deny=networks("127.0.0.2/32"))
    async with client(policy) as calls:
        calls.use_resolver(PinnedResolver(EVERYTHING, answers(["127.0.0.2"])))
        assert "webhooks.deny_networks" in await refused(calls, "hooks.example", receiver.port)
    assert receiver.called == []


async def test_every_address_of_a_name_is_tried_until_one_connects(client: Client, receiver: Receiver) -> None:
    async with client(LOCAL, answers(["127.0.0.3", "127.0.0.2", "127.0.0.2"])) as calls:
        assert await calls.post("hooks.example", receiver.port) == 200
    assert receiver.called == ["127.0.0.2"]


async def test_a_burst_to_one_name_resolves_it_once_and_refuses_every_request(client: Client) -> None:
    lookups = 0

    async def resolve(host: str, family: socket.AddressFamily) -> Iterable[str]:
        nonlocal lookups
        lookups += 1
        await asyncio.sleep(0)
        return ["10.0.0.1"]

    async with client(CLOSED, resolve) as calls:
        reasons = await asyncio.gather(*(refused(calls, "hooks.example", 9) for _ in range(5)))
    assert all("allow_networks" in reason for reason in reasons)
    assert lookups == 1


async def test_a_name_that_does_not_resolve_is_a_failure_and_not_a_refusal(client: Client) -> None:
    async def resolve(host: str, family: socket.AddressFamily) -> Iterable[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with client(LOCAL, resolve) as calls:
        error = await failed(calls, "hooks.example", 9)
    assert "Name or service not known" in str(error)
    assert refusal(error) is None


async def test_a_name_that_the_system_cannot_look_up_is_a_failed_connection() -> None:
    async with by_connector(LOCAL) as calls:
        error = await failed(calls, "a" * 64 + ".example", 9)
    assert "is not a valid name" in str(error)
    assert refusal(error) is None


async def test_a_name_without_addresses_is_a_failure_and_not_a_refusal(client: Client) -> None:
    async with client(LOCAL, answers([])) as calls:
        error = await failed(calls, "hooks.example", 9)
    assert "hooks.example has no address" in str(error)
    assert refusal(error) is None


async def test_a_closed_port_is_a_failure_and_not_a_refusal(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with client(LOCAL) as calls:
        assert refusal(await failed(calls, "127.0.0.1", port)) is None


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("http://Hooks.example", (False, "hooks.example", 80, "hooks.example", "/")),
        ("https://hooks.example:8443/a/b?c=%2F&d", (True, "hooks.example", 8443, "hooks.example:8443", "/a/b?c=%2F&d")),
        ("https://hooks.example.:443?q", (True, "hooks.example.", 443, "hooks.example", "/?q")),
        ("http://[2606:4700::1111]:81/", (False, "2606:4700::1111", 81, "[2606:4700::1111]:81", "/")),
        ("http://0x7f.1/", (False, "127.0.0.1", 80, "127.0.0.1", "/")),
        ("http://hooks.example/é", (False, "hooks.example", 80, "hooks.example", "/%C3%A9")),
    ],
)
def test_locate_parses_a_url_as_the_policy_does(url: str, location: tuple[Any, ...]) -> None:
    assert locate(url) == location
    assert locate(EVERYTHING.check_url("url", url)) == location


@pytest.mark.parametrize(
    "url", ["http://a/ HTTP/1.1", "http://a/\r\nX: y", "http://a\tb/", "ftp://a/", "http://b@a/", "http://"]
)
def test_locate_raises_for_every_malformed_url(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        locate(url)


async def test_make_connector_passes_its_limits_to_aiohttp() -> None:
    connector = make_connector(CLOSED, limit=7, limit_per_host=3)
    assert (connector.limit, connector.limit_per_host) == (7, 3)
    await connector.close()
