"""Prometheus metrics of a gateway: its answers, and its open streams. Needs ``prometheus``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector


class GatewayMetrics(Collector):
    """The numbers of one gateway in one process. No label holds an id of a user."""

    def __init__(self, answers: Counter[tuple[str, int]], streams: Callable[[], int]) -> None:
        self._answers = answers
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        answers = CounterMetricFamily(
            "redis_state_gateway_answers",
            "Answers of the gateway.",
            labels=["operation", "status"],
        )
        for (operation, status), count in self._answers.copy().items():
            answers.add_metric([operation, str(status)], count)
        yield answers
        yield GaugeMetricFamily(
            "redis_state_gateway_streams", "Streams that are open.", value=self._streams()
        )

    def written(self) -> tuple[bytes, str]:
        """Return the metrics as they are scraped, and their media type."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry), CONTENT_TYPE_LATEST
