"""Routes of the management API, below `/api/`."""

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from tenants.api.errors import not_found
from tenants.api.views import (
    boosts,
    keys,
    management_keys,
    members,
    policy,
    prefixes,
    projects,
    records,
    series,
    share_groups,
    tenants,
    workers,
)

of_tenant: list[URLPattern | URLResolver] = [
    path("", tenants.TenantDetail.as_view()),
    path("keys/", keys.ApiKeyList.as_view()),
    path("keys/<slug:key_id>/", keys.ApiKeyDetail.as_view()),
    path("keys/<slug:key_id>/rotate/", keys.ApiKeyRotation.as_view()),
    path("management-keys/", management_keys.ManagementKeyList.as_view()),
    path("management-keys/<slug:key_id>/", management_keys.ManagementKeyDetail.as_view()),
    path("management-keys/<slug:key_id>/rotate/", management_keys.ManagementKeyRotation.as_view()),
    path("policy/", policy.PolicyDetail.as_view()),
    path("policy/history/", policy.PolicyHistory.as_view()),
    path("policy/trials/", policy.PolicyTrials.as_view()),
    path("policy/revert/", policy.PolicyReversion.as_view()),
    path("boosts/", boosts.BoostList.as_view()),
    path("boosts/<uuid:boost_id>/", boosts.BoostDetail.as_view()),
    path("prefixes/", prefixes.TenantPrefixList.as_view()),
    path("prefixes/<uuid:prefix_id>/", prefixes.TenantPrefixDetail.as_view()),
    path("projects/", projects.ProjectList.as_view()),
    path("projects/<uuid:project_id>/", projects.ProjectDetail.as_view()),
    path("members/", members.MemberList.as_view()),
    path("members/<int:user_id>/", members.MemberDetail.as_view()),
    path("audit/", records.TenantAudit.as_view()),
]

v1: list[URLPattern | URLResolver] = [
    path("tenants/", tenants.TenantList.as_view()),
    path("tenants/<slug:slug>/", include(of_tenant)),
    path("share-groups/", share_groups.ShareGroupList.as_view()),
    path("share-groups/<slug:name>/", share_groups.ShareGroupDetail.as_view()),
    path("share-groups/<slug:name>/prefixes/", prefixes.PrefixList.as_view()),
    path("share-groups/<slug:name>/prefixes/<uuid:prefix_id>/", prefixes.PrefixDetail.as_view()),
    path("policy-versions/<int:version>/acks/", policy.PolicyVersionAcks.as_view()),
    path("guarantees/", policy.Guarantees.as_view()),
    path("usage/", records.UsageList.as_view()),
    path("audit/", records.Audit.as_view()),
    path("series/tenants/", series.TenantSeriesRead.as_view()),
    path("series/pressure/", series.PressureSeriesRead.as_view()),
    path("interference/", series.InterferenceRead.as_view()),
    path("fairness/", series.FairnessRead.as_view()),
    path("workers/", workers.WorkerList.as_view()),
    path("workers/<path:worker_id>/drain/", workers.WorkerDraining.as_view()),
    path("users/", members.UserList.as_view()),
    path("management-keys/", management_keys.OperatorKeyList.as_view()),
    path("management-keys/<slug:key_id>/", management_keys.OperatorKeyDetail.as_view()),
    path("management-keys/<slug:key_id>/rotate/", management_keys.OperatorKeyRotation.as_view()),
]

urlpatterns = [
    path("v1/", include(v1)),
    path("schema/", SpectacularAPIView.as_view(), name="api-schema"),
    path("docs/", SpectacularSwaggerView.as_view(url_name="api-schema"), name="api-docs"),
    re_path(r"^[\s\S]*$", not_found),  # JSON, whatever the path: a line break in it too
]
