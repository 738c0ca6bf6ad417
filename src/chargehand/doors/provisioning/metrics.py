"""The metrics of this door, under the names of the provisioning contract, so that its dashboards work."""

from prometheus_client import CollectorRegistry, Counter

from chargehand.observability.tally import Tally

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_JOB_SECONDS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)
_BYTES = (16_384, 65_536, 262_144, 1_048_576, 4_194_304, 10_485_760)
_ROUTES = ("/api/v1/", "/media/", "/v2/")
_STATUSES = ("success", "failed", "duplicate", "refused")


class ProvisioningMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        r = registry
        # fmt: off
        self.webhooks = Counter("webhook_received_total", "Status webhooks of machines: success, failed, duplicate, refused", ["status"], registry=r)
        self.webhook_seconds = Tally("webhook_delivery_duration_seconds", "From the end of the work, by the machine's clock, to its report", [], _SECONDS, r)
        self.job_seconds = Tally("job_duration_seconds", "From the submission of a provisioning job to its end", ["outcome"], _JOB_SECONDS, r)
        self.transitions = Counter("job_transitions_total", "Changes of the status of provisioning jobs", ["from", "to"], registry=r)
        self.redfish_seconds = Tally("redfish_request_duration_seconds", "Requests to BMCs", ["operation", "vendor"], _SECONDS, r)
        self.redfish_failures = Counter("redfish_request_failures_total", "Requests to BMCs that failed", ["operation", "vendor"], registry=r)
        self.iso_seconds = Tally("iso_build_duration_seconds", "Time to build a task medium", [], _SECONDS, r)
        self.iso_bytes = Tally("iso_size_bytes", "Size of the task media that were built", [], _BYTES, r)
        self.cleanup_seconds = Tally("cleanup_duration_seconds", "From the outcome to the end of cleaning up", [], _SECONDS, r)
        self.failures = Counter("provisioning_failures_total", "Jobs that failed, by key", ["failed_step"], registry=r)
        self.http_requests = Counter("controller_http_requests_total", "Requests to this door", ["route", "code"], registry=r)
        # fmt: on
        for status in _STATUSES:
            self.webhooks.labels(status)  # Prometheus sees no increase in a series that begins with 1

    def observe_redfish(self, operation: str, vendor: str, seconds: float, ok: bool) -> None:
        self.redfish_seconds.at(operation, vendor)(seconds)
        if not ok:
            self.redfish_failures.labels(operation, vendor).inc()

    def counts(self, route: str) -> bool:
        return route.startswith(_ROUTES)

    def count_http(self, route: str, status: int) -> None:
        self.http_requests.labels(route, str(status)).inc()

    def count_transition(self, before: str, after: str) -> None:
        self.transitions.labels(before, after).inc()
