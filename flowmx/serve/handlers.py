"""Handlers of ``flowmx serve --handler``: an object with ``decode`` and ``encode``, or a handler of MMS."""

from __future__ import annotations

from pathlib import Path

from flowmx.serve.handler_modules import load_object
from flowmx.serve.hooks import Hooks, check_hook
from flowmx.serve.mms import Handler, is_handler
from flowmx.serve.sagemaker.scripts import is_script

__all__ = ["load_handler"]


def load_handler(text: str, folder: Path | None = None) -> Hooks | Handler:
    """Load hooks, or a handler of Multi Model Server.

    Args:
        text: ``module`` or ``module:name``; instead of a module, also the path of a ``.py`` file. The module, or the
            object of that name in it, has the functions ``decode`` and ``encode``, or one of them; or it is a handler.
            A class is called without arguments, and its instance has them as methods.
        folder: the folder of the model; modules are found there, too.

    Raises:
        ImportError: there is no such module.
        ValueError: the module has no such name, or the object is neither.
        Exception: the module failed.
    """
    target = load_object(text, folder)
    if not hasattr(target, "decode") and not hasattr(target, "encode"):
        if is_handler(target) or is_script(target):
            return Handler(target, folder)
        raise ValueError(
            f"the handler {text!r} has neither decode nor encode, and is no handler of Multi Model Server, which has "
            "handle(data, context), nor a script of SageMaker, which has model_fn or transform_fn: define "
            "decode(body, content_type) or encode(result), or name the object that has them, MODULE:NAME "
            "(docs/serving.md)"
        )
    hooks = target() if isinstance(target, type) else target
    decode, encode = getattr(hooks, "decode", None), getattr(hooks, "encode", None)
    check_hook("decode", decode, "body, content_type")
    check_hook("encode", encode, "result")
    return Hooks(decode, encode)
