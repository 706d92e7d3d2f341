"""Inference services (``mx.serve``): awaitable predictions, dynamic batching, load shedding.

Example:
    >>> async with mx.serve.Predictor("model/", shape=(3, 32, 32)) as predictor:
    ...     scores = await predictor(image)

:func:`app` returns an aiohttp application of predictors and :func:`asgi` an ASGI application. ``python -m flowmx
serve`` serves the models of a folder. ``docs/serving.md`` is the user guide.
"""

from flowmx.lazy import lazy_attributes
from flowmx.serve.access import Access
from flowmx.serve.aiohttp_app import app, run
from flowmx.serve.asgi_app import asgi
from flowmx.serve.budget import Budget
from flowmx.serve.errors import InvalidInput, Overloaded, SessionClosed, Unavailable
from flowmx.serve.inputs import Input
from flowmx.serve.mms import Handler
from flowmx.serve.predictor import Predictor
from flowmx.serve.repository import Repository
from flowmx.serve.sessions.session import Session
from flowmx.serve.sessions.states import State

__all__ = [
    "Access", "Budget", "Handler", "Input", "InvalidInput", "Overloaded", "Predictor", "Repository", "Session",
    "SessionClosed", "State", "Unavailable", "app", "asgi", "run",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(__name__)
