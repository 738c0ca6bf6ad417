"""One frozen Config, built once: `settings` defines every setting, `loading` reads them, `checking` validates them."""

from chargehand.config.checking import allowed as allowed
from chargehand.config.loading import load_config as load_config
from chargehand.config.loading import require_safe as require_safe
from chargehand.config.settings import FILE_VARIABLES as FILE_VARIABLES
from chargehand.config.settings import SECTIONS as SECTIONS
from chargehand.config.settings import SETTINGS as SETTINGS
from chargehand.config.settings import VARIABLES as VARIABLES
from chargehand.config.settings import AuthConfig as AuthConfig
from chargehand.config.settings import Config as Config
from chargehand.config.settings import InferenceConfig as InferenceConfig
from chargehand.config.settings import ModelConfig as ModelConfig
from chargehand.config.settings import ProvisioningConfig as ProvisioningConfig
from chargehand.config.settings import Secret as Secret
from chargehand.config.settings import ServerConfig as ServerConfig
from chargehand.config.settings import TargetConfig as TargetConfig
from chargehand.config.settings import TasksConfig as TasksConfig
from chargehand.config.settings import Tenant as Tenant
from chargehand.config.settings import TenantSecrets as TenantSecrets
from chargehand.config.settings import Token as Token
from chargehand.config.settings import User as User
from chargehand.config.settings import WebhooksConfig as WebhooksConfig
