#include "src/ops/fused/choose.h"

#include <algorithm>
#include <string>

#include "overlace/team.h"
#include "src/base/ceil_div_pod.h"
#include "src/base/env.h"
#if defined(OVERLACE_HAS_CUDA)
#include "src/ops/fused/fused.h"
#endif
#include "src/ops/fused/instances.h"
#include "src/spec/costs.h"
#include "src/spec/fusable.h"
#include "src/spec/fused_pod.h"
#include "src/spec/item_effects_pod.h"
#include "src/spec/operators.h"

namespace overlace::ops::fused {
namespace {

template <class T>
T param(const spec::Schedule& schedule, std::string_view name, T otherwise) {
  const auto found = schedule.params.find(name);
  const T* value = found == schedule.params.end() ? nullptr : std::get_if<T>(&found->second);
  return value == nullptr ? otherwise : *value;
}

bool fits(const InstanceSpec& one, DType dtype, BMajor b_major) {
  return one.spec.dtype == dtype && one.spec.b_major == b_major;
}

/// Slabs as the kernel cuts K: equal but the last, a multiple of what a stage holds.
bool has_even_slabs(const std::vector<int64_t>& slab, int64_t k) {
  const int64_t width = slab.size() > 1 ? slab[1] : 0, slabs = static_cast<int64_t>(slab.size()) - 1;
  const auto blocks = static_cast<int32_t>(base::ceil_div(k, kTileDepth));
  if (slabs > 1 && width != blocks_of_slab(blocks, static_cast<int32_t>(slabs)) * kTileDepth) return false;
  for (size_t s = 0; s < slab.size(); ++s)
    if (slab[s] != std::min(static_cast<int64_t>(s) * width, k)) return false;
  return true;
}

base::Status missing(const spec::Schedule& schedule, std::string_view what) {
  return base::error(Errc::not_supported, "{}: schedule {}: no kernel for {}", schedule.op, schedule.family, what);
}

base::Status check_shape(const spec::Schedule& schedule) {
  const bool is_gather = spec::gathers(schedule.op), is_one_shot = spec::takes_one_shot(schedule);
  const int64_t k = param<int64_t>(schedule, "K", 0);
  const spec::FusedShape shape = {.m = param<int64_t>(schedule, "M", 0),
                                  .n = param<int64_t>(schedule, "N", 0),
                                  .k = k,
                                  .ranks = param<int64_t>(schedule, "G", 0),
                                  .activation = spec::activation_of(schedule.params),
                                  .is_small_m = is_one_shot};
  if (const std::string problem = spec::fused_problem(shape); !problem.empty()) return missing(schedule, problem);
  if (is_one_shot) return {};
  const int64_t pieces = param<int64_t>(schedule, is_gather ? "q" : "groups", 0);
  if (pieces < 1 || pieces > kMaxPieces)
    return missing(schedule, base::format("degree {}; wanted: 1 to {}", pieces, kMaxPieces));
  const auto slab = schedule.tables.find("slab");
  if (is_gather && (slab == schedule.tables.end() || !has_even_slabs(slab->second, k)))
    return missing(schedule,
                   base::format("slabs of other widths; wanted: equal ones, multiples of {} columns", kTileDepth));
  return {};
}

}  // namespace

const InstanceSpec* choose_gather(DType dtype, BMajor b_major, std::span<const int64_t> row_offsets, int64_t n,
                                  int sms) {
  std::vector<const InstanceSpec*> fitting;
  std::vector<spec::ClusterTile> tiles;
  for (const InstanceSpec& one : specs_of(Kernel::gather)) {
    const ConfigSpec& s = one.spec;
    if (!fits(one, dtype, b_major) || s.split_k > 1) continue;  // which waits for rows, not for slabs
    fitting.push_back(&one);
    tiles.push_back({s.tile_m * s.cluster_m, s.tile_n * s.cluster_n, s.cluster()});
  }
  return fitting.empty() ? nullptr : fitting[spec::choose_tile(tiles, row_offsets, n, sms)];
}

const InstanceSpec* find_scatter(DType dtype, BMajor b_major, int64_t tile_rows, int64_t tile_cols) {
  for (const InstanceSpec& one : specs_of(Kernel::scatter)) {
    const ConfigSpec& s = one.spec;
    if (fits(one, dtype, b_major) && s.tile_m * s.cluster_m == tile_rows && s.tile_n * s.cluster_n == tile_cols)
      return &one;
  }
  return nullptr;
}

const InstanceSpec* choose_one_shot(Kernel kernel, DType dtype, BMajor b_major, int64_t m, int64_t n, int sms) {
  const InstanceSpec* best = nullptr;
  for (const InstanceSpec& one : specs_of(kernel)) {
    if (!fits(one, dtype, b_major) || one.spec.tile_n < m) continue;
    const bool is_shared = spec::shares_one_shot_tiles(m, base::ceil_div(n, one.spec.tile_m), sms);
    const bool is_narrower = best == nullptr || one.spec.tile_n < best->spec.tile_n;
    const bool is_asked = !is_narrower && one.spec.tile_n == best->spec.tile_n && (one.spec.split_k > 1) == is_shared;
    if (is_narrower || is_asked) best = &one;
  }
  return best;
}

base::Result<const InstanceSpec*> choose_instance(const spec::Schedule& schedule, int sms) {
  const std::string dtype = param<std::string>(schedule, "dtype", ""),
                    out = param<std::string>(schedule, "out_dtype", "");
  const bool is_nk = param<std::string>(schedule, "b_layout", "") == "nk";
  const std::string operands = base::format("{} -> {}, b {}", dtype, out, is_nk ? "nk" : "kn");
  if (dtype != out || (dtype != "bf16" && dtype != "fp16"))
    return missing(schedule, operands + "; wanted: bf16 or fp16, and as much out");
  OVERLACE_TRY(check_shape(schedule));
  const DType type = dtype == "bf16" ? DType::bf16 : DType::fp16;
  const BMajor major = is_nk ? BMajor::k : BMajor::n;
  if (!spec::gathers(schedule.op) && !spec::takes_one_shot(schedule)) {
    const int64_t rows = param<int64_t>(schedule, "tile_m", 0), cols = param<int64_t>(schedule, "tile_n", 0);
    if (const InstanceSpec* found = find_scatter(type, major, rows, cols)) return found;
    return missing(schedule, base::format("{}, tiles {}x{}; wanted: 256x128 or 256x256", operands, rows, cols));
  }
  const int64_t m = param<int64_t>(schedule, "M", 0), n = param<int64_t>(schedule, "N", 0);
  const bool gathers = spec::gathers(schedule.op);
  const InstanceSpec* found =
      spec::takes_one_shot(schedule)
          ? choose_one_shot(gathers ? Kernel::gather_one_shot : Kernel::one_shot, type, major, m, n, sms)
          : choose_gather(type, major, schedule.tables.at("off"), n, sms);
  if (found != nullptr) return found;
  return missing(schedule, is_nk
                               ? base::format("{}, M {}, N {}; wanted: sizes for which one is compiled", operands, m, n)
                               : operands + "; wanted: b nk");
}

bool needs_instance(const spec::Schedule& schedule) {
  return std::any_of(schedule.tasks.begin(), schedule.tasks.end(), spec::is_part);
}

base::Status check_instance(const spec::Schedule& schedule) {
  if (!needs_instance(schedule)) return {};
  return choose_instance(schedule, /*sms=*/1).status();  // whether there is one does not depend on how many SMs
}

namespace {

base::Status refuse_capability(const spec::Schedule& schedule, std::string_view whose, int capability) {
  return base::error(Errc::not_supported, "{}: schedule {}: its kernel is not for {}, which has {}; wanted: {}",
                     schedule.op, schedule.family, whose, spec::capability_text(capability),
                     spec::capability_text(spec::kFusedCapability));
}

}  // namespace

base::Status check_capability(const spec::Schedule& schedule, std::span<const Caps> caps) {
  if (!needs_instance(schedule)) return {};
  for (size_t rank = 0; rank < caps.size(); ++rank)
    if (const int found = caps[rank].compute_capability; found != spec::kFusedCapability)
      return refuse_capability(schedule, base::format("the GPU of rank {}", rank), found);
  return {};
}

base::Status check_capability(const spec::Schedule& schedule, const spec::Machine& machine) {
  if (!machine.is_gpu || spec::has_fused_kernels(machine) || !needs_instance(schedule)) return {};
  return refuse_capability(schedule, "machine " + machine.name, machine.compute_capability);
}

base::Status check_peers(const spec::Schedule& schedule, std::span<const Caps> caps, int rank) {
  const auto refuse = [&](size_t peer, std::string_view why) {
    return base::error(Errc::not_supported, "{}: schedule {}: one kernel cannot work with rank {}{}; rank {}",
                       schedule.op, schedule.family, peer, why, rank);
  };
  for (size_t peer = 0; peer < caps.size(); ++peer) {
    if (static_cast<int>(peer) == rank) continue;
    if (!caps[peer].load_store) return refuse(peer, " on another host, to whose memory it cannot store");
    if (!caps[peer].device_initiated)
      return refuse(peer, ": two ranks of this host are processes on one GPU, whose kernels take turns");
    if (!caps[peer].multi_writer_signals)
      return refuse(peer, ": between two GPUs of this host there are no native atomics, which its signals need");
  }
  return {};
}

base::Status check_queues(const spec::Schedule& schedule, const Caps& caps, int connections, int rank) {
  if (!spec::is_tracked(schedule)) return {};
  const auto refuse = [&](const std::string& why) {
    return base::error(Errc::not_supported, "{}: schedule {}: {}; rank {}", schedule.op, schedule.family, why, rank);
  };
  constexpr int kUsual = 8;  // of CUDA
  const int queues = connections > 0 ? connections : kUsual;
  const int64_t lanes = 1 + std::min(param<int64_t>(schedule, "ce_queues", 1),
                                     std::max<int64_t>(param<int64_t>(schedule, "G", 2) - 1, 1));
  if (queues < lanes)
    return refuse(
        base::format("CUDA_DEVICE_MAX_CONNECTIONS is {}, and {} streams wait for counters of what the "
                     "caller's runs; wanted: at least {}",
                     queues, lanes - 1, lanes));
  if (!caps.stream_wait) return refuse("streams of its GPU cannot wait for words of memory; wanted: those that can");
  return {};
}

base::Status check_fused(const Channel& channel, const spec::Schedule& schedule) {
  if (channel.team().runtime().backend() != Backend::cuda_peer) return {};
  const Team& team = channel.team();
  std::vector<Caps> caps;
  for (int peer = 0; peer < team.size(); ++peer) caps.push_back(team.runtime().caps(team.world_rank(peer)));
  OVERLACE_TRY(check_capability(schedule, caps));
  OVERLACE_TRY(check_peers(schedule, caps, team.rank()));
  OVERLACE_TRY(check_queues(schedule, caps[static_cast<size_t>(team.rank())], base::env().cuda_device_max_connections,
                            team.rank()));
  return check_instance(schedule);
}

}  // namespace overlace::ops::fused
