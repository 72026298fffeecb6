"""Routes of all pages; the tenant's own come from `tenants.console`."""

from django.urls import include, path

from gateway.console import home, policy, sign_in, tenants

urlpatterns = [
    path("", home.home, name="home"),
    path("sign-in/", sign_in.sign_in, name="sign-in"),
    path("sign-out/", sign_in.sign_out, name="sign-out"),
    path("operator/tenants/", tenants.tenants, name="operator-tenants"),
    path("operator/tenants/fleet/", tenants.fleet, name="operator-fleet"),
    path("operator/tenants/<slug:slug>/policy/", policy.policy, name="operator-policy"),
    path("operator/tenants/<slug:slug>/policy/effect/", policy.effect, name="operator-policy-effect"),
    path("operator/tenants/<slug:slug>/policy/acks/<int:version>/", policy.acks, name="operator-policy-acks"),
    path("", include("tenants.console.urls")),
]
