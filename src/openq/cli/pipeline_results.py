"""Results of pipeline jobs on the server, for its dashboard: a key of one bucket for each job.

The dashboard draws the last results. They are values like any other, so a program can read them as well:
`openq kv get openq-pipeline analytics`.
"""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from ..client.rest_client import RestClient, Retries
from ..errors import OpenQError
from .api import ApiClient, path_part, token_of, url_of
from .terminal import say

BUCKET = "openq-pipeline"
MAX_BYTES = 1 << 20  # of a value


def publish(options: Namespace, job: str, document: dict[str, Any], shorter: Callable[[int], Any]) -> None:
    """Store `document` under the name of its job. If it is too large, `shorter` gives one with fewer rows."""
    data, rows = _encoded(document), 64
    while len(data) > MAX_BYTES and rows:
        rows //= 2
        data = _encoded(shorter(rows))
    # Of the server, also if the history was read from a directory.
    client = RestClient(url_of(options), token_of(options), retries=Retries(explains=False))
    try:
        put = {"key": job, "value": base64.b64encode(data).decode()}
        [outcome] = ApiClient(client).post(f"/kv/{path_part(BUCKET)}/put", {"puts": [put]})["results"]
    finally:
        client.close()
    if "version" not in outcome:
        raise OpenQError(str(outcome["detail"]))
    say(f"the results are on the dashboard of {client.url}: /ui/pipeline")


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def shorter_analytics(summary: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    def cut(rows: int) -> dict[str, Any]:
        plots = summary["plots"]
        busiest = dict(list(plots["queues"].items())[: rows // 8]) if plots else {}
        lists = ("queues", "failures", "types", "consumers", "producers")
        return {
            **summary,
            **{name: summary[name][:rows] for name in lists},
            "plots": plots and {**plots, "queues": busiest},
        }

    return cut


def shorter_triage(found: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    def cut(rows: int) -> dict[str, Any]:
        return {**found, "groups": [{**group, "samples": []} for group in found["groups"][:rows]]}

    return cut
