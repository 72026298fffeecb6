#!/usr/bin/env python
"""Django's command line; `manage.py up` starts the whole product."""

import os
import sys

from django.core.management import execute_from_command_line

from gateway.config import ConfigError

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    try:
        execute_from_command_line(sys.argv)
    except ConfigError as error:
        print(f"tollgate: {error}", file=sys.stderr)
        sys.exit(2)
