"""Former names work, and warn with the present one at the caller's line."""

import asyncio

import pytest

import flowmx as mx


def code_of(expression):
    with pytest.warns(DeprecationWarning, match="is now") as caught:
        value = eval(compile(expression, "user.py", "eval"), {"mx": mx})
    (warning,) = caught
    assert warning.filename == "user.py"
    return value, str(warning.message)


def test_modules_are_the_same():
    assert code_of("mx.safety") == (mx.anomaly, "flowmx.safety is now flowmx.anomaly")
    assert code_of("mx.flight") == (mx.flight_recorder, "flowmx.flight is now flowmx.flight_recorder")
    assert {"safety", "flight"}.isdisjoint(dir(mx))


def test_functions_and_methods_do_the_same(tmp_path):
    waiting, message = code_of("mx.engine.room()")
    assert message == "mx.engine.room is now mx.engine.wait_for_capacity"

    async def wait():
        await waiting

    asyncio.run(wait())
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    run = mx.checkpoint.Run(tmp_path, net)
    with pytest.warns(DeprecationWarning, match=r"Run\.batch_done is now Run\.batch_end"):
        run.batch_done()
    assert run.batch == 1
    with pytest.warns(DeprecationWarning, match=r"Run\.epoch_done is now Run\.epoch_end"):
        run.epoch_done()
    assert run.epoch == 1


def test_arguments_are_the_same():
    net = mx.gluon.nn.Dense(2)
    with pytest.warns(DeprecationWarning, match="queue= is now max_queue="):
        former = mx.serve.Predictor(net, (3,), queue=7)
    assert former.describe()["queue"] == mx.serve.Predictor(net, (3,), max_queue=7).describe()["queue"] == 7


def test_pytorchs_name_of_the_anomaly_detection():
    with pytest.raises(mx.anomaly.NonFiniteError), mx.autograd.detect_anomaly():
        mx.nd.log(mx.nd.array([-1.0])).asnumpy()
