// Memory that somebody else made symmetric.
#include <algorithm>
#include <cstring>

#include "overlace/error.h"
#include "overlace/symmetric.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

/// Put into the first bytes of each rank's memory while the mappings are checked.
struct Mark {
  int32_t rank = -1;
  uint32_t number = 0;
  uint64_t generation = 0;
};

base::Status check_arguments(const RuntimeState& state, const std::string& call, const void* local, size_t bytes,
                             std::span<void* const> peers) {
  if (local == nullptr || bytes == 0)
    return base::invalid_argument("{}: local is {}, bytes is {}; wanted memory of at least one byte", call,
                                  local == nullptr ? "null" : "set", bytes);
  if (peers.size() != static_cast<size_t>(state.world))
    return base::invalid_argument("{}: {} peer addresses, wanted one for each of the {} ranks of the world", call,
                                  peers.size(), state.world);
  if (peers[static_cast<size_t>(state.rank)] != local)
    return base::invalid_argument("{}: peers[{}] is this rank's own and must be `local`", call, state.rank);
  for (int r = 0; r < state.world; ++r)
    if ((peers[static_cast<size_t>(r)] == nullptr) != (state.backend->reach(r) == Reach::net))
      return base::invalid_argument("{}: peers[{}] is {}, wanted {}", call, r,
                                    peers[static_cast<size_t>(r)] == nullptr ? "null" : "set",
                                    state.backend->reach(r) == Reach::net ? "null: no loads and stores reach it"
                                                                          : "an address: loads and stores reach it");
  return {};
}

/// Each address shows the memory of the rank that it is meant for.
base::Status check_peers(runtime::BackendState& backend, const RegionState& region, const Mark& mine, size_t bytes) {
  for (size_t r = 0; r < region.bases.size(); ++r) {
    if (region.bases[r] == nullptr) continue;
    Mark wanted = mine, seen;
    wanted.rank = static_cast<int32_t>(r);
    OVERLACE_TRY(backend.copy(&seen, region.bases[r], bytes));
    if (std::memcmp(&seen, &wanted, bytes) == 0) continue;
    const bool is_other = bytes == sizeof(Mark) && seen.generation == mine.generation && seen.number == mine.number;
    return base::error(
        Errc::internal, "heap.adopt \"{}\": peers[{}] shows {}", region.name, r,
        is_other ? base::format("the memory of rank {}", seen.rank) : std::string("memory that no rank gave"));
  }
  return {};
}

}  // namespace

Region SymmetricHeap::adopt(const char* name, void* local, size_t bytes, std::span<void* const> peers) {
  RuntimeState& state = *state_;
  state.enter();
  const std::string call = base::format("heap.adopt \"{}\"", name);
  base::Status status = state.check_no_capture(call);
  if (status.ok()) status = check_arguments(state, call, local, bytes, peers);
  state.agree(status, call);
  state.world_team.agree(base::format("\"{}\" of {} bytes", name, bytes), "heap.adopt");

  RegionState region{.name = name, .bytes = bytes, .bases = {}, .runtime = &state};
  for (void* const peer : peers) region.bases.push_back(static_cast<char*>(peer));
  const Mark mark{state.rank, static_cast<uint32_t>(state.regions.size()), state.control->generation()};
  const size_t marked = std::min(bytes, sizeof mark);
  Mark before;
  status = state.backend->copy(&before, local, marked);
  const bool has_saved = status.ok();
  if (has_saved) status = state.backend->copy(local, &mark, marked);
  try {
    state.agree(status, call);
    state.agree(check_peers(*state.backend, region, mark, marked), call);
  } catch (...) {
    // A rank that knows better does not wait for the others, which may still be looking.
    (void)state.control->exchange(state.teams[0]->members, {}, state.options.timeout_ms, call);
    if (has_saved) (void)state.backend->copy(local, &before, marked);
    throw;
  }
  state.agree(state.backend->copy(local, &before, marked), call);
  state.fold_heap_call(base::format("adopt {} \"{}\"", bytes, name));
  return Region(&state.regions.emplace_back(std::move(region)));
}

const std::string& Region::name() const { return state_->name; }

size_t Region::bytes() const { return state_->bytes; }

void* Region::base(int world_rank) const {
  if (world_rank < 0 || static_cast<size_t>(world_rank) >= state_->bases.size())
    throw InvalidArgument(Errc::invalid_argument, base::format("region \"{}\": rank is {}, wanted 0 to {}",
                                                               state_->name, world_rank, state_->bases.size() - 1));
  return state_->bases[static_cast<size_t>(world_rank)];
}

RegionPod Region::pod(const Team& team) const {
  RegionPod pod{};
  std::vector<char*> bases;
  for (int r = 0; r < team.size(); ++r) bases.push_back(static_cast<char*>(base(team.world_rank(r))));
  std::copy_n(bases.begin(), std::min<size_t>(bases.size(), kPodPeers), pod.base);
  if (bases.size() > static_cast<size_t>(kPodPeers)) {
    base::Result<char* const*> table = state_->runtime->backend->make_table(bases);
    table.status().or_throw();
    pod.base_more = *table;
  }
  pod.bytes = state_->bytes;
  return pod;
}

}  // namespace overlace
