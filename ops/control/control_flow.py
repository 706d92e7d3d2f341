"""Loops and branches as operators: ``_foreach``, ``_while_loop``, ``_cond``.

Their bodies are graphs (:class:`flowmx.graph.subgraph.Body`); which of the operator's inputs feeds which variable
of a body is given by lists of positions, as in MXNet's JSON. Hidden outputs keep what each iteration began with:
the gradient goes back over the iterations and computes each body anew, from there, together with its gradient,
so that the memory of one iteration is enough. Random numbers repeat, since each iteration draws from a
generator of its own that was seeded by the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.control import custom
from flowmx.ops.random.drawing import drawing
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, merge, operator, required

if TYPE_CHECKING:
    from flowmx.engine import Operation

Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]
_INT64: DType = np.dtype(np.int64)


class _Replay(Run):
    """A run of one iteration, with random numbers that can be drawn again."""

    __slots__ = ("_bits",)

    def __init__(self, run: Run, *seed: int) -> None:
        super().__init__(run.device, run.train, run.memo)
        self._bits = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed)))

    @property
    def random(self) -> np.random.Generator:
        generator: np.random.Generator = drawing(self._bits, self.xp)
        return generator


class Flow(Operator, heavy=True, hidden=True, mode_matters=True):
    """The base of loops and branches; a subclass runs its bodies.

    Its ``subgraphs`` are the bodies.
    """

    arguments = ()
    count: ClassVar[int]
    """The number of bodies."""
    num_args: int
    num_outputs: int

    @classmethod
    def create(cls, /, **given: Any) -> Operator:
        """The operator; ``subgraphs`` are its bodies.

        Raises:
            ParameterError: unknown, missing or unfit parameters, or another number of bodies.
        """
        bodies = tuple(given.pop("subgraphs", ()))
        if len(bodies) != cls.count:
            raise ParameterError(f"{cls.name}: {len(bodies)} subgraphs were given, expected {cls.count}")
        made: Any = cls(**cls._convert(given))
        own: dict[str, Any] = {
            "subgraphs": bodies,
            "_specs": {},
        }
        for name, value in own.items():
            object.__setattr__(made, name, value)
        made.with_traits(
            uses_random=any(body.random for body in bodies), detached=any(body.detached for body in bodies)
        )
        states = {locs[i] for body, locs in zip(bodies, made.locations(), strict=True) for i in body.auxiliary}
        object.__setattr__(made, "updates", tuple(sorted(states)))
        object.__setattr__(made, "_backward", _Backward.of(made))
        return made  # type: ignore[no-any-return]

    def detach(self, work: Operation, inputs: Sequence[Any]) -> None:
        custom.detach(work)

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{index}" for index in range(self.num_args - self.count))

    def visible_outputs(self) -> int:
        return self.num_outputs

    def counted_outputs(self) -> int:
        return self.num_outputs

    def outputs(self) -> tuple[str, ...]:
        seed = ("seed",) if self.traits.uses_random else ()
        return (*(f"output{index}" for index in range(self.num_outputs)), *self.kept(), *seed)

    # -- for subclasses to define ----------------------------------------------------------------------

    def locations(self) -> list[tuple[int, ...]]:
        """For each body, which input of the operator each of its variables reads."""
        raise NotImplementedError

    def kept(self) -> tuple[str, ...]:
        """Names of the hidden outputs, the seed left out."""
        raise NotImplementedError

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        """Compute the gradients of the inputs (None: not wanted) from those of the visible outputs."""
        raise NotImplementedError

    def settled(
        self, body: int, dtypes: Sequence[DType], earlier: Sequence[Sequence[DType]]
    ) -> Mapping[int, DType]:  # fmt: skip
        """The outputs of a body, by position, whose dtypes are those of something else.

        Args:
            body: its number.
            dtypes: of the operator's inputs.
            earlier: of the outputs of the bodies before it.
        """
        return {}

    # -- helpers ---------------------------------------------------------------------------------------

    def over(self, bodies: Sequence[Any]) -> Flow:
        """The same operator of other bodies."""
        made = type(self).create(**{name: getattr(self, name) for name in self.parameters}, subgraphs=tuple(bodies))
        return cast("Flow", made)

    def seeded(self, run: Run, outputs: Sequence[Array]) -> int:
        """The seed of this call's random numbers, kept in the last output."""
        if not self.traits.uses_random:
            return 0
        outputs[-1][0] = run.random.integers(0, 1 << 62)
        return int(outputs[-1][0])

    def iteration(self, run: Run, seed: int, step: int, body: int) -> Run:
        """The run of one of the bodies in one iteration."""
        return _Replay(run, seed, step, body) if self.traits.uses_random else run

    def seed_shape(self) -> list[ShapeOrNone]:
        """The shape of the seed, where there is one."""
        return [(1,)] if self.traits.uses_random else []

    def seed_type(self) -> list[DType | None]:
        """The dtype of the seed, where there is one."""
        return [_INT64] if self.traits.uses_random else []

    def feed(self, body: int, inputs: Sequence[Array]) -> list[Array]:
        """The inputs of a body, from the operator's."""
        return [inputs[location] for location in self.locations()[body]]

    def holds(self, run: Run, seed: int, step: int, inputs: Sequence[Array]) -> bool:
        """Run the first body, a condition, and return its value as a bool."""
        fed = self.feed(0, inputs)
        program = self.subgraphs[0].program(run, fed)
        shape, dtype = program.described[0]
        found = run.xp.empty(shape, dtype)
        program.run(self.iteration(run, seed, step, 0), fed, [found])
        return bool(found.reshape(-1)[0])

    def scratched(self, body: int, inputs: Sequence[Array], xp: Any) -> list[Array]:
        """The inputs of a body that is computed anew: its states must not change a second time."""
        fed = list(inputs)
        for position in self.subgraphs[body].auxiliary:
            fed[position] = xp.array(fed[position])
        return fed

    def differentiable(self, body: int, gradients: Sequence[Array | None]) -> list[int]:
        """Positions of the inputs of a body that a gradient goes through."""
        inside = self.subgraphs[body].auxiliary
        return [
            i for i, at in enumerate(self.locations()[body]) if gradients[at] is not None and i not in inside
        ]  # fmt: skip

    def unite(self, shapes: list[ShapeOrNone], position: int, shape: ShapeOrNone) -> None:
        """Add what is known of an input's shape.

        Raises:
            ShapeError: it contradicts what was known.
        """
        both = merge(shapes[position], shape)
        if both is False:
            raise ShapeError(
                f"{self.name}: input {position} has shape {shapes[position]}, its subgraph expects {shape}"
            )
        shapes[position] = both

    def infer_bodies(self, shapes: list[ShapeOrNone], which: Iterable[int]) -> list[list[ShapeOrNone]]:
        """Complete the shapes as bodies see them, in place; returns those of each body's outputs."""
        found = []
        for number in which:
            locations = self.locations()[number]
            inside, results = self.subgraphs[number].infer_shape([shapes[location] for location in locations])
            for location, shape in zip(locations, inside, strict=True):
                self.unite(shapes, location, shape)
            found.append(results)
        return found

    def infer_body_types(self, dtypes: list[DType | None], which: Iterable[int]) -> list[list[DType | None]]:
        """The same of dtypes."""
        found = []
        for number in which:
            locations = self.locations()[number]
            inside, results = self.subgraphs[number].infer_type([dtypes[location] for location in locations])
            for location, dtype in zip(locations, inside, strict=True):
                dtypes[location] = dtypes[location] or dtype
            found.append(results)
        return found

    def gradient(
        self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]
    ) -> Sequence[Any | None]:
        hidden = [outputs[index] for index in range(self.num_outputs, len(self.outputs()))]
        # Auxiliary states may have changed since; their values do not matter to a gradient in training mode.
        unchecked = getattr(inputs, "unchecked", inputs.__getitem__)
        read = [unchecked(i) if i in self.updates else inputs[i] for i in range(len(self.inputs()))]
        found = F.apply(self.__dict__["_backward"], [*heads, *read, *hidden])
        return found if isinstance(found, list) else [found]


def _is_float(dtype: DType | None) -> bool:
    return dtype is None or is_floating(dtype)


def _slice(array: Array, step: int) -> Array:
    """A view of one slice along the first axis, as a body sees it: of a vector, an array of one element."""
    return array[step : step + 1] if array.ndim == 1 else array[step]


def _slice_shape(shape: ShapeOrNone) -> ShapeOrNone:
    """The shape of one slice."""
    return None if shape is None else shape[1:] or (1,)


@operator("_backward_flow")
class _Backward(Operator, hidden=True, heavy=True):
    """The gradient of a loop or branch, of (heads, inputs, hidden outputs)."""

    arguments = ()
    flow: ClassVar[Flow]

    @classmethod
    def of(cls, flow: Flow) -> Operator:
        """The gradient of this operator."""
        made = cls()
        for name, value in (("flow", flow), ("_specs", {})):
            object.__setattr__(made, name, value)
        made.with_traits(detached=flow.traits.detached)
        return made

    def detach(self, work: Operation, inputs: Sequence[Any]) -> None:
        custom.detach(work)

    def _split(self, items: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        start, stop = self.flow.num_outputs, self.flow.num_outputs + len(self.flow.inputs())
        return items[:start], items[start:stop], items[stop:]

    def inputs(self) -> tuple[str, ...]:
        names = self.flow.outputs()
        shown = self.flow.num_outputs
        return (*(f"{name}_grad" for name in names[:shown]), *self.flow.inputs(), *names[shown:])

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{name}_grad" for name in self.flow.inputs())

    def moved_states(self) -> tuple[int, ...]:
        return tuple(self.flow.num_outputs + position for position in self.flow.updates)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(self._split(shapes)[1])

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, list(self._split(dtypes)[1])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        heads, taken, hidden = self._split(inputs)
        for out in outputs:
            out[...] = 0
        wanted = [
            out if _is_float(out.dtype) and i not in self.flow.updates else None for i, out in enumerate(outputs)
        ]  # fmt: skip
        self.flow.backward(run, heads, taken, hidden, wanted)


class _Loop(Flow):
    """The base of the two loops: states that go from one iteration to the next."""

    num_out_data: int
    body: ClassVar[int]
    """The index of the body that is run again and again."""

    def carried(self) -> tuple[int, ...]:
        """Indices of the body's inputs that are states."""
        raise NotImplementedError

    def step_inputs(self, inputs: Sequence[Array], states: Sequence[Array], step: int) -> list[Array]:
        """The inputs of the body in one iteration."""
        fed = self.feed(self.body, inputs)
        for position, state in zip(self.carried(), states, strict=True):
            fed[position] = state
        return fed

    def kept(self) -> tuple[str, ...]:
        return tuple(f"state{index}" for index in range(len(self.carried())))

    def settled(
        self, body: int, dtypes: Sequence[DType], earlier: Sequence[Sequence[DType]]
    ) -> Mapping[int, DType]:  # fmt: skip
        if body != self.body:
            return {}
        locations = self.locations()[body]
        return {self.num_out_data + at: dtypes[locations[each]] for at, each in enumerate(self.carried())}

    def sliced(self) -> tuple[int, ...]:
        """Indices of the body's inputs that are slices of the operator's."""
        return ()

    def target(self, position: int, gradients: Sequence[Array | None], step: int) -> Array:
        """The array for the gradient of an input of the body that is no state; over all iterations but for slices."""
        target: Any = gradients[self.locations()[self.body][position]]
        return _slice(target, step) if position in self.sliced() else target

    def sweep(
        self, run: Run, seed: int, steps: int, heads: Sequence[Array], inputs: Sequence[Array],
        history: Sequence[Array], gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        """Go back over the iterations, adding up the gradients."""
        carried = self.carried()
        locations = self.locations()[self.body]
        wanted = self.differentiable(self.body, gradients)
        current = [run.xp.array(head) for head in heads[self.num_out_data :]]
        spare = [run.xp.empty_like(each) for each in current]
        if not wanted:
            return
        requests = {i: "write" if i in (*carried, *self.sliced()) else "add" for i in wanted}
        program = None
        for step in reversed(range(steps)):
            fed = self.scratched(
                self.body, self.step_inputs(inputs, [each[step, ...] for each in history], step), run.xp
            )
            fed += [head[step, ...] for head in heads[: self.num_out_data]] + current
            program = program or self.subgraphs[self.body].program(run, fed[: len(locations)], requests)
            targets = [spare[carried.index(i)] if i in carried else self.target(i, gradients, step) for i in wanted]
            program.run(self.iteration(run, seed, step, self.body), fed, targets)
            for i, position in enumerate(carried):
                if position not in wanted:
                    spare[i][...] = 0
            current, spare = spare, current
        for position, total in zip(carried, current, strict=True):
            target = gradients[locations[position]]
            if target is not None:
                target += total


@operator("_foreach")
class Foreach(_Loop):
    """Run a body on each slice of the data along the first axis, with states that go from one to the next."""

    count = 1
    body = 0
    num_args: int = required("Number of inputs and subgraphs.", low=1)
    num_outputs: int = required("Number of outputs: stacked ones, then the last states.", low=0)
    num_out_data: int = required("The number of outputs that are stacked.", low=0)
    in_state_locs: Shape = required("Indices of the subgraph's inputs that are states.")
    in_data_locs: Shape = required("Indices of the subgraph's inputs that are slices of the data.")
    remain_locs: Shape = required("Indices of the subgraph's inputs that are the same each time.")

    def carried(self) -> tuple[int, ...]:
        return self.in_state_locs

    def locations(self) -> list[tuple[int, ...]]:
        order = [*self.in_data_locs, *self.in_state_locs, *self.remain_locs]
        table = {position: at for at, position in enumerate(order)}
        return [tuple(table[position] for position in range(len(order)))]

    def _states(self) -> range:
        return range(len(self.in_data_locs), len(self.in_data_locs) + len(self.in_state_locs))

    def step_inputs(self, inputs: Sequence[Array], states: Sequence[Array], step: int) -> list[Array]:
        fed = super().step_inputs(inputs, states, step)
        for at, position in enumerate(self.in_data_locs):
            fed[position] = _slice(inputs[at], step)
        return fed

    def sliced(self) -> tuple[int, ...]:
        return self.in_data_locs

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        count = len(self.in_data_locs)
        length = -1
        for at, shape in enumerate(shapes[:count]):
            if shape == ():
                raise ShapeError(f"{self.name}: data {at} has shape (), expected at least 1 axis")
            if shape is not None and shape[0] != -1:
                if length not in (-1, shape[0]):
                    raise ShapeError(f"{self.name}: data {at} has shape {shape}, expected {length} slices as the first")
                length = shape[0]
        inside = [_slice_shape(shape) for shape in shapes[:count]] + shapes[count:]
        for _ in range(2):  # what the last states tell of the first ones
            (results,) = self.infer_bodies(inside, [0])
            for at, shape in zip(self._states(), results[self.num_out_data :], strict=True):
                self.unite(inside, at, shape)

        def stacked(shape: ShapeOrNone) -> ShapeOrNone:
            return None if shape is None else (length, *shape)

        states = [inside[at] for at in self._states()]
        outputs = [*map(stacked, results[: self.num_out_data]), *states, *map(stacked, states), *self.seed_shape()]
        data = [
            (length,) if shape is not None and len(shape) == 1 else stacked(each)
            for shape, each in zip(shapes[:count], inside[:count], strict=True)
        ]
        return [*data, *inside[count:]], outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        (results,) = self.infer_body_types(completed, [0])
        states = [completed[at] for at in self._states()]
        return completed, [*results[: self.num_out_data], *states, *states, *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.seeded(run, outputs)
        stacked, last = outputs[: self.num_out_data], outputs[self.num_out_data : self.num_outputs]
        history = outputs[self.num_outputs : self.num_outputs + len(last)]
        steps = len(inputs[0])
        first = [inputs[at] for at in self._states()]
        for state, before in zip([each[0, ...] for each in history] if steps else last, first, strict=True):
            state[...] = before
        program = None
        for step in range(steps):
            fed = self.step_inputs(inputs, [each[step, ...] for each in history], step)
            program = program or self.subgraphs[0].program(run, fed)
            after = [each[step + 1, ...] for each in history] if step + 1 < steps else list(last)
            program.run(self.iteration(run, seed, step, 0), fed, [*(each[step, ...] for each in stacked), *after])

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        history = hidden[: len(self.in_state_locs)]
        self.sweep(run, seed, len(inputs[0]), heads, inputs, history, gradients)


@operator("_while_loop")
class WhileLoop(_Loop):
    """Run a body as long as a condition on the loop variables holds, at most ``max_iterations`` times.

    Stacked outputs have ``max_iterations`` slices; those that were not computed are 0.
    """

    count = 2
    body = 1
    num_args: int = required("Number of inputs and subgraphs.", low=1)
    num_outputs: int = required("Number of outputs: stacked ones, then the last loop variables.", low=0)
    num_out_data: int = required("The number of outputs that are stacked.", low=0)
    max_iterations: int = required("The most iterations.", low=0)
    cond_input_locs: Shape = required("Indices of the inputs that the condition reads.")
    func_input_locs: Shape = required("Indices of the inputs that the body reads.")
    func_var_locs: Shape = required("Indices of the body's inputs that are loop variables.")

    def carried(self) -> tuple[int, ...]:
        return self.func_var_locs

    def locations(self) -> list[tuple[int, ...]]:
        return [self.cond_input_locs, self.func_input_locs]

    def kept(self) -> tuple[str, ...]:
        return (*super().kept(), "steps")

    def _variables(self) -> list[int]:
        return [self.func_input_locs[position] for position in self.func_var_locs]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = list(shapes)
        for _ in range(2):
            _, results = self.infer_bodies(completed, [0, 1])
            for at, shape in zip(self._variables(), results[self.num_out_data :], strict=True):
                self.unite(completed, at, shape)

        def stacked(shape: ShapeOrNone) -> ShapeOrNone:
            return None if shape is None else (self.max_iterations, *shape)

        last = [completed[at] for at in self._variables()]
        outputs = [*map(stacked, results[: self.num_out_data]), *last, *map(stacked, last), (1,), *self.seed_shape()]
        return completed, outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        results = self.infer_body_types(completed, [1])[0]
        self.infer_body_types(completed, [0])
        last = [completed[at] for at in self._variables()]
        return completed, [*results[: self.num_out_data], *last, *last, _INT64, *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.seeded(run, outputs)
        stacked, last = outputs[: self.num_out_data], outputs[self.num_out_data : self.num_outputs]
        history = outputs[self.num_outputs : self.num_outputs + len(last)]
        now = list(inputs)
        variables = self._variables()
        step = 0
        while step < self.max_iterations and self.holds(run, seed, step, now):
            for state, at in zip(history, variables, strict=True):
                state[step] = now[at]
            fed = self.step_inputs(inputs, [each[step, ...] for each in history], step)
            # The last outputs serve as the variables between two iterations.
            program = self.subgraphs[1].program(run, fed)
            program.run(self.iteration(run, seed, step, 1), fed, [*(each[step, ...] for each in stacked), *last])
            for at, state in zip(variables, last, strict=True):
                now[at] = state
            step += 1
        if step == 0:
            for state, at in zip(last, variables, strict=True):
                state[...] = inputs[at]
        for each in stacked:
            each[step:] = 0
        outputs[self.num_outputs + len(last)][0] = step

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        count = len(self.func_var_locs)
        self.sweep(run, seed, int(hidden[count][0]), heads, inputs, hidden[:count], gradients)


@operator("_cond")
class Cond(Flow):
    """Run one of two branches, chosen by a condition."""

    count = 3
    num_args: int = required("Number of inputs and subgraphs.", low=1)
    num_outputs: int = required("Number of outputs.", low=1)
    cond_input_locs: Shape = required("Indices of the inputs that the condition reads.")
    then_input_locs: Shape = required(
        "Indices of the inputs that the branch reads which is taken where the condition holds."
    )
    else_input_locs: Shape = required("Indices of the inputs that the other branch reads.")

    def locations(self) -> list[tuple[int, ...]]:
        return [self.cond_input_locs, self.then_input_locs, self.else_input_locs]

    def kept(self) -> tuple[str, ...]:
        return ("branch",)

    def settled(
        self, body: int, dtypes: Sequence[DType], earlier: Sequence[Sequence[DType]]
    ) -> Mapping[int, DType]:  # fmt: skip
        return dict(enumerate(earlier[1])) if body == 2 else {}

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = list(shapes)
        _, one, other = self.infer_bodies(completed, [0, 1, 2])
        outputs: list[ShapeOrNone] = []
        for position, pair in enumerate(zip(one, other, strict=True)):
            both = merge(*pair)
            if both is False:
                raise ShapeError(
                    f"{self.name}: output {position} has shape {pair[0]} in one branch, {pair[1]} in the other"
                )
            outputs.append(both)
        return completed, [*outputs, (1,), *self.seed_shape()]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        results = self.infer_body_types(completed, [1, 2, 0])[0]
        return completed, [*results, _INT64, *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.seeded(run, outputs)
        branch = 1 if self.holds(run, seed, 0, inputs) else 2
        outputs[self.num_outputs][0] = branch
        fed = self.feed(branch, inputs)
        self.subgraphs[branch].program(run, fed).run(
            self.iteration(run, seed, 0, branch), fed, outputs[: self.num_outputs]
        )

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        branch = int(hidden[0][0])
        wanted = self.differentiable(branch, gradients)
        if not wanted:
            return
        fed = self.scratched(branch, self.feed(branch, inputs), run.xp)
        program = self.subgraphs[branch].program(run, fed, dict.fromkeys(wanted, "add"))
        targets = [gradients[self.locations()[branch][position]] for position in wanted]
        program.run(self.iteration(run, seed, 0, branch), [*fed, *heads], targets)
