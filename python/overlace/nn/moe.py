"""A mixture of experts that lie on the ranks of a group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from overlace import ops
from overlace.context import context_of, group_name
from overlace.errors import InvalidArgument
from overlace.ops._moe import real_rows, refuse

_NAME = "MoELayer"
_STACKS = ("w1", "w2", "b1", "b2")
_MOST_EXPERTS, _MOST_CHOICES = 8192, 32
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": nn.functional.silu,
    "gelu_tanh": lambda t: nn.functional.gelu(t, approximate="tanh"),
    "gelu_erf": nn.functional.gelu,
    "relu": torch.relu,
}


class _Expert(nn.Module):
    """One expert that every token goes to, and what others are drawn from."""

    def __init__(self, hidden: int, inter: int, activation: str, gated: bool, **given) -> None:
        super().__init__()
        self.activation, self.gated = activation, gated
        self.up = nn.Linear(hidden, (2 if gated else 1) * inter, **given)
        self.down = nn.Linear(inter, hidden, **given)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *second = self.up(x).chunk(2 if self.gated else 1, -1)
        hidden = _ACTIVATIONS[self.activation](first)
        return self.down(hidden * second[0] if second else hidden)

    def stacked(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Its part of each stack."""
        return zip(_STACKS, (self.up.weight, self.down.weight, self.up.bias, self.down.bias), strict=True)


class _Scaled(torch.autograd.Function):
    """The same value; the gradient times a factor."""

    @staticmethod
    def forward(ctx, t, factor):
        ctx.factor = factor
        return t.view_as(t)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class MoELayer(nn.Module):
    """A router and E experts that are spread over the ranks of a group; each rank gives the tokens that it has.

    num_experts, hidden_size, intermediate_size: E, H and I. activation, gated, capacity_factor, expert_begin,
        max_tokens, which GPUs need: as in overlace.ops.moe; bias: experts that are not gated, and the shared one, have
        biases. Any number of ranks does.
    top_k, score, renormalize, num_groups, kept_groups, route_scale: as in overlace.ops.moe_router; expert_bias: a
        buffer (E) of float32 zeros, which is its bias and which the caller moves.
    shared_size: I of an expert that every token goes to with weight 1, on its own rank; 0: none. Several shared experts
        are one of the sum of their sizes.
    reduce_op: what becomes of the ranks' parts of the experts' gradients: "sum", of the sum of the ranks' losses, or
        "avg", of their mean, as DistributedDataParallel makes the other gradients.

    The experts' parameters are this rank's: w1 (E_loc, I or, gated, 2 I, H), w2 (E_loc, H, I), b1, b2. The router,
    gate.weight (E, H), and the shared expert are parameters that all ranks hold alike, so each rank's gradient of them
    is that of its own tokens, to be reduced over ranks as those of all such parameters are: DistributedDataParallel and
    fully_shard do that, and must leave `expert_parameters()` out. Initial values are those that nn.Linear draws from
    rank 0's seed for the router, from each rank's seed for each expert in turn and from rank 0's for the shared one:
    from one seed they are the same on any number of ranks. Collective, but on the meta device.

    `state_dict` has gate.weight, shared.up.weight, ... and this rank's experts as experts.3.w1, ..., so that the union
    over ranks is the state of the unsharded layer; `full_state_dict()` gathers it; `load_state_dict` takes either.
    `load` (E_loc) and `dropped`, int64, are those of the last call, as overlace.ops.moe gives them, whose limits
    on GPUs are those of the layer.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        top_k: int,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
        capacity_factor: float = 0.0,
        score: str = "softmax",
        renormalize: bool = False,
        num_groups: int = 1,
        kept_groups: int = 1,
        route_scale: float = 1.0,
        expert_bias: bool = False,
        shared_size: int = 0,
        expert_begin: Sequence[int] | None = None,
        max_tokens: int = 0,
        reduce_op: str = "sum",
        group: object = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        context = context_of(group)
        self.group_name, self.rank, self.size = group_name(group), context.rank, context.size
        self.num_experts, self.hidden_size, self.intermediate_size = num_experts, hidden_size, intermediate_size
        self.activation, self.gated, self.capacity_factor = activation, gated, capacity_factor
        self.routing: dict[str, Any] = {"top_k": top_k, "score": score, "renormalize": renormalize}
        self.routing |= {"num_groups": num_groups, "kept_groups": kept_groups, "route_scale": route_scale}
        given = expert_begin or [rank * num_experts // self.size for rank in range(self.size + 1)]
        self.expert_begin, self.reduce_op, self.max_tokens = list(given), reduce_op, max_tokens
        self._check(bias, shared_size)
        self._check_routing()
        self.mine = range(self.expert_begin[self.rank], self.expert_begin[self.rank + 1])
        self.load: torch.Tensor | None = None
        self.dropped: torch.Tensor | None = None

        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.gate = nn.Linear(hidden_size, num_experts, bias=False, **made)
        biases = torch.zeros(num_experts, device=device, dtype=torch.float32) if expert_bias else None
        self.register_buffer("expert_bias", biases)
        self._take(self._drawn(bias=bias, **made))
        shared = (hidden_size, shared_size, activation, gated)
        self.shared = _Expert(*shared, bias=bias, **made) if shared_size else None
        self._make_alike()
        # Read by DistributedDataParallel of this layer itself, in places with the dot behind a module without a name.
        self._ddp_params_and_buffers_to_ignore = [dot + name for name in self.expert_parameters() for dot in ("", ".")]

    @classmethod
    def from_stacks(
        cls,
        gate: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        b1: torch.Tensor | None = None,
        b2: torch.Tensor | None = None,
        *,
        top_k: int,
        gated: bool = True,
        **options: Any,
    ) -> MoELayer:
        """Takes this rank's experts of stacks that all ranks hold alike, and the router: copies.

        gate: (E, H). w1: (E, I or, gated, 2 I, H). w2: (E, H, I). b1: (E, I). b2: (E, H). All of one dtype. options: as
        of the constructor, but for what has values of its own: bias, expert_bias, shared_size.
        """
        for name, t in {"gate": gate, "w2": w2, "b1": b1, "b2": b2}.items():
            if t is not None and t.dtype != w1.dtype:
                raise InvalidArgument(f"{_NAME}: {name} is {t.dtype}, wanted {w1.dtype}, the dtype of w1")
        experts, hidden, inter = w2.shape
        given: dict[str, Any] = {
            "top_k": top_k,
            "gated": gated,
            "bias": b1 is not None,
            "device": "meta",
            "dtype": w1.dtype,
        }
        layer = cls(experts, hidden, inter, **given, **options)
        stacks = {name: t.detach() for name, t in zip(_STACKS, (w1, w2, b1, b2), strict=True) if t is not None}
        state = {f"experts.{e}.{name}": part for name, t in stacks.items() for e, part in enumerate(t)}
        layer.load_state_dict({"gate.weight": gate.detach().clone(), **state}, assign=True)
        return layer

    def _check(self, bias: bool, shared_size: int) -> None:
        begin, ranks = self.expert_begin, self.size
        if not 1 <= self.num_experts <= _MOST_EXPERTS:
            raise InvalidArgument(f"{_NAME}: num_experts is {self.num_experts}, wanted 1 to {_MOST_EXPERTS}")
        if shared_size < 0:
            raise InvalidArgument(f"{_NAME}: shared_size is {shared_size}, wanted 0 or more")
        if not self.capacity_factor >= 0:
            raise InvalidArgument(f"{_NAME}: capacity_factor is {self.capacity_factor}, wanted 0 or more")
        if self.activation not in _ACTIVATIONS:
            raise InvalidArgument(
                f"{_NAME}: activation is '{self.activation}', wanted one of {', '.join(_ACTIVATIONS)}"
            )
        if self.reduce_op not in ("sum", "avg"):
            raise InvalidArgument(f"{_NAME}: reduce_op is '{self.reduce_op}', wanted 'sum' or 'avg'")
        if self.gated and bias:
            raise InvalidArgument(f"{_NAME}: bias is True with gated experts, wanted gated=False")
        if len(begin) != ranks + 1 or begin != sorted(begin) or (begin[0], begin[-1]) != (0, self.num_experts):
            raise InvalidArgument(
                f"{_NAME}: expert_begin is {begin}, wanted {ranks + 1} numbers that do not fall, "
                f"from 0 to the {self.num_experts} experts"
            )

    def _check_routing(self) -> None:
        """Checks what the router would, in the first call."""
        top_k, score, groups, kept = (self.routing[n] for n in ("top_k", "score", "num_groups", "kept_groups"))
        if score not in ("softmax", "sigmoid"):
            raise InvalidArgument(f"{_NAME}: score is '{score}', wanted 'softmax' or 'sigmoid'")
        if groups < 1 or self.num_experts % groups != 0:
            raise InvalidArgument(
                f"{_NAME}: num_groups is {groups}, wanted a divisor of the {self.num_experts} experts"
            )
        if not 1 <= kept <= groups:
            raise InvalidArgument(f"{_NAME}: kept_groups is {kept}, wanted 1 to the {groups} groups")
        most = min(_MOST_CHOICES, self.num_experts // groups * kept)
        if not 1 <= top_k <= most:
            raise InvalidArgument(
                f"{_NAME}: top_k is {top_k}, wanted 1 to {most}, "
                f"at most {_MOST_CHOICES} and the experts of {kept} of {groups} groups"
            )

    def _drawn(self, **given) -> Iterator[_Expert]:
        sizes = (self.hidden_size, self.intermediate_size, self.activation, self.gated)
        return (_Expert(*sizes, **given) for _ in range(self.num_experts))

    def reset_parameters(self) -> None:
        """Draws this rank's experts as the constructor does, from this rank's seed, and sets `expert_bias` to 0. The
        router and the linear layers of the shared expert have a `reset_parameters` of their own. Not collective."""
        self._take(self._drawn(bias=self._parameters["b1"] is not None, device=self.w1.device, dtype=self.w1.dtype))
        if self.expert_bias is not None:
            self.expert_bias.zero_()

    def _apply(self, fn, recurse=True):
        """Leaves the bias of the choice float32: small steps on it must count."""
        before = self.expert_bias
        super()._apply(fn, recurse)
        if before is not None and self.expert_bias.dtype != before.dtype:
            self.expert_bias = before.to(self.expert_bias.device)
        return self

    @torch.no_grad()
    def _take(self, experts: Iterator[_Expert]) -> None:
        """Draws them one at a time, so that those of other ranks do not stay."""
        for e, expert in enumerate(experts):
            for name, part in expert.stacked():
                if e == 0 and name not in self._parameters:
                    empty = None if part is None else nn.Parameter(part.new_empty((len(self.mine), *part.shape)))
                    self.register_parameter(name, empty)
                if part is not None and e in self.mine:
                    self.get_parameter(name)[e - self.mine.start] = part

    @torch.no_grad()
    def _make_alike(self) -> None:
        """What rank 0 has drawn of that which all ranks hold."""
        for t in (self.gate.weight, *(() if self.shared is None else self.shared.parameters())):
            if not t.is_meta:
                t.copy_(self._of_rank(0, t.detach(), len(t)))

    def _of_rank(self, owner: int, mine: torch.Tensor, rows: int) -> torch.Tensor:
        """What the owner has, `rows` of it, on all ranks; of the others the shape of a row counts. Collective."""
        sends, comes = [len(mine) if self.rank == owner else 0] * self.size, [0] * self.size
        comes[owner] = rows
        sent = torch.cat([mine] * self.size) if self.rank == owner else mine[:0]
        return ops.all_to_all(sent, group=self.group_name, send_splits=sends, recv_splits=comes)

    # ---- parameters and state ----

    def expert_parameters(self) -> dict[str, nn.Parameter]:
        """By name, those that differ by rank: w1 and w2, and b1 and b2 where there are any."""
        return {name: p for name in _STACKS if (p := self._parameters[name]) is not None}

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        for name, stack in self.expert_parameters().items():
            kept = stack if keep_vars else stack.detach()
            for i, e in enumerate(self.mine):
                destination[f"{prefix}experts.{e}.{name}"] = kept[i]
        if self.expert_bias is not None:
            destination[f"{prefix}expert_bias"] = self.expert_bias if keep_vars else self.expert_bias.detach()

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        known = set() if self.expert_bias is None else {f"{prefix}expert_bias"}
        wanted = {key: self.expert_bias.shape for key in known}
        for name, stack in self.expert_parameters().items():
            keys = {e: f"{prefix}experts.{e}.{name}" for e in range(self.num_experts)}
            known |= set(keys.values())
            # Those of other ranks are neither missing nor strange, but they have a shape.
            wanted |= {key: stack.shape[1:] for e, key in keys.items() if e in self.mine or key in state_dict}
        bad = [key for key, shape in wanted.items() if key in state_dict and state_dict[key].shape != shape]
        errors.extend(f"{key} is {list(state_dict[key].shape)}, wanted {list(wanted[key])}" for key in bad)
        missing.extend(key for key in wanted if strict and key not in state_dict)
        inside = tuple(f"{prefix}{name}." for name in self._modules)
        unexpected.extend(key for key in state_dict if strict and key not in known and not key.startswith(inside))
        given = {key[len(prefix) :]: state_dict[key] for key in wanted if key in state_dict and key not in bad}
        router = state_dict.get(f"{prefix}gate.weight")
        self._load_own(given, metadata.get("assign_to_params_buffers", False), router)

    @torch.no_grad()
    def _load_own(self, given: dict[str, torch.Tensor], is_assigned: bool, router: torch.Tensor | None) -> None:
        for name, stack in self.expert_parameters().items():
            parts = {e: given[key] for e in self.mine if (key := f"experts.{e}.{name}") in given}
            if is_assigned and len(parts) == len(self.mine):
                # A rank without experts has them of the dtype that the others' become.
                others = (t for key, t in given.items() if key.endswith(f".{name}"))
                dtype = getattr(next(others, router), "dtype", stack.dtype)
                new = [*parts.values()]
                filled = torch.stack(new) if new else torch.empty_like(stack, device="cpu", dtype=dtype)
                setattr(self, name, nn.Parameter(filled, stack.requires_grad))
                continue
            for e, part in parts.items():
                stack[e - self.mine.start].copy_(part)
        if "expert_bias" in given and is_assigned:
            self.expert_bias = given["expert_bias"]
        elif "expert_bias" in given:
            self.expert_bias.copy_(given["expert_bias"])

    @torch.no_grad()
    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All experts and all else on all ranks, as the unsharded layer has them: copies. Collective."""
        own = {name: t for name, t in self.state_dict().items() if not name.startswith("experts.")}
        # What fully_shard has cut up comes from all ranks, in the same order on each.
        state = {n: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for n, t in own.items()}
        for name, stack in self.expert_parameters().items():
            for owner, (first, end) in enumerate(itertools.pairwise(self.expert_begin)):
                found = self._of_rank(owner, stack.detach(), end - first)
                state |= {f"experts.{first + i}.{name}": part.clone() for i, part in enumerate(found.unbind())}
        return state

    # ---- forward ----

    def forward(self, x: torch.Tensor, num_tokens: torch.Tensor | int | None = None) -> torch.Tensor:
        """Routes this rank's tokens and runs the experts. Collective; the number of tokens may differ by rank and be 0.

        x: (..., H) of the parameters' dtype. num_tokens: how many rows of x, all but the last dimension counted as one,
        are tokens; the others are padding and get zeros, as in overlace.ops.moe. Gives (..., H). Raises as that does.
        """
        weight = self.gate.weight
        is_here = x.device == weight.device
        if not is_here or x.dim() < 2 or x.shape[-1] != self.hidden_size or x.dtype != weight.dtype:
            self._refuse(x)
        is_real = None if num_tokens is None else real_rows(self.group_name, x, num_tokens)
        if is_real is not None:  # before anything multiplies what the padding holds
            x = torch.where(is_real, x, 0)
        bias = None if self.expert_bias is None else self.expert_bias.float()
        try:
            idx, weights = ops.moe_router(x, weight, bias, **self.routing)
        except Exception as error:  # of this rank alone; the others are in the experts' call
            refuse(self.group_name, error)
        if is_real is not None:
            idx = torch.where(is_real, idx, -1)
        out, self.load, self.dropped = self._experts(x, idx, weights)
        if self.shared is None:
            return out
        of_all = self.shared(x)
        return out + (of_all if is_real is None else torch.where(is_real, of_all, 0))

    def _experts(self, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w1, w2, b1, b2 = (self._reduced(getattr(self, name)) for name in _STACKS)
        return ops.moe(
            x,
            idx,
            weights,
            w1,
            w2,
            b1,
            b2,
            num_experts=self.num_experts,
            activation=self.activation,
            gated=self.gated,
            capacity_factor=self.capacity_factor,
            expert_begin=self.expert_begin,
            max_tokens=self.max_tokens,
            return_load=True,
            group=self.group_name,
        )

    def _reduced(self, stack: Any) -> Any:
        is_average = stack is not None and self.reduce_op == "avg"
        return _Scaled.apply(stack, 1 / self.size) if is_average else stack

    def _refuse(self, x: torch.Tensor) -> None:
        """The other ranks are in the call, and must not wait for this one."""
        weight = self.gate.weight
        why = (
            f"{_NAME}: x is {x.dtype} {list(x.shape)} on {x.device}, "
            f"wanted {weight.dtype} (..., {self.hidden_size}) on {weight.device}"
        )
        refuse(self.group_name, InvalidArgument(why))

    def extra_repr(self) -> str:
        return (
            f"num_experts={self.num_experts}, experts={self.mine.start} to {self.mine.stop - 1}, "
            f"hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}, "
            f"top_k={self.routing['top_k']}, group='{self.group_name}'"
        )
