"""Routes of all pages; the tenant's own come from `tenants.console`."""

from django.urls import include, path

from gateway.console import home, policy, share_group, share_groups, sign_in, tenants

urlpatterns = [
    path("", home.home, name="home"),
    path("sign-in/", sign_in.sign_in, name="sign-in"),
    path("sign-out/", sign_in.sign_out, name="sign-out"),
    path("operator/tenants/", tenants.tenants, name="operator-tenants"),
    path("operator/tenants/fleet/", tenants.fleet, name="operator-fleet"),
    path("operator/tenants/<slug:slug>/policy/", policy.policy, name="operator-policy"),
    path("operator/tenants/<slug:slug>/policy/effect/", policy.effect, name="operator-policy-effect"),
    path("operator/tenants/<slug:slug>/policy/acks/<int:version>/", policy.acks, name="operator-policy-acks"),
    path("operator/share-groups/", share_groups.share_groups, name="operator-share-groups"),
    path("operator/share-group-rows/", share_groups.rows, name="operator-share-group-rows"),
    path("operator/new-share-group/", share_groups.new, name="operator-share-group-new"),
    path("operator/new-share-group/guarantees/", share_groups.guarantees, name="operator-share-group-guarantees"),
    path("operator/share-groups/<slug:name>/", share_group.share_group, name="operator-share-group"),
    path("operator/share-groups/<slug:name>/effect/", share_group.effect, name="operator-share-group-effect"),
    path("operator/share-groups/<slug:name>/acks/<int:version>/", share_group.acks),
    path("operator/share-groups/<slug:name>/remove/", share_group.remove, name="operator-share-group-remove"),
    path("operator/share-groups/<slug:name>/prefixes/list/", share_group.prefixes),
    path("operator/share-groups/<slug:name>/prefixes/new/", share_group.new_prefix),
    path("operator/share-groups/<slug:name>/prefixes/<str:prefix_id>/", share_group.prefix),
    path("operator/share-groups/<slug:name>/prefixes/<str:prefix_id>/remove/", share_group.remove_prefix),
    path("", include("tenants.console.urls")),
]
