"""Every setting with its type, in a frozen struct for each section.

`config.default.toml` holds every default, so the structs have none: a key that is missing there fails every test.
"""

import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta


class Secret:
    """Text that repr() hides; only `reveal` returns it."""

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


# ── types of settings ─────────────────────────────────────────────────────────────────────────────────────────────────

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
    processes: Annotated[int, Meta(ge=1, le=64)]
    data_dir: Filled
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**30)]
    max_bodies_bytes: Annotated[int, Meta(ge=1024, le=2**40)]
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
        return host_and_port(self.listen)[0]

    @property
    def port(self) -> int:
        return host_and_port(self.listen)[1]

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


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
    # Secret, because passwords can be guessed, unlike tokens: a hash lets an attacker test guesses.
    password_hash: Secret
    tenant: Tenant = "default"
    scopes: tuple[str, ...] = ("*",)


class AuthConfig(Section, frozen=True, kw_only=True):
    tokens: tuple[Token, ...]
    jwt_secret: Secret
    jwks_url: UrlOrEmpty
    jwks_file: str
    jwt_issuer: str
    jwt_audience: tuple[Filled, ...]
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
    """An inference target; a plain URL in a list stands for a target with defaults."""

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
    answer_timeout_seconds: Seconds
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
    grpc_listen: str
    public_url: UrlOrEmpty


class ProvisioningConfig(Section, frozen=True, kw_only=True):
    enabled: bool
    public_url: UrlOrEmpty
    maintenance_iso: str
    ca_file: str
    media_dir: str
    webhook_secret: Secret
    previous_webhook_secret: Secret
    webhook_tenant: Tenant
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

    @property
    def files_directory(self) -> Path:
        """The directory of all files' bytes, also those of doors other than inference."""
        return Path(self.inference.artifacts_dir or Path(self.server.data_dir) / "files")

    def redacted(self) -> dict[str, Any]:
        """Return the effective settings as plain data, with secrets hidden."""
        return {section: msgspec.to_builtins(getattr(self, section), enc_hook=_hide) for section in SECTIONS}


SECTIONS: Mapping[str, type[Section]] = {
    field.name: field.type for field in msgspec.structs.fields(Config) if field.name != "origins"
}
SETTINGS: Mapping[str, Any] = {
    f"{section}.{field.name}": field.type
    for section, kind in SECTIONS.items()
    for field in msgspec.structs.fields(kind)
}
# No two collide, because no section has an underscore in its name.
VARIABLES: Mapping[str, str] = {f"CHARGEHAND_{key.replace('.', '_')}".upper(): key for key in SETTINGS}
# Variables that name a file with the value: systemd, Docker and Kubernetes provide secrets in files, and an environment leaks easily.
FILE_VARIABLES: Mapping[str, str] = {f"{name}_FILE": key for name, key in VARIABLES.items()}


# ── small parts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def host_and_port(listen: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})", listen)
    if match is None or int(match[3]) > 65535 or (match[1] and ip_address(match[1]).version != 6):
        raise ValueError(listen)
    return match[1] or match[2], int(match[3])


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def wrap(kind: type, value: Any) -> Any:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise TypeError(f"a {kind.__name__} must be text")


def _hide(value: Any) -> str:
    if isinstance(value, Secret):
        return "***" if value else ""
    raise NotImplementedError(type(value).__name__)
