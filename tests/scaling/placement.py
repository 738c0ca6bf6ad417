"""Which cluster a tenant's jobs are in: by a hash, but for the tenants that a table names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256


def home_by_hash(tenant: str, clusters: Sequence[str]) -> str:
    """Rendezvous hashing: each cluster draws a number for the tenant, and the highest wins.

    A cluster that is added takes only the tenants for which it draws the highest; nothing moves between the others.
    """
    return max(clusters, key=lambda cluster: sha256(f"{cluster}/{tenant}".encode()).digest())


@dataclass(frozen=True)
class TenantMap:
    version: int = 1  # grows with every change
    layout: int = 1  # grows when the list of clusters changes
    clusters: tuple[str, ...] = ()
    exceptions: Mapping[str, str] = field(default_factory=dict)  # tenants that are not where the hash says

    def home(self, tenant: str) -> str:
        return self.exceptions.get(tenant) or home_by_hash(tenant, self.clusters)

    def with_home(self, tenant: str, cluster: str) -> "TenantMap":
        exceptions = {name: home for name, home in self.exceptions.items() if name != tenant}
        if home_by_hash(tenant, self.clusters) != cluster:
            exceptions[tenant] = cluster
        return TenantMap(self.version + 1, self.layout, self.clusters, exceptions)

    def with_cluster(self, cluster: str, tenants: Sequence[str]) -> "TenantMap":
        """Add a cluster for tenants to come. Those that are there stay where they are until they are moved."""
        clusters = (*self.clusters, cluster)
        homes = {tenant: self.home(tenant) for tenant in tenants}
        stay = {tenant: home for tenant, home in homes.items() if home_by_hash(tenant, clusters) != home}
        return TenantMap(self.version + 1, self.layout + 1, clusters, stay)
