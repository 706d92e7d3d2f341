"""Inference services (``mx.serve``): awaited predictions in shared batches, load shedding, no blocked event loop.

Example:
    >>> async with mx.serve.Predictor("model/", shape=(3, 32, 32)) as predictor:
    ...     scores = await predictor(image)

:func:`app` makes an aiohttp application of predictors, :func:`asgi` an ASGI one, and ``python -m flowmx serve`` runs
one from a folder. ``docs/serving.md`` is the user's page.
"""

from flowmx.serve.access import Access
from flowmx.serve.application import app, run
from flowmx.serve.errors import InvalidInput, Overloaded, Unavailable
from flowmx.serve.gateway import asgi
from flowmx.serve.inputs import Input
from flowmx.serve.predictor import Predictor
from flowmx.serve.repository import Repository

__all__ = [
    "Access", "Input", "InvalidInput", "Overloaded", "Predictor", "Repository", "Unavailable", "app", "asgi", "run",
]  # fmt: skip
