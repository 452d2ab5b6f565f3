"""Optimizers: CO2 and its peers, whose communication is hidden (docs/design/co2.md), and one for embedding tables."""

from overlace.optim.co2 import CO2
from overlace.optim.groups import Groups, co2_hook, make_groups
from overlace.optim.rowwise_adagrad import RowwiseAdagrad
from overlace.optim.tau import TauPlan, plan_tau

__all__ = ["CO2", "Groups", "RowwiseAdagrad", "TauPlan", "co2_hook", "make_groups", "plan_tau"]
