"""The settings in force are all shown, with what they mean, and without secrets."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chargehand.api.settings import HIDDEN, meanings, view
from chargehand.config import SETTINGS, VARIABLES, Secret, load_config
from chargehand.http.credentials import hash_token
from tests.api.serving import Api, on_sqlite

SECRETS: dict[str, Any] = {
    "store.url": "postgresql://somebody:never-1@127.0.0.1/db",
    "webhooks.secret": "never-2-" * 8,
    "webhooks.previous_secret": "never-3-" * 8,
    "webhooks.tenants": {"acme": {"secret": "never-4-" * 8}, "umbrella": {"secret": "never-5-" * 8}},
    "auth.jwt_secret": "never-6-" * 8,
    "auth.users": [
        {"name": "ann", "password_hash": "scrypt:never-7", "tenant": "acme"},
        {"name": "bob", "password_hash": "scrypt:never-8", "tenant": "umbrella"},
    ],
    "auth.tokens": [
        {"name": "ops", "hash": hash_token("token-of-ops"), "tenant": "acme"},
        {"name": "reader", "hash": hash_token("token-of-reader"), "tenant": "acme", "scopes": ["jobs:read"]},
        {"name": "theirs", "hash": hash_token("token-of-theirs"), "tenant": "umbrella"},
    ],
    "inference.targets": [
        {"url": "http://127.0.0.1:1", "name": "t", "api_key": "never-9", "wake_command": ["wake", "--pass", "never-10"]}
    ],
    "provisioning.webhook_secret": "never-11",
    "provisioning.previous_webhook_secret": "never-12",
    "provisioning.key": "never-13-" * 8,
}


def shown(tenant: str = "acme", **overrides: Any) -> dict[str, Any]:
    config = load_config(environ={}, overrides={name.replace("__", "."): value for name, value in overrides.items()})
    return {each.name: each for section in view(config, tenant).sections for each in section.settings}


def test_every_setting_is_there_with_its_meaning_and_its_name_in_the_environment() -> None:
    settings = shown()
    assert settings.keys() == SETTINGS.keys()
    assert {each.variable: name for name, each in settings.items()} == VARIABLES
    assert all(each.meaning and each.allowed for each in settings.values())
    assert not any(each.changed for each in settings.values())
    assert all(each.value == each.default for each in settings.values())


def test_a_setting_that_was_changed_is_marked() -> None:
    settings = shown(server__drain_seconds=5, log__level="debug")
    assert {name for name, each in settings.items() if each.changed} == {"server.drain_seconds", "log.level"}
    assert (settings["server.drain_seconds"].value, settings["server.drain_seconds"].default) == (5.0, 20.0)


def test_each_setting_says_where_it_was_set(tmp_path: Path) -> None:
    file = tmp_path / "chargehand.toml"
    file.write_text('[log]\nlevel = "debug"\nformat = "json"\n[server]\ndrain_seconds = 20\n')
    config = load_config(
        file, {"CHARGEHAND_LOG_FORMAT": "text"}, {"server.listen": "127.0.0.1:1", "server.data_dir": None}
    )
    origins = {each.name: each.origin for section in view(config, "acme").sections for each in section.settings}
    assert {name: origin for name, origin in origins.items() if origin} == {
        "log.level": str(file),
        "log.format": "environment variable CHARGEHAND_LOG_FORMAT",  # the environment overrides the file
        "server.drain_seconds": str(file),  # although the value equals the default
        "server.listen": "the command line",
    }


def test_no_secret_is_shown_but_whether_it_is_set_is_shown() -> None:
    settings = shown(**{name.replace(".", "__"): value for name, value in SECRETS.items()})
    text = msgspec.json.encode(settings).decode()
    assert "never-" not in text
    assert not any(each["hash"] in text for each in SECRETS["auth.tokens"])
    for name, kind in SETTINGS.items():
        assert settings[name].secret == (kind is Secret)
        if kind is Secret:
            assert settings[name].value == (HIDDEN if name in SECRETS else "")
            assert settings[name].changed == (name in SECRETS)


def test_every_secret_setting_has_a_value_in_these_tests() -> None:
    assert {name for name, kind in SETTINGS.items() if kind is Secret} <= SECRETS.keys()


def test_a_tenant_sees_its_own_tokens_users_and_secrets_alone() -> None:
    settings = shown("acme", **{name.replace(".", "__"): value for name, value in SECRETS.items()})
    assert [each["name"] for each in settings["auth.tokens"].value] == ["ops", "reader"]
    assert [each["name"] for each in settings["auth.users"].value] == ["ann"]
    assert list(settings["webhooks.tenants"].value) == ["acme"]


def test_examples_in_the_text_of_a_setting_keep_their_lines() -> None:
    assert "\n  [webhooks.tenants.acme]\n" in meanings()["webhooks.tenants"]
    assert "\n" not in meanings()["server.drain_seconds"]


@pytest.fixture
def settings() -> dict[str, Any]:
    return {name: SECRETS[name] for name in ("auth.tokens", "webhooks.secret")}


@on_sqlite
async def test_reading_the_settings_needs_the_scope_admin(api: Api) -> None:
    answer = await api.of("token-of-ops").get("/engine/settings")
    sections = answer.good()["sections"]
    assert sections[0]["section"] == "server"
    assert b"never-" not in answer.body
    assert (await api.of("token-of-reader").get("/engine/settings")).status == 403
    assert (await api.get("/engine/settings")).status == 401
