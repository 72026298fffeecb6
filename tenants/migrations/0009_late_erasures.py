"""Workers that are forgotten and may come back, and erasures that they miss meanwhile. Going back forgets both."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0008_stored_responses"),
    ]

    operations = [
        migrations.CreateModel(
            name="AbsentWorker",
            fields=[
                ("id", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("model", models.CharField(max_length=200)),
                ("last_seen_at", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name="LateErasure",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("session", models.CharField(blank=True, max_length=256)),
                ("model", models.CharField(max_length=200)),
                ("asked_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("asked_by", models.CharField(max_length=254)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["model", "asked_at"], name="late_erasure_due")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "model", "session"), name="late_erasure_once")
                ],
            },
        ),
    ]
