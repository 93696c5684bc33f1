"""`python -m tests.auth.campaign [requests] [mutations per request] [seed]`

Requests of every shape signed by botocore must hold, and every one of them with one byte changed must not.
100,000 requests with 10 mutations each is the whole campaign; the tests run a part of it.
"""

from __future__ import annotations

import json
import sys
import time
from hashlib import sha256
from random import Random
from urllib.parse import unquote_to_bytes

from openq.auth.errors import InvalidSignature
from openq.auth.sigv4 import Verifier

from .signing import Wire, any_request, mutations, verifier, verify


def verifier_of(wire: Wire) -> Verifier:
    """One that knows the session token of this request."""
    token = dict(wire.headers).get(b"x-amz-security-token")
    _, found, rest = wire.target.partition(b"X-Amz-Security-Token=")
    if found:
        token = unquote_to_bytes(rest.partition(b"&")[0])
    return verifier(token_hash=None if token is None else sha256(token).digest())


def refused(wire: Wire, by: Verifier) -> bool:
    try:
        verify(wire, by)
    except InvalidSignature:
        return True
    return False


def run(requests: int, each: int, seed: int) -> dict[str, object]:
    random = Random(seed)
    start = time.perf_counter()
    spoiled_count = 0
    wrong: list[str] = []
    for _ in range(requests):
        wire = any_request(random)
        by = verifier_of(wire)
        if refused(wire, by):
            wrong.append(f"refused: {wire}")
        for place, spoiled in mutations(wire, random, each):
            spoiled_count += 1
            if not refused(spoiled, by):
                wrong.append(f"accepted with a changed {place}: {wire} as {spoiled}")
    return {
        "requests": requests,
        "mutations": spoiled_count,
        "seed": seed,
        "wrong": wrong,
        "seconds": round(time.perf_counter() - start, 1),
    }


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    result = run(*[*arguments, 100_000, 10, 1][: len(arguments)], *[100_000, 10, 1][len(arguments) :])
    print(json.dumps(result))
    sys.exit(1 if result["wrong"] else 0)
