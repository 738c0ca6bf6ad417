"""One frozen Config, built once: defaults < file < environment < command line.

`config.default.toml` holds every default, so the structs below have none: a key that is missing there fails every test.
Each setting is checked where it is given, so that a message can name both the setting and who set it.
"""

import hmac
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import resources
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from chargehand.errors import ConfigError


class Secret:
    """Text that shows itself only to those who ask for it."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "***"


# ── what a setting may be ─────────────────────────────────────────────────────────────────────────────────────────────

_DECADE = 315_360_000
Seconds = Annotated[float, Meta(ge=0.01, le=_DECADE)]
SecondsOrZero = Annotated[float, Meta(ge=0, le=_DECADE)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]
Attempts = Annotated[int, Meta(ge=1, le=1000)]
InFlight = Annotated[int, Meta(ge=1, le=100_000)]

_URL = r"https?://[^\s/?#@]+([/?#]\S*)?"
Url = Annotated[str, Meta(pattern=rf"^{_URL}\Z", description="an http:// or https:// URL without user and password")]
UrlOrEmpty = Annotated[
    str, Meta(pattern=rf"^({_URL})?\Z", description="an http:// or https:// URL without user and password, or empty")
]
Filled = Annotated[str, Meta(min_length=1, description="text that is not empty")]
Tenant = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9-]{1,62}\Z",
        description="2 to 63 lower-case letters, digits and hyphens, beginning with a letter",
    ),
]
TokenHash = Annotated[
    str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z", description="sha256: and 64 lower-case hexadecimal digits")
]
TargetName = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?\Z",
        description="1 to 63 letters, digits, dots, hyphens and underscores, or empty",
    ),
]
MacAddress = Annotated[
    str,
    Meta(
        pattern=r"^([0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5})?\Z",
        description="six pairs of hexadecimal digits with colons between them, or empty",
    ),
]
OptionValue = Annotated[int | float | bool, Meta(description="a number, true or false")]
UserName = Annotated[str, Meta(pattern=r"^[^:]+\Z", description="a name without a colon")]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ServerConfig(Section, frozen=True, kw_only=True):
    listen: str
    data_dir: Filled
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**30)]
    max_header_bytes: Annotated[int, Meta(ge=1024, le=2**20)]
    header_timeout_seconds: Seconds
    body_timeout_seconds: Seconds
    keep_alive_seconds: Seconds
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000)]
    drain_seconds: SecondsOrZero
    tls_certificate: str
    tls_key: str
    tls_client_ca: str

    @property
    def host(self) -> str:
        return _host_and_port(self.listen)[0]

    @property
    def port(self) -> int:
        return _host_and_port(self.listen)[1]

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


class StoreConfig(Section, frozen=True, kw_only=True):
    url: Secret
    max_bytes: Annotated[int, Meta(ge=0, le=2**48)]
    pool_size: Annotated[int, Meta(ge=1, le=1000)]
    group_size: Annotated[int, Meta(ge=1, le=10_000)]


class EngineConfig(Section, frozen=True, kw_only=True):
    lease_seconds: Seconds
    max_lease_seconds: Seconds
    max_wait_seconds: SecondsOrZero
    max_attempts: Attempts
    backoff_base_seconds: SecondsOrZero
    backoff_max_seconds: SecondsOrZero
    poll_seconds: Seconds


class RetentionConfig(Section, frozen=True, kw_only=True):
    finished_seconds: SecondsOrZero
    interval_seconds: Seconds
    batch: Annotated[int, Meta(ge=1, le=100_000)]


class TenantSecrets(Section, frozen=True, kw_only=True):
    secret: Secret
    previous_secret: Secret = Secret()


class WebhooksConfig(Section, frozen=True, kw_only=True):
    secret: Secret
    previous_secret: Secret
    tenants: dict[Tenant, TenantSecrets]
    max_attempts: Attempts
    backoff_base_seconds: SecondsOrZero
    backoff_max_seconds: SecondsOrZero
    timeout_seconds: Seconds
    max_in_flight: InFlight
    max_in_flight_per_endpoint: InFlight
    max_in_flight_per_host: InFlight
    breaker_failures: Annotated[int, Meta(ge=1, le=1000)]
    breaker_seconds: Seconds
    give_up_seconds: Seconds
    answer_bytes: Annotated[int, Meta(ge=0, le=2**20)]
    allow_networks: tuple[str, ...]
    deny_networks: tuple[str, ...]


class Token(Section, frozen=True, kw_only=True):
    name: Filled
    hash: TokenHash
    tenant: Tenant = "default"
    scopes: tuple[str, ...] = ("*",)
    event_types: tuple[str, ...] = ("*",)
    worker_group: str = ""
    rate_per_second: Rate = 0.0


class User(Section, frozen=True, kw_only=True):
    name: UserName
    # Passwords are guessable, unlike tokens: whoever sees the hash can try them out.
    password_hash: Secret
    tenant: Tenant = "default"
    scopes: tuple[str, ...] = ("*",)


class AuthConfig(Section, frozen=True, kw_only=True):
    tokens: tuple[Token, ...]
    jwt_secret: Secret
    jwks_url: UrlOrEmpty
    jwks_file: str
    jwt_issuer: str
    jwt_audience: str
    users: tuple[User, ...]
    rate_per_second: Rate
    rate_burst: Annotated[int, Meta(ge=0, le=1_000_000)]


class LogConfig(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"]
    format: Literal["auto", "json", "text"]


class TracingConfig(Section, frozen=True, kw_only=True):
    endpoint: UrlOrEmpty
    service_name: Filled
    sample_ratio: Annotated[float, Meta(ge=0, le=1)]


class TargetConfig(Section, frozen=True, kw_only=True):
    """Where only a URL is given, as in a comma-separated list, the rest is the default."""

    short_form: ClassVar[str] = "url"

    url: Url
    name: TargetName = ""
    slots: Annotated[int, Meta(ge=1, le=100)] = 2
    parallel: Annotated[int, Meta(ge=1, le=1000)] = 1
    models: tuple[str, ...] = ()
    api_key: Secret = Secret()
    wake_mac: MacAddress = ""
    wake_command: tuple[str, ...] = ()


class ModelConfig(Section, frozen=True, kw_only=True):
    options: dict[str, OptionValue] = {}
    keep_alive: str = ""


class InferenceConfig(Section, frozen=True, kw_only=True):
    enabled: bool
    targets: tuple[TargetConfig, ...]
    embedded: Literal["auto", "on", "off"]
    models: dict[Filled, ModelConfig]
    allow_cloud: bool
    wait_seconds: SecondsOrZero
    wait_cap_seconds: SecondsOrZero
    probe_seconds: Seconds
    probe_failures: Annotated[int, Meta(ge=1, le=100)]
    load_timeout_seconds: Seconds
    wake_seconds: Seconds
    lease_seconds: Seconds
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**30)]
    max_answer_bytes: Annotated[int, Meta(ge=1024, le=2**30)]
    max_messages: Annotated[int, Meta(ge=1, le=1_000_000)]
    max_file_bytes: Annotated[int, Meta(ge=1024, le=2**40)]
    file_seconds: SecondsOrZero
    artifacts_dir: str


class TasksConfig(Section, frozen=True, kw_only=True):
    enabled: bool
    lease_seconds: Seconds
    max_attempts: Annotated[int, Meta(ge=1, le=1000)]
    backoff_policy: Literal["exp_full_jitter", "exp_equal_jitter", "exponential", "linear", "fixed"]
    backoff_base_seconds: SecondsOrZero
    backoff_max_seconds: SecondsOrZero
    subscription_ttl_seconds: Seconds
    subscription_min_interval_seconds: Seconds
    result_webhook_max_attempts: Annotated[int, Meta(ge=1, le=1000)]
    result_webhook_base_backoff_seconds: SecondsOrZero
    result_webhook_max_backoff_seconds: SecondsOrZero
    producer_per_minute: Annotated[int, Meta(ge=0, le=60_000_000)]
    producer_burst: Annotated[int, Meta(ge=0, le=1_000_000)]
    worker_per_minute: Annotated[int, Meta(ge=0, le=60_000_000)]
    worker_burst: Annotated[int, Meta(ge=0, le=1_000_000)]
    admin_per_minute: Annotated[int, Meta(ge=0, le=60_000_000)]
    admin_burst: Annotated[int, Meta(ge=0, le=1_000_000)]
    public_url: UrlOrEmpty


class ProvisioningConfig(Section, frozen=True, kw_only=True):
    enabled: bool
    public_url: UrlOrEmpty
    maintenance_iso: str
    ca_file: str
    media_dir: str
    webhook_secret: Secret
    previous_webhook_secret: Secret
    client_names: tuple[Filled, ...]
    key: Secret
    max_active: Annotated[int, Meta(ge=1, le=100_000)]
    lease_seconds: Seconds
    boot_seconds: Seconds
    bmc_back_seconds: Seconds
    fetch_seconds: Seconds
    install_seconds: Seconds
    maintenance_seconds: Seconds
    silence_seconds: Seconds
    cleanup_seconds: Seconds
    redfish_timeout_seconds: Seconds
    poll_seconds: Seconds
    media_keep_seconds: SecondsOrZero
    registry_dir: str
    registry_anonymous_pull: bool
    registry_max_blob_bytes: Annotated[int, Meta(ge=1024, le=2**44)]
    registry_gc_seconds: Seconds
    registry_grace_seconds: Seconds
    registry_upload_seconds: Seconds


class Config(Section, frozen=True, kw_only=True):
    server: ServerConfig
    store: StoreConfig
    engine: EngineConfig
    retention: RetentionConfig
    webhooks: WebhooksConfig
    auth: AuthConfig
    log: LogConfig
    tracing: TracingConfig
    inference: InferenceConfig
    tasks: TasksConfig
    provisioning: ProvisioningConfig
    origins: Mapping[str, str]  # setting -> where it was set; the others are defaults

    @property
    def has_auth(self) -> bool:
        auth = self.auth
        return any((auth.tokens, auth.users, auth.jwt_secret, auth.jwks_url, auth.jwks_file))

    @property
    def store_url(self) -> str:
        return self.store.url.reveal() or f"sqlite:///{Path(self.server.data_dir) / 'chargehand.db'}"

    def redacted(self) -> dict[str, Any]:
        """The settings in force as plain data, fit to be shown."""
        return {section: msgspec.to_builtins(getattr(self, section), enc_hook=_hide) for section in SECTIONS}


SECTIONS: Mapping[str, type[Section]] = {
    field.name: field.type for field in msgspec.structs.fields(Config) if field.name != "origins"
}
SETTINGS: Mapping[str, Any] = {
    f"{section}.{field.name}": field.type
    for section, kind in SECTIONS.items()
    for field in msgspec.structs.fields(kind)
}
# No two can collide, for no section has an underscore in its name.
VARIABLES: Mapping[str, str] = {f"CHARGEHAND_{key.replace('.', '_')}".upper(): key for key in SETTINGS}
# Of a file that holds the value: systemd, Docker and Kubernetes hand out secrets so, and an environment is easily shown.
FILE_VARIABLES: Mapping[str, str] = {f"{name}_FILE": key for name, key in VARIABLES.items()}
_MAX_FILE_BYTES = 1024 * 1024

_DEFAULTS = "the defaults"
# The client's, and what `chargehand worker` tells the programs that it runs.
_OF_CLIENTS = ("CHARGEHAND_URL", "CHARGEHAND_TOKEN", "CHARGEHAND_TASK_ID", "CHARGEHAND_COMMAND", "CHARGEHAND_ATTEMPT")
_NOT_SETTINGS = (*_OF_CLIENTS, "CHARGEHAND_TEST_", "CHARGEHAND_E2E_", "CHARGEHAND_CHAOS_", "CHARGEHAND_BENCH_")


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Given(NamedTuple):
    key: str
    value: Any
    origin: str


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] = {},
) -> Config:
    """Put the settings together, or raise a ConfigError that says which one is wrong and where it was set.

    An override of None counts as not given, so that a command can pass its options as they are.
    """
    given: dict[str, Given] = {}
    for each in map(_in_full, _in_order(file, environ, overrides)):
        if problem := next(_problems(each.value, SETTINGS[each.key], each.key), None):
            raise ConfigError(f"{problem} ({each.origin})")
        given[each.key] = each
    config = _assemble(given)
    for name, holds, problem in _rules(config):
        if not holds:
            raise ConfigError(f"{name} {problem} ({_origins(f'{name} {problem}', given)})")
    return config


def require_safe(config: Config) -> None:
    """Refuse to serve strangers."""
    if not config.server.is_loopback and not config.has_auth:
        raise ConfigError(
            f"server.listen is {config.server.listen}, which others can reach, but nobody has to authenticate: "
            "add a token to auth.tokens (`chargehand token` makes one), or listen on 127.0.0.1"
        )


def _origins(problem: str, given: Mapping[str, Given]) -> str:
    # Of two settings at odds, the one that somebody set is to blame, not the default that it clashes with.
    blamed = (each.origin for key, each in given.items() if key in problem and each.origin != _DEFAULTS)
    return ", ".join(dict.fromkeys(blamed))


def _in_order(file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Iterator[Given]:
    yield from _in_toml(resources.files("chargehand").joinpath("config.default.toml").read_bytes(), _DEFAULTS)
    if file is not None:
        yield from _in_toml(_read(file), str(file))
    yield from _in_environ(environ)
    yield from _in_overrides(overrides)


def _in_full(given: Given) -> Given:
    """A plain string among tables stands for a table with only that key."""
    kind = SETTINGS[given.key]
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    short_form = getattr(item, "short_form", "")
    if not short_form or not isinstance(given.value, list | tuple):
        return given
    return given._replace(value=[{short_form: each} if isinstance(each, str) else each for each in given.value])


def _assemble(given: Mapping[str, Given]) -> Config:
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for each in given.values():
        section, _, name = each.key.partition(".")
        sections[section][name] = each.value
    origins = {each.key: each.origin for each in given.values() if each.origin != _DEFAULTS}
    return msgspec.convert({**sections, "origins": origins}, Config, dec_hook=_wrap)


def _read(file: Path, named_by: str = "") -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        where = f" ({named_by})" if named_by else ""
        raise ConfigError(f"{file}: cannot be read: {error.strerror}{where}") from error


def _in_toml(content: bytes, origin: str) -> Iterator[Given]:
    for section, table in _decode_toml(content, origin).items():
        if section not in SECTIONS:
            raise ConfigError(f"{section} is not a section{_hint(section, SECTIONS)} ({origin})")
        if not isinstance(table, dict):
            raise ConfigError(f"{section} must be a table ({origin})")
        for name, value in table.items():
            yield Given(_known(f"{section}.{name}", origin), value, origin)


def _decode_toml(content: bytes, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{origin}: not UTF-8 (at line {line})") from error
    except tomllib.TOMLDecodeError as error:
        # tomllib names line and column, except where the document ends too early.
        message = str(error).replace("at end of document", f"at line {len(content.splitlines())}, end of document")
        raise ConfigError(f"{origin}: not valid TOML: {message}") from error


def _in_environ(environ: Mapping[str, str]) -> Iterator[Given]:
    for name, text in sorted(environ.items()):
        if not name.startswith("CHARGEHAND_") or name.startswith(_NOT_SETTINGS):
            continue
        if name not in VARIABLES and name in FILE_VARIABLES:
            yield _in_value_file(name, Path(text), environ)
            continue
        if name not in VARIABLES:
            raise ConfigError(f"{name} is not a setting{_hint(name, VARIABLES)} (the environment)")
        key = VARIABLES[name]
        if not _succeeds(str.encode, text):
            raise ConfigError(f"{key} must be UTF-8 (environment variable {name})")
        yield Given(key, _parse(text, SETTINGS[key]), f"environment variable {name}")


def _in_value_file(name: str, file: Path, environ: Mapping[str, str]) -> Given:
    key, origin = FILE_VARIABLES[name], f"environment variable {name}"
    if (other := name.removesuffix("_FILE")) in environ:
        raise ConfigError(f"{key} is set twice: by {other} and by {name}; set one of them")
    content = _read(file, origin)
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{key} must not exceed {_MAX_FILE_BYTES} bytes ({file}, {origin})")
    try:
        # The line end is the editor's, not the secret's.
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"{key} must be UTF-8 ({file}, {origin})") from None
    return Given(key, _parse(text, SETTINGS[key]), f"{file}, {origin}")


def _in_overrides(overrides: Mapping[str, Any]) -> Iterator[Given]:
    for name, value in overrides.items():
        key = _known(name, "the command line")
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if value is not None:
            yield Given(key, _parse(value, SETTINGS[key]) if isinstance(value, str) else value, "the command line")


def _known(key: str, origin: str) -> str:
    if key not in SETTINGS:
        raise ConfigError(f"{key} is not a setting{_hint(key, SETTINGS)} ({origin})")
    return key


def _hint(name: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _parse(text: str, kind: Any) -> Any:
    """What a text means for a setting. One that means nothing stays as it is, for the check to complain about."""
    if _bare(kind) in (int, float, bool):
        try:
            return msgspec.convert(text, _bare(kind), strict=False)
        except msgspec.ValidationError:
            return text
    if get_origin(kind) not in (tuple, dict):
        return text
    item = get_args(kind)[0]
    listed = get_origin(kind) is tuple and (_bare(item) is str or hasattr(item, "short_form"))
    if listed and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    for decode in (msgspec.json.decode, lambda toml: tomllib.loads(f"value = {toml}")["value"]):
        try:
            return decode(text)
        except (msgspec.DecodeError, tomllib.TOMLDecodeError):
            continue
    return text


# ── checking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def allowed(kind: Any) -> str:
    """What a setting of this type may be, in words."""
    container, arguments = get_origin(kind), get_args(kind)
    if container is Literal:
        return f"one of {', '.join(arguments)}"
    if container is dict:
        return "a table of tables (in the environment: JSON)"
    if container is tuple:
        if hasattr(arguments[0], "short_form"):
            return f"a list of {arguments[0].short_form}s or an array of tables"
        return "a list of strings" if _bare(arguments[0]) is str else "an array of tables (in the environment: JSON)"
    if container is Annotated:
        meta = kind.__metadata__[0]
        return meta.description or f"a {'whole ' * (_bare(kind) is int)}number from {meta.ge} to {meta.le}"
    return "true or false" if kind is bool else "text"


def _problems(value: Any, kind: Any, name: str) -> Iterator[str]:
    # msgspec finds the same faults, but its words neither name our settings nor tell the whole range.
    container, arguments = get_origin(kind), get_args(kind)
    if container is None and issubclass(kind, Section):
        yield from _table_problems(value, kind, name)
    elif container is tuple and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _problems(item, arguments[0], f"{name}[{index}]")
    elif container is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _problems(key, arguments[0], f"a name in {name}")
            yield from _problems(item, arguments[1], f"{name}.{key}")
    else:
        try:
            msgspec.convert(value, kind, dec_hook=_wrap)
        except msgspec.ValidationError:
            yield f"{name} must be {allowed(kind)}{_shown(value, kind)}"


def _table_problems(value: Any, kind: type[Section], name: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name} must be a table"
        return
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in value:
        if key not in fields:
            yield f"{name}.{key} is not a setting{_hint(key, fields)}"
    for field in fields.values():
        if field.name in value:
            yield from _problems(value[field.name], field.type, f"{name}.{field.name}")
        elif field.required:
            yield f"{name}.{field.name} is missing"


def _shown(value: Any, kind: Any) -> str:
    # Only where no secret can be: a token pasted in place of its hash must not end up in a log.
    harmless = _bare(kind) in (int, float, bool) or get_origin(kind) is Literal
    return f", not {value!r}" if harmless else ""


def _rules(config: Config) -> Iterator[tuple[str, bool, str]]:
    """What a type cannot say: (the setting, whether it is right, what to say if not)."""
    server, store, engine, webhooks, auth = config.server, config.store, config.engine, config.webhooks, config.auth

    shape = "HOST:PORT or [IPV6]:PORT with a port from 0 to 65535"
    yield "server.listen", _succeeds(_host_and_port, server.listen), f"must be {shape}, not {server.listen!r}"
    known_store = not store.url or bool(re.match(r"(sqlite:///|postgresql://).", store.url.reveal()))
    yield "store.url", known_store, "must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE, or empty"

    short_enough = engine.lease_seconds <= engine.max_lease_seconds
    yield "engine.lease_seconds", short_enough, f"must not exceed engine.max_lease_seconds, {engine.max_lease_seconds}"
    tasks = config.tasks
    in_order = tasks.result_webhook_base_backoff_seconds <= tasks.result_webhook_max_backoff_seconds
    longest = tasks.result_webhook_max_backoff_seconds
    problem = f"must not exceed tasks.result_webhook_max_backoff_seconds, {longest}"
    yield "tasks.result_webhook_base_backoff_seconds", in_order, problem
    for section, backoff in (("engine", engine), ("webhooks", webhooks), ("tasks", tasks)):
        longest = backoff.backoff_max_seconds
        in_order = backoff.backoff_base_seconds <= longest
        yield f"{section}.backoff_base_seconds", in_order, f"must not exceed {section}.backoff_max_seconds, {longest}"
    in_time = webhooks.timeout_seconds <= webhooks.give_up_seconds
    yield "webhooks.timeout_seconds", in_time, f"must not exceed webhooks.give_up_seconds, {webhooks.give_up_seconds}"

    for key, networks in (("allow_networks", webhooks.allow_networks), ("deny_networks", webhooks.deny_networks)):
        for index, network in enumerate(networks):
            problem = f"must be a network such as 10.20.0.0/16, with no bits set beyond its prefix, not {network!r}"
            yield f"webhooks.{key}[{index}]", _succeeds(ip_network, network), problem

    for tenant, secrets in webhooks.tenants.items():
        yield f"webhooks.tenants.{tenant}.secret", bool(secrets.secret), "must not be empty"
    paired = bool(webhooks.secret or not webhooks.previous_secret)
    yield "webhooks.previous_secret", paired, "needs webhooks.secret"
    for key, location in (("tls_certificate", server.tls_certificate), ("tls_client_ca", server.tls_client_ca)):
        paired = not location or bool(server.tls_certificate and server.tls_key)
        yield f"server.{key}", paired, "needs server.tls_certificate and server.tls_key"
    paired = not server.tls_key or bool(server.tls_certificate)
    yield "server.tls_key", paired, "needs server.tls_certificate"
    long_enough = not config.provisioning.key or len(config.provisioning.key.reveal().encode()) >= 32
    yield "provisioning.key", long_enough, "must have at least 32 bytes"
    paired = bool(config.provisioning.webhook_secret or not config.provisioning.previous_webhook_secret)
    yield "provisioning.previous_webhook_secret", paired, "needs provisioning.webhook_secret"

    names = [each.name for each in config.inference.targets]
    for index, name in enumerate(names):
        unique = not name or name not in names[:index]
        yield f"inference.targets[{index}].name", unique, f"must be unique: {name!r} is taken"
    long_enough = not auth.jwt_secret or len(auth.jwt_secret.reveal().encode()) >= 32
    yield "auth.jwt_secret", long_enough, "must have at least 32 bytes"
    yield "auth.jwks_file", not (auth.jwks_file and auth.jwks_url), "excludes auth.jwks_url: set one of them"
    for key, location in (("auth.jwks_url", auth.jwks_url), ("auth.jwks_file", auth.jwks_file)):
        complete = not location or bool(auth.jwt_issuer and auth.jwt_audience)
        yield key, complete, "needs auth.jwt_issuer and auth.jwt_audience"
    for index, user in enumerate(auth.users):
        hashed = user.password_hash.reveal().startswith("scrypt:")
        yield f"auth.users[{index}].password_hash", hashed, "must begin with scrypt:"
    for key, names in (("tokens", [each.name for each in auth.tokens]), ("users", [each.name for each in auth.users])):
        for index, name in enumerate(names):
            yield f"auth.{key}[{index}].name", name not in names[:index], f"must be unique: {name!r} is taken"


# ── small parts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _host_and_port(listen: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})", listen)
    if match is None or int(match[3]) > 65535 or (match[1] and ip_address(match[1]).version != 6):
        raise ValueError(listen)
    return match[1] or match[2], int(match[3])


def _succeeds(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _wrap(kind: type, value: Any) -> Any:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise TypeError(f"a {kind.__name__} is made from text")


def _hide(value: Any) -> str:
    if isinstance(value, Secret):
        return "***" if value else ""
    raise NotImplementedError(type(value).__name__)
