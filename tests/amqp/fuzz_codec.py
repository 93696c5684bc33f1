"""Hostile bytes for the AMQP codec: `python -m tests.amqp.fuzz_codec --rounds 200000`.

Whatever comes in, only the codec's own errors come out; and what it accepts means the same after it was
written and read again. `--atheris FOLDER` lets coverage lead the way (needs `pip install atheris`), from
the seeds that `--seeds FOLDER` writes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any, get_type_hints

from openq import amqp_fields
from openq.amqp.method_codec import MalformedMethod, UnknownMethod, decode_method, encode_method
from openq.amqp.methods import METHODS, Method
from openq.amqp_fields import AmqpProperties, Long, MalformedProperties, Timestamp

TARGETS = 3  # the first byte of an input says what the others are: a method, properties, a table

TABLE: dict[str, Any] = {
    "bool": True,
    "small": -1,
    "large": 1 << 40,
    "wide": Long(7),
    "real": 1.5,
    "text": "grün",
    "bytes": b"\xff\0",
    "none": None,
    "time": Timestamp(1_700_000_000),
    "price": Decimal("12.50"),
    "list": [1, "two", [3.0, {"four": None}]],
    "table": {"inner": {"deep": [False]}},
}
# The types that decoding knows and encoding never chooses.
_RARE = (
    b"\1bb\xff\1BB\xff\1ss\xff\xfe\1uu\xff\xfe\1ii\xff\xff\xff\xff\1LL" + b"\xff" * 8 + b"\1ff\x3f\xc0\0\0"
)
RARE_TABLE = len(_RARE).to_bytes(4, "big") + _RARE
EVERY_PROPERTY = AmqpProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers=TABLE,
    delivery_mode=2,
    priority=5,
    correlation_id="c",
    reply_to="amq.rabbitmq.reply-to",
    expiration="60000",
    message_id="m",
    timestamp=1_700_000_000,
    type="order",
    user_id="guest",
    app_id="app",
    cluster_id="cluster",
)
_SAMPLES: dict[str, Any] = {
    "octet": 9,
    "short": 300,
    "long": 131_072,
    "longlong": 1 << 33,
    "bit": True,
    "shortstr": "größe",
    "longstr": b"\0guest\0guest",
    "table": TABLE,
}


def kinds_of(method: type[Method]) -> dict[str, str]:
    """The wire type of each field."""
    hints = get_type_hints(method, include_extras=True)
    return {place.name: hints[place.name].__metadata__[0] for place in fields(method)}  # type: ignore[arg-type]


def sample(method: type[Method]) -> Method:
    return method(*(_SAMPLES[kind] for kind in kinds_of(method).values()))


def seeds() -> Iterator[bytes]:
    for method in METHODS.values():
        yield b"\0" + encode_method(sample(method))
    yield b"\1" + amqp_fields.encode(EVERY_PROPERTY)
    yield b"\1" + amqp_fields.encode(AmqpProperties())
    yield b"\1" + amqp_fields.encode(AmqpProperties(content_type="text/plain", delivery_mode=2))
    yield b"\1\x20\0" + RARE_TABLE
    yield b"\2" + amqp_fields.encode_table(TABLE)
    yield b"\2" + RARE_TABLE
    yield b"\2" + amqp_fields.encode_table({"CC": ["a", "b"], "x-group-id": "g", "x-amzn-trace-id": "Root=1"})


# -- what must hold -------------------------------------------------------------------------------


def same(one: object, other: object) -> bool:
    """Equal in value and type; NaN equals itself here."""
    return repr(one) == repr(other)


def check(data: bytes) -> bool:
    """Feed one input; True if the codec accepted it. Anything but its own errors escapes."""
    if not data:
        return False
    return (check_method, check_properties, check_table)[data[0] % TARGETS](data[1:])


def check_method(payload: bytes) -> bool:
    try:
        method = decode_method(payload)
    except (MalformedMethod, UnknownMethod):
        return False
    again = encode_method(method)
    assert same(decode_method(again), method)
    return True


def check_properties(amqp_properties: bytes) -> bool:
    try:
        decoded = amqp_fields.decode(amqp_properties)
    except MalformedProperties:
        # Stepping over values sees less than reading them; it must not fail in other ways.
        try:
            amqp_fields.with_headers(amqp_properties, {"a": 1}, ("b",), drop_expiration=True)
        except MalformedProperties:
            pass
        return False
    assert same(amqp_fields.decode(amqp_fields.encode(decoded)), decoded)
    assert amqp_fields.with_headers(amqp_properties, {}) == amqp_properties
    changed = amqp_fields.decode(
        amqp_fields.with_headers(amqp_properties, {"x": 1}, drop=("y",), drop_expiration=True)
    )
    kept = {name: value for name, value in (decoded.headers or {}).items() if name not in ("x", "y")}
    decoded.headers, decoded.expiration = {**kept, "x": 1}, None
    assert same(changed, decoded)
    assert_plain(amqp_fields.attributes_of(amqp_properties))
    return True


def check_table(data: bytes) -> bool:
    try:
        table, end = amqp_fields.decode_table(data)
    except MalformedProperties:
        return False
    assert 4 <= end <= len(data)
    again = amqp_fields.encode_table(table)
    assert same(amqp_fields.decode_table(again), (table, len(again)))
    assert same(amqp_fields.from_json(json.loads(json.dumps(amqp_fields.to_json(table)))), table)
    return True


def assert_plain(value: object) -> None:
    """JSON values that JSON can hold as UTF-8, and bytes."""
    if isinstance(value, dict):
        for name, item in value.items():
            name.encode()
            assert_plain(item)
    elif isinstance(value, list):
        for item in value:
            assert_plain(item)
    elif type(value) is not bytes:
        assert value is None or type(value) in (str, bool, int, float)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


# -- where inputs come from -----------------------------------------------------------------------

_LENGTHS = (b"\0\0\0\0", b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")
_CODES = b"tbBsuIilLfdDSxAFTVU\0"


def mutate(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(raw) + 1)
        action = rng.randrange(7)
        if action == 0:
            raw[at : at + 1] = rng.randbytes(1)
        elif action == 1:
            del raw[at : at + rng.randrange(1, 9)]
        elif action == 2:
            raw[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif action == 3:
            raw[at : at + 4] = rng.choice(_LENGTHS)
        elif action == 4:
            raw[at : at + 1] = bytes((rng.choice(_CODES),))
        elif action == 5:
            other = rng.choice(corpus)
            start = rng.randrange(len(other))
            raw[at:at] = other[start : start + rng.randrange(1, 40)]
        else:
            del raw[at:]
    return bytes(raw)


def campaign(rounds: int, seed: int) -> int:
    """How many of the mutants were accepted."""
    rng = random.Random(seed)
    corpus = list(seeds())
    accepted = 0
    for _ in range(rounds):
        data = mutate(rng.choice(corpus), rng, corpus)
        try:
            accepted += check(data)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} for {data!r}") from error
    return accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=Path, help="write the seed corpus to this folder and stop")
    parser.add_argument("--atheris", metavar="FOLDER", help="coverage-guided, with this folder as corpus")
    options, rest = parser.parse_known_args()
    if options.seeds:
        options.seeds.mkdir(parents=True, exist_ok=True)
        for data in seeds():
            (options.seeds / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    elif options.atheris:
        import atheris  # needs a build for this platform: not among what the tests need

        def one_input(data: bytes) -> None:
            check(data)

        atheris.instrument_all()
        atheris.Setup([sys.argv[0], options.atheris, *rest], one_input)
        atheris.Fuzz()
    else:
        accepted = campaign(options.rounds, options.seed)
        print(json.dumps({"rounds": options.rounds, "seed": options.seed, "accepted": accepted}))


if __name__ == "__main__":
    main()
