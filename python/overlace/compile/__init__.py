"""overlace's operators in models that torch.compile compiles and that were written without them.

`enable()` puts a pass into Inductor, before its own passes, in forward and backward graphs: functional collectives
(those of DTensor, of torch.distributed._functional_collectives) and the products beside them become one operator
(overlace.compile.rewrite has the table). `report()` says of each collective what became of it, and why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

import overlace
from overlace.compile.match import Left, Problem
from overlace.compile.rewrite import Candidate, Rules, rewrite
from overlace.context import Context, context_of, group_name, open_contexts
from overlace.errors import InvalidArgument
from overlace.planning import Plan
from overlace.planning import plan as plan_of

__all__ = ["Candidate", "Pass", "Report", "aot_eager", "disable", "enable", "report"]
_SOURCES = tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py")))
_found: list[Candidate] = []
_WHENS = ("gain", "always")


@dataclasses.dataclass(frozen=True)
class Report:
    """What the passes of this process did. Graphs that torch took from its cache are not among it."""

    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        rows = [(c.collective, c.group, c.became or "left", c.reason) for c in self.candidates]
        rows.insert(0, ("collective", "group", "became", "reason"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join("  ".join([*(x.ljust(w) for x, w in zip(row, widths, strict=False)), row[3]]) for row in rows)


def report(*, clear: bool = False) -> Report:
    """Every collective that a pass saw, in the order of the graphs; clear: forgets them."""
    given = Report(tuple(_found))
    if clear:
        _found.clear()
    return given


class Pass(CustomGraphPass):
    """The pass as an object, for pass managers of one's own; arguments as those of `enable`."""

    def __init__(
        self,
        groups: object = None,
        *,
        when: str = "gain",
        plan: str = "",
        names: Mapping[str, object] | None = None,
        before: Any = None,
    ) -> None:
        if when not in _WHENS:
            raise InvalidArgument(f"overlace.compile: when is '{when}', wanted one of {', '.join(_WHENS)}")
        if not isinstance(plan, str):
            raise InvalidArgument(f"overlace.compile: plan is {plan!r}, wanted a text, as 'hetero_unfused_1d:4'")
        several = groups if isinstance(groups, Sequence) and not isinstance(groups, str) else [groups]
        self.groups = None if groups is None else sorted(group_name(group) for group in several)
        for name in self.groups or []:
            context_of(name)
        self.names = {name: group_name(group) for name, group in (names or {}).items()}
        for name in self.names.values():
            context_of(name)
        self.when, self.before = when, before
        self.plan = "" if plan == "auto" else plan

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self.before is not None:
            self.before(graph)
        self._plans: dict[tuple[str, Problem], Plan] = {}
        _found.extend(rewrite(graph, Rules(self._context, self._decide, self.plan, self.names)))

    def _context(self, name: str) -> Context:
        if self.groups is not None and name not in self.groups:
            raise Left(f"group '{name}' is none of those that enable() was given")
        try:
            return context_of(name)
        except InvalidArgument:
            raise Left(f"group '{name}' has no overlace team") from None

    def _decide(self, context: Context, problem: Problem) -> str:
        """The same on all ranks: it depends on the graph and the machine only."""
        if self.when == "always" or self.plan:
            return "as asked for"
        chosen = self._plans.get((context.name, problem))
        if chosen is None:  # layers are alike
            more: dict[str, Any] = {"bias": problem.bias, "return_a": problem.return_a, "dtype": problem.dtype}
            more |= {"b_layout": problem.b_layout, "scales": problem.scales, "out_dtype": problem.out_dtype}
            more |= {"b_dtype": problem.b_dtype}
            chosen = plan_of(problem.op, problem.m, problem.n, problem.k, group=context.name, **more)
            self._plans[context.name, problem] = chosen
        if chosen.is_library:
            raise Left(f"nothing to gain: {chosen.reason}")
        return chosen.reason

    def uuid(self) -> Any:
        """All that the result depends on; None where a pass before this one cannot say so."""
        inner = None
        if self.before is not None:
            inner = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
            if inner is None:
                return None
        teams = sorted((c.name, c.size, c.is_gpu) for c in open_contexts())
        options = (self.groups, self.when, self.plan, sorted(self.names.items()))
        own = (get_hash_for_files(_SOURCES), overlace.__version__, torch.__version__, options)
        return str((own, teams, inner))


class _Enabled(contextlib.AbstractContextManager):
    """Lasts until disable(), or to the end of a with block."""

    def __init__(self, own: Pass) -> None:
        self.own = own

    def disable(self) -> None:
        if config.post_grad_custom_pre_pass is self.own:
            config.post_grad_custom_pre_pass = self.own.before

    def __exit__(self, *error: object) -> None:
        self.disable()


def _warn_without_team(function: str) -> None:
    if not open_contexts():
        warnings.warn(
            f"overlace.compile.{function}: no group has a team yet, so nothing would be rewritten: "
            "overlace.init(group) comes before the model is compiled",
            stacklevel=3,
        )


def enable(
    groups: object = None, *, when: str = "gain", plan: str = "", names: Mapping[str, object] | None = None
) -> _Enabled:
    """Puts the pass into Inductor, behind a pass that is already there; before the model is compiled, on all ranks.

    groups: those whose collectives may be rewritten, each after overlace.init; None: all that have a team by then.
    when: "gain" rewrites where the planner takes another schedule than the plain collective; "always" wherever it fits.
    plan: as the operators take it, for all of them; it rewrites wherever it fits. "" or "auto": as `when` says.
    names: process groups by the names that a serving engine has for them, as in {"tp:0": group}: the collectives of
        vLLM and SGLang are operators of their own, and name their groups so. Those that are not rewritten stay what
        they are.

    As a context manager it lasts for the block, in which the first backward must run too: graphs of the gradient are
    compiled then. Nothing is sent at compile time; ranks whose graphs differ end with PlanMismatch or a deadline.
    """
    before = config.post_grad_custom_pre_pass
    if isinstance(before, Pass):
        raise InvalidArgument("overlace.compile.enable: it is enabled already; disable() that first")
    if groups is None:
        _warn_without_team("enable")
    own = Pass(groups, when=when, plan=plan, names=names, before=before)
    config.post_grad_custom_pre_pass = own
    return _Enabled(own)


def disable() -> None:
    """Takes the pass of `enable` out of Inductor; a pass that was there before stays. Nothing happens without one."""
    found = config.post_grad_custom_pre_pass
    if isinstance(found, Pass):
        config.post_grad_custom_pre_pass = found.before


def aot_eager(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """A backend for torch.compile that runs the pass and nothing else of Inductor: no compiler, no fused kernels.

    The pass is that of `enable`, or one with its defaults. Graphs are the same as those that Inductor would get, but
    for its decompositions.
    """
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    enabled = config.post_grad_custom_pre_pass
    own = enabled if isinstance(enabled, Pass) else Pass()
    if own is not enabled:
        _warn_without_team("aot_eager")

    def compile_one(graph_module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Any:
        own(graph_module.graph)
        graph_module.graph.lint()
        graph_module.recompile()
        return make_boxed_func(graph_module.forward)

    return aot_autograd(fw_compiler=compile_one, partition_fn=min_cut_rematerialization_partition)(module, inputs)
