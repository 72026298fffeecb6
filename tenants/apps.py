"""The domain as a Django app."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    """Register the app."""

    name = "tenants"
    default_auto_field = "django.db.models.BigAutoField"
