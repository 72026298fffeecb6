"""The gateway as a Django app: management commands and console views, no models."""

from django.apps import AppConfig


class GatewayAppConfig(AppConfig):
    """Register the app."""

    name = "gateway"
