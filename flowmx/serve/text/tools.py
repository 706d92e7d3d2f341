"""The tools of a chat request: functions that the model may call, or has to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowmx.serve.text.errors import BadRequest
from flowmx.serve.text.fields import Fields
from flowmx.serve.text.tool_formats import ToolFormat

__all__ = ["Tools", "parse_tools", "with_parsed_arguments"]

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MAX_TOOLS = 128
_MAX_CALLS = 16
"""The maximum number of calls in a text that has to be a list of calls."""
_ANY_OBJECT: Mapping[str, object] = {"type": "object"}


class Tools(NamedTuple):
    """The tools of a request.

    Attributes:
        values: the tools, for the chat template.
        parameters: the JSON schema of the arguments by the name of each function.
        forced: the functions of which one has to be called; none if the model may answer with text.
        is_parallel: whether several calls are welcome.
    """

    values: Sequence[Mapping[str, object]]
    parameters: Mapping[str, Mapping[str, object]]
    forced: Sequence[str] = ()
    is_parallel: bool = True

    def schema(self, form: ToolFormat) -> str:
        """Return the JSON schema of the calls that are forced, as JSON.

        Raises:
            BadRequest: the parameters of a function are nested too deeply.
        """
        calls = [
            {
                "type": "object", "required": ["name", form.arguments], "additionalProperties": False,
                "properties": {"name": {"const": name}, form.arguments: {"$ref": f"#/$defs/{name}"}},
            }
            for name in self.forced
        ]  # fmt: skip
        schema: dict[str, object] = {"anyOf": calls} if len(calls) > 1 else calls[0]
        if form.is_list:
            count = _MAX_CALLS if self.is_parallel else 1
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": count}
        try:
            definitions = {name: _moved(self.parameters[name], f"#/$defs/{name}") for name in self.forced}
            return json.dumps({**schema, "$defs": definitions})
        except RecursionError:
            raise BadRequest("the parameters of a tool are nested too deeply", "tools") from None


def parse_tools(fields: Fields) -> Tools | None:
    """Return the tools of a request, or None if it has none or they are not to be called.

    Raises:
        BadRequest: a field is malformed.
    """
    values, choice = fields.get("tools"), fields.get("tool_choice")
    is_parallel = fields.flag("parallel_tool_calls", True)
    if values is None:
        if choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice needs tools", "tool_choice")
        return None
    if not isinstance(values, list) or not 1 <= len(values) <= _MAX_TOOLS:
        raise fields.wrong("tools", f"a list of 1 to {_MAX_TOOLS} objects")
    parameters = dict(_function(index, value) for index, value in enumerate(values))
    if choice == "none":
        return None
    if choice in (None, "auto"):
        return Tools(values, parameters, (), is_parallel)
    if choice == "required":
        return Tools(values, parameters, list(parameters), is_parallel)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in parameters:
        names = ", ".join(parameters)
        expected = f'"none", "auto", "required", or {{"type": "function", "function": {{"name": one of {names}}}}}'
        raise fields.wrong("tool_choice", expected)
    return Tools(values, parameters, [name], False)


def with_parsed_arguments(message: Mapping[str, object]) -> dict[str, object]:
    """Return a message whose calls of tools have their arguments as values, not JSON, as chat templates expect them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_with_arguments(call) for call in calls]}


def _with_arguments(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return call
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": value}}  # type: ignore[dict-item]


def _function(index: int, value: object) -> tuple[str, Mapping[str, object]]:
    """Return the name of a function, and the JSON schema of its arguments."""
    field = f"tools[{index}]"
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict):
        raise BadRequest(f'{field} is not a function, expected {{"type": "function", "function": {{...}}}}', field)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(
            f"the name of {field} is {str(name)[:80]!r}, expected 1 to 64 letters, digits, _, . and -", field
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequest(f"the parameters of {field} are {str(parameters)[:80]}, expected a JSON schema", field)
    return name, parameters or _ANY_OBJECT


def _moved(schema: object, place: str) -> object:
    """Return a schema that is moved to a place in another one: its references begin there."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {}
    for key, value in schema.items():
        is_reference = key == "$ref" and isinstance(value, str) and value.startswith("#")
        moved[key] = place + value[1:] if is_reference else _moved(value, place)
    return moved
