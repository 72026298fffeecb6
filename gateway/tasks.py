"""Celery tasks that talk to workers: each is safe to run twice, and late. Their times are in `tenants.schedule`."""

import structlog
from celery import shared_task

from gateway.workers import erasures

log = structlog.get_logger(__name__)


@shared_task
def deliver_erasures() -> int:
    """Let workers that are back erase the sessions that were erased while they were away; returns how many."""
    done = erasures.deliver()
    if done:
        log.info("erasures_delivered", count=done)
    return done
