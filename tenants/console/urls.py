"""Routes of a tenant's pages."""

from django.urls import path

from tenants.console import keys, overview, playground, prefixes

urlpatterns = [
    path("t/<slug:slug>/", overview.overview, name="tenant-overview"),
    path("t/<slug:slug>/headroom/", overview.headroom, name="tenant-headroom"),
    path("t/<slug:slug>/keys/", keys.keys, name="tenant-keys"),
    path("t/<slug:slug>/keys/new/", keys.new, name="tenant-key-new"),
    path("t/<slug:slug>/keys/<str:key_id>/", keys.row, name="tenant-key"),
    path("t/<slug:slug>/keys/<str:key_id>/revoke/", keys.revoke, name="tenant-key-revoke"),
    path("t/<slug:slug>/playground/", playground.playground, name="tenant-playground"),
    path("t/<slug:slug>/prefixes/", prefixes.prefixes, name="tenant-prefixes"),
    path("t/<slug:slug>/prefixes/use/", prefixes.use, name="tenant-prefix-use"),
    path("t/<slug:slug>/prefixes/list/", prefixes.listed),
    path("t/<slug:slug>/prefixes/new/", prefixes.new),
    path("t/<slug:slug>/prefixes/acks/<int:version>/", prefixes.acks),
    path("t/<slug:slug>/prefixes/<str:prefix_id>/", prefixes.row),
    path("t/<slug:slug>/prefixes/<str:prefix_id>/remove/", prefixes.remove),
]
