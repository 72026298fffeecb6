"""Responses of /v1/responses that are kept for thirty days. Going back forgets them."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

RUNNING = ("queued", "in_progress")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0007_sessions_and_disk")]

    operations = [
        migrations.CreateModel(
            name="StoredResponse",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("project_id", models.UUIDField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("in_progress", "In Progress"),
                            ("completed", "Completed"),
                            ("incomplete", "Incomplete"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        max_length=16,
                    ),
                ),
                ("background", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("lease_until", models.DateTimeField(null=True)),
                ("sealed", models.BinaryField()),
                ("num_bytes", models.PositiveIntegerField()),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["created_at"], name="response_age"),
                    models.Index(
                        fields=["tenant", "-created_at", "-id"], include=("num_bytes",), name="response_tenant_age"
                    ),
                    models.Index(
                        condition=models.Q(("lease_until__isnull", False)),
                        fields=["lease_until"],
                        name="response_lease",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"],
                            )
                        ),
                        name="response_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("background", True), ("lease_until__isnull", False), ("status__in", RUNNING)),
                            models.Q(models.Q(("status__in", RUNNING), _negated=True), ("lease_until__isnull", True)),
                            _connector="OR",
                        ),
                        name="response_lease_while_it_runs",
                    ),
                ],
            },
        ),
    ]
