"""Routes of a tenant's pages."""

from django.urls import path

from tenants.console import keys, overview, playground

urlpatterns = [
    path("t/<slug:slug>/", overview.overview, name="tenant-overview"),
    path("t/<slug:slug>/headroom/", overview.headroom, name="tenant-headroom"),
    path("t/<slug:slug>/keys/", keys.keys, name="tenant-keys"),
    path("t/<slug:slug>/keys/new/", keys.new, name="tenant-key-new"),
    path("t/<slug:slug>/keys/<str:key_id>/", keys.row, name="tenant-key"),
    path("t/<slug:slug>/keys/<str:key_id>/revoke/", keys.revoke, name="tenant-key-revoke"),
    path("t/<slug:slug>/playground/", playground.playground, name="tenant-playground"),
]
