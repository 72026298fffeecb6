"""The operator's pages are for operators: to anybody else they are not there."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.http import HttpRequest, HttpResponse

from tenants.console.access import answered, nothing_here, to_sign_in
from tenants.models import User

P = ParamSpec("P")
OperatorView = Callable[Concatenate[HttpRequest, User, P], HttpResponse]


def operator_page(view: OperatorView[P]) -> Callable[..., HttpResponse]:
    """Wrap an operator's view, which gets the operator after the request.

    Signed out: the sign-in page; others: 404. A part that an open page asks for is no error even then.
    """

    @wraps(view)
    def checked(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        user = request.user
        if not isinstance(user, User):
            return to_sign_in(request)
        if not user.is_staff:
            return nothing_here(request)
        return answered(request, lambda: view(request, user, *args, **kwargs))

    return checked
