"""Requests to a BMC that is busy, slow or not trusted: sessions, retries, TLS, and no secret in any error."""

import datetime
import ssl
from email.utils import format_datetime
from typing import Any

import pytest

from chargehand.doors.provisioning.redfish.errors import RedfishRefused, RedfishUnreachable, Untrusted
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER, Habits
from tests.provisioning.certificates import make_certificate
from tests.provisioning.machines import Time, machine, record

# sessions ---------------------------------------------------------------------------------------------------------------


async def test_one_session_serves_all_requests_and_is_deleted_at_the_end() -> None:
    async with FakeBmc() as bmc:
        async with machine(bmc) as it:
            facts = await it.discover()
            await it.insert(facts.cds[0], "http://media.example/a.iso")
            await it.glance()
            assert len(bmc.sessions) == 1
        assert bmc.count("session") == 1
        assert bmc.sessions == {}
        assert not any("Authorization" in call.headers for call in bmc.log)


async def _discover_and_fail(bmc: FakeBmc) -> None:
    async with machine(bmc) as it:
        await it.discover()
        raise RuntimeError


async def test_the_session_is_deleted_when_the_work_fails() -> None:
    async with FakeBmc() as bmc:
        with pytest.raises(RuntimeError):
            await _discover_and_fail(bmc)
        assert bmc.sessions == {}


async def test_an_expired_session_is_replaced_by_one_new_one() -> None:
    async with FakeBmc(Habits(session_requests=4)) as bmc:
        async with machine(bmc) as it:
            facts = await it.discover()
            await it.insert(facts.cds[0], "http://media.example/a.iso")
            await it.boot_from_cd(facts.cds[0])
            assert await it.reset() == "On"
            requests = len(bmc.log)
        assert (bmc.count("insert"), bmc.count("reset")) == (1, 1)
        assert bmc.count("session") <= requests // 4
        assert bmc.sessions == {}


async def test_a_bmc_without_sessions_gets_basic_authentication() -> None:
    async with FakeBmc(Habits(sessions="no")) as bmc:
        async with machine(bmc) as it:
            await it.discover()
        assert bmc.calls("POST") == []
        assert bmc.calls("GET", "/Systems/1")[0].headers["Authorization"].startswith("Basic ")


async def test_a_bmc_without_free_sessions_gets_basic_authentication() -> None:
    async with FakeBmc(Habits(sessions="full")) as bmc:
        async with machine(bmc) as it:
            await it.discover()
            await it.glance()
        assert len(bmc.calls("POST", "/Sessions")) == 1


async def test_creating_a_session_is_retried_on_a_busy_bmc() -> None:
    time = Time()
    async with FakeBmc(Habits(busy=2, busy_methods=("POST",), retry_after="3")) as bmc, machine(bmc, time) as it:
        await it.discover()
        assert (bmc.count("session"), time.slept) == (1, [3, 3])


async def test_creating_a_session_is_not_repeated_after_no_answer() -> None:
    async with FakeBmc(Habits(session_hangs=True)) as bmc, machine(bmc, timeout_seconds=0.2) as it:
        assert (await it.discover()).serial == "SN-1"
        assert bmc.count("session") == 1


async def test_sessions_are_found_behind_the_session_service() -> None:
    async with FakeBmc(Habits(sessions="service")) as bmc:
        async with machine(bmc) as it:
            await it.discover()
        assert bmc.count("session") == 1


async def test_a_root_that_wants_a_password_gets_one() -> None:
    async with FakeBmc(Habits(closed_root=True)) as bmc, machine(bmc) as it:
        assert (await it.discover()).serial == "SN-1"


async def test_links_with_another_host_name_are_requested_at_the_registered_address() -> None:
    async with FakeBmc() as other, FakeBmc(Habits(calls_itself=other.url, task="succeeds")) as bmc:
        async with machine(bmc) as it:
            await it.insert((await it.discover()).cds[0], "http://media.example/a.iso")
        assert list(bmc.tasks.values()) == [3]
        assert bmc.sessions == {}
        assert other.log == []


@pytest.mark.parametrize("sessions", ["yes", "no"])
async def test_a_wrong_password_is_tried_only_once(sessions: Any) -> None:
    async with FakeBmc(Habits(sessions=sessions)) as bmc:
        async with machine(bmc, password="wrong-and-secret") as it:
            with pytest.raises(RedfishRefused, match="user name and password") as caught:
                await it.discover()
        assert caught.value.status == 401
        assert not caught.value.transient
        assert len([call for call in bmc.log if call.status == 401]) == 1


async def test_closing_does_not_wait_for_an_unreachable_bmc() -> None:
    async with FakeBmc() as bmc, machine(bmc) as it:
        await it.discover()
        bmc.go_away(1000)


# retries ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [503, 429])
async def test_a_read_from_a_busy_bmc_is_retried_after_its_retry_after(status: int) -> None:
    time = Time()
    async with FakeBmc(Habits(busy=3, busy_status=status, retry_after="7")) as bmc, machine(bmc, time) as it:
        assert (await it.discover()).serial == "SN-1"
    assert time.slept[:3] == [7, 7, 7]


async def test_a_date_in_retry_after_is_compared_with_the_clock_of_the_bmc() -> None:
    time = Time()
    then = format_datetime(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20), usegmt=True)
    async with FakeBmc(Habits(busy=1, retry_after=then)) as bmc, machine(bmc, time) as it:
        await it.discover()
    assert 17 <= time.slept[0] <= 21


async def test_after_a_long_retry_after_there_is_one_last_try_at_the_end_of_the_time() -> None:
    time = Time()
    async with FakeBmc(Habits(busy=9, retry_after="3600")) as bmc, machine(bmc, time, patience_seconds=60) as it:
        with pytest.raises(RedfishUnreachable, match=r"503.*temporarily unavailable") as caught:
            await it.discover()
        assert len([call for call in bmc.log if call.status == 503]) == 2
    assert sum(time.slept) == pytest.approx(60)
    assert (caught.value.transient, caught.value.status) == (True, 503)


async def test_reading_is_repeated_after_errors_with_growing_pauses() -> None:
    time = Time()
    async with FakeBmc(Habits(errors=5)) as bmc, machine(bmc, time) as it:
        await it.discover()
    assert len(time.slept) == 5
    assert time.slept == sorted(time.slept)
    assert 0.25 <= time.slept[0] <= 0.5


async def test_a_bmc_that_never_answers_is_unreachable_after_the_time_for_retries() -> None:
    time = Time()
    async with FakeBmc() as bmc:
        url = bmc.url
    async with machine(bmc, time, patience_seconds=5, address=url) as it:
        with pytest.raises(RedfishUnreachable, match="no connection") as caught:
            await it.discover()
    assert caught.value.transient
    assert sum(time.slept) == pytest.approx(5)


async def test_a_request_to_a_slow_bmc_times_out() -> None:
    async with FakeBmc(Habits(slow_seconds=5)) as bmc, machine(bmc, timeout_seconds=0.1, patience_seconds=0) as it:
        with pytest.raises(RedfishUnreachable, match=r"no answer within 0\.1 s"):
            await it.discover()


async def test_a_bmc_that_reboots_is_waited_for() -> None:
    time = Time()
    async with FakeBmc(clock=time) as bmc, machine(bmc, time) as it:
        await it.discover()
        bmc.go_away(30)
        assert (await it.glance()).power == "Off"
    assert 30 <= sum(time.slept) < 60


async def test_a_glance_without_patience_fails_at_once() -> None:
    time = Time()
    async with FakeBmc(clock=time) as bmc, machine(bmc, time) as it:
        await it.discover()
        bmc.go_away(30)
        with pytest.raises(RedfishUnreachable):
            await it.glance(patience_seconds=0)
    assert time.slept == []


async def test_every_request_is_observed_with_operation_vendor_and_outcome() -> None:
    seen: list[tuple[str, str, bool]] = []

    def observe(operation: str, vendor: str, seconds: float, ok: bool) -> None:
        assert 0 <= seconds < 5
        seen.append((operation, vendor, ok))

    async with FakeBmc(Habits(manufacturer="HPE", errors=1)) as bmc, machine(bmc, observe=observe) as it:
        await it.discover()
        await it.glance()
    assert seen[0] == ("discover", "other", False)
    assert seen[-1] == ("glance", "hpe", True)
    assert len(seen) >= 6


async def test_without_a_permit_nothing_is_changed() -> None:
    class Gone(Exception):
        pass

    held = True

    async def permit() -> None:
        if not held:
            raise Gone

    async with FakeBmc(Habits(power="On")) as bmc, machine(bmc, permit=permit) as it:
        facts = await it.discover()
        await it.insert(facts.cds[0], "http://media.example/a.iso")
        held = False
        assert (await it.glance()).power == "On"
        for change in (lambda: it.eject(facts.cds[0]), lambda: it.boot_from_cd(facts.cds[0]), it.reset, it.power_off):
            with pytest.raises(Gone):
                await change()
        assert (bmc.count("eject"), bmc.count("override"), bmc.count("reset")) == (0, 0, 0)


# secrets ----------------------------------------------------------------------------------------------------------------


async def test_secrets_that_a_bmc_repeats_are_removed_from_the_error() -> None:
    url = "http://127.0.0.1:9/media/5ignature/task.iso"
    async with FakeBmc(Habits(echoes=True, fetches=True)) as bmc, machine(bmc) as it:
        facts = await it.discover()
        with pytest.raises(RedfishRefused, match="Could not fetch the image") as caught:
            await it.insert(facts.cds[0], url)
    assert "Sent by operator:***" in caught.value.message
    for secret in (PASSWORD, "5ignature"):
        assert secret not in str(caught.value)
        assert secret not in repr(caught.value)


async def test_no_repr_of_the_bmc_contains_the_password() -> None:
    async with FakeBmc() as bmc:
        held = record(bmc)
        assert held.password == PASSWORD
        assert USER in repr(held)
        assert PASSWORD not in repr(held) + str(held) + f"{held}" + str(held.__rich_repr__())


# TLS --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    """Return a self-signed certificate of a BMC, and its digest."""
    file = tmp_path_factory.mktemp("tls") / "bmc.pem"
    digest = make_certificate(file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context, digest


async def test_an_untrusted_certificate_is_refused_before_anything_is_sent(
    certificate: tuple[ssl.SSLContext, str],
) -> None:
    async with FakeBmc(tls=certificate[0]) as bmc, machine(bmc) as it:
        with pytest.raises(Untrusted, match="certificate is not trusted") as caught:
            await it.discover()
        assert not caught.value.transient
        assert bmc.log == []


async def test_insecure_accepts_any_certificate(certificate: tuple[ssl.SSLContext, str]) -> None:
    async with FakeBmc(tls=certificate[0]) as bmc, machine(bmc, tls="insecure") as it:
        assert (await it.discover()).serial == "SN-1"


async def test_a_pinned_certificate_is_enough_whatever_its_name(certificate: tuple[ssl.SSLContext, str]) -> None:
    context, digest = certificate
    spelt = ":".join(digest[at : at + 2] for at in range(0, 64, 2)).upper()
    for pin in (f"sha256:{digest}", f"sha256:{spelt}"):
        async with FakeBmc(tls=context) as bmc, machine(bmc, tls=pin) as it:
            assert (await it.discover()).serial == "SN-1"


async def test_a_certificate_other_than_the_pinned_one_is_refused_with_its_fingerprint(
    certificate: tuple[ssl.SSLContext, str],
) -> None:
    context, digest = certificate
    async with FakeBmc(tls=context) as bmc, machine(bmc, tls="sha256:" + "ab" * 32) as it:
        with pytest.raises(Untrusted, match=f"it is sha256:{digest}"):
            await it.discover()
        assert bmc.log == []


@pytest.mark.parametrize("tls", ["sha256:beef", "maybe", "sha1:" + "ab" * 20])
async def test_an_invalid_pin_is_refused(tls: str) -> None:
    async with FakeBmc() as bmc, machine(bmc, tls=tls) as it:
        with pytest.raises(RedfishRefused, match="tls must be"):
            await it.discover()


async def test_a_pin_for_plain_http_is_refused() -> None:
    async with FakeBmc() as bmc, machine(bmc, tls="sha256:" + "ab" * 32) as it:
        with pytest.raises(Untrusted, match="http://"):
            await it.discover()
