"""Triggers for what no code path may do: change a slug, rewrite the audit trail, rewrite the ledger."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION tenants_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is not allowed', TG_OP, TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER tenant_slug_immutable BEFORE UPDATE OF slug ON tenants_tenant
    FOR EACH ROW WHEN (OLD.slug IS DISTINCT FROM NEW.slug) EXECUTE FUNCTION tenants_refuse_change();
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON tenants_auditevent
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change();
CREATE TRIGGER usage_insert_only BEFORE UPDATE ON tenants_usagerecord
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change();
"""

BACKWARD = """
DROP TRIGGER usage_insert_only ON tenants_usagerecord;
DROP TRIGGER audit_append_only ON tenants_auditevent;
DROP TRIGGER tenant_slug_immutable ON tenants_tenant;
DROP FUNCTION tenants_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_first_tables")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
