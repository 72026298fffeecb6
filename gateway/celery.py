"""The Celery app: what may be late (roll-ups, clean-up, webhooks) runs in its worker, beat gives the times."""

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

app = Celery("tollgate")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Leave logging as Django's settings configure it: with a receiver connected, Celery sets up none of its own."""
