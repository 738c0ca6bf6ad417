"""Settings whose values are in their own files, as supervisors provide secrets."""

from pathlib import Path

import pytest

from chargehand.config import load_config
from chargehand.errors import ConfigError

HUSH = "a-secret-that-nobody-may-see-anywhere"


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(environ=environ)
    return str(raised.value)


def test_a_variable_that_ends_in_file_names_the_file_with_the_value(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{HUSH}\n")
    (tmp_path / "networks").write_text("10.0.0.0/8, fd00::/8")
    config = load_config(
        environ={
            "CHARGEHAND_WEBHOOKS_SECRET_FILE": str(tmp_path / "secret"),
            "CHARGEHAND_WEBHOOKS_ALLOW_NETWORKS_FILE": str(tmp_path / "networks"),
        }
    )
    assert config.webhooks.secret.reveal() == HUSH
    assert config.webhooks.allow_networks == ("10.0.0.0/8", "fd00::/8")


def test_only_the_last_line_break_is_removed_from_the_value(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b" two\nlines \r\n")
    config = load_config(environ={"CHARGEHAND_WEBHOOKS_SECRET_FILE": str(tmp_path / "secret")})
    assert config.webhooks.secret.reveal() == " two\nlines "


def test_a_setting_whose_own_name_ends_in_file_is_set_directly(tmp_path: Path) -> None:
    environ = {"JWKS_FILE": str(tmp_path / "keys.json"), "JWT_ISSUER": "https://issuer", "JWT_AUDIENCE": "us"}
    config = load_config(environ={f"CHARGEHAND_AUTH_{name}": value for name, value in environ.items()})
    assert config.auth.jwks_file == str(tmp_path / "keys.json")


def test_a_value_and_a_file_for_the_same_setting_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(HUSH)
    message = refusal({"CHARGEHAND_WEBHOOKS_SECRET_FILE": str(tmp_path / "secret"), "CHARGEHAND_WEBHOOKS_SECRET": HUSH})
    assert message.startswith("webhooks.secret is set twice: by CHARGEHAND_WEBHOOKS_SECRET and")
    assert HUSH not in message


def test_a_missing_file_is_named_with_its_variable(tmp_path: Path) -> None:
    message = refusal({"CHARGEHAND_STORE_URL_FILE": str(tmp_path / "url")})
    assert message == (
        f"{tmp_path}/url: cannot be read: No such file or directory (environment variable CHARGEHAND_STORE_URL_FILE)"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f"mysql://{HUSH}@db/jobs".encode(), "store.url must be sqlite:///PATH or postgresql://"),
        (b"\xff", "store.url must be UTF-8"),
        (b"x" * (1024 * 1024 + 1), "store.url must not exceed 1048576 bytes"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_the_file_and_without_its_content(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "url").write_bytes(content)
    message = refusal({"CHARGEHAND_STORE_URL_FILE": str(tmp_path / "url")})
    assert message.startswith(problem)
    assert f"{tmp_path}/url, environment variable CHARGEHAND_STORE_URL_FILE" in message
    assert HUSH not in message


def test_an_unknown_setting_with_a_file_is_refused() -> None:
    assert refusal({"CHARGEHAND_STORE_ULR_FILE": "x"}).startswith("CHARGEHAND_STORE_ULR_FILE is not a setting")
