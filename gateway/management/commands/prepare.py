"""`manage.py prepare`: what must be true of the database before web serves in embedded mode."""

import time
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.config import config
from gateway.embedded.instance import SECRETS_NAME
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.secret_store import keep_demo, load_secrets
from tenants.services.demo import ensure_demo

WAIT_SECONDS = 60


class Command(BaseCommand):
    """Wait for Postgres, make the database, migrate, make the demo tenants work with the kept credentials."""

    help = "Migrate and make the demo tenants; started by `manage.py up`."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--private-server", action="store_true", help="make the database in our own Postgres first")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prepare the database."""
        if options["private_server"]:
            self._create_database()
        call_command("migrate", interactive=False, verbosity=0)
        secrets_file = config().var_dir / SECRETS_NAME
        keep_demo(secrets_file, ensure_demo(load_secrets(secrets_file).demo))

    def _create_database(self) -> None:
        directory = settings.DATABASES["default"]["HOST"]
        server = EmbeddedPostgres(data_dir=config().var_dir / "postgres", socket_dir=directory)
        deadline = time.monotonic() + WAIT_SECONDS
        while not server.is_ready():
            if time.monotonic() > deadline:
                raise CommandError(f"Postgres did not answer within {WAIT_SECONDS} s")
            time.sleep(0.05)
        server.create_database()
