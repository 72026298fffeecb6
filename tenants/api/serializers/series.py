"""The time series, interference and fairness."""

from typing import Any

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Moment, Strict


class RangeQuery(Strict):
    """From when (inclusive) until when (exclusive)."""

    def get_fields(self) -> dict[str, Any]:
        """Return the fields: `from` cannot be written as an attribute."""
        start = Moment(required=False, help_text="default: an hour before `to`")
        return {"from": start, "to": Moment(required=False, help_text="default: now"), **super().get_fields()}


class TenantRangeQuery(RangeQuery):
    """A range, and of which tenant."""

    tenant = serializers.SlugField(max_length=40, required=False, help_text="default: all")


class TenantPointAnswer(Answer):
    """One step of time: means while the tenant was active, on all workers together."""

    at = serializers.DateTimeField()
    weight = serializers.FloatField()
    kv_bytes = serializers.FloatField(help_text="mean, of device memory")
    kv_cached_bytes = serializers.FloatField(help_text="mean; of `kv_bytes`, what no request holds")
    kv_borrowed_bytes = serializers.FloatField(help_text="mean; of `kv_bytes`, above the soft limit")
    kv_peak_bytes = serializers.IntegerField()
    running = serializers.FloatField(help_text="mean")
    queued = serializers.FloatField(help_text="mean")
    oldest_wait_seconds = serializers.FloatField(help_text="the longest")
    above_soft_seconds = serializers.FloatField(help_text="this and all below: within the step, all workers together")
    service = serializers.FloatField(help_text="prefill tokens + 2 · output tokens")
    output_tokens = serializers.IntegerField()
    num_preemptions = serializers.IntegerField()
    recomputed_tokens = serializers.IntegerField()


class TenantLineAnswer(Answer):
    """One tenant; steps in which it was idle have no point."""

    tenant = serializers.CharField(help_text="slug")
    points = TenantPointAnswer(many=True)


class RangeAnswer(Answer):
    """The range of an answer."""

    def get_fields(self) -> dict[str, Any]:
        """Return the fields: `from` cannot be written as an attribute."""
        moments = {"from": serializers.DateTimeField(), "to": serializers.DateTimeField()}
        return {**moments, **super().get_fields()}


class SpanAnswer(RangeAnswer):
    """The range of an answer, and how far apart its points are."""

    step_seconds = serializers.IntegerField(help_text="10 for the last day, 300 before; more for long ranges")


class TenantSeriesAnswer(SpanAnswer):
    """Tenants over time, the busiest first."""

    num_tenants = serializers.IntegerField(help_text="with samples in the range; there may be fewer lines")
    tenants = TenantLineAnswer(many=True)


class PressurePointAnswer(Answer):
    """One step of time: means, each from 0 to 1."""

    at = serializers.DateTimeField()
    score = serializers.FloatField(help_text="1 - Π (1 - weight · part)")
    score_peak = serializers.FloatField(help_text="the highest")
    use = serializers.FloatField(help_text="what nobody can have now, 0 at the low and 1 at the high watermark")
    borrowed = serializers.FloatField(help_text="share of the pool that sequences use above guarantees")
    wait = serializers.FloatField(help_text="longest wait for memory, by what the class bears")
    swap = serializers.FloatField(help_text="share of the time in which blocks are copied between tiers")
    pool_use = serializers.FloatField(help_text="share of the pool that requests hold")


class PressureLineAnswer(Answer):
    """One worker; steps in which it was not heard have no point."""

    worker_id = serializers.CharField()
    points = PressurePointAnswer(many=True)


class PressureSeriesAnswer(SpanAnswer):
    """How short memory was, worker by worker."""

    workers = PressureLineAnswer(many=True)


class PairAnswer(Answer):
    """What one account's need has cost another: slugs of tenants, or "group:" and a share group's name.

    Where both are the same, its own limits were the reason.
    """

    by = serializers.CharField(help_text="by whose need")
    of = serializers.CharField(help_text="of whose memory")
    cached_blocks = serializers.IntegerField(help_text="cached blocks of `of` that were given up")
    num_preemptions = serializers.IntegerField(help_text="running sequences of `of` that had to make way")
    recomputed_tokens = serializers.IntegerField(help_text="tokens that had to be computed again for it")
    swapped_bytes = serializers.IntegerField(help_text="bytes that were moved out for it")


class InterferenceAnswer(RangeAnswer):
    """Who cost whom what, the dearest pairs first."""

    num_pairs = serializers.IntegerField(help_text="in the range; the answer may hold fewer")
    pairs = PairAnswer(many=True)


class ServicePointAnswer(Answer):
    """One step of time."""

    at = serializers.DateTimeField()
    service = serializers.FloatField()
    share = serializers.FloatField(help_text="service ÷ weight")


class ServiceLineAnswer(Answer):
    """One tenant's service."""

    tenant = serializers.CharField(help_text="slug")
    service = serializers.FloatField(help_text="prefill tokens + 2 · output tokens")
    weight = serializers.FloatField(help_text="mean")
    share = serializers.FloatField(help_text="service ÷ weight")
    waited = serializers.BooleanField(help_text="it had requests in its queue")
    points = ServicePointAnswer(many=True)


class JainPointAnswer(Answer):
    """One step of time."""

    at = serializers.DateTimeField()
    jain = serializers.FloatField(allow_null=True)
    num_tenants = serializers.IntegerField()


class FairnessAnswer(SpanAnswer):
    """How even service was: Jain's index (Σx)² ÷ (n · Σx²) over x = service ÷ weight.

    Of the tenants that were served or had requests waiting: 1 when all had the same, 1/n when one had all; null when
    nobody had any.
    """

    jain = serializers.FloatField(allow_null=True)
    num_tenants = serializers.IntegerField(help_text="with samples in the range; there may be fewer lines")
    points = JainPointAnswer(many=True)
    tenants = ServiceLineAnswer(many=True)
