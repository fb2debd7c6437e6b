"""TCP ports in a project.yml."""

from __future__ import annotations

from typing import Any


def port_problem(port: Any) -> str | None:
    """What is wrong with a port; None: nothing."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        return f"must be a number from 1 to 65535, got {port!r}"
    return None


def port_collisions(participants: list[dict]) -> list[str]:
    """A line for each port that two listeners on one machine share. FLARE's takes sites and users on one port."""
    taken: dict[tuple, str] = {}
    problems = []
    for entry in participants:
        listener = entry.get("listening_host")
        wanted = []
        if entry.get("type") == "server":
            host, port = entry.get("default_host", entry["name"]), entry.get("fed_learn_port", 8002)
            wanted += [(host, p) for p in {port, entry.get("admin_port", port)} if isinstance(p, int)]
        if isinstance(listener, dict) and isinstance(listener.get("port"), int):
            wanted.append((listener.get("default_host", "localhost"), listener["port"]))
        for place in wanted:
            if place in taken:
                owner, (host, port) = taken[place], place
                problems.append(f"participant {entry['name']!r}: port {port} of {host} is {owner!r}'s; take another")
            taken.setdefault(place, entry["name"])
    return problems
