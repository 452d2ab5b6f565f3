#include "bench/fused/copies.cuh"
#include "bench/fused/rank.cuh"
#include "overlace/error.h"
#include "src/spec/families/families.h"
#include "src/spec/operators.h"

namespace overlace::bench {

namespace core = ops::fused;

void FusedRank::open_gather() {
  const auto bytes = static_cast<size_t>(case_.m * case_.k * 2);
  inbox_ = channel_.inbox(bytes, 2, "bench gathered");
  scratch_ = runtime_.heap().alloc(bytes, 1 << 20, "bench scratch");
  for (size_t i = 0; i < sets_.size(); ++i) {
    Normal mine = left(static_cast<int>(i), rank_);
    mine.first_row = first_row();
    sets_[i].shard = allocate_filled(rows(), case_.k, mine);
  }
  // The zero that changes no summand: with it the bits are those of the mainloop alone.
  const std::vector<uint16_t> zeros(static_cast<size_t>(case_.n), 0x8000);
  bias_ = allocate(case_.n * 2);
  BENCH_CUDA(cudaMemcpy(bias_, zeros.data(), zeros.size() * 2, cudaMemcpyHostToDevice));
}

void FusedRank::add_gathers(std::vector<Variant>* list) {
  using core::Arrival, core::GatherTransport;
  const core::Instance* instance = core::find_instance(core::Kernel::gather, case_.instance);
  if (instance == nullptr) throw_error(Errc::not_supported, case_.instance + ": no fused instance");
  for (const int q : {1, 2, 4}) add_gather(list, {GatherTransport::ce, Arrival::rows, q});
  if (instance->spec.split_k > 1) return;  // which knows no slabs
  add_gather(list, {GatherTransport::ce, Arrival::k_slab, 2});
  for (const int q : {2, 4, 8, 16}) add_gather(list, {GatherTransport::store_own, Arrival::k_slab, q});
  add_gather(list, {GatherTransport::store_own, Arrival::k_slab, 4, true, true});
  add_gather(list, {GatherTransport::store_own, Arrival::k_slab, 8, false});
}

core::GatherState FusedRank::state_of(core::GatherTransport transport) {
  core::GatherState state;
  const bool is_ce = transport == core::GatherTransport::ce;
  fill(is_ce ? copied_ : pushed_, &state);
  state.totals = is_ce ? gather_totals_ : nullptr;
  return state;
}

void FusedRank::add_gather(std::vector<Variant>* list, const Gathering& how) {
  const core::Instance* instance = core::find_instance(core::Kernel::gather, case_.instance);
  const bool is_ce = how.transport == core::GatherTransport::ce;
  auto prepared = std::make_shared<std::vector<core::PreparedGather>>();
  for (const Set& s : sets_) {
    core::GatherArgs args;
    fill(s, s.c, &args);
    args.shard = s.shard;
    args.transport = how.transport;
    args.arrival = how.arrival;
    args.pieces = how.pieces;
    args.waits = how.waits;
    args.bias = how.has_bias ? bias_ : nullptr;
    args.state = state_of(how.transport);
    auto one = core::prepare_gather(*instance, args);
    one.status().or_throw();
    prepared->push_back(*one);
  }
  Variant v;
  const std::string_view slabs = spec::find_family(spec::kAgGemm.name, spec::ClosedForm::slab_kernel)->name;
  v.name =
      base::format("{} {} q{}{}{}", is_ce ? "ce" : "store_own", how.arrival == core::Arrival::rows ? "rows" : slabs,
                   how.pieces, how.has_bias ? ", bias" : "", how.waits ? "" : " unwaited");
  if (how.waits) v.bits = &Set::core;
  v.timed.is_wrong = !how.waits;
  v.is_kernel = !is_ce;
  v.enqueue = [this, prepared, is_ce](int set) -> base::Status {
    const core::PreparedGather& call = (*prepared)[static_cast<size_t>(set)];
    ++epoch_;
    if (!is_ce) return core::launch_gather(call, !options_.shared, stream_);
    BENCH_CUDA(cudaEventRecord(fork_, stream_));
    BENCH_CUDA(cudaStreamWaitEvent(copies_, fork_));
    OVERLACE_TRY(queue_copies(call, epoch_, copies_));
    OVERLACE_TRY(core::launch_gather(call, false, stream_));
    BENCH_CUDA(cudaEventRecord(join_, copies_));
    BENCH_CUDA(cudaStreamWaitEvent(stream_, join_));
    return {};
  };
  list->push_back(std::move(v));
}

}  // namespace overlace::bench
