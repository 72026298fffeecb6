"""Share groups, their registered prefixes, and the policy field that names a group.

Going back deletes the versions that were share groups': they have no tenant.
"""

import uuid

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models
from django.db.models.functions import Length
from django.db.models.lookups import Exact, LessThanOrEqual

import tenants.models.tenant

FORWARD = """
CREATE FUNCTION tenants_policy_names_live_group() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM tenants_sharegroup WHERE name = NEW.share_group AND NOT removed FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no share group %', NEW.share_group USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION tenants_named_group_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenants_policy WHERE share_group = OLD.name) THEN
        RAISE EXCEPTION 'policies name the share group %', OLD.name USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;

CREATE TRIGGER policy_names_live_group BEFORE INSERT OR UPDATE OF share_group ON tenants_policy
    FOR EACH ROW WHEN (NEW.share_group <> '') EXECUTE FUNCTION tenants_policy_names_live_group();
CREATE TRIGGER share_group_named_stays BEFORE UPDATE OF removed ON tenants_sharegroup
    FOR EACH ROW WHEN (NEW.removed AND NOT OLD.removed) EXECUTE FUNCTION tenants_named_group_stays();
CREATE TRIGGER share_group_named_not_deleted BEFORE DELETE ON tenants_sharegroup
    FOR EACH ROW EXECUTE FUNCTION tenants_named_group_stays();
"""

BACKWARD = """
DROP TRIGGER share_group_named_not_deleted ON tenants_sharegroup;
DROP TRIGGER share_group_named_stays ON tenants_sharegroup;
DROP TRIGGER policy_names_live_group ON tenants_policy;
DROP FUNCTION tenants_named_group_stays();
DROP FUNCTION tenants_policy_names_live_group();
DELETE FROM tenants_policyversion WHERE tenant_id IS NULL;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_guard_slug_audit_and_ledger")]

    operations = [
        migrations.CreateModel(
            name="ShareGroup",
            fields=[
                ("name", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("description", models.CharField(default="", max_length=500)),
                ("version", models.BigIntegerField(unique=True)),
                ("kv_soft_bytes", models.BigIntegerField(default=0)),
                ("kv_hard_bytes", models.BigIntegerField(default=256 << 20)),
                ("secret", models.BinaryField(default=tenants.models.tenant.new_secret)),
                ("removed", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                "constraints": (
                    models.CheckConstraint(
                        condition=models.Q(name__regex=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"),
                        name="share_group_name_form",
                    ),
                    models.CheckConstraint(condition=models.Q(version__gte=1), name="share_group_version_positive"),
                    models.CheckConstraint(
                        condition=models.Q(kv_soft_bytes__gte=0, kv_soft_bytes__lte=models.F("kv_hard_bytes")),
                        name="share_group_soft_within_hard",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(removed=True) | models.Q(kv_hard_bytes__gte=1),
                        name="share_group_hard_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(removed=True) | models.Q(Exact(Length("secret"), 32)),
                        name="share_group_secret_32_bytes",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(removed=False) | models.Q(Exact(Length("secret"), 0), kv_hard_bytes=0),
                        name="share_group_removed_is_empty",
                    ),
                )
            },
        ),
        migrations.CreateModel(
            name="SharedPrefix",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.sharegroup"
                    ),
                ),
                ("name", models.CharField(max_length=80)),
                ("messages", models.JSONField(default=list)),
                ("text", models.TextField(default="")),
                ("num_bytes", models.PositiveIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                ("version", models.BigIntegerField()),
                (
                    "registered_by",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
                ("created_by", models.CharField(max_length=254)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                "constraints": (
                    models.UniqueConstraint(fields=("group", "name"), name="shared_prefix_name_unique"),
                    models.CheckConstraint(
                        condition=models.Q(models.Q(text=""), ~models.Q(messages=[]))
                        | models.Q(~models.Q(text=""), models.Q(messages=[])),
                        name="shared_prefix_messages_or_text",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(num_bytes__gte=1, num_bytes__lte=256 << 10), name="shared_prefix_size"
                    ),
                    models.CheckConstraint(
                        condition=LessThanOrEqual(
                            models.Func(models.F("text"), function="octet_length", output_field=models.IntegerField()),
                            256 << 10,
                        ),
                        name="shared_prefix_text_size",
                    ),
                    models.CheckConstraint(
                        condition=LessThanOrEqual(
                            models.Func(
                                models.F("messages"), function="jsonb_array_length", output_field=models.IntegerField()
                            ),
                            64,
                        ),
                        name="shared_prefix_few_messages",
                    ),
                )
            },
        ),
        migrations.AddField(
            model_name="policy",
            name="share_group",
            field=models.CharField(db_index=True, default="", max_length=40),
        ),
        migrations.AddField(
            model_name="policyversion",
            name="share_group",
            field=models.CharField(default="", max_length=40),
        ),
        migrations.AlterField(
            model_name="policyversion",
            name="tenant",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
            ),
        ),
        migrations.AddConstraint(
            model_name="policyversion",
            constraint=models.CheckConstraint(
                condition=models.Q(tenant__isnull=False, share_group="")
                | models.Q(models.Q(tenant__isnull=True), ~models.Q(share_group="")),
                name="policy_version_owner",
            ),
        ),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
