"""A model that is served within the process."""

import numpy as np

import flowmx as mx

net = mx.gluon.nn.Dense(2, in_units=3)
net.initialize("ones")


async def main() -> list[int]:
    async with mx.serve.Predictor(net, (3,), max_batch=4) as predictor:
        answer = await predictor(np.ones((1, 3), "float32"))
    return list(np.asarray(answer).shape)


assert mx.run(main()) == [1, 2]
