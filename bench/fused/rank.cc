#include "bench/fused/rank.cuh"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/fused/copies.cuh"
#include "overlace/error.h"
#include "overlace/net_engine.h"
#include "src/base/statistics.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::bench {
namespace {

namespace core = ops::fused;

constexpr int64_t kRotatedBytes = int64_t{2} * 60 * 1000 * 1000;  // twice the L2 of an H200
constexpr int64_t kSamples = 1024;
constexpr double kMaxError = 0.02;       // of the rms: rounding to bf16 gives 2^-9 of the largest element
constexpr double kMaxErrorOfSum = 0.04;  // where partials were rounded before
constexpr int kMostCluster = 2;          // CTAs
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
  for (cudaEvent_t* event : {&fork_, &join_, &call_})
    BENCH_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  counters_ = channel_.counters(ops::fused::kCounts, "bench counts");
  pushed_ = channel_.ids(kMaxPieces, Domain::device, "bench pushed");
  copied_ = channel_.ids(kMaxPieces, Domain::stream, "bench copied");
  pod_ = channel_.pod();
  pod_.team.timeout_ns = kDeadlineNs;
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&error_), 256));
  BENCH_CUDA(cudaMemset(error_, 0, 256));
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&gather_totals_),
                        sizeof(uint64_t) * static_cast<size_t>(kMaxPieces * size_)));
  initial_totals(channel_.pod(), copied_.first, kMaxPieces, kShares, gather_totals_).or_throw();
}

FusedRank::~FusedRank() {
  (void)cudaDeviceSynchronize();
  for (void* memory : memory_) (void)cudaFree(memory);
  (void)cudaFree(error_);
  (void)cudaFree(gather_totals_);
  for (cudaEvent_t event : {begin_, end_, fork_, join_, call_}) (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(stream_);
  (void)cudaStreamDestroy(copies_);
}

/// ag: rows of A are one matrix of all ranks; rs: each rank has its own columns of A. B is a rank's own.
Normal FusedRank::left(int set, int rank) const {
  return {kSeed + static_cast<uint64_t>(set), is_gather() ? 1 : 500 + static_cast<uint64_t>(rank), 1.0, 0, 0};
}
Normal FusedRank::right(int set, int rank) const {
  const double scale = 1.0 / std::sqrt(static_cast<double>(case_.k));
  return {kSeed + static_cast<uint64_t>(set), 1000 + static_cast<uint64_t>(rank), scale, 0, 0};
}

void* FusedRank::allocate(int64_t bytes) {
  void* memory = nullptr;
  BENCH_CUDA(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 16))));
  memory_.push_back(memory);
  return memory;
}

void* FusedRank::allocate_filled(int64_t rows, int64_t cols, const Normal& values) {
  void* const at = allocate(rows * cols * 2);
  if (rows > 0) fill_normal(TensorView::contiguous(at, DType::bf16, {rows, cols}), values, stream_).or_throw();
  return at;
}

void FusedRank::open_case(const Case& c) {
  case_ = c;
  offsets_ = c.offsets;
  for (int r = 0; is_equal() && r <= size_; ++r) offsets_.push_back(c.m / size_ * r);
  epoch_ = 0;
  const int64_t touched = (c.m * c.k + c.n * c.k + c.m * c.n) * 2;
  const auto count = std::max<int64_t>(3, kRotatedBytes / touched + 2);
  for (int i = 0; i < count; ++i) {
    Set s;
    s.whole = allocate_filled(c.m, c.k, left(i, rank_));
    s.b = allocate_filled(c.n, c.k, right(i, rank_));
    s.c = allocate(c.m * c.n * 2);
    s.core = allocate(c.m * c.n * 2);
    sets_.push_back(s);
  }
  is_gather() ? open_gather() : open_scatter();
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

void FusedRank::fill(const Set& set, void* c, core::FusedArgs* args) const {
  args->b = set.b;
  args->c = c;
  args->row_offsets = offsets_;
  args->n = args->ldc = case_.n;
  args->k = args->lda = args->ldb = case_.k;
  args->error = error_;
  if (options_.shared) args->most_clusters = options_.sms / kMostCluster;
}

void FusedRank::fill(const SignalIds& ids, core::ExchangeState* state) const {
  state->channel = &pod_;
  state->inbox = &inbox_.pod();
  state->counters = &counters_.pod();
  state->lists = &lists_;
  state->first_id = ids.first;
}

/// The bytes of the collective: ag: the own shard to everybody; rs: of every partial product the owner's rows.
base::Status FusedRank::copy_to_peers() {
  for (int hop = 1; hop < size_; ++hop) {
    const int peer = is_gather() ? (rank_ - hop + size_) % size_ : (rank_ + hop) % size_;
    const int64_t count = is_gather() ? rows() * case_.k : core::rows_of(offsets_, peer) * case_.n;
    if (count == 0) continue;
    const int64_t to = is_gather() ? first_row() * case_.k : rank_ * core::longest_rows(offsets_) * case_.n;
    const int64_t from = is_gather() ? 0 : offsets_[static_cast<size_t>(peer)] * case_.n;
    const void* data = is_gather() ? sets_[0].shard : sets_[0].core;
    OVERLACE_TRY(runtime::cuda_peer::stream_put(static_cast<char*>(team_.peer_ptr(scratch_, peer)) + to * 2,
                                                static_cast<const char*>(data) + from * 2,
                                                static_cast<size_t>(count * 2), copies_));
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
  auto prepared = std::make_shared<std::vector<PreparedPlain>>();
  const core::Instance* instance = find_plain(case_.instance);
  if (instance == nullptr) throw_error(Errc::not_supported, case_.instance + ": no such instance");
  for (const Set& s : sets_) {
    GemmArgs args;
    args.a = s.whole;
    args.b = s.b;
    args.c = s.c;
    args.m = case_.m;
    args.n = args.ldc = case_.n;
    args.k = args.lda = args.ldb = case_.k;
    args.error = error_;
    auto one = prepare_plain(*instance, args);
    one.status().or_throw();
    prepared->push_back(*one);
  }
  const auto of = [this](int set) -> const Set& { return sets_[static_cast<size_t>(set)]; };
  const auto vendor = [this, g, of](int set) {
    return blas_->run(g, {.a = of(set).whole, .b = of(set).b, .c = of(set).c}, 0, stream_);
  };
  const auto own = [this, prepared](bool early) {
    return [this, prepared, early](int set) {
      return launch_plain((*prepared)[static_cast<size_t>(set)], early, stream_);
    };
  };
  Variant alone{"gemm_core", own(true), &Set::core};
  alone.sets_bits = alone.is_kernel = true;
  list->push_back(std::move(alone));
  list->push_back({"cublas", vendor});
  if (NetEngine* net = team_.net(); net != nullptr && is_equal()) {
    void* const gathered = is_gather() ? allocate(case_.m * case_.k * 2) : nullptr;
    Variant v{"library", [this, net, g, gathered](int set) { return library(set, g, *net, gathered); }};
    v.is_shard = !is_gather();
    list->push_back(std::move(v));
  }
  list->push_back({"limit cublas", [this, vendor](int set) { return limit(vendor, set); }});
  list->push_back({"limit gemm_core", [this, plain = own(false)](int set) { return limit(plain, set); }, &Set::core});
  is_gather() ? add_gathers(list) : add_scatters(list);
}

void FusedRank::add_call_events(std::vector<Variant>* list) {
  const size_t count = list->size();
  for (size_t i = 0; i < count; ++i) {
    if (!(*list)[i].is_kernel || !(*list)[i].is_timed) continue;
    Variant v = (*list)[i];
    v.name += ", events";
    v.sets_bits = false;
    v.enqueue = [this, call = std::move(v.enqueue)](int set) -> base::Status {
      OVERLACE_TRY(call(set));
      BENCH_CUDA(cudaEventRecord(call_, stream_));
      return {};
    };
    list->push_back(std::move(v));
  }
}

base::Status FusedRank::library(int set, const exec::LtGemm& gemm, NetEngine& net, void* gathered) {
  const Set& s = sets_[static_cast<size_t>(set)];
  const StreamRef stream = StreamRef::cuda(stream_);
  if (is_gather()) {
    net.all_gather(s.shard, gathered, static_cast<size_t>(rows() * case_.k), DType::bf16, stream);
    return blas_->run(gemm, {.a = gathered, .b = s.b, .c = s.c}, 0, stream_);
  }
  OVERLACE_TRY(blas_->run(gemm, {.a = s.whole, .b = s.b, .c = s.c}, 0, stream_));
  net.reduce_scatter(s.c, s.out, static_cast<size_t>(rows() * case_.n), DType::bf16, stream);
  return {};
}

TensorView FusedRank::output(const Variant& variant, const Set& set) const {
  return variant.is_shard ? TensorView::contiguous(set.out, DType::bf16, {rows(), case_.n})
                          : TensorView::contiguous(set.c, DType::bf16, {case_.m, case_.n});
}

/// Against fp64.
void FusedRank::check(Variant& variant, int set) {
  std::vector<Factor> factors;
  for (int r = 0; r < size_; ++r) {
    if (variant.is_shard || r == rank_) factors.push_back({left(set, r), right(set, r), case_.k});
  }
  auto found = check_product(output(variant, sets_[static_cast<size_t>(set)]), factors.data(),
                             static_cast<int>(factors.size()), variant.is_shard ? first_row() : 0, DType::bf16,
                             kSamples, kSeed + static_cast<uint64_t>(set), stream_);
  found.status().or_throw();
  variant.timed.max_error = std::max(variant.timed.max_error, found->max_error);
  if (found->finite && found->max_error <= (variant.is_shard ? kMaxErrorOfSum : kMaxError)) return;
  throw_error(Errc::internal, base::format("{}: {}: rank {}, set {}: error {} of rms, finite {}", title(case_),
                                           variant.name, rank_, set, found->max_error, found->finite));
}

/// Each set once: poisoned output and inbox, then fp64 samples; and every bit where the order of sums is known.
void FusedRank::verify(Variant& variant) {
  for (size_t i = 0; i < sets_.size(); ++i) {
    const Set& s = sets_[i];
    const TensorView out = output(variant, s);
    const auto bytes = static_cast<size_t>(out.numel() * 2);
    BENCH_CUDA(cudaMemsetAsync(out.data, 0xff, bytes, stream_));
    BENCH_CUDA(cudaMemsetAsync(team_.local_ptr(inbox_.memory), 0xff, inbox_.memory.bytes, stream_));
    BENCH_CUDA(cudaStreamSynchronize(stream_));
    group_.meet();
    variant.enqueue(static_cast<int>(i)).or_throw();
    BENCH_CUDA(cudaStreamSynchronize(stream_));
    runtime_.check();
    group_.meet();
    uint32_t stuck = 0;
    BENCH_CUDA(cudaMemcpy(&stuck, error_, sizeof stuck, cudaMemcpyDeviceToHost));
    if (stuck != 0) throw_error(Errc::internal, base::format("{}: {}: a pipeline hung", title(case_), variant.name));
    if (variant.is_sampled) check(variant, static_cast<int>(i));
    if (variant.sets_bits)
      BENCH_CUDA(cudaMemcpyAsync(s.*variant.bits, out.data, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  compare_all(variant);
}

/// What the last calls left in all sets.
void FusedRank::compare_all(const Variant& variant) {
  for (size_t i = 0; variant.bits != nullptr && i < sets_.size(); ++i) {
    const TensorView got = output(variant, sets_[i]);
    const auto want = TensorView::contiguous(sets_[i].*variant.bits, DType::bf16, {got.dim(0), got.dim(1)});
    auto difference = compare(want, got, stream_);
    difference.status().or_throw();
    if (difference->same_bits) continue;
    throw_error(Errc::internal, base::format("{}: {}: rank {}, set {}: bits differ, by {}", title(case_), variant.name,
                                             rank_, i, difference->max_abs));
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
void FusedRank::time(const std::vector<Variant*>& list) {
  std::vector<int> calls;
  for (Variant* v : list) {
    const double us = burst(*v, 8);
    calls.push_back(std::max(8, static_cast<int>(std::ceil(options_.burst_ms * 1e3 / us))));
  }
  for (size_t i = 0; i < list.size(); ++i) (void)burst(*list[i], calls[i]);
  // Whoever comes behind a variant that draws much power runs at lower clocks: another order each round.
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 draw(1);
  for (int round = 0; round < options_.rounds; ++round) {
    std::shuffle(order.begin(), order.end(), draw);
    for (const size_t i : order) {
      list[i]->timed.us.push_back(burst(*list[i], calls[i]));
      if (round + 1 == options_.rounds) compare_all(*list[i]);
    }
    runtime_.check();
  }
}

std::vector<Timed> FusedRank::run(const Case& c) {
  std::vector<Variant> list;
  open_case(c);
  add_variants(&list);
  if (options_.call_events) add_call_events(&list);
  runtime_.synchronize();
  group_.meet();  // every kernel is loaded everywhere before one waits for a peer
  for (Variant& v : list) {
    if (!v.timed.is_wrong) verify(v);
    if (v.name == "gemm_core" && !is_gather()) make_sums();
  }
  std::vector<Variant*> timed;
  for (Variant& v : list) {
    if (v.is_timed) timed.push_back(&v);
  }
  if (options_.rounds > 0 && is_equal()) time(timed);
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
