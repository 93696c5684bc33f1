"""From aggregates to metrics: tables per window, and the summary for the report. Without Spark.

Aggregates are in Parquet files, each queue contiguous in one of them, so one queue at a time is in memory. A
sketch is counts in buckets that grow by 1 %: adding two is exact, and a percentile is within 0.5 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import InvalidSetting

ACCURACY = 0.005  # as `lifecycle.ACCURACY`, which cannot be imported without Spark
GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MAX_WINDOWS = 200_000
MAX_POINTS = 240  # of a line in a plot
MAX_LINES = 8  # queues in one plot

_TIME = pa.timestamp("us", tz="UTC")
_COUNTED = {
    "published": ("publish",),
    "arrived": ("arrive",),
    "delivered": ("deliver",),
    "acked": ("ack",),
    "nacked": ("nack",),
    "lease_expired": ("lease_expired",),
    "retried": ("nack", "lease_expired"),
    "released": ("release",),
    "dead_lettered": ("dead_letter",),
    "redriven": ("redrive",),
    "moved": ("move",),
    "expired": ("expire",),
    "dropped": ("drop",),
    "cancelled": ("cancel",),
    "purged": ("purge",),
}
_SKETCHES = ("wait", "processing")


def _schema(*, texts: str, numbers: str, times: str, examples: bool = False) -> pa.Schema:
    fields = [(name, pa.string()) for name in texts.split()]
    fields += [(name, _TIME) for name in times.split()]
    fields += [(name, pa.int64()) for name in numbers.split()]
    return pa.schema(fields + [("examples", pa.list_(pa.string()))] * examples)


_SKETCHED = [
    f"{kind}_{name}"
    for kind in _SKETCHES
    for name in ("count", *(f"{each}_us" for each in QUANTILES), "max_us")
]
_SCHEMAS = {
    "windows": _schema(
        texts="queue",
        times="window_start window_end",
        numbers=" ".join(
            (*_COUNTED, "bytes bytes_delivered in_flight waiting oldest_age_us", *_SKETCHED),
        ),
    ),
    "latencies": _schema(texts="queue what", times="window_start", numbers="bucket count about_us"),
    "retries": _schema(texts="queue outcome", times="window_start", numbers="deliveries count"),
    "failures": _schema(
        texts="queue event type error_type error_signature",
        times="first_seen last_seen",
        numbers="count",
        examples=True,
    ),
    "consumers": _schema(
        texts="queue consumer slowest_id",
        times="last_seen",
        numbers="deliveries acks nacks timeouts abandoned dead_lettered holding slowest_us",
    ),
    "producers": _schema(texts="queue producer", times="last_seen", numbers="published bytes"),
}
TABLES = tuple(_SCHEMAS)
_ANSWERS = {
    "deliver": "deliveries",
    "ack": "acks",
    "nack": "nacks",
    "lease_expired": "timeouts",
    "release": "abandoned",
    "dead_letter": "dead_lettered",
    "drop": "dead_lettered",
}


# -- sketches ------------------------------------------------------------------------------------------


def bucket_values(buckets: Any) -> Any:
    """The value in the middle of each bucket."""
    values = 2 * np.power(GROWTH, buckets.astype(np.float64) - 1) / (GROWTH + 1)
    return np.where(buckets <= 0, 0, np.maximum(np.rint(values), 1)).astype(np.int64)


@dataclass
class Sketch:
    """Counts in buckets, in groups (windows, or one group for all); sorted by group and bucket."""

    groups: Any
    buckets: Any
    counts: Any
    lows: Any
    tops: Any

    @classmethod
    def of(cls, groups: Any, buckets: Any, counts: Any, lows: Any, tops: Any) -> Sketch:
        order = np.lexsort((buckets, groups))
        return cls(groups[order], buckets[order], counts[order], lows[order], tops[order])

    def percentiles(self) -> dict[int, dict[str, int]]:
        """For each group: count, percentiles by nearest rank, and the exact maximum."""
        if not len(self.groups):
            return {}
        names, starts = np.unique(self.groups, return_index=True)
        total = np.add.reduceat(self.counts, starts)
        low = np.minimum.reduceat(self.lows, starts)
        top = np.maximum.reduceat(self.tops, starts)
        running = np.cumsum(self.counts)
        base = running[starts] - self.counts[starts]
        columns = {"count": total}
        for name, share in QUANTILES.items():
            # Rounded because a product such as 0.9 * 10 may be slightly too large.
            rank = np.maximum(np.ceil(np.round(share * total, 6)), 1).astype(np.int64)
            at = np.searchsorted(running, base + rank, side="left")
            columns[f"{name}_us"] = np.clip(bucket_values(self.buckets[at]), low, top)
        columns["max_us"] = top
        return {
            int(group): {name: int(column[at]) for name, column in columns.items()}
            for at, group in enumerate(names)
        }


# -- one queue -----------------------------------------------------------------------------------------


@dataclass
class QueueMetrics:
    """The tables of one queue, and its part of the summary."""

    name: str
    tables: dict[str, list[dict[str, Any]]]
    total: dict[str, Any]
    points: dict[str, Any]
    dead: list[tuple[int, str, int]] = field(default_factory=list)


def queue_metrics(
    queue: str, table: pa.Table, window_us: int, now_us: int, step_us: int, from_us: int
) -> QueueMetrics:
    """`step_us` and `from_us`: the bins of the plots, which may be wider than a window."""
    kinds = {
        kind: table.filter(pc.equal(table["kind"], kind)) for kind in pc.unique(table["kind"]).to_pylist()
    }
    empty = table.slice(0, 0)
    last_window = now_us - now_us % window_us
    state = kinds.get("open", empty)
    opened = _open_columns(state)

    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    flight: dict[int, int] = defaultdict(int)
    depth: dict[int, int] = defaultdict(int)
    for row in _row_dicts(kinds.get("event", empty), "window_us", "k1", "n", "bytes", "flight", "depth"):
        here = counts[row["window_us"]]
        here[row["k1"]] += row["n"]
        if row["k1"] in ("publish", "deliver"):
            here["bytes" if row["k1"] == "publish" else "bytes_delivered"] += row["bytes"]
        flight[row["window_us"]] += row["flight"]
        depth[row["window_us"]] += row["depth"]

    oldest = _oldest(kinds.get("span", empty), opened, window_us, now_us)
    sketches = {kind: kinds.get(kind, empty) for kind in _SKETCHES}
    by_window = {kind: _sketch(cells, lambda us: us).percentiles() for kind, cells in sketches.items()}
    windows: list[dict[str, Any]] = []
    in_flight = waiting = 0
    for start in sorted({*counts, *oldest}):
        here = counts.get(start, {})
        in_flight += flight.get(start, 0)
        waiting += depth.get(start, 0)
        row = {
            "queue": queue,
            "window_start": start,
            "window_end": start + window_us,
            **{name: sum(here.get(event, 0) for event in events) for name, events in _COUNTED.items()},
            "bytes": here.get("bytes", 0),
            "bytes_delivered": here.get("bytes_delivered", 0),
            "in_flight": in_flight,
            # If the beginning of the history is missing, more messages may be in flight than were published.
            "waiting": max(waiting - in_flight, 0),
            "oldest_age_us": min(start + window_us, now_us) - oldest[start] if start in oldest else None,
        }
        for kind in _SKETCHES:
            for name, value in by_window[kind].get(start, {}).items():
                row[f"{kind}_{name}"] = value
        windows.append(row)

    tables = {
        "windows": windows,
        "latencies": [
            {
                "queue": queue,
                "window_start": row["window_us"],
                "what": kind,
                "bucket": row["mark"],
                "count": row["n"],
                "about_us": int(bucket_values(np.array([row["mark"]]))[0]),
            }
            for kind, cells in sketches.items()
            for row in sorted(
                _row_dicts(cells, "window_us", "mark", "n"), key=lambda row: (row["window_us"], row["mark"])
            )
        ],
        "retries": [
            {
                "queue": queue,
                "window_start": row["window_us"],
                "outcome": row["k1"],
                "deliveries": row["mark"],
                "count": row["n"],
            }
            for row in sorted(
                _row_dicts(kinds.get("depth", empty), "window_us", "k1", "mark", "n"),
                key=lambda row: (row["window_us"], row["k1"], row["mark"]),
            )
        ],
        "failures": _failures(queue, kinds.get("failure", empty)),
        "consumers": _consumers(queue, kinds.get("consumer", empty), opened),
        "producers": _producers(queue, kinds.get("producer", empty)),
    }
    total = _total(queue, windows, sketches, tables)
    total["in_flight"] = int(np.count_nonzero(opened["held"]))
    known = opened["arrival_us"] >= 0
    total["waiting"] = int(np.count_nonzero(known & ~opened["held"]))
    arrivals = opened["arrival_us"][known]
    total["oldest_age_us"] = now_us - int(arrivals.min()) if len(arrivals) else None
    points = _points(windows, sketches, step_us, from_us, last_window)
    dead = [
        (row["window_us"] - (row["window_us"] - from_us) % step_us, row["k4"] or row["k3"] or "", row["n"])
        for row in _row_dicts(kinds.get("failure", empty), "window_us", "k1", "k3", "k4", "n")
        if row["k1"] == "dead_letter"
    ]
    return QueueMetrics(queue, tables, total, points, dead)


def _row_dicts(table: pa.Table, *columns: str) -> list[dict[str, Any]]:
    return table.select(columns).to_pylist()  # type: ignore[no-any-return]


def _numbers(table: pa.Table, name: str, missing: int = 0) -> Any:
    return pc.fill_null(table[name], missing).to_numpy()


def _open_columns(state: pa.Table) -> dict[str, Any]:
    inner = state["open"].combine_chunks()
    if isinstance(inner, pa.ChunkedArray):
        inner = inner.chunk(0) if inner.num_chunks else pa.array([], inner.type)
    return {
        "arrival_us": pc.fill_null(inner.field("arrival_us"), -1).to_numpy(zero_copy_only=False),
        "held": pc.fill_null(inner.field("held"), False).to_numpy(zero_copy_only=False).astype(bool),
        "consumer": inner.field("consumer").to_pylist(),
    }


def _oldest(spans: pa.Table, opened: dict[str, Any], window_us: int, now_us: int) -> dict[int, int]:
    """For each window with messages in the queue at its end: when the oldest of them arrived.

    Sorted by arrival, a message is the oldest once all earlier ones are removed: every window is visited
    once, however many messages stay for however long.
    """
    last_window = now_us - now_us % window_us
    arrival = opened["arrival_us"]
    arrival = arrival[arrival >= 0]
    starts = np.concatenate([_numbers(spans, "low_us"), arrival])
    ends = np.concatenate([_numbers(spans, "mark"), np.full(len(arrival), last_window)])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    found: dict[int, int] = {}
    if len(starts):
        firsts = starts - starts % window_us
        covered = np.concatenate([[firsts[0]], np.maximum.accumulate(ends)[:-1]])
        firsts = np.maximum(firsts, covered)
        for at in np.flatnonzero(firsts < ends):
            found.update(dict.fromkeys(range(int(firsts[at]), int(ends[at]), window_us), int(starts[at])))
    if len(arrival):
        found[last_window] = int(arrival.min())
    return found


def _sketch(cells: pa.Table, group: Callable[[Any], Any]) -> Sketch:
    top = pc.struct_field(cells["top"], "us") if len(cells) else pa.array([], pa.int64())
    return Sketch.of(
        group(_numbers(cells, "window_us")),
        _numbers(cells, "mark"),
        _numbers(cells, "n"),
        _numbers(cells, "low_us"),
        top.to_numpy() if isinstance(top, pa.ChunkedArray) else top.to_numpy(zero_copy_only=False),
    )


def _failures(queue: str, cells: pa.Table) -> list[dict[str, Any]]:
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in _row_dicts(cells, "k1", "k2", "k3", "k4", "n", "first", "last", "pick"):
        key = (row["k1"], row["k2"], row["k3"], row["k4"])
        first, last, pick = row["first"], row["last"], row["pick"]
        at = merged.get(key)
        if at is None:
            merged[key] = {"n": row["n"], "first": first, "last": last, "pick": pick}
            continue
        at["n"] += row["n"]
        at["first"] = min(at["first"], first, key=_example_order)
        at["last"] = max(at["last"], last, key=_example_order)
        at["pick"] = max(at["pick"], pick, key=lambda each: (each["hash"], each["id"]))
    found = [
        {
            "queue": queue,
            "event": event,
            "type": type_,
            "error_type": error_type,
            "error_signature": signature,
            "count": each["n"],
            "first_seen": each["first"]["us"],
            "last_seen": each["last"]["us"],
            "examples": list(dict.fromkeys((each["first"]["id"], each["pick"]["id"], each["last"]["id"]))),
        }
        for (event, type_, error_type, signature), each in merged.items()
    ]
    return sorted(found, key=_by_count)


def _example_order(example: dict[str, Any]) -> tuple[int, int, str]:
    return example["at"], example["us"], example["id"]


def _by_count(row: dict[str, Any]) -> tuple[Any, ...]:
    """The most frequent first; the names make the order deterministic."""
    names = ("queue", "event", "type", "error_type", "error_signature")
    return (-row["count"], *(row.get(name) or "" for name in names))


def _consumers(queue: str, cells: pa.Table, opened: dict[str, Any]) -> list[dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        return merged.setdefault(
            name,
            {
                "queue": queue,
                "consumer": name,
                **dict.fromkeys((*_ANSWERS.values(), "holding"), 0),
                "slowest_us": None,
                "slowest_id": None,
                "last_seen": None,
            },
        )

    for row in _row_dicts(cells, "k1", "k2", "n", "top", "last_us"):
        at = of(row["k1"])
        at[_ANSWERS[row["k2"]]] += row["n"]
        at["last_seen"] = max(at["last_seen"] or 0, row["last_us"])
        top = row["top"]
        if top is not None and (top["us"], top["id"]) > (at["slowest_us"] or -1, at["slowest_id"] or ""):
            at["slowest_us"], at["slowest_id"] = top["us"], top["id"]
    for at_open in np.flatnonzero(opened["held"]):
        of(opened["consumer"][at_open] or "")["holding"] += 1
    return sorted(merged.values(), key=lambda each: (-each["deliveries"], each["consumer"]))


def _producers(queue: str, cells: pa.Table) -> list[dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for row in _row_dicts(cells, "k1", "n", "bytes", "last_us"):
        at = merged.setdefault(
            row["k1"],
            {"queue": queue, "producer": row["k1"], "published": 0, "bytes": 0, "last_seen": 0},
        )
        at["published"] += row["n"]
        at["bytes"] += row["bytes"]
        at["last_seen"] = max(at["last_seen"], row["last_us"])
    return sorted(merged.values(), key=lambda each: (-each["published"], each["producer"]))


def _total(
    queue: str,
    windows: list[dict[str, Any]],
    sketches: dict[str, pa.Table],
    tables: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    total: dict[str, Any] = {"queue": queue}
    for name in (*_COUNTED, "bytes", "bytes_delivered"):
        total[name] = sum(row[name] for row in windows)
    for kind, cells in sketches.items():
        total[kind] = _sketch(cells, np.zeros_like).percentiles().get(0)
    depths: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in tables["retries"]:
        side = row["outcome"] if row["outcome"] in ("ack", "dead_letter") else "other"
        depths[row["deliveries"]][side] += row["count"]
    total["retry_depth"] = [{"deliveries": number, **depths[number]} for number in sorted(depths)]
    return total


def _points(
    windows: list[dict[str, Any]],
    sketches: dict[str, pa.Table],
    step_us: int,
    from_us: int,
    last_window: int,
) -> dict[str, Any]:
    """The lines of the plots, in bins of `step_us`."""
    size = max((last_window - from_us) // step_us + 1, 1)
    names = ("published", "delivered", "acked", "retried", "dead_lettered")
    points: dict[str, Any] = {name: [0] * size for name in names}
    for row in windows:
        at = (row["window_start"] - from_us) // step_us
        if 0 <= at < size:
            for name in names:
                points[name][at] += row[name]
    for kind, cells in sketches.items():
        binned = _sketch(cells, lambda us: (us - from_us) // step_us).percentiles()
        for name in QUANTILES:
            points[f"{kind}_{name}_us"] = [binned.get(at, {}).get(f"{name}_us") for at in range(size)]
    return points


# -- all queues ------------------------------------------------------------------------------------------


def by_queue(directory: Path) -> Iterator[tuple[str, pa.Table]]:
    """The aggregates, queue by queue."""
    for path in sorted(directory.glob("*.parquet")):
        pieces: list[pa.Table] = []
        name = None
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                table = pa.Table.from_batches([batch])
                runs = pc.run_end_encode(batch.column("queue"))
                start = 0
                for queue, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                    if name is not None and queue != name:
                        yield name, pa.concat_tables(pieces)
                        pieces = []
                    name = queue
                    pieces.append(table.slice(start, end - start))
                    start = end
        if name is not None:
            yield name, pa.concat_tables(pieces)


def bounds(directory: Path) -> tuple[int, int] | None:
    """The times of the first window and of the last event; None if there is no event."""
    first = last = None
    for path in sorted(directory.glob("*.parquet")):
        table = pq.read_table(path, columns=["kind", "window_us", "last_us", "low_us"])
        happened = table.filter(pc.equal(table["kind"], "event"))
        if len(happened):
            low, high = pc.min(happened["window_us"]).as_py(), pc.max(happened["last_us"]).as_py()
            first = low if first is None else min(first, low)
            last = high if last is None else max(last, high)
    return None if first is None or last is None else (first, last)


def write_metrics(
    cells: Path,
    out: Path,
    window_us: int,
    matches: Callable[[str], bool] = lambda name: True,
    top: int = 20,
) -> dict[str, Any]:
    """Read aggregates, write one Parquet file for each table into `out`, return the summary."""
    writers = {name: pq.ParquetWriter(out / f"{name}.parquet", schema, compression="zstd")
               for name, schema in _SCHEMAS.items()}  # fmt: skip
    span = bounds(cells)
    summary: dict[str, Any] = {
        "window_s": window_us / 1e6,
        "queues": [],
        "plots": None,
        "from": None,
        "until": None,
    }
    every: dict[str, list[dict[str, Any]]] = {"failures": [], "consumers": [], "producers": []}
    types: list[dict[str, Any]] = []
    lines: list[tuple[int, str, dict[str, Any]]] = []
    dead: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    try:
        if span is not None:
            from_us, now_us = span
            number = (now_us - from_us) // window_us + 1
            if number > MAX_WINDOWS:
                raise InvalidSetting(
                    f"the history has {number} windows of {window_us / 1e6:g} s, the limit is {MAX_WINDOWS}: "
                    "use a longer window, or a later start (since)"
                )
            step_us = window_us * -(-number // MAX_POINTS)
            for queue, table in by_queue(cells):
                if queue is None or not matches(queue):
                    continue
                metrics = queue_metrics(queue, table, window_us, now_us, step_us, from_us)
                for name, rows in metrics.tables.items():
                    writers[name].write_table(pa.Table.from_pylist(rows, _SCHEMAS[name]))
                summary["queues"].append(metrics.total)
                lines.append((metrics.total["published"] + metrics.total["delivered"], queue, metrics.points))
                for name, found in every.items():
                    found += metrics.tables[name][:top]
                types += _types(metrics.tables["failures"])[:top]
                for at, signature, count in metrics.dead:
                    dead[signature][at] += count
            summary["from"], summary["until"] = from_us, now_us
            lines.sort(key=lambda line: (-line[0], line[1]))
            summary["plots"] = {
                "from_us": from_us,
                "step_us": step_us,
                "queues": {queue: points for _, queue, points in lines[:MAX_LINES]},
                "dead_letters": _dead_lines(dead, from_us, step_us, now_us),
            }
    finally:
        for writer in writers.values():
            writer.close()
    summary["queues"].sort(key=lambda each: each["queue"])
    summary["failures"] = sorted(every["failures"], key=_by_count)[:top]
    summary["types"] = sorted(types, key=_by_count)[:top]
    summary["consumers"] = sorted(
        every["consumers"], key=lambda each: (-each["deliveries"], each["queue"], each["consumer"])
    )[:top]
    summary["producers"] = sorted(
        every["producers"], key=lambda each: (-each["published"], each["queue"], each["producer"])
    )[:top]
    return summary


def _dead_lines(
    dead: dict[str, dict[int, int]], from_us: int, step_us: int, now_us: int
) -> list[dict[str, Any]]:
    size = (now_us - from_us) // step_us + 1
    order = sorted(dead, key=lambda signature: (-sum(dead[signature].values()), signature))
    return [
        {
            "signature": signature,
            "count": sum(dead[signature].values()),
            "counts": [dead[signature].get(from_us + at * step_us, 0) for at in range(size)],
        }
        for signature in order[:MAX_LINES]
    ]


def _types(failures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The types of messages that fail most, over all signatures."""
    merged: dict[tuple[str, str | None], dict[str, Any]] = {}
    for row in failures:
        at = merged.setdefault(
            (row["queue"], row["type"]),
            {"queue": row["queue"], "type": row["type"], "count": 0, "dead_lettered": 0, "last_seen": 0},
        )
        at["count"] += row["count"]
        at["dead_lettered"] += row["count"] if row["event"] == "dead_letter" else 0
        at["last_seen"] = max(at["last_seen"], row["last_seen"])
    return sorted(merged.values(), key=_by_count)
