"""Checks of the settings alone: access, egress, the certificate, the embedded model, the maintenance image."""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from chargehand.commands.doctor.finding import Finding, failed, ok, warning
from chargehand.config import Config

EXPIRES_DAYS = 14
ISO_MAGIC = b"CD001"
ISO_MAGIC_AT = 32_769
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def access(config: Config) -> Finding:
    if config.has_auth:
        return ok("access", f"callers of {config.server.listen} must authenticate")
    if config.server.is_loopback:
        return ok("access", f"only this machine reaches {config.server.listen}, and everybody on it may do everything")
    return failed(
        "access",
        f"{config.server.listen} can be reached by others, and nobody has to authenticate: the server will not start",
        "add a token to auth.tokens (`chargehand token` makes one), or listen on 127.0.0.1",
    )


def certificate(config: Config, now: datetime | None = None) -> Finding | None:
    if not config.server.tls_certificate:
        return None
    from cryptography import x509

    from chargehand.errors import ConfigError
    from chargehand.http.tls import Tls

    path = Path(config.server.tls_certificate)
    try:
        Tls.of(config.server)
        expires = x509.load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc
    except (ConfigError, OSError, ValueError) as error:
        return failed("certificate", str(error), "correct server.tls_certificate and server.tls_key")
    days = (expires - (now or datetime.now(UTC))).days
    if days < 0:
        return failed("certificate", f"{path} has expired", "renew it: a running server loads the new file by itself")
    if days < EXPIRES_DAYS:
        return warning(
            "certificate", f"{path} expires in {days} days", "renew it: a running server loads the new file by itself"
        )
    return ok("certificate", f"{path} is valid for {days} days")


def egress(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    webhooks = config.webhooks
    yield _reach(config)
    if not webhooks.secret and not webhooks.tenants:
        yield warning(
            "signatures",
            "no webhooks.secret is set: receivers cannot check who sent a webhook",
            "`chargehand token --webhook-secret` makes one; receivers check it as docs/webhooks.md shows",
        )
    else:
        yield ok("signatures", "webhooks are signed")
    if proxies := [name for name in PROXIES if environ.get(name)]:
        yield warning(
            "proxy",
            f"{', '.join(proxies)}: the server does not use a proxy for webhooks and targets",
            "make sure that this machine reaches them without the proxy",
        )


def _reach(config: Config) -> Finding:
    """What webhooks may reach, by the rules of webhooks/egress.py."""
    from chargehand.webhooks.egress import EgressPolicy

    policy = EgressPolicy.of(config)
    except_for = f", but not to {', '.join(map(str, policy.deny))} (webhooks.deny_networks)" if policy.deny else ""
    never = "; never to link-local addresses and metadata services"
    if policy.allow_local:
        reached = "without auth, webhooks may go to this machine, private networks and the Internet"
        return ok("egress", f"{reached}{except_for}{never}")
    if not policy.allow:
        reached = "webhooks may go to the Internet; this machine and private networks need webhooks.allow_networks"
        return ok("egress", f"{reached}{except_for}{never}")
    reached = f"webhooks may go to the Internet and to {', '.join(map(str, policy.allow))} (webhooks.allow_networks)"
    if policy.allows("127.0.0.1") or policy.allows("::1"):
        return warning(
            "egress",
            f"{reached}{except_for}{never}",
            "whoever may submit a job can have the services of this machine called, and reads the start of their answers: "
            "take loopback out of webhooks.allow_networks unless all callers may",
        )
    return ok("egress", f"{reached}{except_for}{never}")


def embedded_model(config: Config) -> Finding | None:
    settings = config.inference
    if not settings.enabled or settings.embedded == "off" or (settings.embedded == "auto" and settings.targets):
        return None
    from chargehand.doors.inference.embedded.catalogue import SMOLLM2, find_models
    from chargehand.doors.inference.embedded.process import Embedded

    if reason := Embedded.available():
        fix = "run `make setup` where there is a network, or set inference.targets to an Ollama"
        found = failed if settings.embedded == "on" else warning
        return found("embedded model", f"cannot run: {reason}", fix)
    names = [model.name for model in find_models()]
    if SMOLLM2 not in names:
        text = f"only the toy model is installed: {', '.join(names)}"
        return warning("embedded model", text, f"run `make setup` where there is a network, to get {SMOLLM2}")
    return ok("embedded model", ", ".join(names))


def maintenance_image(config: Config) -> Iterator[Finding]:
    settings, name = config.provisioning, "maintenance image"
    if not settings.enabled:
        return
    if not settings.maintenance_iso:
        yield ok(name, "none: it is needed only to provision machines")
        return
    path = Path(settings.maintenance_iso)
    advice = "`make maintenance-iso` builds one; set provisioning.maintenance_iso to its file"
    try:
        with path.open("rb") as file:
            file.seek(ISO_MAGIC_AT)
            is_iso = file.read(len(ISO_MAGIC)) == ISO_MAGIC
            size = path.stat().st_size
    except OSError as error:
        yield failed(name, f"{path} cannot be read: {error.strerror}", advice)
        return
    if not is_iso:
        yield failed(name, f"{path} is no ISO image", advice)
        return
    yield ok(name, f"{path}, {size / 1e6:.0f} MB")
    if not settings.public_url and config.server.is_loopback:
        yield warning(
            "machines",
            f"BMCs and machines cannot reach {config.server.listen}",
            "set provisioning.public_url to the URL by which they do",
        )
