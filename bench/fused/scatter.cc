#include "bench/fused/rank.cuh"
#include "bench/fused/sums.cuh"
#include "overlace/error.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::bench {

namespace core = ops::fused;

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
    BENCH_CUDA(
        launch_sum_partials(stream_, p, static_cast<__nv_bfloat16*>(s.rounded), static_cast<__nv_bfloat16*>(s.biased)));
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
  v.is_shard = v.is_kernel = true;
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
