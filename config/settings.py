"""Settings, from the environment alone.

Nothing set is the embedded shape: SQLite and a filesystem broker under `var/`, one machine.
Production sets `DATABASE_URL`, `BROKER_URL`, `SECRET_KEY` and `ALLOWED_HOSTS`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import environ

from config import embedded, logs

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(env.str("WAKEFUL_VAR", default=str(BASE_DIR / "var"))).resolve()
VAR_DIR.mkdir(parents=True, exist_ok=True)

DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

# --- Database -----------------------------------------------------------------------------------

DATABASES: dict[str, dict[str, Any]] = {
    "default": env.db_url("DATABASE_URL", default=f"sqlite:///{VAR_DIR / 'wakeful.sqlite3'}")
}
_database = DATABASES["default"]
_database["OPTIONS"] = dict(_database.get("OPTIONS", {}))
# Connections live as long as their process; a broken one is found before it is used.
_database["CONN_MAX_AGE"] = None
_database["CONN_HEALTH_CHECKS"] = True

EMBEDDED = _database["ENGINE"] == "django.db.backends.sqlite3"

if EMBEDDED:
    _database["OPTIONS"] |= {
        # A transaction takes the write lock first: it waits at its beginning instead of failing in
        # its middle.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        # FULL, because a receipt means durable: NORMAL may lose the last commits with the power.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL",
    }
elif _database["ENGINE"] == "django.db.backends.postgresql":
    # Limits as options of the connection cost no statement. A pooler that refuses start-up
    # parameters needs DATABASE_SESSION_OPTIONS empty and the same limits set on the role.
    _database["OPTIONS"].setdefault(
        "options",
        env.str(
            "DATABASE_SESSION_OPTIONS",
            default="-c lock_timeout=2s -c statement_timeout=5s -c idle_in_transaction_session_timeout=60s",
        ),
    )
    _database["OPTIONS"].setdefault("connect_timeout", 5)
    # Statements that are sent often are prepared: parsing and planning was half of what a pass cost the server. A
    # pooler that gives each transaction another session, and does not follow prepared statements, needs this off.
    if env.bool("DATABASE_PREPARED_STATEMENTS", default=True):
        _database["OPTIONS"].setdefault("server_side_binding", True)
        _database["OPTIONS"].setdefault("prepare_threshold", 5)

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Secrets ------------------------------------------------------------------------------------

SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY and (EMBEDDED or DEBUG):
    # One machine: its own secret, made once. Elsewhere Django refuses to start without one.
    SECRET_KEY = embedded.local_secret(VAR_DIR / "secret_key")

# --- Broker -------------------------------------------------------------------------------------

BROKER_URL = env.str("BROKER_URL", default="filesystem://localhost")
BROKER_FOLDER = VAR_DIR / "broker"
# How long Redis keeps a message that was taken and not acknowledged, in seconds: above two of the
# hard limit of a pass.
BROKER_VISIBILITY_TIMEOUT = env.int("BROKER_VISIBILITY_TIMEOUT", default=3600)

# --- Wakeful ------------------------------------------------------------------------------------

MAINTENANCE: dict[str, Any] = {
    "RUNTIME": "agents.runtime.ThreadRuntime",
    "LEDGER": "agents.runtime.ThreadLedger",
    **env.json("MAINTENANCE", default={}),
}
AGENTS: dict[str, Any] = env.json("AGENTS", default={})

# --- Applications -------------------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "maintenance",
    "agents",
    # Where your own agents live: each app's `durable_agents.py` is found by itself.
    *env.list("WAKEFUL_APPS", default=[]),
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
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

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
WSGI_APPLICATION = "config.wsgi.application"

# --- Web ----------------------------------------------------------------------------------------

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
STATIC_ROOT.mkdir(exist_ok=True)
# Serves the admin's own files without a `collectstatic` first; the image collects them.
WHITENOISE_USE_FINDERS = True

if env.bool("HTTPS", default=False):
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# --- Language, time, logs -----------------------------------------------------------------------

LANGUAGE_CODE = "en"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = logs.configure(
    level=env.str("LOG_LEVEL", default="INFO"),
    as_json=env.bool("LOG_JSON", default=not (DEBUG or sys.stderr.isatty())),
)
