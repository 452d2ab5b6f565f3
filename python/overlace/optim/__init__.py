"""Training loops whose communication is hidden: CO2 and its peers (docs/design/co2.md)."""

from overlace.optim.co2 import CO2
from overlace.optim.groups import Groups, co2_hook, make_groups
from overlace.optim.tau import TauPlan, plan_tau

__all__ = ["CO2", "Groups", "TauPlan", "co2_hook", "make_groups", "plan_tau"]
