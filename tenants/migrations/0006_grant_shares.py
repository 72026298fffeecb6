"""How much of a tenant's limits each worker may have been granted, for the next controller."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_time_series")]

    operations = [
        migrations.CreateModel(
            name="GrantShare",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="tenants.tenant",
                    ),
                ),
                ("term", models.BigIntegerField()),
                ("shares", models.JSONField()),
            ],
        ),
    ]
