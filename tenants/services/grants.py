"""The controller notes how it has divided tenants' limits over the workers, for whoever leads after it."""

from collections.abc import Mapping

import msgspec
from django.db import connection

Parts = Mapping[str, tuple[float, float]]  # by worker: of bytes, of places; each 0 to 1

_RECORD = """
INSERT INTO tenants_grantshare (tenant_id, term, shares)
SELECT tenant.id, %s, noted.value
FROM jsonb_each(%s::jsonb) AS noted JOIN tenants_tenant AS tenant ON tenant.id = noted.key::uuid
ON CONFLICT (tenant_id) DO UPDATE SET term = EXCLUDED.term, shares = EXCLUDED.shares
WHERE tenants_grantshare.term <= EXCLUDED.term
"""


def record_shares(*, term: int, shares: Mapping[str, Parts]) -> None:
    """Note the most that each worker may be granted of tenants' limits; what a later leader has noted stays.

    Args:
        term: of the controller that divides.
        shares: by tenant id; tenants that are gone are left out.
    """
    with connection.cursor() as cursor:
        cursor.execute(_RECORD, [term, msgspec.json.encode(shares).decode()])
