import copy
import json
import os
import pickle
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from chargehand.config import SECTIONS, SETTINGS, VARIABLES, Config, Secret, allowed, load_config, require_safe
from chargehand.errors import ConfigError

DEFAULTS = resources.files("chargehand").joinpath("config.default.toml").read_text()
HASH = "sha256:" + "0a" * 32
SCRYPT = "scrypt:16384:8:1:c2FsdA:aGFzaA"
HUSH = "hush-this-must-never-be-shown-to-anybody"

# By setting: a valid value where its type does not show one, and the other settings that it needs.
VALUES: dict[str, Any] = {
    "server.listen": "[::1]:0",
    "tasks.grpc_listen": "[::1]:0",
    "server.processes": 4,
    "store.url": f"postgresql://me:{HUSH}@db/jobs",
    "webhooks.tenants": {"acme": {"secret": "one", "previous_secret": "two"}},
    "webhooks.allow_networks": ["10.0.0.0/8", "fd00::/8"],
    "webhooks.deny_networks": ["10.1.2.3/32"],
    "auth.tokens": [{"name": "ci", "hash": HASH}],
    "auth.users": [{"name": "ann", "password_hash": SCRYPT}],
    "auth.jwks_url": "https://issuer.example/jwks",
    "inference.targets": [{"url": "http://gpu-1:8000"}, {"url": "https://gpu-2", "name": "two", "slots": 3}],
    "inference.enabled": False,
    "inference.allow_cloud": False,
    "inference.models": {"qwen3:30b": {"options": {"num_ctx": 8192}}},
    "tasks.enabled": False,
    "tasks.public_url": "https://jobs.example",
    "provisioning.enabled": False,
    "provisioning.public_url": "https://jobs.example",
    "provisioning.registry_anonymous_pull": True,
    "tracing.endpoint": "http://localhost:4318/v1/traces",
}
COMPANIONS: dict[str, dict[str, str]] = {
    "server.processes": {"CHARGEHAND_STORE_URL": "postgresql://me@db/jobs"},
    "server.tls_certificate": {"CHARGEHAND_SERVER_TLS_KEY": "key.pem"},
    "server.tls_key": {"CHARGEHAND_SERVER_TLS_CERTIFICATE": "certificate.pem"},
    "server.tls_client_ca": {
        "CHARGEHAND_SERVER_TLS_CERTIFICATE": "certificate.pem",
        "CHARGEHAND_SERVER_TLS_KEY": "key.pem",
    },
    "webhooks.previous_secret": {"CHARGEHAND_WEBHOOKS_SECRET": "current"},
    "provisioning.previous_webhook_secret": {"CHARGEHAND_PROVISIONING_WEBHOOK_SECRET": "current"},
    "auth.jwks_url": {"CHARGEHAND_AUTH_JWT_ISSUER": "me", "CHARGEHAND_AUTH_JWT_AUDIENCE": "you"},
    "auth.jwks_file": {"CHARGEHAND_AUTH_JWT_ISSUER": "me", "CHARGEHAND_AUTH_JWT_AUDIENCE": "you"},
}
IN_ORDER = [
    ("engine.lease_seconds", "engine.max_lease_seconds"),
    ("engine.backoff_base_seconds", "engine.backoff_max_seconds"),
    ("webhooks.backoff_base_seconds", "webhooks.backoff_max_seconds"),
    ("webhooks.timeout_seconds", "webhooks.give_up_seconds"),
    ("tasks.backoff_base_seconds", "tasks.backoff_max_seconds"),
    ("tasks.result_webhook_base_backoff_seconds", "tasks.result_webhook_max_backoff_seconds"),
]
LIMITED = [key for key, kind in SETTINGS.items() if " number from " in allowed(kind)]
SECRETS = [key for key, kind in SETTINGS.items() if kind is Secret]


def default_of(key: str) -> Any:
    section, name = key.split(".")
    return tomllib.loads(DEFAULTS)[section][name]


def setting(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def variable(key: str) -> str:
    return next(name for name, each in VARIABLES.items() if each == key)


def another_value(key: str) -> Any:
    """Return a valid value that is not the default."""
    if key in VALUES:
        return VALUES[key]
    default = default_of(key)
    if key in LIMITED:
        return default // 2 + 1 if isinstance(default, int) else default / 2 or 0.5
    if get_origin(SETTINGS[key]) is Literal:
        return next(word for word in get_args(SETTINGS[key]) if word != default)
    return HUSH


def write(directory: Path, text: str) -> Path:
    file = directory / "chargehand.toml"
    file.write_text(text)
    return file


def refusal(file: Path | None = None, environ: dict[str, str] | None = None, **overrides: Any) -> str:
    """Return the message of the ConfigError; in the name of an override two underscores stand for a dot."""
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ or {}, {name.replace("__", "."): value for name, value in overrides.items()})
    assert "\n" not in caught.value.message
    return caught.value.message


# ── the defaults ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_defaults_file_is_the_defaults_and_sets_every_setting() -> None:
    assert json.loads(json.dumps(load_config(environ={}).redacted())) == tomllib.loads(DEFAULTS)


@pytest.mark.parametrize("key", SETTINGS)
def test_every_default_has_a_comment_with_the_limits_of_its_type(key: str) -> None:
    section, name = key.split(".")
    text = DEFAULTS.split(f"\n[{section}]\n")[1].split("\n[")[0]
    found = re.search(rf"((?:^#.*\n)+){name} = ", text, re.MULTILINE)
    assert found, f"{key} has no comment"
    comment = " ".join(line.lstrip("# ") for line in found[1].splitlines())
    if key in LIMITED or get_origin(SETTINGS[key]) is Literal:
        assert allowed(SETTINGS[key]) in comment


def test_no_section_has_an_underscore_so_that_every_variable_is_unambiguous() -> None:
    assert not [section for section in SECTIONS if "_" in section]
    assert sorted(VARIABLES.values()) == sorted(SETTINGS)


def test_a_config_is_frozen() -> None:
    config = load_config(environ={})
    with pytest.raises(AttributeError):
        config.server.listen = "0.0.0.0:80"  # type: ignore[misc]


# ── the order of things ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_can_be_set_from_the_environment(key: str) -> None:
    value = another_value(key)
    text = value if isinstance(value, str) else json.dumps(value)
    config = load_config(environ={variable(key): text, **COMPANIONS.get(key, {})})
    expected = load_config(environ=COMPANIONS.get(key, {}), overrides={key: value})
    assert setting(config, key) == setting(expected, key)
    assert setting(config, key) != setting(load_config(environ={}), key)


def test_the_file_beats_the_defaults_the_environment_the_file_and_the_command_line_all(tmp_path: Path) -> None:
    file = write(tmp_path, "[engine]\nmax_attempts = 2\nlease_seconds = 2\npoll_seconds = 2")
    environ = {"CHARGEHAND_ENGINE_LEASE_SECONDS": "3", "CHARGEHAND_ENGINE_POLL_SECONDS": "3"}
    engine = load_config(file, environ, {"engine.poll_seconds": 4}).engine
    assert (engine.max_wait_seconds, engine.max_attempts, engine.lease_seconds, engine.poll_seconds) == (60, 2, 3, 4)


def test_an_override_may_be_none_a_path_or_a_text() -> None:
    overrides = {"server.listen": None, "server.data_dir": Path("/srv"), "engine.max_attempts": "7"}
    config = load_config(environ={}, overrides=overrides)
    assert (config.server.listen, config.server.data_dir, config.engine.max_attempts) == ("127.0.0.1:8484", "/srv", 7)


def test_the_process_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CHARGEHAND_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CHARGEHAND_LOG_LEVEL", "debug")
    assert load_config().log.level == "debug"


def test_tables_in_the_file_become_values_with_the_documented_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        f'[[auth.tokens]]\nname = "ci"\nhash = "{HASH}"\n'
        f'[[auth.tokens]]\nname = "gpu"\nhash = "{HASH}"\nscopes = ["jobs"]\n'
        f'[[auth.users]]\nname = "ann"\npassword_hash = "{SCRYPT}"\n[webhooks.tenants.acme]\nsecret = "s"\n',
    )
    config = load_config(file, {})
    first, second = config.auth.tokens
    assert (first.tenant, first.scopes, first.event_types, first.worker_group) == ("default", ("*",), ("*",), "")
    assert (second.name, second.scopes, second.rate_per_second) == ("gpu", ("jobs",), 0.0)
    assert config.auth.users[0].password_hash == Secret(SCRYPT)
    assert config.webhooks.tenants["acme"].secret.reveal() == "s"
    assert not config.webhooks.tenants["acme"].previous_secret


@pytest.mark.parametrize(
    ("text", "networks"),
    [
        ("", ()),
        ("10.0.0.0/8", ("10.0.0.0/8",)),
        (" 10.0.0.0/8 , fd00::/8,", ("10.0.0.0/8", "fd00::/8")),
        ('["10.0.0.0/8", "fd00::/8"]', ("10.0.0.0/8", "fd00::/8")),
        ("['10.0.0.0/8', 'fd00::/8',]", ("10.0.0.0/8", "fd00::/8")),
    ],
)
def test_a_list_in_the_environment_is_separated_by_commas_or_an_array(text: str, networks: tuple[str, ...]) -> None:
    assert load_config(environ={"CHARGEHAND_WEBHOOKS_ALLOW_NETWORKS": text}).webhooks.allow_networks == networks


@pytest.mark.parametrize(
    ("written", "audiences"),
    [
        ("''", ()),
        ("'https://a'", ("https://a",)),
        ("'a, b'", ("a, b",)),
        ("[]", ()),
        ("['worker', 'producer']", ("worker", "producer")),
    ],
)
def test_a_list_of_strings_in_a_file_may_be_a_single_string(
    tmp_path: Path, written: str, audiences: tuple[str, ...]
) -> None:
    assert load_config(write(tmp_path, f"[auth]\njwt_audience = {written}"), environ={}).auth.jwt_audience == audiences


@pytest.mark.parametrize("text", ["1234", "true", '["a"]', " spaced ", "null"])
def test_a_string_setting_takes_the_text_of_its_variable_as_it_is(text: str) -> None:
    config = load_config(environ={"CHARGEHAND_WEBHOOKS_SECRET": text, "CHARGEHAND_AUTH_JWT_ISSUER": text})
    assert (config.webhooks.secret.reveal(), config.auth.jwt_issuer) == (text, text)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nlisen = 1", "server.lisen is not a setting; did you mean server.listen?"),
        ("[webhooks]\ntimeout = 1", "webhooks.timeout is not a setting; did you mean webhooks.timeout_seconds?"),
        ("[webhook]\nsecret = 's'", "webhook is not a section; did you mean webhooks?"),
        ("[zzz]", "zzz is not a section"),
        ("server = 5", "server must be a table"),
        ("[[auth.tokens]]\nname = 'ci'\nhsh = 'x'", "auth.tokens[0].hsh is not a setting; did you mean hash?"),
        ("[[auth.tokens]]\nname = 'ci'", "auth.tokens[0].hash is missing"),
        ("[auth]\ntokens = ['x']", "auth.tokens[0] must be a table"),
        ("[engine]\nlease_seconds = '60'", "engine.lease_seconds must be a number from 0.01 to 315360000, not '60'"),
        ("[inference]\ntargets = ['gpu']", "inference.targets[0].url must be an http:// or https:// URL without user"),
        ("[webhooks]\ntenants = []", "webhooks.tenants must be a table of tables"),
        ("[webhooks.tenants.Acme]\nsecret = 's'", "a name in webhooks.tenants must be 2 to 63 lower-case letters"),
    ],
)
def test_a_wrong_file_is_refused_with_the_name_of_the_setting_and_of_the_file(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = write(tmp_path, text)
    message = refusal(file)
    assert message.startswith(expected)
    assert message.endswith(f"({file})")


def test_a_wrong_value_in_the_file_is_refused_even_if_it_is_overridden(tmp_path: Path) -> None:
    assert "engine.max_attempts" in refusal(write(tmp_path, "[engine]\nmax_attempts = 0"), engine__max_attempts=3)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.toml") == f"{tmp_path}/absent.toml: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"[server]\nlisten = \n", "line 2"),
        (b"[server]\n\nlisten = 'a\xff'\n", "line 3"),
        (b"[server]\nlisten = '''abc", "line 2"),
    ],
)
def test_a_file_that_does_not_parse_is_named_with_the_line(tmp_path: Path, content: bytes, place: str) -> None:
    file = tmp_path / "chargehand.toml"
    file.write_bytes(content)
    message = refusal(file)
    assert message.startswith(f"{file}: not ")
    assert place in message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CHARGEHAND_SERVER_LISEN", "; did you mean CHARGEHAND_SERVER_LISTEN?"),
        ("CHARGEHAND_WEBHOOK_SECRET", "; did you mean CHARGEHAND_WEBHOOKS_SECRET?"),
        ("CHARGEHAND_server_listen", ""),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known_one(name: str, hint: str) -> None:
    assert refusal(environ={name: "x"}).startswith(f"{name} is not a setting{hint}")


@pytest.mark.parametrize("name", ["TEST_X", "E2E_POSTGRES", "CHAOS_ROUNDS", "BENCH_SECONDS"])
def test_variables_of_tests_and_benchmarks_and_of_others_are_ignored(name: str) -> None:
    assert load_config(environ={f"CHARGEHAND_{name}": "1", "PATH": "/bin"}) == load_config(environ={})


def test_an_unknown_override_is_refused() -> None:
    assert refusal(server__lisen="x").startswith("server.lisen is not a setting; did you mean server.listen?")


@pytest.mark.parametrize("key", LIMITED)
@pytest.mark.parametrize("text", ["-1", "1e300", "nan", "inf", "many", "", "true"])
def test_a_bad_number_names_the_setting_its_variable_and_the_range(key: str, text: str) -> None:
    message = refusal(environ={variable(key): text})
    assert message.startswith(f"{key} must be {allowed(SETTINGS[key])}, not ")
    assert message.endswith(f"(environment variable {variable(key)})")


@pytest.mark.parametrize("key", LIMITED)
@pytest.mark.parametrize("end", [0, 1])
def test_both_ends_of_the_range_are_allowed(key: str, end: int) -> None:
    limit = re.findall(r"[0-9.]+", allowed(SETTINGS[key]))[end]
    together = [key, *(partner for pair in IN_ORDER if key in pair for partner in pair)]
    config = load_config(environ={variable(each): limit for each in together} | COMPANIONS.get(key, {}))
    assert setting(config, key) == float(limit)


def test_a_value_that_is_not_allowed_is_shown_with_the_allowed_ones() -> None:
    message = refusal(environ={"CHARGEHAND_LOG_LEVEL": "loud"})
    assert message == (
        "log.level must be one of debug, info, warning, error, not 'loud' (environment variable CHARGEHAND_LOG_LEVEL)"
    )


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"name": "ci"}', "plain"])
def test_tables_that_are_not_json_are_refused(text: str) -> None:
    assert refusal(environ={"CHARGEHAND_AUTH_TOKENS": text}).startswith("auth.tokens")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"auth__jwt_secret": "x" * 31}, "auth.jwt_secret must have at least 32 bytes"),
        ({"auth__jwks_url": "https://i/jwks"}, "auth.jwks_url needs auth.jwt_issuer and auth.jwt_audience"),
        (
            {"auth__jwks_file": "jwks.json", "auth__jwt_issuer": "me"},
            "auth.jwks_file needs auth.jwt_issuer and auth.jwt_audience",
        ),
        ({"auth__jwks_url": "https://i/jwks", "auth__jwks_file": "f"}, "auth.jwks_file excludes auth.jwks_url"),
        ({"auth__jwks_url": "ftp://i/jwks"}, "auth.jwks_url must be an http:// or https:// URL"),
        ({"webhooks__previous_secret": "x"}, "webhooks.previous_secret needs webhooks.secret"),
        (
            {"provisioning__previous_webhook_secret": "x"},
            "provisioning.previous_webhook_secret needs provisioning.webhook_secret",
        ),
        ({"webhooks__tenants": {"acme": {"secret": ""}}}, "webhooks.tenants.acme.secret must not be empty"),
        ({"webhooks__tenants": {"acme": {}}}, "webhooks.tenants.acme.secret is missing"),
        ({"webhooks__tenants": {"acme\n": {"secret": "s"}}}, "a name in webhooks.tenants must be"),
        ({"webhooks__allow_networks": ["10.0.0.0/8", "10.0.0.1/8"]}, "webhooks.allow_networks[1] must be a network"),
        ({"webhooks__deny_networks": ["everyone"]}, "webhooks.deny_networks[0] must be a network"),
        (
            {"webhooks__timeout_seconds": 60, "webhooks__give_up_seconds": 30},
            "webhooks.timeout_seconds must not exceed",
        ),
        ({"webhooks__backoff_base_seconds": 4000}, "webhooks.backoff_base_seconds must not exceed"),
        (
            {"engine__backoff_max_seconds": 4},
            "engine.backoff_base_seconds must not exceed engine.backoff_max_seconds, 4",
        ),
        ({"engine__lease_seconds": 90_000}, "engine.lease_seconds must not exceed engine.max_lease_seconds, 86400.0"),
        (
            {"server__processes": 2},
            "server.processes must be 1 with SQLite, whose file only one process can use; for more",
        ),
        ({"store__url": "mysql://host/db"}, "store.url must be sqlite:///PATH or postgresql://"),
        ({"store__url": "sqlite:///"}, "store.url must be sqlite:///PATH or postgresql://"),
        ({"auth__tokens": [{"name": "a", "hash": HASH}] * 2}, "auth.tokens[1].name must be unique: 'a' is taken"),
        (
            {"auth__users": [{"name": "a:b", "password_hash": SCRYPT}]},
            "auth.users[0].name must be a name without a colon",
        ),
        (
            {"auth__users": [{"name": "a", "password_hash": HUSH}]},
            "auth.users[0].password_hash must begin with scrypt:",
        ),
        ({"auth__tokens": [{"name": "a", "hash": HASH, "tenant": "A"}]}, "auth.tokens[0].tenant must be 2 to 63"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: dict[str, Any], expected: str) -> None:
    message = refusal(**overrides)
    assert message.startswith(expected)
    assert HUSH not in message


def test_a_contradiction_names_the_variable_that_caused_it() -> None:
    message = refusal(environ={"CHARGEHAND_AUTH_JWT_SECRET": "short"})
    assert message == "auth.jwt_secret must have at least 32 bytes (environment variable CHARGEHAND_AUTH_JWT_SECRET)"


def test_a_conflict_with_a_default_names_where_the_other_setting_was_set() -> None:
    message = refusal(environ={"CHARGEHAND_ENGINE_BACKOFF_MAX_SECONDS": "4"})
    assert message.startswith("engine.backoff_base_seconds must not exceed engine.backoff_max_seconds, 4.0 ")
    assert message.endswith("(environment variable CHARGEHAND_ENGINE_BACKOFF_MAX_SECONDS)")


def test_a_variable_that_is_not_utf_8_is_refused() -> None:
    message = refusal(environ={"CHARGEHAND_AUTH_JWT_SECRET": os.fsdecode(b"\xff" * 40)})
    assert message == "auth.jwt_secret must be UTF-8 (environment variable CHARGEHAND_AUTH_JWT_SECRET)"


# ── where to listen ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("listen", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:8484", "127.0.0.1", 8484, True),
        ("127.255.0.9:0", "127.255.0.9", 0, True),
        ("[::1]:65535", "::1", 65535, True),
        ("LocalHost:80", "LocalHost", 80, True),
        ("0.0.0.0:80", "0.0.0.0", 80, False),
        ("[::]:80", "::", 80, False),
        ("128.0.0.1:80", "128.0.0.1", 80, False),
        ("localhost.example.com:80", "localhost.example.com", 80, False),
    ],
)
def test_an_address_is_split_and_loopback_recognised(listen: str, host: str, port: int, is_loopback: bool) -> None:
    server = load_config(environ={"CHARGEHAND_SERVER_LISTEN": listen}).server
    assert (server.host, server.port, server.is_loopback) == (host, port, is_loopback)


@pytest.mark.parametrize(
    "listen",
    [
        "",
        ":80",
        "host",
        "host:",
        "host:65536",
        "host:-1",
        "::1:80",
        "[::1]",
        "[::1:80",
        "[host]:80",
        "[127.0.0.1]:80",
        "http://h:80",
        "h:80\n",
        "h:٣",
    ],
)
def test_an_address_that_is_not_host_and_port_is_refused(listen: str) -> None:
    message = refusal(environ={"CHARGEHAND_SERVER_LISTEN": listen})
    assert message.startswith("server.listen must be HOST:PORT or [IPV6]:PORT with a port from 0 to 65535, not ")


@pytest.mark.parametrize(
    "environ",
    [
        {"CHARGEHAND_AUTH_TOKENS": json.dumps(VALUES["auth.tokens"])},
        {"CHARGEHAND_AUTH_USERS": json.dumps(VALUES["auth.users"])},
        {"CHARGEHAND_AUTH_JWT_SECRET": "x" * 32},
        {"CHARGEHAND_AUTH_JWKS_URL": "https://i/jwks", **COMPANIONS["auth.jwks_url"]},
        {"CHARGEHAND_AUTH_JWKS_FILE": "jwks.json", **COMPANIONS["auth.jwks_file"]},
    ],
)
def test_any_way_to_authenticate_makes_it_safe_to_listen_beyond_loopback(environ: dict[str, str]) -> None:
    config = load_config(environ={"CHARGEHAND_SERVER_LISTEN": "0.0.0.0:8484", **environ})
    assert config.has_auth
    require_safe(config)


def test_without_authentication_only_loopback_is_safe() -> None:
    config = load_config(environ={})
    assert not config.has_auth
    require_safe(config)
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:8484.*`chargehand token` creates one.*127\.0\.0\.1"):
        require_safe(load_config(environ={}, overrides={"server.listen": "0.0.0.0:8484"}))


@pytest.mark.parametrize(
    ("overrides", "url"),
    [
        ({}, "sqlite:///data/chargehand.db"),
        ({"server.data_dir": "/srv/jobs/"}, "sqlite:////srv/jobs/chargehand.db"),
        ({"store.url": "sqlite:///other.db"}, "sqlite:///other.db"),
        ({"store.url": "postgresql://me:pass@db/jobs"}, "postgresql://me:pass@db/jobs"),
    ],
)
def test_the_store_is_a_file_in_the_data_directory_unless_told_otherwise(overrides: dict[str, str], url: str) -> None:
    assert load_config(environ={}, overrides=overrides).store_url == url


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret(HUSH)
    assert (repr(secret), str(secret), f"{secret}", f"{secret!r:>5}") == ("***", "***", "***", "  ***")
    assert secret.reveal() == HUSH
    assert not issubclass(Secret, str)


def test_secrets_are_equal_when_their_texts_are_and_never_equal_to_a_text() -> None:
    assert Secret("ü") == Secret("ü")
    assert hash(Secret("ü")) == hash(Secret("ü"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"


def test_an_empty_secret_is_false() -> None:
    assert not Secret("")
    assert Secret("x")


def test_a_config_with_secrets_survives_copying_and_pickling() -> None:
    config = load_config(environ={"CHARGEHAND_WEBHOOKS_SECRET": HUSH})
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_no_representation_of_the_config_contains_a_secret() -> None:
    environ = {variable(key): f"postgresql://{HUSH}@db/jobs" if key == "store.url" else HUSH for key in SECRETS}
    environ["CHARGEHAND_WEBHOOKS_TENANTS"] = json.dumps({"acme": {"secret": HUSH, "previous_secret": HUSH}})
    environ["CHARGEHAND_AUTH_USERS"] = json.dumps([{"name": "ann", "password_hash": f"scrypt:{HUSH}"}])
    config = load_config(environ=environ)
    redacted = config.redacted()
    for picture in (repr(config), str(config), f"{config}", repr(redacted), json.dumps(redacted)):
        assert HUSH not in picture
    assert redacted["webhooks"]["tenants"] == {"acme": {"secret": "***", "previous_secret": "***"}}
    assert {redacted[key.split(".")[0]][key.split(".")[1]] for key in SECRETS} == {"***"}


def test_an_unset_secret_is_shown_as_empty() -> None:
    assert load_config(environ={}).redacted()["webhooks"]["secret"] == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, [HUSH]) for key in SECRETS),
        ("auth.tokens", [{"name": "ci", "hash": HUSH}]),
        ("auth.tokens", HUSH),
        ("auth.users", [{"name": "ann", "password_hash": [HUSH]}]),
        ("webhooks.tenants", {"acme": {"secret": {"x": HUSH}}}),
        ("webhooks.tenants", {"acme": HUSH}),
        ("store.url", f"mysql://me:{HUSH}@host/db"),
        ("tracing.endpoint", f"https://me:{HUSH}@traces/"),
        ("inference.targets", [f"https://me:{HUSH}@gpu/"]),
    ],
)
def test_no_refusal_repeats_a_secret(key: str, value: Any) -> None:
    message = refusal(**{key.replace(".", "__"): value})
    assert message.startswith(key)
    assert HUSH not in message


def test_a_comma_separated_list_of_urls_is_a_list_of_targets_with_defaults() -> None:
    config = load_config(environ={"CHARGEHAND_INFERENCE_TARGETS": "http://laptop:11434, http://tower:11434"})
    assert [target.url for target in config.inference.targets] == ["http://laptop:11434", "http://tower:11434"]
    assert {(target.slots, target.parallel, target.name) for target in config.inference.targets} == {(2, 1, "")}


def test_targets_in_full_have_names_slots_and_a_wake_hook(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [[inference.targets]]
        name = "laptop"
        url = "http://laptop.lan:11434"
        slots = 1
        parallel = 4
        wake_mac = "aa:bb:cc:dd:ee:ff"
        wake_command = ["ssh", "nas", "wake laptop"]
        [inference.models."qwen3:30b"]
        options = { num_ctx = 8192 }
        """,
    )
    config = load_config(file, environ={})
    [target] = config.inference.targets
    assert (target.name, target.slots, target.parallel) == ("laptop", 1, 4)
    assert target.wake_command == ("ssh", "nas", "wake laptop")
    assert config.inference.models["qwen3:30b"].options == {"num_ctx": 8192}


def test_two_targets_cannot_have_one_name() -> None:
    message = refusal(inference__targets=[{"url": "http://a", "name": "x"}, {"url": "http://b", "name": "x"}])
    assert message.startswith("inference.targets[1].name must be unique: 'x' is taken")
