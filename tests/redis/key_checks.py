"""What the keys of a queue in Redis say, read past all functions: do they agree with each other?

See the head of `lua/1_state.lua` for what each key holds.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import redis

from openq.redis.records import unpack_record
from openq.redis.registry import CachedQueue
from tests.redis.servers import Server

PLAIN = "r:0:-"


class Keys:
    """All keys of one queue. Everything comes decoded but records."""

    def __init__(self, server: Server, prefix: str, number: int) -> None:
        self._ask = server.ask
        self._port = server.port
        store = server.ask("HGET", f"{prefix}:{{meta}}:counters", "id_prefix") or ""
        self._head = f"{prefix}:{{{store[:6]}.{number}}}:"
        self.names = {key.removeprefix(self._head) for key in server.ask("KEYS", self._head + "*")}

    def hash(self, name: str) -> dict[str, str]:
        flat = self._ask("HGETALL", self._head + name)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def sorted(self, name: str) -> dict[str, float]:
        flat = self._ask("ZRANGE", self._head + name, 0, -1, "WITHSCORES")
        return dict(zip(flat[::2], map(float, flat[1::2]), strict=True))

    def set(self, name: str) -> set[str]:
        return set(self._ask("SMEMBERS", self._head + name))

    def list(self, name: str) -> list[str]:
        found: list[str] = self._ask("LRANGE", self._head + name, 0, -1)
        return found

    def records(self) -> dict[str, bytes]:
        with redis.Redis("127.0.0.1", self._port) as raw:
            found: Any = raw.xrange(self._head + "m")
        return {id.partition(b"-")[0].decode(): fields[b"m"] for id, fields in found}

    def edited(self) -> dict[str, bytes]:
        with redis.Redis("127.0.0.1", self._port) as raw:
            found: Any = raw.hgetall(self._head + "ed")
        return {seq.decode(): record for seq, record in found.items()}

    def lives_for(self, name: str) -> int:
        left: int = self._ask("TTL", self._head + name)
        return left


def check_gone(server: Server, prefix: str, number: int) -> None:
    """Of a deleted queue a stub is left, and for a while the answers to those who published last."""
    keys = Keys(server, prefix, number)
    for name in keys.names:
        assert name == "q" or name.startswith("tk:"), f"left of a deleted queue: {name}"
        assert keys.lives_for(name) > 0, f"for ever: {name}"
    stub = keys.hash("q")
    # For readers of events: its last entries, until when they are kept, whether it had a history.
    assert stub.keys() <= {"gone", "lm", "lh", "ek", "eh"}
    assert stub["gone"] == "1"


def check_queue(server: Server, prefix: str, view: CachedQueue, *, had_history: bool) -> None:
    """A queue that `had_history` some time may still be giving it up, a little at a time."""
    inspection = KeyChecker(server, prefix, view)
    inspection.check()
    if not had_history:
        assert set(inspection.records) == inspection.live() - set(inspection.without_entry), (
            "history of a queue that keeps none"
        )


_TEXTS = ("c", "name")  # of the hash of a queue: everything else is a number


class KeyChecker:
    def __init__(self, server: Server, prefix: str, view: CachedQueue) -> None:
        self.keys = keys = Keys(server, prefix, view.number)
        self.view = view
        self.state = {name: int(value) for name, value in keys.hash("q").items() if name not in _TEXTS}
        self.records = keys.records()
        self.extras: dict[str, dict[str, Any]] = {s: json.loads(t) for s, t in keys.hash("x").items()}
        self.edited = keys.edited()
        self.without_entry = keys.sorted("eo")  # in the stream
        self.runs = keys.hash("ru")
        self.leases = keys.hash("o")
        self.in_runs = [seq for run in self.runs.values() for seq in seqs_of_run(run)]
        self.delayed = keys.sorted("d")
        self.ready_lists = {name: keys.sorted(name) for name in keys.names if name.startswith("r:")}
        self.skipped = keys.sorted("sk")
        self.tail = [
            seq
            for seq, record in self.records.items()
            if int(seq) > self.field("cur") and record[0] % 2 == 0 and seq not in self.skipped
        ]
        if view.fifo:
            self.tail = []

    def field(self, name: str) -> int:
        return self.state.get(name, 0)

    def check(self) -> None:
        assert "ob" not in self.keys.names, "the outbox is not empty"
        assert "oc" not in self.keys.names, "a claim for nothing"
        self.check_places()
        self.check_counts()
        self.check_names()
        self.check_leases()
        self.check_limits()
        if self.view.fifo:
            self.check_groups()
        else:
            self.check_turns()

    def in_ready_lists(self) -> list[str]:
        return [seq for ready_list in self.ready_lists.values() for seq in ready_list]

    def live(self) -> set[str]:
        return {*self.in_ready_lists(), *self.delayed, *self.leases, *self.in_runs, *self.tail}

    def check_places(self) -> None:
        ready_lists = self.in_ready_lists()
        elsewhere = [*self.leases, *self.in_runs, *self.tail, *(() if self.view.fifo else self.delayed)]
        places = Counter([*ready_lists, *elsewhere])
        assert set(places.values()) <= {1}, f"in two places: {places}"
        if self.view.fifo:
            assert set(self.delayed) <= set(ready_lists), "delayed, and not in line"
        assert set(self.extras) <= set(places), "an extra of no message"
        assert {*ready_lists, *self.delayed} <= set(self.extras), "in line without an extra"
        assert set(self.edited) == {seq for seq, options in self.extras.items() if "E" in options}
        for seq in places:
            assert seq in self.records or seq in self.edited, f"{seq} has no record"
        assert set(self.without_entry) == {seq for seq, options in self.extras.items() if "S" in options}
        for seq in places:
            assert (seq in self.records) == (seq not in self.without_entry), f"{seq}: where is its record"
        for name, ready_list in self.ready_lists.items():
            for seq, score in ready_list.items():
                assert score == int(seq)
                assert name == self.ready_list_of(self.extras[seq]), f"{seq} is in {name}"
        for seq, due in self.delayed.items():
            assert self.extras[seq]["d"] == due

    def ready_list_of(self, options: dict[str, Any]) -> str:
        group = "+" + options["g"] if "g" in options else "-"
        return f"r:{group}" if self.view.fifo else f"r:{self.rank(options)}:{group}"

    def rank(self, options: dict[str, Any]) -> int:
        most = self.view.settings.max_priority
        return min(options.get("p", 0), 255 if most is None else most)

    def check_counts(self) -> None:
        back = len(self.ready_lists.get(PLAIN, ())) if not self.view.fifo else 0
        assert self.field("pl") == len(self.tail)
        assert self.field("bk") == back
        assert self.field("mx") == len(self.in_ready_lists()) - back
        assert self.field("sk") == len(self.skipped)
        assert self.field("rc") == len(self.in_runs)
        waiting = {*self.in_ready_lists(), *self.delayed, *self.tail}
        assert self.field("by") == sum(map(self.size, waiting))

    def size(self, seq: str) -> int:
        options = self.extras.get(seq, {})
        record = self.edited[seq] if "E" in options else self.records[seq]
        return len(unpack_record(record)[1])

    def check_names(self) -> None:
        for key, short in (("i", "i"), ("u", "u")):
            for name, seq in self.keys.hash(key).items():
                assert seq in self.extras, f"{key} {name} is the name of nothing"
                assert self.extras[seq][short] == name
        named = set(self.keys.hash("i"))
        assert {options["i"] for options in self.extras.values() if "i" in options} >= named
        mortal = self.keys.sorted("e")
        for seq, options in self.extras.items():
            assert seq in mortal or "e" not in options or seq in self.leases, f"{seq} would live for ever"
        for seq, at in mortal.items():
            assert self.extras[seq]["e"] == at
        assert set(self.keys.hash("k")) == set(self.keys.sorted("kz"))

    def check_leases(self) -> None:
        deadlines = self.keys.sorted("l")
        holders = self.keys.sorted("hd")
        bound = {name: self.keys.set(name) for name in self.keys.names if name.startswith("b:")}
        assert {name.removeprefix("b:") for name in bound} <= set(holders), "held by nobody who beats"
        for seq, lease in self.leases.items():
            _, until, _, _, _, holder, _ = lease.split(" ", 6)
            if holder == "-":
                assert deadlines.pop(seq) == int(until)
            else:
                assert until == "0"
                bound["b:" + holder].remove(seq)
        assert {number: f"{int(first)}" for number, first in self.keys.sorted("rn").items()} == {
            number: run.split(" ")[0] for number, run in self.runs.items()
        }
        for number, run in self.runs.items():
            _, until, _, left, bits, holder, _ = run.split(" ", 6)
            assert bits.count("1") == int(left) > 0
            if holder == "-":
                assert deadlines.pop("L" + number) == int(until)
            else:
                bound["b:" + holder].remove("L" + number)
        assert not deadlines, "a deadline of no lease"
        assert not any(bound.values()), "held, and not leased"

    def check_limits(self) -> None:
        """What is in flight is counted for each key with a limit; those at it are blocked."""
        settings = self.view.settings
        groups = Counter(self.extras[seq].get("g") for seq in self.leases if seq in self.extras)
        limits = {
            key: settings.key_limits.get(key, {}).get("concurrency", settings.key_concurrency)
            for key in groups
            if key is not None
        }
        limited = {key: limit for key, limit in limits.items() if limit is not None}
        assert {key: int(n) for key, n in self.keys.hash("kf").items()} == {
            f"+{key}": groups[key] for key in limited
        }
        blocked = set(self.keys.sorted("kb"))
        full = {f"+{key}" for key, limit in limited.items() if groups[key] >= limit}
        assert full <= blocked, "at its limit, and it has turns"
        if settings.key_rate is None and not any("rate" in own for own in settings.key_limits.values()):
            assert blocked == full, "blocked by nothing"
        assert set(self.keys.hash("kp")) <= blocked

    def check_turns(self) -> None:
        """Where ready_lists take turns, each has one place in the line of its level."""
        if not self.field("mx"):
            return
        wanted = {name.removeprefix("r:") for name in self.ready_lists}
        parked = {
            ready_list for ready_list in wanted if ready_list.partition(":")[2] in self.keys.sorted("kb")
        }
        known = {f"{rank}:{g}" for g, ranks in self.keys.hash("kp").items() for rank in ranks.split(",")}
        assert parked <= known, "parked, and nobody knows"
        wanted -= parked
        if self.tail:
            wanted.add("0:-")
        found = []
        for name in self.keys.names:
            if name.startswith("t:"):
                found += [f"{name.removeprefix('t:')}:{group}" for group in self.keys.list(name)]
        assert sorted(found) == sorted(wanted)
        ranks = {ready_list.partition(":")[0] for ready_list in wanted} - {"0"}
        assert ranks <= set(self.keys.sorted("p")), "a level that nobody looks at"

    def check_groups(self) -> None:
        """A group has a ticket if its first message is due and nothing before that is out."""
        out: dict[str, set[str]] = {}
        for seq in self.leases:
            options = self.extras[seq]
            out.setdefault("+" + options["g"] if "g" in options else "-", set()).add(seq)
        assert {group: int(n) for group, n in self.keys.hash("go").items()} == {
            group: len(seqs) for group, seqs in out.items()
        }
        assert {
            name.removeprefix("og:"): set(self.keys.sorted(name))
            for name in self.keys.names
            if name.startswith("og:")
        } == out
        groups = {name.removeprefix("r:"): ready_list for name, ready_list in self.ready_lists.items()}
        assert self.keys.sorted("gs") == {
            group: min(ready_list.values()) for group, ready_list in groups.items()
        }
        wanted: dict[str, int] = {}
        for group, ready_list in groups.items():
            first = min(ready_list, key=int)
            if group in self.keys.sorted("kb"):
                continue
            if first not in self.delayed and not any(int(seq) < int(first) for seq in out.get(group, ())):
                wanted[group] = self.rank(self.extras[first])
        found: dict[str, int] = {}
        tickets: list[float] = []
        for name in self.keys.names:
            if name.startswith("gz:"):
                rank = int(name.removeprefix("gz:"))
                found |= dict.fromkeys(self.keys.sorted(name), rank)
                tickets += self.keys.sorted(name).values()
        assert found == wanted
        assert len(set(tickets)) == len(tickets) == len(found), "two groups with one ticket"
        assert max(tickets, default=0) <= self.field("gt")
        assert {group: int(rank) for group, rank in self.keys.hash("gr").items()} == wanted
        assert {str(rank) for rank in wanted.values()} <= set(self.keys.sorted("p"))


def seqs_of_run(run: str) -> list[str]:
    """Those that are still out."""
    first, _, _, _, bits, _, _ = run.split(" ", 6)
    return [str(int(first) + at) for at, bit in enumerate(bits) if bit == "1"]
