"""wrk as the source of load where requests do not depend on answers: a third less CPU than our own client.

Where it is not to be had, `server_load` does the same work, and the run says so.
"""

from __future__ import annotations

import functools
import math
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence

from .server_load import Repeat, RequestRefused, Tally, drive

_SCRIPT = """
local file = io.open(os.getenv("BENCH_REQUESTS"), "rb")
local text = file:read("*a")
file:close()
local requests, count, at, place = {}, 0, 0, 1
while place < #text do
  local length = tonumber(text:sub(place, place + 7))
  count = count + 1
  requests[count] = text:sub(place + 8, place + 7 + length)
  place = place + 8 + length
end
request = function()
  at = at % count + 1
  return requests[at]
end
done = function(summary)
  local e = summary.errors
  io.write(string.format("\\nanswered %d in %d us, refused %d, broken %d\\n",
    summary.requests, summary.duration, e.status, e.connect + e.read + e.write + e.timeout))
end
"""
_RESULT = re.compile(r"\nanswered (\d+) in (\d+) us, refused (\d+), broken (\d+)\n")


@functools.cache
def obtain(log: Callable[[str], None]) -> None:
    """As root on a Debian, wrk is fetched where it is missing."""
    if shutil.which("wrk") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        subprocess.run(
            ["apt-get", "install", "-y", "-q", "wrk"],
            capture_output=True,
            timeout=180,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    if shutil.which("wrk") is None:
        log("server: wrk IS MISSING; our own client, which needs more CPU, makes all of the load")


def repeat(
    port: int, connections: int, requests: Sequence[bytes], *, messages: int = 1, seconds: float = 1.0
) -> Tally:
    """Send these requests in a repeat_requests. wrk knows whole seconds only."""
    if shutil.which("wrk") is None:
        return drive(port, connections, Repeat(requests, messages=messages, seconds=seconds))
    with tempfile.TemporaryDirectory() as folder:
        script, listing = os.path.join(folder, "repeat_requests.lua"), os.path.join(folder, "requests")
        with open(script, "w", encoding="ascii") as file:
            file.write(_SCRIPT)
        with open(listing, "wb") as file_of_requests:
            file_of_requests.writelines(b"%08d%b" % (len(request), request) for request in requests)
        whole_s = math.ceil(seconds)
        cpu_s = _children_cpu_s()
        done = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{whole_s}s", "-s", script, f"http://127.0.0.1:{port}/"],
            env={**os.environ, "BENCH_REQUESTS": listing},
            capture_output=True,
            text=True,
            timeout=whole_s + 30,
        )
        cpu_s = _children_cpu_s() - cpu_s
    result = _RESULT.search(done.stdout)
    if result is None:
        raise RequestRefused(f"wrk failed: {done.stdout[-500:]} {done.stderr[-500:]}")
    answered, took_us, refused, broken = map(int, result.groups())
    if refused or broken or not answered:
        raise RequestRefused(f"{answered} answers, {refused} of them refusals, {broken} broken connections")
    return Tally(answered * messages, answered, took_us / 1e6, cpu_s)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
