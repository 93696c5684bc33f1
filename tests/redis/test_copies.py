"""How many copies an answer waits for, when replicas come and go."""

from __future__ import annotations

import pytest

from openq.redis.copies import FEWER_AFTER_S, LOOK_AGAIN_S, Copies, Floor
from openq.redis.url import parse


def _info(online: int) -> bytes:
    lines = [b"redis_version:7.0.15", b"aof_enabled:0"]
    lines += [b"slave%d:ip=127.0.0.1,port=1,state=online,offset=1,lag=0" % n for n in range(online)]
    return b"\r\n".join(lines)


def test_a_replica_that_comes_is_waited_for() -> None:
    copies = Copies(parse("redis://localhost"))
    copies.new_connection(_info(0), 0.0)
    copies.learn(_info(2), LOOK_AGAIN_S)
    assert copies.replicas == 2


def test_one_that_goes_is_waited_for_a_while() -> None:
    copies = Copies(parse("redis://localhost"))
    copies.new_connection(_info(1), 0.0)
    copies.learn(_info(0), 10.0)
    copies.learn(_info(0), FEWER_AFTER_S - 1)
    assert copies.replicas == 1
    copies.learn(_info(0), FEWER_AFTER_S)
    assert copies.replicas == 0


def test_another_connection_does_not_believe_that_they_are_gone_either() -> None:
    # A master that was frozen while another took over sees no replicas when it answers again.
    shard = Floor()
    before, after = Copies(parse("redis+cluster://a"), shard), Copies(parse("redis+cluster://b"), shard)
    before.new_connection(_info(1), 0.0)
    after.new_connection(_info(0), 5.0)
    assert after.replicas == 1
    after.learn(_info(0), FEWER_AFTER_S)
    assert after.replicas == 0


def test_one_that_comes_back_in_time_starts_the_wait_anew() -> None:
    copies = Copies(parse("redis://localhost"))
    copies.new_connection(_info(1), 0.0)
    copies.learn(_info(0), 10.0)
    copies.learn(_info(1), 20.0)
    copies.learn(_info(0), 30.0)
    copies.learn(_info(0), 10.0 + FEWER_AFTER_S)
    assert copies.replicas == 1


def test_behind_sentinels_a_connection_never_does_with_less() -> None:
    # A master that was cut off together with its client would confirm what the next master never had.
    copies = Copies(parse("redis+sentinel://localhost/main"))
    copies.new_connection(_info(1), 0.0)
    copies.learn(_info(0), 10.0)
    copies.learn(_info(0), 10_000.0)
    assert copies.replicas == 1


@pytest.mark.parametrize("online", [0, 3])
def test_a_number_that_was_asked_for_stays(online: int) -> None:
    copies = Copies(parse("redis://localhost?replicas=2"))
    copies.new_connection(_info(online), 0.0)
    copies.learn(_info(online), 1_000.0)
    assert copies.replicas == 2
