"""Metrics in Prometheus' text form."""

import re

import pytest

from flowmx.comm.metrics import Metrics


def test_the_text_is_prometheus():
    metrics = Metrics()
    metrics.counter("pushes_total", "Pushes that were applied.", ["mode"]).add("sync", by=2)
    metrics.counter("pulls_total", "Pulls.").add()
    metrics.gauge("lag", "Rounds behind.\nThe largest.").set(3.5)
    metrics.gauge("followed", "Asked for.").follow(lambda: 7)
    times = metrics.histogram("seconds", "Time.", ["op"], bounds=(0.1, 1.0))
    for value in (0.1, 0.5, 5.0):
        times.observe(value, 'a"b\\c\n')
    assert metrics.text() == (
        "# HELP pushes_total Pushes that were applied.\n# TYPE pushes_total counter\n"
        'pushes_total{mode="sync"} 2\n'
        "# HELP pulls_total Pulls.\n# TYPE pulls_total counter\npulls_total 1\n"
        "# HELP lag Rounds behind.\\nThe largest.\n# TYPE lag gauge\nlag 3.5\n"
        "# HELP followed Asked for.\n# TYPE followed gauge\nfollowed 7\n"
        "# HELP seconds Time.\n# TYPE seconds histogram\n"
        'seconds_bucket{op="a\\"b\\\\c\\n",le="0.1"} 1\n'
        'seconds_bucket{op="a\\"b\\\\c\\n",le="1.0"} 2\n'
        'seconds_bucket{op="a\\"b\\\\c\\n",le="+Inf"} 3\n'
        'seconds_sum{op="a\\"b\\\\c\\n"} 5.5999999999999996\n'
        'seconds_count{op="a\\"b\\\\c\\n"} 3\n'
    )


def test_metrics_are_shared_by_name():
    metrics = Metrics()
    one = metrics.counter("a", "A.", ["x"])
    assert metrics.counter("a", "A.", ["x"]) is one
    for wrong in (lambda: metrics.gauge("a", "A.", ["x"]), lambda: metrics.counter("a", "A.", ["y"])):
        with pytest.raises(ValueError, match=re.escape("a is a counter with labels ('x',), and cannot be a")):
            wrong()
    with pytest.raises(TypeError, match="takes the labels"):
        one.add()
    one.add("k")
    assert (one.value("k"), one.value("other")) == (1, 0)
