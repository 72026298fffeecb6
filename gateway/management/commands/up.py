"""`manage.py up`: the whole product in one command, behind `make serve`."""

import sys
import time
from typing import Any

from django.core.management.base import BaseCommand

from gateway.config import config
from gateway.embedded.banner import banner
from gateway.embedded.errors import EmbeddedError
from gateway.embedded.instance import Instance, claim
from gateway.embedded.product import Product
from gateway.embedded.secret_store import write_private
from gateway.embedded.stopping import StopRequested, StopSignals

CANNOT_START = 2
FAILED = 1


class Command(BaseCommand):
    """Start Postgres, Redis, web, celery, controller and an engine worker; stay until a signal; stop them all."""

    help = "Start the whole product on this machine. Settings come from the environment: PORT, TOLLGATE_VAR, ENGINE_…"
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the product. Exit status 2: something to put right first; 1: a program failed."""
        signals = StopSignals()
        try:
            with claim(config()) as instance:
                self._run(instance, signals)
        except EmbeddedError as error:
            self._fail(error, CANNOT_START)
        except OSError as error:  # a file of another user's below a folder that is ours, or a full disk
            place = error.filename or config().var_dir
            reason = error.strerror or str(error)
            hint = "see that this user may write there, or set TOLLGATE_VAR to another folder"
            self._fail(EmbeddedError(f"{place}: {reason}; {hint}"), CANNOT_START)

    def _run(self, instance: Instance, signals: StopSignals) -> None:
        began = time.monotonic()
        product = Product(config(), instance, signals)
        failure: EmbeddedError | None = None
        try:
            self._say("Starting Tollgate …")
            serve = product.start()
            write_private(instance.serve_file, serve)
            self._say(banner(serve, instance.serve_file, time.monotonic() - began))
            product.watch()
        except StopRequested:
            self._say("Stopping …")
        except EmbeddedError as error:
            failure = error
        finally:
            instance.serve_file.unlink(missing_ok=True)
            product.stop()
        if failure is not None:
            self._fail(failure, FAILED)

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def _fail(self, error: EmbeddedError, status: int) -> None:
        self.stderr.write(f"tollgate: {error}")
        sys.exit(status)
