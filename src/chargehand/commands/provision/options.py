"""Check the options of `server add`, and get the BMC's password, which is no option."""

import os
import re
import sys
from typing import NoReturn
from urllib.parse import urlsplit

import typer

from chargehand.commands.refusals import interruptible, refuse

PASSWORD = "CHARGEHAND_BMC_PASSWORD"  # noqa: S105 - the name of a variable
LONGEST_LABEL = 200

_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_TLS = re.compile(r"verify|insecure|sha256:[0-9A-Fa-f]{64}")


def check(bmc: str | None, uuid: str | None) -> None:
    if bmc is not None:
        _check_address(bmc)
    if uuid and not _UUID.fullmatch(uuid):
        refuse(
            "--uuid: hex digits in groups of 8, 4, 4, 4 and 12 are expected, such as 4c4c4544-0042-3510-8052-b4c04f303132"
        )


def _check_address(bmc: str) -> None:
    try:
        parts = urlsplit(bmc)
    except ValueError:
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        refuse("--bmc: no name and password in the URL: give the name with --user, and you are asked for the password")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        refuse("--bmc: a URL is expected, such as https://10.0.0.5")


def tls(text: str | None) -> str | None:
    """The fingerprint may have colons, as `openssl x509 -fingerprint` prints it."""
    if text is None:
        return None
    kind, _, digest = text.partition(":")
    plain = f"{kind}:{digest.replace(':', '')}" if digest else text
    if not _TLS.fullmatch(plain):
        refuse(
            "--tls: verify, insecure, or sha256: and the 64 hex digits of the certificate's fingerprint are expected"
        )
    return plain


def label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        refuse(f"--label {text}: write it as NAME=VALUE")
    if max(len(name), len(value)) > LONGEST_LABEL:
        refuse(f"--label {name[:20]}…: name and value have at most {LONGEST_LABEL} characters each")
    return name, value


def password(user: str | None, from_stdin: bool, keep: bool) -> str | None:
    """The BMC's password; None: the server keeps the one it has."""
    if keep:
        return refuse("--keep-password and --password-stdin: give only one of them") if from_stdin else None
    if from_stdin:
        line = sys.stdin.readline().rstrip("\r\n")
        return line or _no_line()
    if PASSWORD in os.environ:
        return os.environ[PASSWORD]
    return asked_for(user) if user else None


def asked_for(user: str, why: str = "") -> str:
    whose = f"the password of {user}" if user else "the BMC's password"
    if not sys.stdin.isatty():
        keep = "" if why else " (or --keep-password)"
        refuse(f"{why}{whose} is needed: set {PASSWORD}, or give it with --password-stdin{keep}")
    question = f"{why}{whose} at the BMC" if user else f"{why}{whose}"
    with interruptible("Nothing was done."):
        return str(typer.prompt(question[0].upper() + question[1:], hide_input=True, err=True))


def _no_line() -> NoReturn:
    refuse("--password-stdin: standard input has no line")
