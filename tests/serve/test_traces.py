"""Traces of a service: spans of requests, batches and operators, in the trace of the client that asked."""

import asyncio

import pytest

import flowmx as mx
from flowmx import settings
from flowmx.comm.metrics import Metrics
from flowmx.engine.runtime import engine
from flowmx.serve import Predictor
from tests.serve.test_http import JSON, Client, Gateway

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is an extra: pip install opentelemetry-sdk")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
trace = pytest.importorskip("opentelemetry.trace")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def spans(monkeypatch):
    """Return the list of ended spans, from a separate provider for this test."""
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter.get_finished_spans
    provider.shutdown()


def predictor(**options):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, in_units=2), mx.gluon.nn.Activation("sigmoid"))
    net.initialize()
    net.hybridize()
    return Predictor(net, (2,), sizes=(4,), metrics=Metrics(), **options)


def by_name(spans):
    return {span.name: span for span in spans}


def is_child(span, parent):
    return span.parent.span_id == parent.context.span_id and span.context.trace_id == parent.context.trace_id


@pytest.mark.parametrize("carried", [Client, Gateway])
async def test_a_requests_span_is_in_its_clients_trace_and_holds_its_batch(carried, spans):
    with settings.override(traces="requests"):
        async with predictor() as model, carried(model) as ask:
            status, _, _ = await ask("POST", "/predict", b"[1, 2]", content_type=JSON, traceparent=TRACEPARENT)
    assert status == 200
    batch, request = spans()
    assert (request.name, request.kind.name) == ("POST /predict", "SERVER")
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == "/predict"
    assert batch.name == "batch of model"
    assert is_child(batch, request)
    assert request.start_time <= batch.start_time <= batch.end_time <= request.end_time
    facts = batch.attributes
    assert (facts["flowmx.batch.rows"], facts["flowmx.batch.size"], facts["flowmx.request.rows"]) == (1, 4, 1)
    assert 0 <= facts["flowmx.request.waited"] < 60


async def test_refusals_have_spans_named_after_their_route(spans):
    with settings.override(traces="requests"):
        async with predictor() as model, Client(model) as ask:
            await ask("POST", "/models/other/predict", b"[1, 2]", content_type=JSON)
            await ask("GET", "/nowhere/at/all")
    refused, unknown = spans()
    assert (refused.name, refused.attributes["url.path"]) == (
        "POST /models/{name}/predict",
        "/models/other/predict",
    )
    assert refused.attributes["http.response.status_code"] == unknown.attributes["http.response.status_code"] == 404
    assert unknown.name == "GET"
    assert refused.status.is_unset
    assert refused.parent is None


async def test_each_request_of_a_batch_has_it_in_its_trace(spans):
    async def ask(model):
        with trace.get_tracer("client").start_as_current_span("asks"):
            await model([[1, 2], [3, 4]])

    shared = []
    for _ in range(20):  # usually the first attempt succeeds: a request waits only briefly for another one
        with settings.override(traces="requests"):
            model = predictor()
        await asyncio.gather(ask(model), ask(model))
        await model.drain()
        batches = [span for span in spans() if span.name == "batch of model"]
        shared = [span for span in batches if span.attributes["flowmx.batch.rows"] == 4]
        if shared:
            break
    asking = [span.context.span_id for span in spans() if span.name == "asks"]
    assert {span.parent.span_id for span in batches} == set(asking)
    first, second = shared
    assert {span.parent.span_id for span in shared} == set(asking[-2:])
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert not first.links


async def test_operators_are_children_of_the_batch(spans):
    with settings.override(traces="operators"):
        async with predictor() as model:
            await model([1, 2])
    assert "spans" not in engine.watches
    spans_by_name = by_name(spans())
    batch = spans_by_name["batch of model"]
    assert batch.parent is None
    operations = [span for span in spans() if span is not batch and span.parent.span_id == batch.context.span_id]
    steps = [span for span in spans() if span.parent and span.parent.span_id in {o.context.span_id for o in operations}]
    assert operations and steps
    assert any("FullyConnected" in step.name for step in steps), [step.name for step in steps]
    for span in [*operations, *steps]:
        assert batch.start_time <= span.start_time + 1_000_000 and span.end_time <= batch.end_time + 1_000_000


async def test_a_batch_that_fails_says_so_in_its_span(spans, monkeypatch):
    with settings.override(traces="requests"):
        async with predictor() as model, Client(model) as ask:
            monkeypatch.setattr(model._runner.model, "compute", lambda *args: 1 / 0)
            status, _, _ = await ask("POST", "/predict", b"[1, 2]", content_type=JSON)
    assert status == 500
    batch, request = spans()
    assert batch.status.status_code.name == request.status.status_code.name == "ERROR"
    assert batch.events[0].attributes["exception.type"] == "ZeroDivisionError"


async def test_without_the_setting_there_are_no_spans(spans):
    async with predictor() as model, Client(model) as ask:
        await ask("POST", "/predict", b"[1, 2]", content_type=JSON, traceparent=TRACEPARENT)
    assert spans() == ()


def test_without_the_package_the_setting_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "flowmx.serve.spans", None)
    with settings.override(traces="requests"), pytest.raises(ImportError, match="pip install opentelemetry-sdk"):
        predictor()


async def test_a_mounted_services_span_is_a_child_of_the_frameworks(spans):
    tracer, propagate = trace.get_tracer("framework"), pytest.importorskip("opentelemetry.propagate")

    async def ask(within, **headers):
        with tracer.start_as_current_span("framework", within, trace.SpanKind.SERVER):
            assert (await gateway("POST", "/predict", b"[1, 2]", content_type=JSON, **headers))[0] == 200
        *_, request, outer = [span for span in spans() if span.name in {"framework", "POST /predict"}]
        return request, outer

    with settings.override(traces="requests"):
        async with predictor() as model, Gateway(model) as gateway:
            request, outer = await ask(None)
            assert is_child(request, outer)
            assert request.kind.name == "INTERNAL", "the framework's is the server's span"
            request, outer = await ask(propagate.extract({"traceparent": TRACEPARENT}), traceparent=TRACEPARENT)
            assert is_child(request, outer)
            assert f"{outer.parent.span_id:016x}" == PARENT
            request, outer = await ask(None, traceparent=TRACEPARENT)  # a span that is not the request's
            assert f"{request.parent.span_id:016x}" == PARENT
            assert request.kind.name == "SERVER"


async def test_pushed_operations_are_traced_within_the_pushing_span(spans):
    tracer = trace.get_tracer("user")

    async def coroutine():
        with tracer.start_as_current_span("coroutine"):
            await asyncio.sleep(0)

    def function():
        with tracer.start_as_current_span("function"):
            pass

    with tracer.start_as_current_span("outer"):
        await mx.engine.push(coroutine)
        await mx.engine.push(function)
    spans_by_name = by_name(spans())
    assert all(is_child(spans_by_name[name], spans_by_name["outer"]) for name in ("coroutine", "function"))


async def test_the_steps_of_a_stream_are_in_the_span_of_its_request(spans):
    cell = mx.gluon.rnn.GRUCell(2, input_size=2)
    cell.initialize()
    with settings.override(traces="requests"):
        stateful = Predictor(cell, (2,), sizes=(1,), metrics=Metrics(), states=True)
        async with stateful, Client(stateful) as ask:
            await ask("POST", "/stream", b"[[1, 2], [3, 4], [5, 6]]", content_type=JSON, traceparent=TRACEPARENT)
    (request,) = [span for span in spans() if span.name == "POST /stream"]
    batches = [span for span in spans() if span.name == "batch of model"]
    assert len(batches) == 3
    assert all(is_child(batch, request) for batch in batches)
