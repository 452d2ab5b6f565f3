#include <algorithm>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/fused/exchange_host.cuh"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/names.h"

namespace overlace::ops::fused {

base::Status validate_exchange(const ExchangeState& state, std::span<const int64_t> row_offsets, const uint32_t* error,
                               uint64_t bytes) {
  if (state.channel == nullptr || state.inbox == nullptr || state.counters == nullptr || error == nullptr) {
    return base::invalid_argument("fused kernel: channel, inbox, counters or error is null; wanted: all of them");
  }
  const int size = state.channel->team.size;
  if (size > kPodPeers || row_offsets.size() != static_cast<size_t>(size) + 1) {
    return base::invalid_argument("fused kernel: {} row offsets for {} ranks; wanted: one more than ranks, at most {}",
                                  row_offsets.size(), size, kPodPeers + 1);
  }
  if (row_offsets.front() != 0 || !std::is_sorted(row_offsets.begin(), row_offsets.end())) {
    return base::invalid_argument("fused kernel: row offsets begin with {} or fall; wanted: 0, monotone",
                                  row_offsets.front());
  }
  if (state.inbox->buffers != 2 || state.inbox->pitch < bytes) {
    return base::invalid_argument("fused kernel: inbox of {} buffers of {} bytes; wanted: 2 of >= {}",
                                  state.inbox->buffers, state.inbox->pitch, bytes);
  }
  return {};
}

base::Result<const uint4*> ItemLists::of(const TileOrder& order, const WorkOrder* work) {
  std::string key(reinterpret_cast<const char*>(&order), sizeof order);
  if (work != nullptr) key.append(reinterpret_cast<const char*>(work), sizeof *work);
  if (const auto known = known_.find(key); known != known_.end()) return known->second.as<const uint4>();
  std::vector<uint4> list;
  const int32_t count = work == nullptr ? count_tiles(order) : count_items(*work);
  for (int32_t number = 0; number < count; ++number) {
    const WorkItem item =
        work == nullptr ? WorkItem{Work::product, tile_at(order, number)} : item_of(order, *work, number);
    list.push_back({static_cast<uint32_t>(item.work), static_cast<uint32_t>(item.at.m),
                    static_cast<uint32_t>(item.at.n), static_cast<uint32_t>(item.at.shard)});
  }
  list.push_back({kWorks, 0, 0, 0});
  auto memory = runtime::cuda_peer::LocalMemory::copy_of(list.data(), list.size() * sizeof(uint4), "items of a kernel");
  if (!memory.ok()) return memory.status();
  return known_.emplace(std::move(key), std::move(*memory)).first->second.as<const uint4>();
}

void fill_exchange(const ExchangeState& state, int arrivals_per_call, ExchangeParams* params) {
  params->channel = *state.channel;
  params->inbox = *state.inbox;
  params->counters = *state.counters;
  params->arrivals_per_call = static_cast<uint32_t>(arrivals_per_call);
}

namespace {

/// Where waits end; gives the clusters that run at once.
base::Result<int> prepare_grid(const Instance& instance, const TeamPod& team, int most_clusters, GemmParams* gemm) {
  gemm->num_tiles = count_tiles(gemm->order);
  gemm->timeout_ns = runtime::pipeline_timeout_ns(team.timeout_ns);
  const auto clusters = count_clusters(instance.kernel, instance.spec, instance.name);
  if (!clusters.ok()) return clusters.status();
  return most_clusters > 0 ? std::min(most_clusters, *clusters) : *clusters;
}

}  // namespace

base::Result<int> prepare_swapped_tiles(const Instance& instance, const TeamPod& team, const SwappedShape& shape,
                                        int most_clusters, GemmParams* gemm) {
  const ConfigSpec& s = instance.spec;
  const int64_t rows[] = {0, shape.n};
  gemm->order = make_tile_order(TileOrderKind::linear, 0, 1, rows, s.tile_m * s.cluster_m, /*tiles_n=*/1);
  gemm->k_blocks = static_cast<int32_t>(base::ceil_div(shape.k, kTileK * s.split_k));
  gemm->stage_bytes = static_cast<uint32_t>(s.a_bytes() + token_rows(s, shape.tokens) * s.cluster_m * kTileK * 2);
  return prepare_grid(instance, team, most_clusters, gemm);
}

base::Result<int> prepare_tiles(const Instance& instance, TileOrderKind kind, const FusedArgs& g,
                                const ExchangeState& state, GemmParams* gemm) {
  const ConfigSpec& s = instance.spec;
  const TeamPod& team = state.channel->team;
  gemm->order = make_tile_order(kind, team.rank, team.size, g.row_offsets.data(), s.tile_m * s.cluster_m,
                                static_cast<int32_t>(base::ceil_div(g.n, int64_t{s.tile_n} * s.cluster_n)));
  gemm->order.swizzle = g.swizzle;
  gemm->k_blocks = static_cast<int32_t>(base::ceil_div(g.k, kTileK * s.split_k));
  gemm->error = g.error;
  const auto most = prepare_grid(instance, team, g.most_clusters, gemm);
  if (!most.ok()) return most.status();
  return std::min(*most, gemm->num_tiles);
}

int64_t rows_of(std::span<const int64_t> row_offsets, int rank) {
  return row_offsets[static_cast<size_t>(rank) + 1] - row_offsets[static_cast<size_t>(rank)];
}

int64_t longest_rows(std::span<const int64_t> row_offsets) {
  int64_t longest = 1;
  for (size_t i = 1; i < row_offsets.size(); ++i) longest = std::max(longest, row_offsets[i] - row_offsets[i - 1]);
  return longest;
}

}  // namespace overlace::ops::fused
