"""What one replica counts and times as it happens. Names are in base units; label values are few and ours.

What is only read, because the pool has a counter of its own for it, is not here but in `pool/metering.py`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets: from a lone item on a fast GPU to a request at its deadline."""
ITEMS = (1, 2, 4, 8, 16, 32, 64)
TOKENS = (64, 256, 1024, 4096, 16_384, 65_536)


class Meter:
    """The instruments of one replica. They may be used from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests",
            "Answers by route and status; 499 where the client left first.",
            "route",
            "status",
        )
        self.rejections = self._counter("rejections", "Errors that were answered, by their code.", "code")
        self.media_bytes = self._counter(
            "media_bytes", "Bytes of media as received, by the kind of body they came in.", "source"
        )
        self.request_seconds = self._histogram(
            "request_seconds", "From a request's head to the end of its answer.", SECONDS, "route"
        )
        self.preprocess_seconds = self._histogram(
            "preprocess_seconds", "Decoding and resizing of an item.", SECONDS, "modality"
        )
        self.queue_seconds = self._histogram(
            "queue_seconds", "From the queue's end to a worker, for an item or a piece of one.", SECONDS
        )
        self.encode_seconds = self._histogram(
            "encode_seconds", "From a worker to the rows, for an item or a piece of one.", SECONDS
        )
        self.serialize_seconds = self._histogram("serialize_seconds", "Writing an answer's body.", SECONDS)
        self.batch_items = self._histogram("batch_items", "Items, or pieces, in a pack.", ITEMS)
        self.batch_tokens = self._histogram("batch_tokens", "Tokens in a pack.", TOKENS)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"encoder_pool_{name}", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"encoder_pool_{name}", meaning, labels, buckets=bounds, registry=self.registry)
