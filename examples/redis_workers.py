"""Workers in processes of their own that share one queue in Redis, without a server of ours in between.

Needs `pip install "openq[redis]"` and a Redis (7 or newer) or Valkey: at REDIS_URL, or a `redis-server` or
`valkey-server` that can be started here for as long as the example runs.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from openq import OpenQ

logging.getLogger("openq").setLevel(logging.ERROR)  # a Redis that may lose messages is what we ask for here

WORKERS = 3
JOBS = 12


def work(url: str) -> None:
    """One worker. What it does not ack, because it fails or is killed, another one gets."""
    done = 0
    with OpenQ("thumbnails", url=url, visibility_timeout=5) as jobs:
        while (job := jobs.receive(timeout=1)) is not None:
            with job:
                time.sleep(0.01)
                done += 1
    print(f"a worker did {done} jobs", flush=True)


def main(url: str) -> None:
    with OpenQ("thumbnails", url=url) as jobs:
        jobs.publish_many([{"picture": number} for number in range(JOBS)])
        workers = [subprocess.Popen([sys.executable, __file__, url]) for _ in range(WORKERS)]
        for worker in workers:
            worker.wait()
        print("left:", len(jobs), "done:", jobs.stats().counters["acked"])


@contextmanager
def a_redis() -> Iterator[str]:
    """REDIS_URL, or a server of our own, which keeps nothing: for an example the fast profile is enough."""
    if "REDIS_URL" in os.environ:
        yield os.environ["REDIS_URL"]
        return
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        sys.exit("no Redis: set REDIS_URL, or install redis-server or valkey-server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}?profile=fast"
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        with a_redis() as url:
            main(url)
