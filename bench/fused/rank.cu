#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/fused/rank.cuh"
#include "overlace/error.h"
#include "overlace/net_engine.h"
#include "src/base/statistics.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::bench {
namespace {

namespace core = ops::gemm_core;

constexpr int64_t kRotatedBytes = int64_t{2} * 60 * 1000 * 1000;  // twice the L2 of an H200
constexpr int64_t kSamples = 1024;
constexpr double kMaxError = 0.02;  // of the rms: rounding to bf16 gives 2^-9 of the largest element
constexpr uint64_t kSeed = 11;
constexpr uint64_t kDeadlineNs = 5000000000;  // of waits in kernels

cudaStream_t make_stream(int device) {
  cudaStream_t made = nullptr;
  BENCH_CUDA(cudaSetDevice(device));
  BENCH_CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}

}  // namespace

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  throw_error(Errc::cuda, base::format("{}: {}", call, cudaGetErrorString(code)));
}

void Group::meet() {
  barrier_.arrive_and_wait();
  if (has_failed_) throw_error(Errc::aborted, "another rank of the bench failed");
}

void Group::fail() {
  has_failed_ = true;
  barrier_.arrive_and_drop();
}

FusedRank::FusedRank(Runtime& runtime, Group& group, const Options& options)
    : runtime_(runtime),
      team_(runtime.world()),
      group_(group),
      options_(options),
      rank_(team_.rank()),
      size_(team_.size()),
      stream_(make_stream(runtime.device())),
      copies_(make_stream(runtime.device())),
      channel_(team_.channel(StreamRef::cuda(stream_))) {
  auto blas = exec::CublasLt::open(runtime.device());
  blas.status().or_throw();
  blas_ = std::move(blas).value();
  for (cudaEvent_t* event : {&begin_, &end_}) BENCH_CUDA(cudaEventCreate(event));
  for (cudaEvent_t* event : {&fork_, &join_}) BENCH_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  arrivals_ = channel_.counters(1, "bench arrivals");
  pushed_ = channel_.ids(core::kMaxPieces, Domain::device, "bench pushed");
  copied_ = channel_.ids(core::kMaxPieces, Domain::stream, "bench copied");
  pod_ = channel_.pod();
  pod_.team.timeout_ns = kDeadlineNs;
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&error_), 256));
  BENCH_CUDA(cudaMemset(error_, 0, 256));
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&totals_), sizeof(uint64_t) * core::kMaxPieces * size_));
  core::initial_totals(channel_.pod(), copied_.first, core::kMaxPieces, totals_).or_throw();
}

FusedRank::~FusedRank() {
  (void)cudaDeviceSynchronize();
  for (void* memory : memory_) (void)cudaFree(memory);
  (void)cudaFree(error_);
  (void)cudaFree(totals_);
  for (cudaEvent_t event : {begin_, end_, fork_, join_}) (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(stream_);
  (void)cudaStreamDestroy(copies_);
}

/// Rows of A are one matrix of all ranks; each rank has a B of its own.
Normal FusedRank::left(int set) const { return {kSeed + static_cast<uint64_t>(set), 1, 1.0, 0, 0}; }
Normal FusedRank::right(int set) const {
  const double scale = 1.0 / std::sqrt(static_cast<double>(case_.k));
  return {kSeed + static_cast<uint64_t>(set), 1000 + static_cast<uint64_t>(rank_), scale, 0, 0};
}

void* FusedRank::allocate(int64_t bytes) {
  void* memory = nullptr;
  BENCH_CUDA(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 16))));
  memory_.push_back(memory);
  return memory;
}

void FusedRank::open_case(const Case& c) {
  case_ = c;
  offsets_ = c.offsets;
  for (int r = 0; is_equal() && r <= size_; ++r) offsets_.push_back(c.m / size_ * r);
  const auto bytes = static_cast<size_t>(c.m * c.k * 2);
  inbox_ = channel_.inbox(bytes, 2, "bench gathered");
  scratch_ = runtime_.heap().alloc(bytes, 1 << 20, "bench scratch");
  epoch_ = 0;
  const int64_t touched = (c.m * c.k + c.n * c.k + c.m * c.n) * 2;
  const auto count = std::max<int64_t>(3, kRotatedBytes / touched + 2);
  for (int i = 0; i < count; ++i) {
    Set s;
    s.shard = allocate(rows() * c.k * 2);
    s.whole = allocate(c.m * c.k * 2);
    s.b = allocate(c.n * c.k * 2);
    s.c = allocate(c.m * c.n * 2);
    s.reference = allocate(c.m * c.n * 2);
    Normal mine = left(i);
    mine.first_row = offsets_[static_cast<size_t>(rank_)];
    const auto fill = [&](void* at, int64_t r, const Normal& values) {
      if (r > 0) fill_normal(TensorView::contiguous(at, DType::bf16, {r, c.k}), values, stream_).or_throw();
    };
    fill(s.shard, rows(), mine);
    fill(s.whole, c.m, left(i));
    fill(s.b, c.n, right(i));
    sets_.push_back(s);
  }
  BENCH_CUDA(cudaStreamSynchronize(stream_));
}

void FusedRank::close_case() {
  runtime_.synchronize();
  group_.meet();
  channel_.release(inbox_);
  runtime_.heap().free(scratch_);
  for (void* memory : memory_) BENCH_CUDA(cudaFree(memory));
  memory_.clear();
  sets_.clear();
}

core::GatherState FusedRank::state_of(core::GatherTransport transport) {
  core::GatherState state;
  state.channel = &pod_;
  state.inbox = &inbox_.pod();
  state.arrivals = &arrivals_.pod();
  const bool is_ce = transport == core::GatherTransport::ce;
  state.ready_id = is_ce ? copied_.first : pushed_.first;
  state.totals = is_ce ? totals_ : nullptr;
  return state;
}

void FusedRank::add_gather(std::vector<Variant>* list, const Gathering& how) {
  const core::Instance* instance = core::find_gather_instance(case_.instance.c_str());
  if (instance == nullptr) throw_error(Errc::not_supported, case_.instance + ": no fused instance");
  const bool is_ce = how.transport == core::GatherTransport::ce;
  auto prepared = std::make_shared<std::vector<core::PreparedGather>>();
  for (const Set& s : sets_) {
    core::GatherArgs args;
    args.shard = s.shard;
    args.b = s.b;
    args.c = s.c;
    args.row_offsets = offsets_;
    args.n = args.ldc = case_.n;
    args.k = args.lda = args.ldb = case_.k;
    args.transport = how.transport;
    args.arrival = how.arrival;
    args.pieces = how.pieces;
    args.waits = how.waits;
    args.error = error_;
    args.state = state_of(how.transport);
    auto one = core::prepare_gather(*instance, args);
    one.status().or_throw();
    prepared->push_back(*one);
  }
  Variant v;
  v.name =
      base::format("{} {} q{}{}", is_ce ? "ce" : "store_own", how.arrival == core::Arrival::rows ? "rows" : "k_slab",
                   how.pieces, how.waits ? "" : " unwaited");
  v.has_core_bits = how.waits;
  v.is_wrong = !how.waits;
  v.enqueue = [this, prepared, is_ce](int set) -> base::Status {
    const core::PreparedGather& call = (*prepared)[static_cast<size_t>(set)];
    ++epoch_;
    if (!is_ce) return core::launch_gather(call, true, stream_);
    BENCH_CUDA(cudaEventRecord(fork_, stream_));
    BENCH_CUDA(cudaStreamWaitEvent(copies_, fork_));
    OVERLACE_TRY(core::queue_copies(call, epoch_, copies_));
    OVERLACE_TRY(core::launch_gather(call, false, stream_));
    BENCH_CUDA(cudaEventRecord(join_, copies_));
    BENCH_CUDA(cudaStreamWaitEvent(stream_, join_));
    return {};
  };
  list->push_back(std::move(v));
}

base::Status FusedRank::copy_to_peers() {
  const auto bytes = static_cast<size_t>(rows() * case_.k * 2);
  const auto at = static_cast<size_t>(offsets_[static_cast<size_t>(rank_)] * case_.k * 2);
  for (int hop = 1; hop < size_ && bytes > 0; ++hop) {
    auto* to = static_cast<char*>(team_.peer_ptr(scratch_, (rank_ - hop + size_) % size_)) + at;
    OVERLACE_TRY(runtime::cuda_peer::stream_put(to, sets_[0].shard, bytes, copies_));
  }
  return {};
}

base::Status FusedRank::limit(const std::function<base::Status(int)>& gemm, int set) {
  BENCH_CUDA(cudaEventRecord(fork_, stream_));
  BENCH_CUDA(cudaStreamWaitEvent(copies_, fork_));
  OVERLACE_TRY(copy_to_peers());
  OVERLACE_TRY(gemm(set));
  BENCH_CUDA(cudaEventRecord(join_, copies_));
  BENCH_CUDA(cudaStreamWaitEvent(stream_, join_));
  return {};
}

void FusedRank::add_variants(std::vector<Variant>* list) {
  exec::LtGemm g;
  g.m = case_.m;
  g.n = g.ldc = case_.n;
  g.k = g.lda = g.ldb = case_.k;
  blas_->prepare(g).or_throw();
  auto prepared = std::make_shared<std::vector<core::Prepared>>();
  const core::Instance* instance = core::find_instance(case_.instance.c_str());
  if (instance == nullptr) throw_error(Errc::not_supported, case_.instance + ": no such instance");
  for (const Set& s : sets_) {
    core::GemmArgs args;
    args.a = s.whole;
    args.b = s.b;
    args.c = s.c;
    args.m = case_.m;
    args.n = args.ldc = case_.n;
    args.k = args.lda = args.ldb = case_.k;
    args.error = error_;
    auto one = core::prepare(*instance, args);
    one.status().or_throw();
    prepared->push_back(*one);
  }
  const auto of = [this](int set) -> const Set& { return sets_[static_cast<size_t>(set)]; };
  const auto vendor = [this, g, of](int set) {
    return blas_->run(g, of(set).whole, of(set).b, nullptr, of(set).c, 0, stream_);
  };
  const auto own = [this, prepared](bool early) {
    return [this, prepared, early](int set) {
      return core::launch((*prepared)[static_cast<size_t>(set)], early, stream_);
    };
  };
  list->push_back({"gemm_core", own(true), true});
  list->push_back({"cublas", vendor});
  if (NetEngine* net = team_.net(); net != nullptr && is_equal()) {
    void* const gathered = allocate(case_.m * case_.k * 2);
    list->push_back({"library", [this, net, g, of, gathered](int set) -> base::Status {
                       const auto count = static_cast<size_t>(rows() * case_.k);
                       net->all_gather(of(set).shard, gathered, count, DType::bf16, StreamRef::cuda(stream_));
                       return blas_->run(g, gathered, of(set).b, nullptr, of(set).c, 0, stream_);
                     }});
  }
  list->push_back({"limit cublas", [this, vendor](int set) { return limit(vendor, set); }});
  list->push_back({"limit gemm_core", [this, plain = own(false)](int set) { return limit(plain, set); }, true});
  using core::Arrival, core::GatherTransport;
  for (const int q : {1, 2, 4}) add_gather(list, {GatherTransport::ce, Arrival::rows, q});
  add_gather(list, {GatherTransport::ce, Arrival::k_slab, 2});
  for (const int q : {2, 4, 8, 16}) add_gather(list, {GatherTransport::store_own, Arrival::k_slab, q});
  add_gather(list, {GatherTransport::store_own, Arrival::k_slab, 8, false});
}

/// Each set once: poisoned output and inbox, then fp64 samples; and every bit of the mainloop alone where its order of
/// sums is the same.
void FusedRank::verify(Variant& variant) {
  for (size_t i = 0; i < sets_.size(); ++i) {
    const Set& s = sets_[i];
    const auto c_bytes = static_cast<size_t>(case_.m * case_.n * 2);
    BENCH_CUDA(cudaMemsetAsync(s.c, 0xff, c_bytes, stream_));
    BENCH_CUDA(cudaMemsetAsync(team_.local_ptr(inbox_.memory), 0xff, inbox_.memory.bytes, stream_));
    BENCH_CUDA(cudaStreamSynchronize(stream_));
    group_.meet();
    variant.enqueue(static_cast<int>(i)).or_throw();
    BENCH_CUDA(cudaStreamSynchronize(stream_));
    runtime_.check();
    group_.meet();
    const TensorView out = TensorView::contiguous(s.c, DType::bf16, {case_.m, case_.n});
    const Factor factor{left(static_cast<int>(i)), right(static_cast<int>(i)), case_.k};
    auto check = check_product(out, &factor, 1, 0, DType::bf16, kSamples, kSeed + i, stream_);
    check.status().or_throw();
    variant.timed.max_error = std::max(variant.timed.max_error, check->max_error);
    uint32_t stuck = 0;
    BENCH_CUDA(cudaMemcpy(&stuck, error_, sizeof stuck, cudaMemcpyDeviceToHost));
    if (!check->finite || check->max_error > kMaxError || stuck != 0) {
      throw_error(Errc::internal, base::format("{} {}x{}x{}: {}: rank {}, set {}: error {} of rms, finite {}, stuck {}",
                                               case_.name, case_.m, case_.n, case_.k, variant.name, rank_, i,
                                               check->max_error, check->finite, stuck));
    }
    if (variant.name == "gemm_core")
      BENCH_CUDA(cudaMemcpyAsync(s.reference, s.c, c_bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  compare_all(variant);
}

/// What the last calls left in all sets.
void FusedRank::compare_all(const Variant& variant) {
  for (size_t i = 0; variant.has_core_bits && i < sets_.size(); ++i) {
    const auto view = [&](void* at) { return TensorView::contiguous(at, DType::bf16, {case_.m, case_.n}); };
    auto difference = compare(view(sets_[i].reference), view(sets_[i].c), stream_);
    difference.status().or_throw();
    if (difference->same_bits) continue;
    throw_error(Errc::internal,
                base::format("{} {}x{}x{}: {}: rank {}, set {}: bits differ from gemm_core, by {}", case_.name, case_.m,
                             case_.n, case_.k, variant.name, rank_, i, difference->max_abs));
  }
}

double FusedRank::burst(Variant& variant, int calls) {
  const auto next = [&] { return turn_ = (turn_ + 1) % static_cast<int>(sets_.size()); };
  group_.meet();
  variant.enqueue(next()).or_throw();
  BENCH_CUDA(cudaEventRecord(begin_, stream_));
  const auto host_begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) variant.enqueue(next()).or_throw();
  const auto host_end = std::chrono::steady_clock::now();
  BENCH_CUDA(cudaEventRecord(end_, stream_));
  BENCH_CUDA(cudaStreamSynchronize(stream_));
  float ms = 0;
  BENCH_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
  const auto me = static_cast<size_t>(rank_);
  group_.elapsed[me] = ms * 1e3 / calls;
  group_.host[me] = std::chrono::duration<double, std::micro>(host_end - host_begin).count() / calls;
  group_.meet();
  const double worst = *std::max_element(group_.elapsed.begin(), group_.elapsed.end());
  variant.timed.host_us = *std::max_element(group_.host.begin(), group_.host.end());
  group_.meet();
  return worst;
}

/// Bursts of all variants in turn; the first round warms up and finds how many calls fill a burst.
void FusedRank::time(std::vector<Variant>& list) {
  std::vector<int> calls;
  for (Variant& v : list) {
    const double us = burst(v, 8);
    calls.push_back(std::max(8, static_cast<int>(std::ceil(options_.burst_ms * 1e3 / us))));
  }
  for (Variant& v : list) (void)burst(v, calls[static_cast<size_t>(&v - list.data())]);
  for (int round = 0; round < options_.rounds; ++round) {
    for (size_t i = 0; i < list.size(); ++i) {
      list[i].timed.us.push_back(burst(list[i], calls[i]));
      if (round + 1 == options_.rounds) compare_all(list[i]);
    }
    runtime_.check();
  }
}

std::vector<Timed> FusedRank::run(const Case& c) {
  std::vector<Variant> list;
  open_case(c);
  add_variants(&list);
  runtime_.synchronize();
  group_.meet();  // every kernel is loaded everywhere before one waits for a peer
  for (Variant& v : list) {
    if (!v.is_wrong) verify(v);
  }
  if (options_.rounds > 0 && is_equal()) time(list);
  runtime_.check();
  close_case();
  std::vector<Timed> out;
  for (Variant& v : list) {
    v.timed.name = v.name;
    out.push_back(std::move(v.timed));
  }
  return out;
}

}  // namespace overlace::bench
