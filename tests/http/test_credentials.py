import base64
import hashlib
from dataclasses import replace

import pytest

from chargehand.http.credentials import (
    PasswordHash,
    hash_password,
    hash_token,
    new_token,
    new_webhook_secret,
    parse_token_hash,
)


def test_a_new_token_has_a_prefix_is_random_and_fits_a_header() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert token.startswith("ch_")
        assert len(base64.urlsafe_b64decode(token.removeprefix("ch_") + "=")) == 32


def test_a_token_hash_is_the_plain_sha256_that_any_tool_can_make() -> None:
    assert hash_token("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert parse_token_hash(hash_token("abc")) == hashlib.sha256(b"abc").digest()


@pytest.mark.parametrize("stored", ["", "hunter2", "sha256:", "sha256:12", "SHA256:" + "0" * 64, "sha256:" + "g" * 64])
def test_a_malformed_token_hash_is_refused_without_being_repeated(stored: str) -> None:
    with pytest.raises(ValueError, match=r"sha256:<64 lower-case hex digits>") as refused:
        parse_token_hash(stored)
    assert stored == "" or stored == "sha256:" or stored not in str(refused.value)


def test_a_webhook_secret_is_what_standard_webhooks_libraries_expect() -> None:
    secret = new_webhook_secret()
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    assert secret != new_webhook_secret()


def test_only_the_right_password_matches_its_hash() -> None:
    stored = hash_password("correct horse ✓")
    assert stored.startswith("scrypt:16384:8:5:")
    assert PasswordHash.parse(stored).matches("correct horse ✓")
    assert not PasswordHash.parse(stored).matches("correct horse")


def test_the_same_password_has_another_hash_each_time() -> None:
    assert hash_password("same") != hash_password("same")


def test_a_hash_made_elsewhere_with_other_costs_is_verified() -> None:
    salt = b"0123456789abcdef"
    digest = hashlib.scrypt(b"pw", salt=salt, n=32, r=4, p=2, dklen=64)
    stored = f"scrypt:32:4:2:{base64.b64encode(salt).decode()}:{base64.b64encode(digest).decode()}"
    assert PasswordHash.parse(stored).matches("pw")
    assert PasswordHash.parse(stored).stored() == stored


@pytest.mark.parametrize(
    "stored",
    [
        "plain-password",
        "scrypt:",
        "bcrypt:16:8:1:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAA",
        "scrypt:16:8:1:AAAAAAAAAAAAAAAA",
        "scrypt:x:8:1:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAA",
        "scrypt:16:8:1:AAAAA:AAAAAAAAAAAAAAAAAAAAAAAA",
    ],
)
def test_a_malformed_password_hash_is_refused_with_the_expected_form(stored: str) -> None:
    with pytest.raises(ValueError, match=r"scrypt:<n>:<r>:<p>:<salt in base64>:<hash in base64>") as refused:
        PasswordHash.parse(stored).matches("pw")
    assert stored == "scrypt:" or stored not in str(refused.value)


@pytest.mark.parametrize("costs", ["15:8:1", "0:8:1", "1:8:1", "16:0:1", "16:8:0", "67108864:8:1", "16384:999:1"])
def test_invalid_or_too_expensive_scrypt_parameters_are_refused(costs: str) -> None:
    with pytest.raises(ValueError, match="power of two"):
        PasswordHash.parse(f"scrypt:{costs}:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAA")


def test_a_hash_too_short_to_prove_anything_is_refused() -> None:
    with pytest.raises(ValueError, match="or more"):
        PasswordHash.parse("scrypt:16:8:1:AAAAAAAAAAAAAAAA:AAAA")


def test_the_largest_accepted_scrypt_parameters_work() -> None:
    largest = PasswordHash.parse("scrypt:131072:8:1:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAA")
    assert not largest.matches("pw")


@pytest.mark.parametrize("place", [0, -1])
def test_every_byte_of_the_hash_counts(place: int) -> None:
    right = PasswordHash(16, 8, 1, b"0123456789abcdef", hashlib.scrypt(b"pw", salt=b"0123456789abcdef", n=16, r=8, p=1))
    wrong = bytearray(right.digest)
    wrong[place] ^= 1
    assert right.matches("pw")
    assert not replace(right, digest=bytes(wrong)).matches("pw")


def test_the_hash_for_unknown_users_matches_no_password() -> None:
    assert not PasswordHash.of_nobody().matches("")


def test_repr_shows_neither_salt_nor_hash() -> None:
    hashed = PasswordHash.of("pw")
    _, _, _, _, salt, digest = hashed.stored().split(":")
    shown = f"{hashed!r} {hashed}"
    assert salt not in shown
    assert digest not in shown
    assert repr(hashed.salt) not in shown
    assert repr(hashed.digest) not in shown
