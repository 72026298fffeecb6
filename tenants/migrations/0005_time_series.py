"""Tables of the time series. Going back deletes what was recorded."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0004_live_limits"),
    ]

    operations = [
        migrations.CreateModel(
            name="SeriesMark",
            fields=[
                ("worker_id", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("term", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                ("counters", models.BinaryField()),
            ],
        ),
        migrations.CreateModel(
            name="InterferenceSample",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("seconds", models.PositiveSmallIntegerField()),
                ("worker_id", models.CharField(max_length=100)),
                ("by", models.CharField(max_length=120)),
                ("of", models.CharField(max_length=120)),
                ("cached_blocks", models.BigIntegerField()),
                ("num_preemptions", models.BigIntegerField()),
                ("recomputed_tokens", models.BigIntegerField()),
                ("swapped_bytes", models.BigIntegerField()),
            ],
            options={
                "indexes": [models.Index(fields=["at"], name="interference_at")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("seconds", "at", "worker_id", "by", "of"), name="interference_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PressureSample",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("seconds", models.PositiveSmallIntegerField()),
                ("covered", models.FloatField()),
                ("worker_id", models.CharField(max_length=100)),
                ("score", models.FloatField()),
                ("score_peak", models.FloatField()),
                ("use", models.FloatField()),
                ("borrowed", models.FloatField()),
                ("wait", models.FloatField()),
                ("swap", models.FloatField()),
                ("pool_use", models.FloatField()),
            ],
            options={
                "indexes": [models.Index(fields=["at"], name="pressure_sample_at")],
                "constraints": [
                    models.UniqueConstraint(fields=("seconds", "at", "worker_id"), name="pressure_sample_unique"),
                    models.CheckConstraint(condition=models.Q(("covered__gt", 0)), name="pressure_sample_covered"),
                ],
            },
        ),
        migrations.CreateModel(
            name="TenantSample",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("seconds", models.PositiveSmallIntegerField()),
                ("covered", models.FloatField()),
                ("worker_id", models.CharField(max_length=100)),
                ("tenant_id", models.UUIDField()),
                ("weight", models.FloatField()),
                ("kv_bytes", models.FloatField()),
                ("kv_cached_bytes", models.FloatField()),
                ("kv_borrowed_bytes", models.FloatField()),
                ("kv_peak_bytes", models.BigIntegerField()),
                ("running", models.FloatField()),
                ("queued", models.FloatField()),
                ("oldest_wait_seconds", models.FloatField()),
                ("above_soft_seconds", models.FloatField()),
                ("service", models.FloatField()),
                ("output_tokens", models.BigIntegerField()),
                ("num_preemptions", models.BigIntegerField()),
                ("recomputed_tokens", models.BigIntegerField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant_id", "at"], name="tenant_sample_tenant"),
                    models.Index(fields=["at"], name="tenant_sample_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("seconds", "at", "worker_id", "tenant_id"), name="tenant_sample_unique"
                    ),
                    models.CheckConstraint(condition=models.Q(("covered__gt", 0)), name="tenant_sample_covered"),
                ],
            },
        ),
    ]
