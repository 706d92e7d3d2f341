"""Chaos tests of jobs: real processes behind proxies, random faults, and a check of the sums.

``run`` runs one job, ``plan`` draws its faults from a seed, ``proxy`` is the network, ``worker`` the training program,
which records its answers in a ledger, and ``ledgers`` checks all ledgers.
"""

from tests.chaos.ledgers import check
from tests.chaos.plan import Event, Plan, make_plan
from tests.chaos.proxy import NetworkFaults, Proxy
from tests.chaos.run import Outcome, run
from tests.chaos.zygote import Zygote

__all__ = ["Event", "NetworkFaults", "Outcome", "Plan", "Proxy", "Zygote", "check", "make_plan", "run"]
