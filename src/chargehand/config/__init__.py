"""One frozen Config, built once: `settings` defines every setting, `loading` reads them, `checking` validates them."""

from chargehand.config.checking import allowed
from chargehand.config.loading import load_config, require_safe
from chargehand.config.settings import (
    FILE_VARIABLES,
    SECTIONS,
    SETTINGS,
    VARIABLES,
    AuthConfig,
    Config,
    InferenceConfig,
    ModelConfig,
    ProvisioningConfig,
    Secret,
    ServerConfig,
    TargetConfig,
    TasksConfig,
    Tenant,
    TenantSecrets,
    Token,
    User,
    WebhooksConfig,
)

__all__ = [
    "FILE_VARIABLES",
    "SECTIONS",
    "SETTINGS",
    "VARIABLES",
    "AuthConfig",
    "Config",
    "InferenceConfig",
    "ModelConfig",
    "ProvisioningConfig",
    "Secret",
    "ServerConfig",
    "TargetConfig",
    "TasksConfig",
    "Tenant",
    "TenantSecrets",
    "Token",
    "User",
    "WebhooksConfig",
    "allowed",
    "load_config",
    "require_safe",
]
