"""`manage.py controller`: the process that carries policy to the workers and usage back."""

import asyncio
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gateway.config import config
from gateway.controller.main import ControllerSettings, run
from gateway.database import conninfo


class Command(BaseCommand):
    """Run the controller until SIGTERM; a second one stands by and takes over."""

    help = "Carry policy to the engine workers, and acks, stats and usage back. Run two for failover: one is active."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the event loop.

        Raises:
            CommandError: ENGINE_TOKEN is not set.
        """
        token = config().engine_token
        if not token:
            raise CommandError("ENGINE_TOKEN is not set: give the controller and every worker the same secret")
        asyncio.run(
            run(
                ControllerSettings(
                    conninfo=conninfo(settings.DATABASES["default"]),
                    redis_url=settings.REDIS_URL,
                    token=token,
                    ca_file=config().engine_ca,
                )
            )
        )
