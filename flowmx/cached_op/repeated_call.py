"""A prediction that repeats the previous one with other data: what both share was checked in the first one.

A small network computes for a few microseconds, and a general call prepares for longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from flowmx.cached_op.compiled import Compiled
from flowmx.engine.runtime import engine
from flowmx.graph.capacity import tick
from flowmx.ndarray import core, recording

if TYPE_CHECKING:
    from flowmx.ndarray.array import NDArray

_storage_of, _version_of = attrgetter("storage"), attrgetter("version")
_form_of = attrgetter("__class__", "dims", "element_type", "storage.device")


class RepeatedCall:
    """A short call that only writes its outputs, with parameters that have not changed since.

    Args:
        compiled: the graph of the call; this object does not keep it alive.
        number: the number under which the graph remembers the call.
        parameters: the inputs of the call, with None in place of the data.
        versions: the versions of the parameters before the call.
        data: the data of the call.
        casting: the casts for mixed precision that the graph has.
        kind: the class of the outputs.

    Attributes:
        parameters: the same list. Repeated calls pass it, and not a copy.
    """

    def __init__(
        self, compiled: Compiled, number: int, parameters: Sequence[NDArray | None], versions: list[int],
        data: Sequence[NDArray], casting: core.Casting | None, kind: type[NDArray],
    ) -> None:  # fmt: skip
        self.parameters = parameters
        self._compiled, self._number = ref(compiled), number
        self._forms = tuple(map(_form_of, data))
        self._casting, self._kind = casting, kind
        self._storages = [array.storage for array in parameters if array is not None]
        self._versions = versions

    def __call__(self, data: Sequence[NDArray]) -> Any:
        """Compute the output, or a list of outputs; return None, having done nothing, if a general call is needed."""
        mode, compiled = recording.state.get(), self._compiled()
        if (
            mode.recording
            or mode.training
            or mode.notes is not None
            or core.casting is not self._casting
            or compiled is None
            or tuple(map(_form_of, data)) != self._forms
        ):
            return None
        outputs = [
            cast("NDArray", core.allocate(compiled.device, *result, None, self._kind))
            for result in compiled.output_types
        ]
        # Data with pending writes are refused; parameters are compared inside, while no operation can be pushed.
        reads = tuple(map(_storage_of, data))
        if not engine.run_light(compiled.device.compute, reads, self._predict, compiled, data, outputs):
            return None
        compiled.used = tick()
        for output in outputs:
            output.storage.version = 1
        return outputs[0] if len(outputs) == 1 else outputs

    def _predict(self, compiled: Compiled, data: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        if [*map(_version_of, self._storages)] != self._versions:
            raise LookupError("a parameter has changed")
        arrays = [*[array.raw() for array in data], *[output.raw_for_writing() for output in outputs]]
        compiled.predict_again(self._number, arrays)


def repetition_of(
    compiled: Compiled, parameters: Sequence[NDArray | None], versions: list[int], data: Sequence[NDArray],
    casting: core.Casting | None, kind: type[NDArray],
) -> RepeatedCall | None:  # fmt: skip
    """Return a short call that has just run, for repetition; None if it cannot be repeated."""
    number = compiled.remember_call([array.raw() for array in parameters if array is not None])
    return RepeatedCall(compiled, number, parameters, versions, data, casting, kind) if number else None
