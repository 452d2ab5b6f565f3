"""Groups of ranks for CO2: who trains together at every step, and who meets at the end of a round."""

# No `from __future__ import annotations`: register_comm_hook wants types in annotations, not their names.
import dataclasses

import torch
import torch.distributed as dist

from overlace.context import process_group
from overlace.errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class Groups:
    """`inner`: the ranks that hold this rank's replica together. `outer`: the ranks of all groups with the same place
    in theirs."""

    inner: dist.ProcessGroup
    outer: dist.ProcessGroup
    group: int
    shard: int


def make_groups(world: object = None, *, ranks_per_group: int = 1) -> Groups:
    """Groups of `ranks_per_group` ranks that follow each other in `world` (default: all ranks). As torch's new_group:
    all ranks of the program call it, each with a `world` that it is in."""
    whole = process_group(world)
    size = whole.size()
    ranks = dist.get_process_group_ranks(whole)
    everybody: list = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, (ranks_per_group, size))
    for rank, (wanted, of) in enumerate(everybody):
        if wanted < 1 or of % wanted != 0:
            raise InvalidArgument(
                f"make_groups: ranks_per_group is {wanted} with {of} ranks at rank {rank}, wanted: a divisor of {of}"
            )
    group, shard = divmod(whole.rank(), ranks_per_group)
    mine = ranks[group * ranks_per_group : (group + 1) * ranks_per_group]
    peers = ranks[shard::ranks_per_group]
    dist.all_gather_object(everybody, (mine, peers))
    inner = _new_groups([inner for inner, _ in everybody], mine)
    return Groups(inner, _new_groups([outer for _, outer in everybody], peers), group, shard)


def _new_groups(lists: list[list[int]], mine: list[int]) -> dist.ProcessGroup:
    """All ranks make all groups, in one order; the one that is `mine`."""
    made = {members: dist.new_group(list(members)) for members in sorted({tuple(ranks) for ranks in lists})}
    return process_group(made[tuple(mine)])


def begun(work: dist.Work | None) -> dist.Work:
    """The work of a collective with async_op; torch has none on ranks that are not in the group."""
    if work is None:
        raise InvalidArgument("CO2: this rank is not in the group of a collective, wanted one of its ranks")
    return work


def inner_of(state: object) -> dist.ProcessGroup | None:
    """The group that a hook's state stands for; None: this rank alone."""
    if state is None:
        return None
    if isinstance(state, Groups):
        return state.inner
    return process_group(state)


def co2_hook(
    state: object,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]  # torch documents it here
) -> torch.futures.Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook(state, co2_hook)` of a model that spans the ranks of all groups:
    gradients are averaged inside a group only. `state`: what make_groups gave, the inner group, or None where a group
    is one rank."""
    inner = inner_of(state)
    gradients = bucket.buffer()
    if inner is None or inner.size() == 1:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done
    gradients.mul_(1.0 / inner.size())  # as DistributedDataParallel itself: the same bits
    work = begun(dist.all_reduce(gradients, group=inner, async_op=True))
    return work.get_future().then(lambda future: future.value()[0])


def hook_group(model: torch.nn.parallel.DistributedDataParallel) -> tuple[bool, dist.ProcessGroup | None]:
    """Whether co2_hook is the model's hook, and the group that it reduces over."""
    for hook, state in getattr(model, "_comm_hooks", []):
        if hook is co2_hook:
            return True, inner_of(state)
    return False, None


def _grid_problem(inner: list[list[int]], outer: list[list[int]], me: int) -> str:
    """What is wrong with this rank's row and column of the grid, in global ranks; "" where nothing is.

    `inner`: of each rank of the outer group its inner group; `outer`: of each rank of the inner group its outer one."""
    own_inner, own_outer = set(outer_members(inner, me)), set(outer_members(outer, me))
    for other in sorted((own_inner & own_outer) - {me}):
        return f"ranks {me} and {other} are in one inner group and in one outer group, wanted: one rank in common"
    for what, lists in (("inner", inner), ("outer", outer)):
        first = lists[0]
        for later in lists[1:]:
            if len(later) != len(first):
                return (
                    f"{what} groups have {len(first)} ranks at rank {first[0]} and {len(later)} at rank {later[0]}, "
                    "wanted: the same number everywhere"
                )
            if shared := sorted(set(first) & set(later)):
                return f"the {what} groups of ranks {first[0]} and {later[0]} share rank {shared[0]}, wanted: none"
    return ""


def outer_members(lists: list[list[int]], me: int) -> list[int]:
    """The list that this rank is in."""
    return next(ranks for ranks in lists if me in ranks)


def check_grid(inner: dist.ProcessGroup | None, outer: dist.ProcessGroup) -> None:
    """Inner and outer groups are the rows and columns of a grid, or InvalidArgument on all ranks. Collective."""
    if inner is None:
        return
    me = dist.get_rank()

    def gather(group: dist.ProcessGroup, value: object) -> list:
        values: list = [None] * group.size()
        dist.all_gather_object(values, value, group=group)
        return values

    inners = gather(outer, dist.get_process_group_ranks(inner))
    outers = gather(inner, dist.get_process_group_ranks(outer))
    problem = _grid_problem(inners, outers, me)
    # Along the row, then along the column: all ranks of a grid see what one of them saw.
    for group in (inner, outer, inner):
        problem = next((text for text in gather(group, problem) if text), "")
    if problem:
        raise InvalidArgument(f"CO2: {problem}")
