"""Erasures of sessions that wait for their worker; a ceiling on disk for everybody; disks that are encrypted.

Until now nothing was kept on disk and the ceiling's default of 0 said so: whoever has it gets the new default. Going back
keeps the ceilings, and forgets the seeds: what is on disk under their secrets is lost, which costs its computation.
"""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models
from django.db.models.functions import Length
from django.db.models.lookups import Exact

FORWARD = """
UPDATE tenants_policyversion AS made SET policy = jsonb_set(made.policy, '{disk_bytes}', to_jsonb(2147483648))
FROM tenants_policy AS p WHERE p.version = made.version AND p.tenant_id = made.tenant_id AND p.disk_bytes = 0
AND made.policy IS NOT NULL;
UPDATE tenants_policy SET disk_bytes = 2147483648 WHERE disk_bytes = 0;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0006_grant_shares")]

    operations = [
        migrations.CreateModel(
            name="SessionErasure",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                ("session", models.CharField(blank=True, max_length=256)),
                ("worker_id", models.CharField(max_length=100)),
                ("requested_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("requested_by", models.CharField(max_length=254)),
            ],
            options={
                "indexes": [models.Index(fields=["worker_id", "id"], name="session_erasure_due")],
                "constraints": (
                    models.UniqueConstraint(fields=("tenant", "session", "worker_id"), name="session_erasure_once"),
                ),
            },
        ),
        migrations.AlterField("policy", "disk_bytes", models.BigIntegerField(default=2 << 30)),
        migrations.RunSQL(FORWARD, migrations.RunSQL.noop),
        migrations.AddField("policy", "encrypt_disk", models.BooleanField(default=False)),
        migrations.AddField("policy", "disk_seed", models.BinaryField(default=b"", editable=False)),
        migrations.AddConstraint(
            "policy",
            models.CheckConstraint(
                condition=models.Q(models.Q(encrypt_disk=True), Exact(Length("disk_seed"), 32))
                | models.Q(models.Q(encrypt_disk=False), Exact(Length("disk_seed"), 0)),
                name="policy_disk_seed",
            ),
        ),
    ]
