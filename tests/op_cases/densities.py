"""The densities of distributions, and their gradients."""

from tests.op_cases.case import Case, classes, positive


def _between(low, high, *shape):
    return lambda rng: rng.uniform(low, high, shape)


def _simplex(*shape):
    return lambda rng: rng.dirichlet([2.0] * shape[-1], shape[:-1])


def _cases(name, sample, *parameters, flat=False, note=""):
    """Return cases of the density and its logarithm; ``flat`` if samples have no gradient in MXNet."""
    for params in ({}, {"is_log": True}):
        case = Case(f"_random_pdf_{name}", [sample, *parameters], params, note=note, second=not flat)
        if not flat:
            yield case
            continue
        yield case._replace(numeric=False)
        yield case._replace(wrt=tuple(range(1, 1 + len(parameters))), recorded=False, second=True, note="parameters")


CASES = [
    *_cases("uniform", _between(0.0, 1.0, 2, 3), _between(-2.0, 0.0, 2), _between(1.0, 3.0, 2), flat=True),
    *_cases("normal", (2, 3), (2,), positive(2)),
    *_cases("normal", (2, 3), (2, 3), positive(2, 3), note="one-each"),
    *_cases("gamma", positive(2, 3), _between(0.5, 9.0, 2), positive(2)),
    *_cases("exponential", positive(2, 2, 3), positive(2, 2)),
    *_cases("poisson", classes(5, 2, 3), _between(0.5, 3.0, 2), flat=True),
    *_cases("negative_binomial", classes(5, 2, 3), _between(0.5, 9.0, 2), _between(0.2, 0.8, 2), flat=True),
    *_cases("generalized_negative_binomial", classes(5, 2, 3), _between(0.5, 3.0, 2), positive(2), flat=True),
    *_cases("dirichlet", _simplex(2, 2, 3), _between(0.5, 3.0, 2, 3)),
    *_cases("dirichlet", _simplex(2, 3), _between(0.5, 3.0, 2, 3), note="one-each"),
    *_cases("dirichlet", _simplex(4, 3), _between(0.5, 3.0, 3), note="one-for-all"),
    *_cases("dirichlet", _simplex(3), _between(0.5, 3.0, 3), note="single"),
    Case("_spread_parameter", [(2,), (2, 3)], wrt=(0,), recorded=False, second=True),
    Case("_spread_parameter", [(2, 2), (2, 3, 2)], {"vectors": True}, wrt=(0,), recorded=False, second=True),
]
