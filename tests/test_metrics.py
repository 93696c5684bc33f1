"""Histograms and the two text formats."""

from __future__ import annotations

import random
import re

import pytest

from openq.histograms import Histogram, HistogramValue, merged
from openq.metrics import Family, QueueColumn, label_text, render


def test_an_observation_is_in_the_bucket_of_the_next_power_of_two() -> None:
    histogram = Histogram(0.001, 0, 4)
    for value in (0, 1, 2, 3, 4, 15, 16, 1_000_000):
        histogram.observe(value)

    value = histogram.value()

    assert value.bounds == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert value.counts == [1, 1, 2, 1, 1, 2]  # the last ones are larger than every bound
    assert value.sum == pytest.approx((0 + 1 + 2 + 3 + 4 + 15 + 16 + 1_000_000) / 1000)


def test_a_batch_counts_like_its_values_one_by_one() -> None:
    chooser = random.Random(7)
    one, many = Histogram(1), Histogram(1)
    for _ in range(200):
        values = [
            chooser.randrange(-2, 1 << chooser.randrange(1, 40)) for _ in range(chooser.randrange(1, 9))
        ]
        many.observe_many(values)
        for value in values:
            one.observe(value)

    assert (many.counts, many.total) == (one.counts, one.total)
    assert many.count == sum(one.counts)


def test_values_beyond_every_bucket_and_below_zero_are_counted() -> None:
    histogram = Histogram(1, 0, 3)

    histogram.observe(1 << 80)
    histogram.observe_many([1 << 90, 1])
    histogram.observe(-5)

    assert histogram.count == 4
    assert histogram.value().counts == [1, 1, 0, 0, 2]


def test_histograms_of_several_writers_are_one_value() -> None:
    first, second = Histogram(0.5, 1, 2), Histogram(0.5, 1, 2)
    first.observe(1)
    second.observe(3)

    assert merged([first, second]) == HistogramValue([1.0, 2.0], [1, 1, 0], 2.0)


FAMILIES: list[Family | QueueColumn] = [
    Family("openq_sent_total", "counter", "Sent\nmessages.", [({}, 3)]),
    Family("openq_depth", "gauge", 'A "depth".', [({"queue": 'a"b\\c\nd'}, 1.5)]),
    Family("openq_time_seconds", "histogram", "Times.", [({}, HistogramValue([0.5, 1], [1, 0, 2], 7.25))]),
    QueueColumn("openq_queue_sent_total", "counter", "Of one.", ['queue="x"', 'queue="y"'], [1, 2]),
    QueueColumn("openq_queue_wait_seconds", "summary", "Wait.", ['queue="x"'], [2.5], "_sum"),
    QueueColumn("openq_queue_wait_seconds", "summary", "Wait.", ['queue="x"'], [4], "_count"),
]


def test_the_text_format() -> None:
    assert render(FAMILIES).decode() == (
        "# HELP openq_sent_total Sent\\nmessages.\n"
        "# TYPE openq_sent_total counter\n"
        "openq_sent_total 3\n"
        '# HELP openq_depth A "depth".\n'
        "# TYPE openq_depth gauge\n"
        'openq_depth{queue="a\\"b\\\\c\\nd"} 1.5\n'
        "# HELP openq_time_seconds Times.\n"
        "# TYPE openq_time_seconds histogram\n"
        'openq_time_seconds_bucket{le="0.5"} 1\n'
        'openq_time_seconds_bucket{le="1.0"} 1\n'
        'openq_time_seconds_bucket{le="+Inf"} 3\n'
        "openq_time_seconds_sum 7.25\n"
        "openq_time_seconds_count 3\n"
        "# HELP openq_queue_sent_total Of one.\n"
        "# TYPE openq_queue_sent_total counter\n"
        'openq_queue_sent_total{queue="x"} 1\n'
        'openq_queue_sent_total{queue="y"} 2\n'
        "# HELP openq_queue_wait_seconds Wait.\n"
        "# TYPE openq_queue_wait_seconds summary\n"
        'openq_queue_wait_seconds_sum{queue="x"} 2.5\n'
        'openq_queue_wait_seconds_count{queue="x"} 4\n'
    )


def test_openmetrics_names_counters_without_their_suffix_and_ends_with_eof() -> None:
    text = render(FAMILIES, openmetrics=True).decode()

    assert "# TYPE openq_sent counter\nopenq_sent_total 3\n" in text
    assert '# HELP openq_depth A \\"depth\\".\n' in text
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1


def test_infinite_and_unknown_values_are_written_as_the_formats_want_them() -> None:
    samples = [({"x": "a"}, float("inf")), ({"x": "b"}, float("-inf")), ({"x": "c"}, float("nan"))]

    text = render([Family("openq_x", "gauge", "X.", samples)]).decode()

    assert [line.rpartition(" ")[2] for line in text.splitlines()[2:]] == ["+Inf", "-Inf", "NaN"]


def test_labels_are_escaped_once_for_all_columns() -> None:
    assert label_text({"account": "0", "queue": 'a"\\\n'}) == 'account="0",queue="a\\"\\\\\\n"'


def test_a_column_of_many_queues_is_whole() -> None:
    labels = [f'queue="q{number}"' for number in range(5_001)]

    text = render([QueueColumn("openq_queue_x", "gauge", "X.", labels, range(5_001))]).decode()

    assert re.findall(r'openq_queue_x\{queue="q(\d+)"\} (\d+)', text) == [
        (str(n), str(n)) for n in range(5_001)
    ]
