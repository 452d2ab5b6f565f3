#include "src/ops/gemm_core/choose.h"

#include <algorithm>
#include <string>

#include "overlace/team.h"
#include "src/base/ceil_div_pod.h"
#if defined(OVERLACE_HAS_CUDA)
#include "src/ops/gemm_core/fused.h"
#endif
#include "src/ops/gemm_core/instances.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"

namespace overlace::ops::gemm_core {
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
  const int64_t width = slab.size() > 1 ? slab[1] : 0;
  if (slab.size() > 2 && width % kTileDepth != 0) return false;
  for (size_t s = 0; s < slab.size(); ++s)
    if (slab[s] != std::min(static_cast<int64_t>(s) * width, k)) return false;
  return true;
}

base::Status missing(const spec::Schedule& schedule, std::string_view what) {
  return base::error(Errc::not_supported, "{}: schedule {}: no kernel for {}", schedule.op, schedule.family, what);
}

bool takes_one_shot(const spec::Schedule& schedule) {
  return param<std::string>(schedule, "transport", "") == "one_shot";
}

base::Status check_shape(const spec::Schedule& schedule) {
  const bool is_gather = spec::gathers(schedule.op), is_one_shot = takes_one_shot(schedule);
  const int64_t n = param<int64_t>(schedule, "N", 0), k = param<int64_t>(schedule, "K", 0);
  const int64_t ranks = param<int64_t>(schedule, "G", 0);
  if (spec::activation_of(schedule.params) == spec::Activation::swiglu && n % 16 != 0)
    return missing(schedule, base::format("swiglu of N {}; wanted: a multiple of 16", n));
  if (n < 8 || n % 8 != 0 || k < 8 || k % 8 != 0)
    return missing(schedule, base::format("N {}, K {}; wanted: multiples of 8", n, k));
  if (ranks < 2 || ranks > kOrderShards)
    return missing(schedule, base::format("{} ranks; wanted: 2 to {}", ranks, kOrderShards));
  const int64_t m = param<int64_t>(schedule, "M", 0);
  if (is_one_shot && m > kOneShotTokens)
    return missing(schedule, base::format("M {}; wanted: at most {}", m, kOneShotTokens));
  if (is_one_shot && spec::activation_of(schedule.params) != spec::Activation::none)
    return missing(schedule, "swiglu of few rows; wanted: none");
  if (is_one_shot) return {};
  const int64_t pieces = param<int64_t>(schedule, is_gather ? "q" : "groups", 0);
  if (pieces < 1 || pieces > kMaxPieces)
    return missing(schedule, base::format("degree {}; wanted: 1 to {}", pieces, kMaxPieces));
  const auto slab = schedule.tables.find("slab");
  if (is_gather && (slab == schedule.tables.end() || !has_even_slabs(slab->second, k)))
    return missing(schedule, base::format("slabs of other than multiples of {} columns", kTileDepth));
  return {};
}

}  // namespace

const InstanceSpec* choose_gather(DType dtype, BMajor b_major, std::span<const int64_t> row_offsets, int64_t n,
                                  int sms) {
  const InstanceSpec* best = nullptr;
  int64_t best_cost = 0;
  for (const InstanceSpec& one : specs_of(Kernel::gather)) {
    const ConfigSpec& s = one.spec;
    if (!fits(one, dtype, b_major) || s.split_k > 1) continue;  // which waits for rows, not for slabs
    int64_t rows = 0;                                           // of clusters' tiles, shard by shard
    for (size_t i = 1; i < row_offsets.size(); ++i)
      rows += base::ceil_div(row_offsets[i] - row_offsets[i - 1], s.tile_m * s.cluster_m);
    const int64_t tiles = rows * base::ceil_div(n, s.tile_n * s.cluster_n);
    const int64_t cost = base::ceil_div(tiles, std::max(1, sms / s.cluster())) * s.tile_n * s.cluster();
    if (best != nullptr && (cost > best_cost || (cost == best_cost && s.tile_n < best->spec.tile_n))) continue;
    best = &one;
    best_cost = cost;
  }
  return best;
}

const InstanceSpec* find_scatter(DType dtype, BMajor b_major, int64_t tile_rows, int64_t tile_cols) {
  for (const InstanceSpec& one : specs_of(Kernel::scatter)) {
    const ConfigSpec& s = one.spec;
    if (fits(one, dtype, b_major) && s.tile_m * s.cluster_m == tile_rows && s.tile_n * s.cluster_n == tile_cols)
      return &one;
  }
  return nullptr;
}

const InstanceSpec* choose_one_shot(DType dtype, BMajor b_major, int64_t m) {
  const InstanceSpec* best = nullptr;
  for (const InstanceSpec& one : specs_of(Kernel::one_shot)) {
    if (!fits(one, dtype, b_major) || one.spec.tile_n < m) continue;
    if (best == nullptr || one.spec.tile_n < best->spec.tile_n) best = &one;
  }
  return best;
}

const InstanceSpec* choose_gather_one_shot(DType dtype, BMajor b_major, int64_t m, int64_t n, int sms) {
  const auto work = [&](const ConfigSpec& s) {  // of a CTA, in halves of a tile's K
    return base::ceil_div(base::ceil_div(n, s.tile_m), std::max(1, sms / s.cluster())) * 2 / s.split_k;
  };
  const InstanceSpec* best = nullptr;
  for (const InstanceSpec& one : specs_of(Kernel::gather_one_shot)) {
    if (!fits(one, dtype, b_major) || one.spec.tile_n < m) continue;
    const bool is_narrower = best == nullptr || one.spec.tile_n < best->spec.tile_n;
    const bool is_less = !is_narrower && one.spec.tile_n == best->spec.tile_n && work(one.spec) < work(best->spec);
    if (is_narrower || is_less) best = &one;
  }
  return best;
}

base::Result<const InstanceSpec*> choose_instance(const spec::Schedule& schedule, int sms) {
  const std::string dtype = param<std::string>(schedule, "dtype", ""),
                    out = param<std::string>(schedule, "out_dtype", "");
  const bool is_nk = param<std::string>(schedule, "b_layout", "") == "nk";
  const std::string operands = base::format("{} -> {}, b {}", dtype, out, is_nk ? "nk" : "kn");
  if (dtype != out || (dtype != "bf16" && dtype != "fp16")) return missing(schedule, operands);
  OVERLACE_TRY(check_shape(schedule));
  const DType type = dtype == "bf16" ? DType::bf16 : DType::fp16;
  const BMajor major = is_nk ? BMajor::k : BMajor::n;
  if (!spec::gathers(schedule.op) && !takes_one_shot(schedule)) {
    const int64_t rows = param<int64_t>(schedule, "tile_m", 0), cols = param<int64_t>(schedule, "tile_n", 0);
    if (const InstanceSpec* found = find_scatter(type, major, rows, cols)) return found;
    return missing(schedule, base::format("{}, tiles {}x{}", operands, rows, cols));
  }
  const int64_t m = param<int64_t>(schedule, "M", 0), n = param<int64_t>(schedule, "N", 0);
  const InstanceSpec* found = !spec::gathers(schedule.op) ? choose_one_shot(type, major, m)
                              : takes_one_shot(schedule)
                                  ? choose_gather_one_shot(type, major, m, n, sms)
                                  : choose_gather(type, major, schedule.tables.at("off"), n, sms);
  if (found != nullptr) return found;
  return missing(schedule, operands);
}

bool needs_instance(const spec::Schedule& schedule) {
  return std::any_of(schedule.tasks.begin(), schedule.tasks.end(),
                     [](const spec::Task& task) { return task.wait_by == spec::WaitBy::kernel; });
}

base::Status check_instance(const spec::Schedule& schedule) {
  if (!needs_instance(schedule)) return {};
  return choose_instance(schedule, /*sms=*/1).status();  // whether there is one does not depend on how many SMs
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

base::Status check_fused(const Channel& channel, const spec::Schedule& schedule) {
  if (channel.team().runtime().backend() != Backend::cuda_peer) return {};
#if defined(OVERLACE_HAS_CUDA)
  OVERLACE_TRY(check_device(channel));
#endif
  const Team& team = channel.team();
  std::vector<Caps> caps;
  for (int peer = 0; peer < team.size(); ++peer) caps.push_back(team.runtime().caps(team.world_rank(peer)));
  OVERLACE_TRY(check_peers(schedule, caps, team.rank()));
  return check_instance(schedule);
}

}  // namespace overlace::ops::gemm_core
