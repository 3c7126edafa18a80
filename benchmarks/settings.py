"""The project's settings with the tables of the benchmarks, and the ports that one of them asks for."""

from __future__ import annotations

import json
import os

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS as PROJECT_APPS
from config.settings import MAINTENANCE as PROJECT_MAINTENANCE

INSTALLED_APPS = [*PROJECT_APPS, "benchmarks.apps.BenchmarksConfig"]
MAINTENANCE = {**PROJECT_MAINTENANCE, **json.loads(os.environ.get("BENCH_MAINTENANCE", "{}"))}
