#include <cuda_bf16.h>

#include "bench/fused/rank.cuh"
#include "overlace/error.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::bench {
namespace {

namespace core = ops::gemm_core;

constexpr float kAlpha = 0.75F;  // of the variant with a bias

struct Partials {
  const __nv_bfloat16* own;    // (rows, N)
  const __nv_bfloat16* slots;  // (ranks, slot_rows, N), of the others
  int64_t slot_elements, count, n;
  int rank, size;
  const __nv_bfloat16* bias;
};
/// In fp32 and rank order, rounded once.
__global__ void sum_partials(const Partials p, __nv_bfloat16* rounded, __nv_bfloat16* biased) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  float sum = -0.0f;
  for (int r = 0; r < p.size; ++r) sum += static_cast<float>(r == p.rank ? p.own[i] : p.slots[r * p.slot_elements + i]);
  rounded[i] = __float2bfloat16_rn(sum);
  biased[i] = __float2bfloat16_rn(__fadd_rn(__fmul_rn(sum, kAlpha), static_cast<float>(p.bias[i % p.n])));
}

}  // namespace

void FusedRank::open_scatter() {
  const int64_t slot = core::longest_rows(offsets_) * case_.n * 2;
  inbox_ = channel_.inbox(core::scatter_inbox_bytes(offsets_, case_.n), 2, "bench scattered");
  scratch_ = runtime_.heap().alloc(static_cast<size_t>(size_ * slot), 1 << 20, "bench scratch");
  for (Set& s : sets_) {
    for (void* Set::*result : {&Set::out, &Set::rounded, &Set::biased}) s.*result = allocate(rows() * case_.n * 2);
  }
  bias_ = allocate_filled(1, case_.n, {left(0, 0).seed, 1, 1.0, 0, 0});
}

/// The ordered sum of rounded partials, from those of the mainloop alone.
void FusedRank::make_sums() {
  for (Set& s : sets_) {
    group_.meet();
    for (int hop = 1; hop < size_; ++hop) {
      const int peer = (rank_ + hop) % size_;
      const auto bytes = static_cast<size_t>(core::rows_of(offsets_, peer) * case_.n * 2);
      if (bytes == 0) continue;
      char* const to =
          static_cast<char*>(team_.peer_ptr(scratch_, peer)) + rank_ * core::longest_rows(offsets_) * case_.n * 2;
      const char* const from = static_cast<const char*>(s.core) + offsets_[static_cast<size_t>(peer)] * case_.n * 2;
      runtime::cuda_peer::stream_put(to, from, bytes, stream_).or_throw();
    }
    BENCH_CUDA(cudaStreamSynchronize(stream_));
    group_.meet();
    Partials p{};
    p.own = static_cast<const __nv_bfloat16*>(s.core) + first_row() * case_.n;
    p.slots = static_cast<const __nv_bfloat16*>(team_.local_ptr(scratch_));
    p.slot_elements = core::longest_rows(offsets_) * case_.n;
    p.count = rows() * case_.n;
    p.n = case_.n;
    p.rank = rank_;
    p.size = size_;
    p.bias = static_cast<const __nv_bfloat16*>(bias_);
    constexpr unsigned kBlock = 256;
    if (p.count > 0) {
      sum_partials<<<static_cast<unsigned>((p.count + kBlock - 1) / kBlock), kBlock, 0, stream_>>>(
          p, static_cast<__nv_bfloat16*>(s.rounded), static_cast<__nv_bfloat16*>(s.biased));
      BENCH_CUDA(cudaGetLastError());
    }
    BENCH_CUDA(cudaStreamSynchronize(stream_));
  }
}

Variant FusedRank::make_scatter(const Scattering& how) {
  const core::Instance* instance = core::find_instance(core::Kernel::scatter, how.instance);
  if (instance == nullptr) throw_error(Errc::not_supported, how.instance + ": no fused instance");
  auto prepared = std::make_shared<std::vector<core::PreparedScatter>>();
  for (const Set& s : sets_) {
    core::ScatterArgs args;
    fill(s, s.out, &args);
    args.a = s.whole;
    args.groups = how.groups;
    fill(pushed_, &args.state);
    if (how.has_bias) {
      args.alpha = kAlpha;
      args.bias = bias_;
    }
    auto one = core::prepare_scatter(*instance, args);
    one.status().or_throw();
    prepared->push_back(*one);
  }
  Variant v;
  v.name = how.name;
  v.is_shard = true;
  v.is_sampled = !how.has_bias;
  v.enqueue = [this, prepared](int set) {
    ++epoch_;
    return core::launch_scatter((*prepared)[static_cast<size_t>(set)], !options_.shared, stream_);
  };
  return v;
}

void FusedRank::add_scatters(std::vector<Variant>* list) {
  const std::string& instance = case_.instance;
  const auto add = [&](const Scattering& how, void* Set::*bits, bool is_timed = true) {
    Variant v = make_scatter(how);
    v.bits = bits;
    v.is_timed = is_timed;
    list->push_back(std::move(v));
  };
  add({"slot", instance}, &Set::rounded);
  add({"slot, 8 groups", instance, 8}, &Set::rounded);
  add({"slot, bias", instance, kMaxGroups, true}, &Set::biased, false);
  const core::ConfigSpec& wanted = core::find_instance(core::Kernel::scatter, instance)->spec;
  for (const core::Instance& other : core::instances(core::Kernel::scatter)) {
    const bool fits = other.spec.dtype == wanted.dtype && other.spec.b_major == wanted.b_major;
    if (!fits || instance == other.name) continue;
    Scattering with{std::string("slot ") + other.name, other.name};
    add(with, nullptr);
  }
}

}  // namespace overlace::bench
