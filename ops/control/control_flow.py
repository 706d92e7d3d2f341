"""Loops and branches as operators: ``_foreach``, ``_while_loop``, ``_cond``.

Their bodies are graphs (:class:`flowmx.graph.subgraph.Body`). Lists of positions map the operator's inputs to the
variables of a body, as in MXNet's JSON. Hidden outputs store the states at the start of each iteration. The gradient
iterates backwards and recomputes each body from these states, so it needs the memory of one iteration only.
Random numbers repeat: each iteration has its own generator, seeded by the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.control import custom
from flowmx.ops.random.host_draws import generator_for
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, merge, operator, required
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors, as_list

if TYPE_CHECKING:
    from flowmx.engine import Operation

_INT64: DType = np.dtype(np.int64)


class _IterationRun(Run):
    """The run of one iteration; its random numbers repeat for the same seed."""

    __slots__ = ("_bits",)

    def __init__(self, run: Run, *seed: int) -> None:
        super().__init__(run.device, run.train, run.memo)
        self._bits = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed)))

    @property
    def random(self) -> np.random.Generator:
        return generator_for(self._bits, self.xp)


class Flow(Operator, heavy=True, hidden=True, mode_matters=True):
    """Base of loops and branches; a subclass runs the bodies in ``subgraphs``."""

    arguments = ()
    count: ClassVar[int]
    """The number of bodies."""
    num_args: int
    num_outputs: int
    _fixed: tuple[int, ...] = ()

    @classmethod
    def create(cls, /, **parameters: Any) -> Operator:
        """Create the operator; ``subgraphs`` are its bodies.

        Raises:
            ParameterError: a parameter is unknown, missing or invalid, or the number of bodies is wrong.
        """
        bodies = tuple(parameters.pop("subgraphs", ()))
        if len(bodies) != cls.count:
            raise ParameterError(f"{cls.name}: {len(bodies)} subgraphs, expected {cls.count}")
        op = cls(**cls._convert(parameters))
        object.__setattr__(op, "subgraphs", bodies)
        object.__setattr__(op, "_specs", {})
        op.with_traits(uses_random=any(body.random for body in bodies), detached=any(body.detached for body in bodies))
        states = {locs[i] for body, locs in zip(bodies, op.locations(), strict=True) for i in body.auxiliary}
        object.__setattr__(op, "updates", tuple(sorted(states)))
        ones = {locs[i] for body, locs in zip(bodies, op.locations(), strict=True) for i in body.fixed}
        object.__setattr__(op, "_fixed", tuple(sorted(ones)))
        object.__setattr__(op, "_backward", _Backward.of(op))
        return op

    def detach(self, work: Operation, inputs: Sequence[object]) -> None:
        custom.detach(work)

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{index}" for index in range(self.num_args - self.count))

    def fixed_inputs(self) -> tuple[int, ...]:
        return self._fixed

    def visible_outputs(self) -> int:
        return self.num_outputs

    def json_output_count(self) -> int:
        return self.num_outputs

    def outputs(self) -> tuple[str, ...]:
        seed = ("seed",) if self.traits.uses_random else ()
        return (*(f"output{index}" for index in range(self.num_outputs)), *self.hidden_names(), *seed)

    # -- for subclasses to define ----------------------------------------------------------------------

    def locations(self) -> list[tuple[int, ...]]:
        """Return, for each body, the operator's input that each of its variables reads."""
        raise NotImplementedError

    def hidden_names(self) -> tuple[str, ...]:
        """Return the names of the hidden outputs, without the seed."""
        raise NotImplementedError

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        """Compute the gradients of the inputs (None: not needed) from those of the visible outputs."""
        raise NotImplementedError

    def required_dtypes(
        self, body: int, dtypes: Sequence[DType], earlier: Sequence[Sequence[DType]]
    ) -> Mapping[int, DType]:  # fmt: skip
        """Return the dtypes that outputs of a body must have, by position.

        Args:
            body: the number of the body.
            dtypes: the dtypes of the operator's inputs.
            earlier: the dtypes of the outputs of earlier bodies.
        """
        return {}

    # -- helpers ---------------------------------------------------------------------------------------

    def with_bodies(self, bodies: Sequence[object]) -> Flow:
        """Return the same operator with other bodies."""
        op = type(self).create(**{name: getattr(self, name) for name in self.parameters}, subgraphs=tuple(bodies))
        return cast("Flow", op)

    def draw_seed(self, run: Run, outputs: Sequence[Array]) -> int:
        """Draw the seed of this call's random numbers, and store it in the last output."""
        if not self.traits.uses_random:
            return 0
        outputs[-1][0] = run.random.integers(0, 1 << 62)
        return int(outputs[-1][0])

    def iteration_run(self, run: Run, seed: int, step: int, body: int) -> Run:
        """Return the run of a body in one iteration."""
        return _IterationRun(run, seed, step, body) if self.traits.uses_random else run

    def seed_shape(self) -> list[ShapeOrNone]:
        """Return the shape of the seed, if there is one."""
        return [(1,)] if self.traits.uses_random else []

    def seed_type(self) -> list[DType | None]:
        """Return the dtype of the seed, if there is one."""
        return [_INT64] if self.traits.uses_random else []

    def body_inputs(self, body: int, inputs: Sequence[Array]) -> list[Array]:
        """Return the inputs of a body, selected from the operator's."""
        return [inputs[location] for location in self.locations()[body]]

    def evaluate_condition(self, run: Run, seed: int, step: int, inputs: Sequence[Array]) -> bool:
        """Run the first body, a condition, and return its value as a bool."""
        values = self.body_inputs(0, inputs)
        program = self.subgraphs[0].program(run, values)
        shape, dtype = program.output_forms[0]
        result = run.xp.empty(shape, dtype)
        program.run(self.iteration_run(run, seed, step, 0), values, [result])
        return bool(result.reshape(-1)[0])

    def copy_states(self, body: int, inputs: Sequence[Array], xp: ArrayNamespace) -> list[Array]:
        """Return the inputs of a body with its auxiliary states copied, so a recomputation does not change them."""
        copies = list(inputs)
        for position in self.subgraphs[body].auxiliary:
            copies[position] = xp.array(copies[position])
        return copies

    def differentiable_inputs(self, body: int, gradients: Sequence[Array | None]) -> list[int]:
        """Return the positions of the inputs of a body that have a gradient."""
        states = self.subgraphs[body].auxiliary
        return [
            position
            for position, location in enumerate(self.locations()[body])
            if gradients[location] is not None and position not in states
        ]

    def merge_shape(self, shapes: list[ShapeOrNone], position: int, shape: ShapeOrNone) -> None:
        """Merge a shape into the known shape of an input.

        Raises:
            ShapeError: the shapes contradict each other.
        """
        merged = merge(shapes[position], shape)
        if merged is False:
            raise ShapeError(
                f"{self.name}: input {position} has shape {shapes[position]}, its subgraph expects {shape}"
            )
        shapes[position] = merged

    def infer_bodies(self, shapes: list[ShapeOrNone], numbers: Iterable[int]) -> list[list[ShapeOrNone]]:
        """Complete the shapes in place by the inference of the bodies; return the shapes of each body's outputs."""
        outputs = []
        for number in numbers:
            locations = self.locations()[number]
            variables, body_outputs = self.subgraphs[number].infer_shape([shapes[location] for location in locations])
            for location, shape in zip(locations, variables, strict=True):
                self.merge_shape(shapes, location, shape)
            outputs.append(body_outputs)
        return outputs

    def infer_body_types(self, dtypes: list[DType | None], numbers: Iterable[int]) -> list[list[DType | None]]:
        """Complete the dtypes in place by the inference of the bodies; return the dtypes of each body's outputs."""
        outputs = []
        for number in numbers:
            locations = self.locations()[number]
            variables, body_outputs = self.subgraphs[number].infer_type([dtypes[location] for location in locations])
            for location, dtype in zip(locations, variables, strict=True):
                dtypes[location] = dtypes[location] or dtype
            outputs.append(body_outputs)
        return outputs

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        hidden = [outputs[index] for index in range(self.num_outputs, len(self.outputs()))]
        # Auxiliary states may have changed since; a gradient in training mode does not read their values.
        unchecked = getattr(inputs, "unchecked", inputs.__getitem__)
        values = [unchecked(i) if i in self.updates else inputs[i] for i in range(len(self.inputs()))]
        return as_list(F.apply(self.__dict__["_backward"], [*heads, *values, *hidden]))


def _is_float(dtype: DType | None) -> bool:
    return dtype is None or is_floating(dtype)


def _slice(array: Array, step: int) -> Array:
    """Return a view of one slice along the first axis; for a vector, of shape (1,)."""
    return array[step : step + 1] if array.ndim == 1 else array[step]


def _slice_shape(shape: ShapeOrNone) -> ShapeOrNone:
    """Return the shape of one slice."""
    return None if shape is None else shape[1:] or (1,)


@operator("_backward_flow")
class _Backward(Operator, hidden=True, heavy=True):
    """The gradient of a loop or branch; its inputs are (heads, inputs, hidden outputs)."""

    arguments = ()
    flow: ClassVar[Flow]

    @classmethod
    def of(cls, flow: Flow) -> Operator:
        """Create the gradient of an operator."""
        op = cls()
        for name, value in (("flow", flow), ("_specs", {})):
            object.__setattr__(op, name, value)
        op.with_traits(detached=flow.traits.detached)
        return op

    def detach(self, work: Operation, inputs: Sequence[object]) -> None:
        custom.detach(work)

    def _split(self, items: Sequence[object]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        start, stop = self.flow.num_outputs, self.flow.num_outputs + len(self.flow.inputs())
        return items[:start], items[start:stop], items[stop:]

    def inputs(self) -> tuple[str, ...]:
        names = self.flow.outputs()
        count = self.flow.num_outputs
        return (*(f"{name}_grad" for name in names[:count]), *self.flow.inputs(), *names[count:])

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{name}_grad" for name in self.flow.inputs())

    def updated_states(self) -> tuple[int, ...]:
        return tuple(self.flow.num_outputs + position for position in self.flow.updates)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(self._split(shapes)[1])

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, list(self._split(dtypes)[1])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        heads, values, hidden = self._split(inputs)
        for out in outputs:
            out[...] = 0
        gradients = [
            out if _is_float(out.dtype) and i not in self.flow.updates else None for i, out in enumerate(outputs)
        ]  # fmt: skip
        self.flow.backward(run, heads, values, hidden, gradients)


class _Loop(Flow):
    """Base of the two loops: states pass from one iteration to the next."""

    num_out_data: int
    body: ClassVar[int]
    """The index of the body that is iterated."""

    def state_positions(self) -> tuple[int, ...]:
        """Return the indices of the body's inputs that are states."""
        raise NotImplementedError

    def step_inputs(self, inputs: Sequence[Array], states: Sequence[Array], step: int) -> list[Array]:
        """Return the inputs of the body in one iteration."""
        values = self.body_inputs(self.body, inputs)
        for position, state in zip(self.state_positions(), states, strict=True):
            values[position] = state
        return values

    def hidden_names(self) -> tuple[str, ...]:
        return tuple(f"state{index}" for index in range(len(self.state_positions())))

    def required_dtypes(
        self, body: int, dtypes: Sequence[DType], earlier: Sequence[Sequence[DType]]
    ) -> Mapping[int, DType]:  # fmt: skip
        if body != self.body:
            return {}
        locations = self.locations()[body]
        return {
            self.num_out_data + index: dtypes[locations[position]]
            for index, position in enumerate(self.state_positions())
        }

    def slice_positions(self) -> tuple[int, ...]:
        """Return the indices of the body's inputs that are slices of the operator's."""
        return ()

    def target(self, position: int, gradients: Sequence[Array | None], step: int) -> Array:
        """Return the gradient of an input of the body that is not a state: the total, or the slice of an iteration."""
        target: Any = gradients[self.locations()[self.body][position]]
        return _slice(target, step) if position in self.slice_positions() else target

    def backpropagate(
        self, run: Run, seed: int, steps: int, heads: Sequence[Array], inputs: Sequence[Array],
        history: Sequence[Array], gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        """Walk back over the iterations and sum the gradients."""
        state_positions = self.state_positions()
        locations = self.locations()[self.body]
        positions = self.differentiable_inputs(self.body, gradients)
        current = [run.xp.array(head) for head in heads[self.num_out_data :]]
        spare = [run.xp.empty_like(state) for state in current]
        if not positions:
            return
        requests = {i: "write" if i in (*state_positions, *self.slice_positions()) else "add" for i in positions}
        program = None
        for step in reversed(range(steps)):
            values = self.copy_states(
                self.body, self.step_inputs(inputs, [state[step, ...] for state in history], step), run.xp
            )
            values += [head[step, ...] for head in heads[: self.num_out_data]] + current
            program = program or self.subgraphs[self.body].program(run, values[: len(locations)], requests)
            targets = [
                spare[state_positions.index(i)] if i in state_positions else self.target(i, gradients, step)
                for i in positions
            ]
            program.run(self.iteration_run(run, seed, step, self.body), values, targets)
            for i, position in enumerate(state_positions):
                if position not in positions:
                    spare[i][...] = 0
            current, spare = spare, current
        for position, total in zip(state_positions, current, strict=True):
            target = gradients[locations[position]]
            if target is not None:
                target += total


@operator("_foreach")
class Foreach(_Loop):
    """Run a body on each slice of the data along the first axis; states pass from one slice to the next."""

    count = 1
    body = 0
    num_args: int = required("Number of inputs and subgraphs.", low=1)
    num_outputs: int = required("Number of outputs: stacked ones, then the last states.", low=0)
    num_out_data: int = required("The number of outputs that are stacked.", low=0)
    in_state_locs: Shape = required("Indices of the subgraph's inputs that are states.")
    in_data_locs: Shape = required("Indices of the subgraph's inputs that are slices of the data.")
    remain_locs: Shape = required("Indices of the subgraph's inputs that are the same in each iteration.")

    def state_positions(self) -> tuple[int, ...]:
        return self.in_state_locs

    def locations(self) -> list[tuple[int, ...]]:
        order = [*self.in_data_locs, *self.in_state_locs, *self.remain_locs]
        table = {position: index for index, position in enumerate(order)}
        return [tuple(table[position] for position in range(len(order)))]

    def _states(self) -> range:
        return range(len(self.in_data_locs), len(self.in_data_locs) + len(self.in_state_locs))

    def step_inputs(self, inputs: Sequence[Array], states: Sequence[Array], step: int) -> list[Array]:
        values = super().step_inputs(inputs, states, step)
        for index, position in enumerate(self.in_data_locs):
            values[position] = _slice(inputs[index], step)
        return values

    def slice_positions(self) -> tuple[int, ...]:
        return self.in_data_locs

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        count = len(self.in_data_locs)
        length = -1
        for index, shape in enumerate(shapes[:count]):
            if shape == ():
                raise ShapeError(f"{self.name}: data {index} has shape (), expected at least 1 axis")
            if shape is not None and shape[0] != -1:
                if length not in (-1, shape[0]):
                    raise ShapeError(
                        f"{self.name}: data {index} has shape {shape}, expected {length} slices as the first"
                    )
                length = shape[0]
        body_shapes = [_slice_shape(shape) for shape in shapes[:count]] + shapes[count:]
        for _ in range(2):  # the shapes of the last states complete those of the first ones
            (results,) = self.infer_bodies(body_shapes, [0])
            for index, shape in zip(self._states(), results[self.num_out_data :], strict=True):
                self.merge_shape(body_shapes, index, shape)

        def stack_shape(shape: ShapeOrNone) -> ShapeOrNone:
            return None if shape is None else (length, *shape)

        states = [body_shapes[index] for index in self._states()]
        outputs = [
            *map(stack_shape, results[: self.num_out_data]),
            *states,
            *map(stack_shape, states),
            *self.seed_shape(),
        ]
        data = [
            (length,) if shape is not None and len(shape) == 1 else stack_shape(slice_shape)
            for shape, slice_shape in zip(shapes[:count], body_shapes[:count], strict=True)
        ]
        return [*data, *body_shapes[count:]], outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        (results,) = self.infer_body_types(completed, [0])
        states = [completed[index] for index in self._states()]
        return completed, [*results[: self.num_out_data], *states, *states, *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.draw_seed(run, outputs)
        stacked, last = outputs[: self.num_out_data], outputs[self.num_out_data : self.num_outputs]
        history = outputs[self.num_outputs : self.num_outputs + len(last)]
        steps = len(inputs[0])
        first = [inputs[index] for index in self._states()]
        for state, before in zip([state[0, ...] for state in history] if steps else last, first, strict=True):
            state[...] = before
        program = None
        for step in range(steps):
            values = self.step_inputs(inputs, [state[step, ...] for state in history], step)
            program = program or self.subgraphs[0].program(run, values)
            after = [state[step + 1, ...] for state in history] if step + 1 < steps else list(last)
            program.run(
                self.iteration_run(run, seed, step, 0), values, [*(output[step, ...] for output in stacked), *after]
            )

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        history = hidden[: len(self.in_state_locs)]
        self.backpropagate(run, seed, len(inputs[0]), heads, inputs, history, gradients)


@operator("_while_loop")
class WhileLoop(_Loop):
    """Run a body while a condition on the loop variables holds, at most ``max_iterations`` times.

    Stacked outputs have ``max_iterations`` slices; slices of iterations that did not run are 0.
    """

    count = 2
    body = 1
    num_args: int = required("Number of inputs and subgraphs.", low=1)
    num_outputs: int = required("Number of outputs: stacked ones, then the last loop variables.", low=0)
    num_out_data: int = required("The number of outputs that are stacked.", low=0)
    max_iterations: int = required("Maximum number of iterations.", low=0)
    cond_input_locs: Shape = required("Indices of the inputs that the condition reads.")
    func_input_locs: Shape = required("Indices of the inputs that the body reads.")
    func_var_locs: Shape = required("Indices of the body's inputs that are loop variables.")

    def state_positions(self) -> tuple[int, ...]:
        return self.func_var_locs

    def locations(self) -> list[tuple[int, ...]]:
        return [self.cond_input_locs, self.func_input_locs]

    def hidden_names(self) -> tuple[str, ...]:
        return (*super().hidden_names(), "steps")

    def _variables(self) -> list[int]:
        return [self.func_input_locs[position] for position in self.func_var_locs]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = list(shapes)
        for _ in range(2):
            _, results = self.infer_bodies(completed, [0, 1])
            for index, shape in zip(self._variables(), results[self.num_out_data :], strict=True):
                self.merge_shape(completed, index, shape)

        def stack_shape(shape: ShapeOrNone) -> ShapeOrNone:
            return None if shape is None else (self.max_iterations, *shape)

        last = [completed[index] for index in self._variables()]
        outputs = [
            *map(stack_shape, results[: self.num_out_data]),
            *last,
            *map(stack_shape, last),
            (1,),
            *self.seed_shape(),
        ]
        return completed, outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        results = self.infer_body_types(completed, [1])[0]
        self.infer_body_types(completed, [0])
        last = [completed[index] for index in self._variables()]
        return completed, [*results[: self.num_out_data], *last, *last, _INT64, *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.draw_seed(run, outputs)
        stacked, last = outputs[: self.num_out_data], outputs[self.num_out_data : self.num_outputs]
        history = outputs[self.num_outputs : self.num_outputs + len(last)]
        current = list(inputs)
        variables = self._variables()
        step = 0
        while step < self.max_iterations and self.evaluate_condition(run, seed, step, current):
            for state, index in zip(history, variables, strict=True):
                state[step] = current[index]
            values = self.step_inputs(inputs, [state[step, ...] for state in history], step)
            # The last outputs hold the loop variables between iterations.
            program = self.subgraphs[1].program(run, values)
            program.run(
                self.iteration_run(run, seed, step, 1), values, [*(output[step, ...] for output in stacked), *last]
            )
            for index, state in zip(variables, last, strict=True):
                current[index] = state
            step += 1
        if step == 0:
            for state, index in zip(last, variables, strict=True):
                state[...] = inputs[index]
        for output in stacked:
            output[step:] = 0
        outputs[self.num_outputs + len(last)][0] = step

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        count = len(self.func_var_locs)
        self.backpropagate(run, seed, int(hidden[count][0]), heads, inputs, hidden[:count], gradients)


@operator("_cond")
class Cond(Flow):
    """Run one of two branches, selected by a condition."""

    count = 3
    num_args: int = required("Number of inputs and subgraphs.", low=1)
    num_outputs: int = required("Number of outputs.", low=1)
    cond_input_locs: Shape = required("Indices of the inputs that the condition reads.")
    then_input_locs: Shape = required("Indices of the inputs that the branch reads that runs if the condition holds.")
    else_input_locs: Shape = required("Indices of the inputs that the other branch reads.")

    def locations(self) -> list[tuple[int, ...]]:
        return [self.cond_input_locs, self.then_input_locs, self.else_input_locs]

    def hidden_names(self) -> tuple[str, ...]:
        return ("branch",)

    def required_dtypes(
        self, body: int, dtypes: Sequence[DType], earlier: Sequence[Sequence[DType]]
    ) -> Mapping[int, DType]:  # fmt: skip
        return dict(enumerate(earlier[1])) if body == 2 else {}

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = list(shapes)
        _, then, otherwise = self.infer_bodies(completed, [0, 1, 2])
        outputs: list[ShapeOrNone] = []
        for position, pair in enumerate(zip(then, otherwise, strict=True)):
            merged = merge(*pair)
            if merged is False:
                raise ShapeError(
                    f"{self.name}: output {position} has shape {pair[0]} in one branch, {pair[1]} in the other"
                )
            outputs.append(merged)
        return completed, [*outputs, (1,), *self.seed_shape()]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        results = self.infer_body_types(completed, [1, 2, 0])[0]
        return completed, [*results, _INT64, *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.draw_seed(run, outputs)
        branch = 1 if self.evaluate_condition(run, seed, 0, inputs) else 2
        outputs[self.num_outputs][0] = branch
        values = self.body_inputs(branch, inputs)
        self.subgraphs[branch].program(run, values).run(
            self.iteration_run(run, seed, 0, branch), values, outputs[: self.num_outputs]
        )

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        branch = int(hidden[0][0])
        positions = self.differentiable_inputs(branch, gradients)
        if not positions:
            return
        values = self.copy_states(branch, self.body_inputs(branch, inputs), run.xp)
        program = self.subgraphs[branch].program(run, values, dict.fromkeys(positions, "add"))
        targets = [gradients[self.locations()[branch][position]] for position in positions]
        program.run(self.iteration_run(run, seed, 0, branch), [*values, *heads], targets)
