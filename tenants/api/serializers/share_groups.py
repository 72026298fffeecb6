"""Share groups and registered prefixes."""

from typing import Any

from rest_framework import serializers

from tenants.api.serializers.base import Answer, Strict, Unchecked, page_of, refuse_unknown
from tenants.rules.prefixes import ROLES


class ShareGroupAnswer(Answer):
    """A share group; the ETag is its version."""

    name = serializers.CharField()
    description = serializers.CharField()
    version = serializers.IntegerField(help_text="rises with each change of the group or its prefixes")
    kv_soft_bytes = serializers.IntegerField(help_text="guaranteed device KV")
    kv_hard_bytes = serializers.IntegerField(help_text="ceiling of device KV")
    num_prefixes = serializers.IntegerField()
    tenants = serializers.ListField(
        child=serializers.CharField(), help_text="slugs of the members: their policies name the group"
    )
    created_at = serializers.DateTimeField()


class ShareGroupFields(Unchecked):
    """The fields of a share group; `tenants.rules.share_groups` checks them."""

    description = serializers.CharField(required=False, allow_blank=True, max_length=500)
    kv_soft_bytes = serializers.IntegerField(required=False, help_text="guaranteed device KV; default 0")
    kv_hard_bytes = serializers.IntegerField(required=False, help_text="ceiling of device KV; default 256 MiB")
    overcommit = serializers.BooleanField(
        required=False, help_text="allow guarantees that do not all fit the pool; they then scale down pro rata"
    )


class ShareGroupCreate(ShareGroupFields):
    """A new share group."""

    name = serializers.CharField(max_length=40, help_text="a-z, 0-9 and inner dashes; it never changes")


class ShareGroupChange(ShareGroupFields):
    """The fields to change."""


class ShareGroupRemoval(Strict):
    """How a group is removed."""

    detach = serializers.BooleanField(
        default=False, help_text="take the group out of the policies that name it, instead of a 409"
    )


class PrefixMessageFields(serializers.Serializer[Any]):
    """One message of a conversation."""

    role = serializers.ChoiceField(choices=ROLES)
    content = serializers.CharField(trim_whitespace=False)


class PrefixCreate(Unchecked):
    """A new prefix: either `messages` or `text`; `tenants.rules.prefixes` checks it. All members may read it."""

    name = serializers.CharField(max_length=80, help_text="unique in the group")
    messages = PrefixMessageFields(
        many=True, required=False, help_text="the beginning of a chat: 1 to 64 messages, 256 KiB in all"
    )
    text = serializers.CharField(
        required=False, trim_whitespace=False, help_text="the beginning of a prompt: at most 256 KiB of UTF-8"
    )

    def to_internal_value(self, data: Any) -> dict[str, object]:
        """Return `data` as it came, once it is an object of known fields."""
        body = super().to_internal_value(data)
        refuse_unknown(body, self.fields)
        return body


class PrefixAnswer(Answer):
    """A registered prefix without its contents."""

    id = serializers.UUIDField()
    group = serializers.CharField()
    name = serializers.CharField()
    num_messages = serializers.IntegerField(help_text="0: it is a text")
    num_bytes = serializers.IntegerField(help_text="UTF-8, of the text or of all messages' contents")
    sha256 = serializers.CharField(help_text="what the audit trail names the contents by")
    tenant = serializers.CharField(
        allow_null=True, help_text="slug of whose owner registered it; null: an operator, or another member"
    )
    removable = serializers.BooleanField(help_text="whether the caller may remove it")
    created_by = serializers.CharField(allow_null=True, help_text="null: somebody of another member, or an operator")
    created_at = serializers.DateTimeField()
    version = serializers.IntegerField(
        help_text="of the group when it was registered: `policy-versions/{version}/acks/` says where it is in force"
    )


class PrefixWhole(PrefixAnswer):
    """A registered prefix with its contents."""

    messages = PrefixMessageFields(many=True)
    text = serializers.CharField()


ShareGroupPage = page_of(ShareGroupAnswer, "ShareGroup")
PrefixPage = page_of(PrefixAnswer, "Prefix")
