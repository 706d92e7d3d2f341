"""Jobs to which everything happens that can: real processes behind proxies, faults by a seed, and a check of the sums.

``run`` is one job with its faults, ``plan`` draws them, ``proxy`` is the network, ``worker`` the program that trains
and keeps a ledger of the answers that it got, and ``ledgers`` compares all ledgers with each other.
"""

from tests.chaos.ledgers import check
from tests.chaos.plan import Event, Plan, planned
from tests.chaos.proxy import Proxy, Weather
from tests.chaos.run import Outcome, run
from tests.chaos.zygote import Zygote

__all__ = ["Event", "Outcome", "Plan", "Proxy", "Weather", "Zygote", "check", "planned", "run"]
