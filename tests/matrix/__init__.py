"""A matrix of features: each is tried together with each other, by generated tests.

A feature is a *workload*, which computes something in steps, or a *scope*, in which something else is computed:

- two workloads take their steps in turns, and each must end with what it computes alone;
- a workload in a scope must end with what it computes outside;
- two scopes stand in each other, around a small workload.

``python -m tests.matrix`` writes the page docs/features.md.
"""
