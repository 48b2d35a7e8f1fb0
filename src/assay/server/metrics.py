"""What Prometheus is told."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from assay.grading import Verdict

from .admission import Admission

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    """The metrics of one server."""

    def __init__(self, admission: Admission) -> None:
        """In-flight work and the queue are read from `admission` when they are asked for."""
        self.registry = CollectorRegistry()
        self._verified = Counter(
            "assay_verifications",
            "Verifications that came to a verdict, by status and by the failure's kind (empty: none)",
            ("status", "kind"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "assay_verification_duration_seconds",
            "From the request to its verdict, the wait in the queue included",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._replayed = Counter(
            "assay_replays", "Replies that were kept from an earlier request with the same key", registry=self.registry
        )
        self._refused = Counter(
            "assay_refusals", "Requests that were refused: nothing ran", ("status",), registry=self.registry
        )
        self._cut = Counter(
            "assay_abandoned", "Clients that went away before the reply to a verification", registry=self.registry
        )
        in_flight = Gauge("assay_verifications_in_flight", "Verifications that run now", registry=self.registry)
        in_flight.set_function(lambda: admission.running)
        depth = Gauge("assay_queue_depth", "Verifications that wait for room", registry=self.registry)
        depth.set_function(lambda: admission.waiting)

    def verified(self, verdict: Verdict, seconds: float) -> None:
        """Count one verdict."""
        kind = str((verdict.failure or {}).get("kind", "")) if not verdict.graded else ""
        self._verified.labels(verdict.status, kind).inc()
        self._seconds.observe(seconds)

    def replayed(self) -> None:
        """Count a saved reply that was given again."""
        self._replayed.inc()

    def refused(self, status: int) -> None:
        """Count a refusal."""
        self._refused.labels(str(status)).inc()

    def abandoned(self) -> None:
        """Count a client that went away."""
        self._cut.inc()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
