"""A look into a Redis broker: may it throw messages away, does it keep them over a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from maintenance.doctor.findings import Finding, info, ok, warning


def examine(client: Redis) -> list[Finding]:
    """Eviction and persistence. A managed Redis may refuse the questions; that is a finding too."""
    return [_eviction(client), _persistence(client)]


def _eviction(client: Redis) -> Finding:
    memory = _asked(lambda: client.info("memory"))
    policy = str(memory.get("maxmemory_policy") or _configured(client, "maxmemory-policy") or "")
    if not policy:
        return _unreadable("redis.eviction", "its eviction policy", "see that it is noeviction")
    if policy == "noeviction":
        return ok("redis.eviction", "Redis never evicts (maxmemory-policy is noeviction).")
    if policy.startswith("volatile-"):
        text = f"Redis evicts only keys with an expiry ({policy}); queues have none."
        return info("redis.eviction", text, "Still, give the broker a Redis of its own with noeviction.")
    limited = int(memory.get("maxmemory") or 0) > 0
    when = "when its memory is full" if limited else "as soon as a memory limit is set (there is none now)"
    text = f"Redis throws queues away {when} (maxmemory-policy is {policy}). Work is then late until a sweep."
    return warning("redis.eviction", text, "Set maxmemory-policy to noeviction, or give the broker its own Redis.")


def _persistence(client: Redis) -> Finding:
    state = _asked(lambda: client.info("persistence"))
    if int(state.get("aof_enabled") or 0):
        return ok("redis.persistence", "Redis keeps messages over a restart (appendonly).")
    save = _configured(client, "save")
    if save is None:
        return _unreadable(
            "redis.persistence", "whether it keeps messages over a restart", "nothing is lost either way"
        )
    if save:
        text = f"Redis takes snapshots (save {save}): a restart loses the messages since the last one."
    else:
        text = "Redis keeps nothing on disk: a restart loses all messages."
    return info(
        "redis.persistence", text, "Nothing to do: sweeps send again what was lost. `appendonly yes` is prompter."
    )


def _unreadable(subject: str, what: str, hint: str) -> Finding:
    return info(subject, f"Redis does not tell {what}.", f"Look into your provider's settings: {hint}.")


def _configured(client: Redis, name: str) -> str | None:
    """A setting, or `None` where `CONFIG` is refused."""
    value = _asked(lambda: client.config_get(name)).get(name)
    return None if value is None else str(value)


def _asked(ask: Callable[[], Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask()
    except RedisError:
        return {}
    return answer
