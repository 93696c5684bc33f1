"""How many copies an answer waits for, when replicas come and go."""

from __future__ import annotations

import pytest

from openq.errors import NotReplicated
from openq.redis.net.copies import LOWER_AFTER_S, REFRESH_S, Copies, ReplicaFloor
from openq.redis.net.url import parse


def _info(*states: str, role: str = "master") -> bytes:
    lines = ["redis_version:7.0.15", "aof_enabled:0", f"role:{role}"]
    lines += [f"slave{n}:ip=127.0.0.1,port=1,state={state},offset=1,lag=0" for n, state in enumerate(states)]
    return "\r\n".join(lines).encode()


def _seen(online: int) -> list[bytes]:
    return [_info(*["online"] * online)]


def test_a_replica_that_comes_is_waited_for() -> None:
    copies = Copies(parse("redis://localhost"))
    copies.new_connection(_seen(0), 0.0)
    copies.parse_info(_seen(2), REFRESH_S)
    assert copies.replicas == 2


def test_one_that_goes_is_waited_for_a_while() -> None:
    copies = Copies(parse("redis://localhost"))
    copies.new_connection(_seen(1), 0.0)
    copies.parse_info(_seen(0), 10.0)
    copies.parse_info(_seen(0), LOWER_AFTER_S - 1)
    assert copies.replicas == 1
    copies.parse_info(_seen(0), LOWER_AFTER_S)
    assert copies.replicas == 0


def test_another_connection_does_not_believe_that_they_are_gone_either() -> None:
    floor = ReplicaFloor()
    before = Copies(parse("redis+sentinel://localhost/main"), floor)
    after = Copies(parse("redis+sentinel://localhost/main"), floor)
    before.new_connection(_seen(1), 0.0)
    after.new_connection(_seen(0), 5.0)
    assert after.replicas == 1


def test_one_that_comes_back_in_time_starts_the_wait_anew() -> None:
    copies = Copies(parse("redis://localhost"))
    copies.new_connection(_seen(1), 0.0)
    copies.parse_info(_seen(0), 10.0)
    copies.parse_info(_seen(1), 20.0)
    copies.parse_info(_seen(0), 30.0)
    copies.parse_info(_seen(0), 10.0 + LOWER_AFTER_S)
    assert copies.replicas == 1


def test_behind_sentinels_a_connection_never_does_with_less() -> None:
    # A master that was cut off together with its client would confirm what the next master never had.
    copies = Copies(parse("redis+sentinel://localhost/main"))
    copies.new_connection(_seen(1), 0.0)
    copies.parse_info(_seen(0), 10.0)
    copies.parse_info(_seen(0), 10_000.0)
    assert copies.replicas == 1


def test_after_a_failover_the_master_that_is_gone_is_not_waited_for_and_the_others_are() -> None:
    floor = ReplicaFloor()
    before = Copies(parse("redis+sentinel://localhost/main"), floor)
    before.new_connection(_seen(2), 0.0)
    after = Copies(parse("redis+sentinel://localhost/main"), floor.without_one())
    after.new_connection(_seen(0), 5.0)
    assert after.replicas == 1


@pytest.mark.parametrize("online", [0, 3])
def test_a_number_that_was_asked_for_stays(online: int) -> None:
    copies = Copies(parse("redis://localhost?replicas=2"))
    copies.new_connection(_seen(online), 0.0)
    copies.parse_info(_seen(online), 1_000.0)
    assert copies.replicas == 2


_MASTER = "m1 127.0.0.1:1@11 myself,master - 0 0 1 connected 0-16383"


@pytest.mark.parametrize(
    ("flags", "master", "states", "wanted"),
    [
        ("slave", "m1", ["online"], 1),
        ("slave", "m1", [], 1),  # nobody has agreed that it is gone: we may be the one who was replaced
        ("slave,fail?", "m1", [], 1),
        ("slave,fail", "m1", [], 0),
        ("master", "-", [], 0),
        ("slave", "m2", [], 0),
        ("slave", "m1", ["wait_bgsave"], 0),  # its first copy may take minutes
        ("slave", "m1", ["online", "online"], 2),
    ],
)
def test_in_a_cluster_its_nodes_say_who_failed(
    flags: str, master: str, states: list[str], wanted: int
) -> None:
    copies = Copies(parse("redis+cluster://localhost"))
    nodes = f"{_MASTER}\nr1 127.0.0.1:2@12 {flags} {master} 0 0 1 connected\n".encode()
    assert len(copies.info_commands()) == 2
    copies.new_connection([_info(*states), nodes], 0.0)
    assert copies.replicas == wanted


def test_after_a_refusal_is_looked_again() -> None:
    copies = Copies(parse("redis+cluster://localhost"))
    nodes = f"{_MASTER}\nr1 127.0.0.1:2@12 slave m1 0 0 1 connected\n".encode()
    copies.new_connection([_info("online"), nodes], 0.0)
    mark = copies.mark()
    asked = copies.confirm_request(1.0)
    assert not asked.refreshes_info
    assert "0 of 1" in str(copies.check_replies(asked, [0]))
    again = copies.confirm_request(2.0)
    assert again.refreshes_info
    gone = nodes.replace(b"slave", b"slave,fail")
    assert (
        copies.check_replies(again, [0, _info(), gone]) is not None
    )  # it was asked for when the write was made
    last = copies.confirm_request(3.0)
    assert copies.check_replies(last, [_info(), gone]) is None
    assert copies.is_safe(mark, 3.0)


def test_the_first_replica_is_seen_at_once() -> None:
    # It may be master a moment later.
    copies = Copies(parse("redis+cluster://localhost"))
    alone = _MASTER.encode()
    copies.new_connection([_info(), alone], 0.0)
    mark = copies.mark()
    assert not copies.is_safe(mark, 0.1)
    asked = copies.confirm_request(0.1)
    assert (asked.refreshes_info, asked.replicas) == (True, 0)
    assert copies.check_replies(asked, [_info("online"), alone]) == "ask again"
    assert not copies.is_safe(mark, 0.1)
    again = copies.confirm_request(0.2)
    assert (again.refreshes_info, again.replicas) == (False, 1)
    assert copies.check_replies(again, [1]) is None
    assert copies.is_safe(mark, 0.2)


def test_a_new_connection_cannot_speak_for_the_writes_of_the_old_one() -> None:
    copies = Copies(parse("redis://localhost"))
    copies.new_connection(_seen(1), 0.0)
    mark = copies.mark()
    assert not copies.is_safe(mark, 1.0)
    # Lost and opened again before the question leaves: WAIT knows nothing of that write there.
    copies.new_connection(_seen(1), 2.0)
    assert copies.check_replies(copies.confirm_request(2.0), [1]) is None
    with pytest.raises(NotReplicated):
        copies.require(mark)


def test_a_former_master_confirms_nothing() -> None:
    # It executed what lay in its connections when it woke up, and learned then that it was replaced.
    copies = Copies(parse("redis+cluster://localhost"))
    nodes = f"{_MASTER}\nr1 127.0.0.1:2@12 slave m1 0 0 1 connected\n".encode()
    copies.new_connection([_info("online"), nodes], 0.0)
    mark = copies.mark()
    demoted = (
        b"m1 127.0.0.1:1@11 myself,slave r1 0 0 2 connected\nr1 127.0.0.1:2@12 master - 0 0 2 connected\n"
    )
    copies.parse_info([_info(role="slave"), demoted], 20.0)
    assert not copies.is_safe(mark, 20.0)
    asked = copies.confirm_request(20.0)
    assert copies.has_open_writes
    assert copies.check_replies(asked, [_info(role="slave"), demoted]) is not None
    assert not copies.has_open_writes  # a caller without writes here is not affected for ever
    with pytest.raises(NotReplicated):
        copies.require(mark)
