"""Update rules that MXNet computes with several operators; here each is one pass.

They have no public function; :mod:`flowmx.optimizer` calls them.
"""

from __future__ import annotations

from flowmx.ops.formulas import update_rules as updates
from flowmx.ops.optimizers.adamw import RULE as ADAMW
from flowmx.ops.optimizers.updates import Rule, register_rule

_MOMENTS = {"beta1": 0.9, "beta2": 0.999}
RULES = [
    Rule("_adagrad_update", ("history",), {"epsilon": 1e-7}, "by the rule", updates.adagrad,
         "AdaGrad (Duchi et al., 2011): w -= lr · (g/√(history + epsilon) + wd · w), history the sum of g²."),
    Rule("_adadelta_update", ("squares", "deltas"), {"rho": 0.9, "epsilon": 1e-5}, "by the rule", updates.adadelta,
         "AdaDelta (Zeiler, 2012)."),
    Rule("_adamax_update", ("mean", "norm"), _MOMENTS, "before clipping", updates.adamax,
         "Adam with the infinity norm (Kingma and Ba, 2014): w -= lr · mean/norm."),
    Rule("_nadam_update", ("mean", "var"),
         {**_MOMENTS, "epsilon": 1e-8, "momentum": 0.9, "following": 0.9, "product": 0.9, "t": 1.0},
         "before clipping", updates.nadam,
         "Adam with Nesterov's momentum (Dozat, 2015): momentum and following are those of this step and the next, "
         "product is that of all momentums so far."),
    Rule("_adabelief_update", ("mean", "var"), {**_MOMENTS, "epsilon": 1e-6}, "before clipping", updates.adabelief,
         "AdaBelief (Zhuang et al., 2020): as Adam, var the average of (g - mean)²."),
    Rule("_dcasgd_update", ("previous",), {"lamda": 0.04}, "by the rule", updates.dcasgd,
         "Delay-compensated SGD (Zheng et al., 2017): w -= lr · (g + wd · w + lamda · g² · (w - previous))."),
    Rule("_dcasgd_mom_update", ("mom", "previous"), {"momentum": 0.0, "lamda": 0.04}, "by the rule", updates.dcasgd_mom,
         "Delay-compensated SGD with momentum."),
    ADAMW._replace(name="_adamw_step", parameters={**ADAMW.parameters, "eta": 1.0}),
]  # fmt: skip

for _rule in RULES:
    register_rule(_rule, hidden=True)
