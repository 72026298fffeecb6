"""Sign in by e-mail and password, and out again."""

import math

from django import forms
from django.contrib.auth import authenticate, login, logout
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from gateway.console import attempts

WRONG = "This e-mail and password do not match. Check both; passwords tell capitals from small letters."


class SignInForm(forms.Form):
    """E-mail and password."""

    email = forms.EmailField(
        label="E-mail",
        max_length=254,
        widget=forms.EmailInput(attrs={"class": "input", "autocomplete": "username", "autofocus": True}),
    )
    password = forms.CharField(
        strip=False,
        max_length=256,
        widget=forms.PasswordInput(attrs={"class": "input", "autocomplete": "current-password"}),
    )


@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Show the form; on POST sign in and go on to `next`, or say why not."""
    if request.user.is_authenticated:
        return redirect(_next(request))
    if request.method != "POST":
        return _page(request, SignInForm())
    form = SignInForm(request.POST)
    if not form.is_valid():
        return _page(request, form, status=422)
    email = form.cleaned_data["email"].lower()
    address = str(request.META.get("REMOTE_ADDR") or "")
    wait = attempts.seconds_to_wait(email, address)
    if wait:
        form.add_error(None, f"Too many wrong tries. Wait {math.ceil(wait / 60)} minutes, then try again.")
        return _page(request, form, status=429)
    user = authenticate(request, username=email, password=form.cleaned_data["password"])
    if user is None:
        attempts.note_failure(email, address)
        form.add_error(None, WRONG)
        return _page(request, form, status=422)
    attempts.forget(email, address)
    login(request, user)
    return redirect(_next(request))


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    logout(request)
    return redirect("sign-in")


def _page(request: HttpRequest, form: SignInForm, status: int = 200) -> HttpResponse:
    return render(request, "sign_in.html", {"form": form, "next": _next(request)}, status=status)


def _next(request: HttpRequest) -> str:
    """Return where to go on to: a path of this host, else home."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    hosts = {request.get_host()}
    return wanted if url_has_allowed_host_and_scheme(wanted, hosts, require_https=request.is_secure()) else "/"
