"""Celery tasks of the domain: each is safe to run twice, and late. Their times are in `tenants.schedule`."""

import structlog
from celery import shared_task
from django.conf import settings
from django.core.management import call_command

from tenants.services import absent, boosts, responses, series, sessions, training, upkeep

log = structlog.get_logger(__name__)


@shared_task
def expire_keys() -> int:
    """Retire expired keys; returns how many."""
    retired = upkeep.retire_expired_keys()
    if retired:
        log.info("keys_expired", count=retired)
    return retired


@shared_task
def end_boosts() -> int:
    """End boosts whose time has come, should no controller have done it; returns how many."""
    ended = boosts.end_due_boosts()
    if ended:
        log.warning("boosts_ended_late", count=len(ended), tenants=[boost.tenant_slug for boost in ended])
    return len(ended)


@shared_task
def note_last_use() -> int:
    """Move the last use of API keys; returns how many moved."""
    return upkeep.note_last_use()


@shared_task
def roll_up_series() -> int:
    """Turn samples older than a day into coarser ones; returns how many went."""
    return series.roll_up()


@shared_task
def sweep_series() -> int:
    """Delete samples that are older than they are kept; returns how many went."""
    return series.sweep()


@shared_task
def sweep_outbox() -> int:
    """Delete old outbox rows, acks, versions, erasures and absent workers; returns how many rows went."""
    num_erasures = sessions.sweep_erasures() + absent.sweep()
    return upkeep.sweep_outbox() + upkeep.sweep_acks() + upkeep.sweep_versions() + num_erasures


@shared_task
def sweep_responses() -> int:
    """Delete stored responses that are older than they are kept, or more than a tenant may keep; returns how many."""
    return responses.sweep()


@shared_task
def sweep_sessions() -> None:
    """Delete expired browser sessions."""
    call_command("clearsessions")


@shared_task
def train_reuse_predictor() -> str:
    """Have the worker's reuse predictor learn from its trace; returns how that went."""
    done = training.train(settings.ENGINE_STATE_DIR, settings.TRAIN_SECONDS)
    told = log.error if done.outcome == "failed" else log.info
    told(f"reuse_training_{done.outcome}", reason=done.reason, metrics=done.metrics)
    return done.outcome
