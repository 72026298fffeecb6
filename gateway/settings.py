"""Django settings: wiring only. Values that vary come from `gateway.config`."""

from gateway.config import ROOT, config
from gateway.database import django_database
from gateway.logs import logging_config
from tenants.schedule import CELERY_BEAT_SCHEDULE as CELERY_BEAT_SCHEDULE

_config = config()

SECRET_KEY = _config.secret_key or "unset"  # `manage.py check --deploy` and web refuse to serve with it unset
KEY_PEPPER = _config.key_pepper  # unset: keys can be neither made nor verified
DEBUG = False
ALLOWED_HOSTS = list(_config.allowed_hosts)
CSRF_TRUSTED_ORIGINS = [_config.base_url]

INSTALLED_APPS = [
    "tenants",
    "gateway",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "django_htmx",
    "django_vite",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "gateway.console.security.security_headers",
]

ROOT_URLCONF = "gateway.urls"
ASGI_APPLICATION = "gateway.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": django_database(_config.database_url or "postgres:///tollgate")}
REDIS_URL = _config.redis_url or "redis://127.0.0.1:6379/0"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL}}
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL]},
    }
}

AUTH_USER_MODEL = "tenants.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign-in"
SESSION_ENGINE = "django.contrib.sessions.backends.db"  # the console works while Redis is away
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _config.base_url.startswith("https://")

STATIC_URL = "/static/"
STATIC_ROOT = ROOT / "staticfiles"
STATICFILES_DIRS = [("app", ROOT / "frontend" / "dist")] if (ROOT / "frontend" / "dist").is_dir() else []
DJANGO_VITE = {
    "default": {
        "dev_mode": False,
        "manifest_path": ROOT / "frontend" / "dist" / ".vite" / "manifest.json",
        "static_url_prefix": "app",
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.api.authentication.ManagementKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_PAGINATION_CLASS": "tenants.api.pagination.KeysetPagination",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "tenants.api.errors.exception_handler",
    "PAGE_SIZE": 50,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Tollgate management API",
    "DESCRIPTION": "Tenants, keys, policy, usage and workers. What generates is at [/api/docs/v1/](/api/docs/v1/).",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SWAGGER_UI_DIST": "SIDECAR",  # the docs page loads nothing from elsewhere
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "TenantStatus": "tenants.models.tenant.Status",
        "KeyStatus": "tenants.api.serializers.keys.STATUSES",
        "Role": "tenants.models.member.Role",
        "ManagementKeyRole": "tenants.api.serializers.keys.ROLES",
        "TenantKeyRole": "tenants.api.serializers.keys.TENANT_ROLES",
        "ApiKeyScope": "tenants.contracts.API_KEY_SCOPES",
        "ManagementKeyScope": "tenants.contracts.MANAGEMENT_KEY_SCOPES",
    },
}

ENGINE_STATE_DIR = _config.engine_state_dir  # both for the training of the reuse predictor
TRAIN_SECONDS = _config.train_seconds

CELERY_BROKER_URL = REDIS_URL if REDIS_URL.startswith("redis") else REDIS_URL.replace("unix://", "redis+socket://", 1)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

LOGGING = logging_config()
