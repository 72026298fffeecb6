"""Live limits: ceilings in host RAM and on disk, limits on trial, each policy's history, boosts, settled acks.

The version that is in force for a tenant becomes the first that its policy can be brought back to. Going back forgets the
history, the boosts (their changes stay in force) and what settled when.
"""

import uuid

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

FORWARD = """
UPDATE tenants_policyversion AS made SET action = 'policy.changed', policy = jsonb_build_object(
    'version', p.version, 'weight', p.weight, 'kv_soft_bytes', p.kv_soft_bytes, 'kv_hard_bytes', p.kv_hard_bytes,
    'max_running', p.max_running, 'max_queued', p.max_queued, 'rpm', p.rpm, 'tpm', p.tpm,
    'max_context', p.max_context, 'max_output', p.max_output, 'priority', p.priority, 'share_group', p.share_group,
    'host_bytes', p.host_bytes, 'disk_bytes', p.disk_bytes, 'shadow', p.shadow)
FROM tenants_policy AS p WHERE p.version = made.version AND p.tenant_id = made.tenant_id;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_share_groups")]

    operations = [
        migrations.CreateModel(
            name="Boost",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
                ("changes", models.JSONField()),
                ("before", models.JSONField()),
                ("reason", models.CharField(max_length=500)),
                ("started_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("ends_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("started_version", models.BigIntegerField()),
                ("ended_version", models.BigIntegerField(null=True)),
                ("created_by", models.CharField(max_length=254)),
            ],
            options={
                "constraints": (
                    models.UniqueConstraint(
                        fields=("tenant",), condition=models.Q(ended_at__isnull=True), name="boost_one_in_force"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(ends_at__gt=models.F("started_at")), name="boost_ends_after_its_start"
                    ),
                ),
                "indexes": [
                    models.Index(fields=["ends_at"], condition=models.Q(ended_at__isnull=True), name="boost_due"),
                    models.Index(fields=["tenant", "-started_at", "-id"], name="boost_page"),
                ],
            },
        ),
        migrations.AddField("policy", "host_bytes", models.BigIntegerField(default=1 << 30)),
        migrations.AddField("policy", "disk_bytes", models.BigIntegerField(default=0)),
        migrations.AddField("policy", "shadow", models.JSONField(default=dict)),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=models.Q(host_bytes__gte=0, disk_bytes__gte=0), name="policy_tiers_not_negative"
            ),
        ),
        migrations.AddField("policyack", "over_bytes", models.BigIntegerField(default=0)),
        migrations.AddField("policyack", "settle_seconds", models.FloatField(default=0.0)),
        migrations.AddField("policyack", "settled_at", models.DateTimeField(null=True)),
        migrations.AddField("policyversion", "policy", models.JSONField(null=True)),
        migrations.AddField("policyversion", "action", models.CharField(default="", max_length=64)),
        migrations.AddField("policyversion", "changed_by", models.CharField(default="", max_length=254)),
        migrations.AddField("policyversion", "changed", models.JSONField(default=list)),
        migrations.AddIndex("policyversion", models.Index(fields=["tenant", "-version"], name="policy_version_page")),
        migrations.RunSQL(FORWARD, migrations.RunSQL.noop),
    ]
