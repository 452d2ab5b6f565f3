#include "tests/gpu/support/traffic.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "overlace/net_engine.h"
#include "overlace/ops/common.h"
#include "src/base/format.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

constexpr size_t kKnown = 10, kGraphs = 4;  // of a channel
constexpr int64_t kMostAddends = int64_t{4} << 20;
constexpr uint64_t kCopyBytes = uint64_t{64} << 20;
constexpr size_t kHistory = 16;  // steps

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

std::vector<std::string> families_of(const std::string& op) {
  std::vector<std::string> all = spec::families(op);
  std::erase_if(all, [](const std::string& f) { return f == "compute" || f == "comm" || f == "limit"; });
  return all;
}

}  // namespace

GpuTraffic::GpuTraffic(GpuRank& gpu, uint64_t seed)
    : gpu_(gpu),
      dice_(seed),
      own_dice_(seed * 64 + static_cast<uint64_t>(gpu.rank) + 1),
      second_(gpu.team.sub(all_ranks(gpu.size), {.name = "second"})),
      shares_gpu_(gpu_count() < gpu.size) {
  EXPECT_CUDA(load_exact_kernels());
  const int room = gpu.runtime.state().backend->sm_room();
  for (const int budget : {room / 2, room - room / 2}) {
    cudaStream_t stream = make_stream();
    roads_.push_back({stream, &gpu.team.channel(StreamRef::cuda(stream), {.sm_budget = budget})});
  }
  sums_ = make_stream();
  copies_ = make_stream();
  addends_ = gpu.device_array<float>(kMostAddends);
  from_ = gpu.device_array<char>(kCopyBytes);
  to_ = gpu.device_array<char>(kCopyBytes);
  wrong_ = gpu.device_array<uint64_t>(2);
  gpu.team.barrier();
  // The first collectives of a communicator, small and large, connect the ranks: they keep the host until all have
  // called. A rank that was in one while another prepared its first call of a channel would wait for that one for ever.
  for (int round = 0; round < 7; ++round) sum_beside();
  EXPECT_CUDA(cudaStreamSynchronize(sums_));
}

GpuTraffic::~GpuTraffic() {
  for (Road& road : roads_) {
    (void)cudaStreamSynchronize(road.stream);
    road.graphs.clear();
    road.known.clear();
    (void)cudaStreamSynchronize(road.stream);
    (void)cudaStreamDestroy(road.stream);
  }
  for (cudaStream_t stream : {sums_, copies_}) {
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
}

void GpuTraffic::step() {
  constexpr std::pair<int64_t, Kind> kKinds[] = {{28, Kind::call_new}, {34, Kind::call_known},   {10, Kind::capture},
                                                 {22, Kind::replay},   {4, Kind::destroy_graph}, {2, Kind::refuse}};
  if (own_dice_.one_in(6)) {
    const int64_t us = own_dice_.one_in(60) ? 5000 : own_dice_.number(1, 300);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  const bool has_beside = dice_.one_in(3), first_on_all = dice_.one_in(2), first_here = own_dice_.one_in(2);
  int64_t left = dice_.number(1, 100);
  const auto* drawn = std::begin(kKinds);
  while ((left -= drawn->first) > 0) ++drawn;
  Road& on = road();
  const Kind kind = possible(drawn->second, on);
  // First calls wait for the stream, load kernels, which may wait for the whole device, and meet on the host; memory
  // that is freed waits for the device, too. In front of these a sum is queued by all ranks or by none: else a rank
  // would wait for a sum that its peer queues behind it.
  const bool is_free = kind == Kind::call_known || kind == Kind::replay;
  const bool beside_first = is_free ? first_here : first_on_all;
  if (has_beside && beside_first) beside();
  act(kind, on);
  if (has_beside && !beside_first) beside();
}

/// What a road that has no known shape, no graph, or room for none can do in its place.
GpuTraffic::Kind GpuTraffic::possible(Kind kind, const Road& on) {
  const bool wants_graph = kind == Kind::replay || kind == Kind::destroy_graph;
  if (wants_graph && on.graphs.empty()) kind = Kind::capture;
  if (kind == Kind::capture && on.graphs.size() == kGraphs) kind = Kind::destroy_graph;
  const bool wants_known = kind == Kind::capture || kind == Kind::call_known;
  return wants_known && on.known.empty() ? Kind::call_new : kind;
}

void GpuTraffic::act(Kind kind, Road& on) {
  switch (kind) {
    case Kind::call_new:
      return call_new(on);
    case Kind::call_known:
      return call_known(on);
    case Kind::capture:
      return capture(on);
    case Kind::replay:
      return replay(on);
    case Kind::destroy_graph:
      return destroy_graph(on);
    case Kind::refuse:
      return refuse(on);
  }
}

void GpuTraffic::note(std::string what) {
  if (history_.size() == kHistory) history_.pop_front();
  history_.push_back(std::move(what));
}

void GpuTraffic::note(const Road& on, std::string_view what, const ExactSite& site) {
  note(base::format("channel {}: {} {}", &on - roads_.data(), what, site.problem().text()));
}

std::string GpuTraffic::history() const {
  std::string text;
  for (const std::string& line : history_) text += "  " + line + "\n";
  return text;
}

/// A sum over all ranks of the second communicator.
void GpuTraffic::sum_beside() {
  NetEngine* net = second_.net();
  if (net == nullptr) return;
  const uint32_t round = ++sum_rounds_;
  const int64_t count = round % 7 == 0 ? kMostAddends : 1 + round % 5000;  // the same on all ranks
  EXPECT_CUDA(launch_addends(sums_, addends_, count, gpu_.rank, round));
  net->all_reduce(addends_, addends_, static_cast<size_t>(count), DType::fp32, StreamRef::cuda(sums_));
  EXPECT_CUDA(launch_look_at_sum(sums_, addends_, count, gpu_.size, round, wrong_));
  note("beside: a sum");
  ++counts_["beside: sums"];
}

/// A sum, and a copy of this rank alone.
void GpuTraffic::beside() {
  sum_beside();
  if (own_dice_.one_in(2)) {
    const uint32_t seed = ++copy_rounds_;
    launch_fill(copies_, from_, kCopyBytes, seed);
    EXPECT_CUDA(launch_heavy_copy(copies_, to_, from_, kCopyBytes));
    launch_compare(copies_, to_, kCopyBytes, seed, wrong_ + 1);
    note("beside: a copy");
    ++counts_["beside: copies"];
  }
}

ExactProblem GpuTraffic::draw(Channel& channel) {
  static constexpr const char* kOps[] = {"ag_gemm", "gemm_rs", "gemm_ar", "ag_wgrad"};
  constexpr int kTries = 50;
  for (int i = 0; i < kTries; ++i) {
    ExactProblem p;
    p.op = dice_.of(kOps);
    p.family = dice_.of(families_of(p.op));
    p.degree = static_cast<int>(dice_.number(1, 8));
    p.m = dice_.one_in(20) ? 0 : dice_.one_in(3) ? dice_.number(1, 64) : dice_.number(65, 1024);
    p.n = 8 * dice_.number(1, 96);
    p.k = 8 * dice_.number(1, 96);
    p.dtype = dice_.one_in(4) ? DType::fp16 : dice_.one_in(8) ? DType::fp32 : DType::bf16;
    p.layout = dice_.one_in(2) ? spec::BLayout::nk : spec::BLayout::kn;
    p.bias = dice_.one_in(3) && p.op != "ag_wgrad";
    if (dice_.one_in(4) && p.op != "gemm_ar") {
      p.offsets = {0};
      for (int r = 1; r < gpu_.size; ++r)
        p.offsets.push_back(dice_.one_in(3) ? p.offsets.back() : dice_.number(0, p.m));
      std::sort(p.offsets.begin(), p.offsets.end());
      p.offsets.push_back(p.m);
    }
    const spec::OpSpec op = op_spec_of(p, gpu_.size);
    if (ops::supports(channel, op, spec::make_schedule(op, p.family, p.degree)).ok()) return p;
  }
  return {};
}

std::shared_ptr<ExactSite> GpuTraffic::make(Road& on) {
  const ExactProblem problem = draw(*on.channel);
  ++counts_["family: " + problem.op + " " + problem.family];
  return std::make_shared<ExactSite>(*on.channel, problem);
}

void GpuTraffic::retire(std::shared_ptr<ExactSite>& site) {
  const uint64_t wrong = site->wrong();
  if (wrong > 0 && wrong_in_calls_ == 0)
    first_wrong_ = base::format("{} elements of {}", wrong, site->problem().text());
  wrong_in_calls_ += wrong;
  site.reset();
}

/// What a first call loads and allocates, and a graph when it is instantiated, waits for kernels of a rank that shares
/// the GPU: all take it together.
void GpuTraffic::settle_if_shared() {
  if (!shares_gpu_) return;
  for (Road& each : roads_) EXPECT_CUDA(cudaStreamSynchronize(each.stream));
  gpu_.team.barrier();
}

void GpuTraffic::call_new(Road& on) {
  settle_if_shared();
  std::shared_ptr<ExactSite> site = make(on);
  note(on, "new", *site);
  site->call();
  settle_if_shared();
  if (on.known.size() < kKnown) {
    on.known.push_back(std::move(site));
    return;
  }
  std::swap(on.known[index(kKnown)], site);
  retire(site);
}

void GpuTraffic::call_known(Road& on) {
  ExactSite& site = *on.known[index(on.known.size())];
  const int64_t times = dice_.one_in(4) ? 4 : 1;
  note(on, base::format("{} x known", times), site);
  for (int64_t i = 0; i < times; ++i) site.call();
  counts_["known"] += times;
}

/// Calls of one to three known shapes, made once before: a first use cannot be captured.
void GpuTraffic::capture(Road& on) {
  Graph graph;
  for (int64_t i = dice_.number(1, 3); i > 0; --i) graph.sites.push_back(on.known[index(on.known.size())]);
  for (const auto& site : graph.sites) note(on, "to be captured", *site);
  for (const auto& site : graph.sites) site->call();
  settle_if_shared();
  bool is_captured = true;
  try {
    graph.replay = std::make_unique<Replay>(on.stream, [&] {
      for (const auto& site : graph.sites) site->call();
    });
  } catch (const Error& error) {  // schedules that need stream waits say so; so do calls beside others of this rank
    const bool is_known = error.code() == Errc::not_supported || error.code() == Errc::capture;
    if (!is_known && error.code() != Errc::co_residency) throw;
    if (std::string(error.what()).find("captur") == std::string::npos) throw;
    is_captured = false;
  }
  is_captured = all(is_captured);
  ++counts_[is_captured ? "graph: captured" : "graph: refused"];
  if (is_captured) on.graphs.push_back(std::move(graph));
}

void GpuTraffic::replay(Road& on) {
  Graph& graph = on.graphs[index(on.graphs.size())];
  const int64_t times = dice_.number(1, 4);
  for (const auto& site : graph.sites) note(on, base::format("{} replays of", times), *site);
  for (int64_t i = 0; i < times; ++i) graph.replay->launch();
  counts_["graph: replayed"] += times;
}

void GpuTraffic::destroy_graph(Road& on) {
  const auto gone = on.graphs.begin() + static_cast<int64_t>(index(on.graphs.size()));
  note("a graph is destroyed");
  EXPECT_CUDA(cudaStreamSynchronize(on.stream));
  gpu_.team.barrier();  // what waits for a GPU must not meet the next call of a rank that shares it
  Graph old = std::move(*gone);
  on.graphs.erase(gone);
  old.replay.reset();
  for (std::shared_ptr<ExactSite>& site : old.sites) retire(site);
  gpu_.team.barrier();
  ++counts_["graph: destroyed"];
}

/// One rank gives a wrong operand. To a shape that is new: all ranks refuse it. To one that is known after all: that
/// rank alone, which makes the call that its peers are in.
void GpuTraffic::refuse(Road& on) {
  settle_if_shared();
  std::shared_ptr<ExactSite> site = make(on);
  note(on, "refused", *site);
  const auto bad = static_cast<int>(index(static_cast<size_t>(gpu_.size)));
  bool is_refused = false;
  try {
    gpu_.rank == bad ? site->run_with_a_wrong_a() : site->run();
  } catch (const InvalidArgument&) {
    is_refused = true;
  }
  const bool by_all = all(is_refused), by_one = all(is_refused == (gpu_.rank == bad));
  ++counts_[by_all ? "refused by all" : "refused by one"];
  if (!by_all && !by_one)
    throw InvalidArgument(Errc::internal, "a wrong a of one rank was not refused by all: " + site->problem().text());
  if (!by_all && gpu_.rank == bad) site->run();
  site->call();
  settle_if_shared();
  on.known.push_back(site);
  if (on.known.size() <= kKnown) return;
  std::swap(on.known.front(), on.known.back());
  std::shared_ptr<ExactSite> old = on.known.back();
  on.known.pop_back();
  site.reset();
  retire(old);
}

bool GpuTraffic::all(bool mine) {
  const std::byte byte{mine};
  const std::vector<Bytes> answers = gpu_.team.exchange(std::span(&byte, 1));
  return std::all_of(answers.begin(), answers.end(), [](const Bytes& answer) { return answer[0] == std::byte{1}; });
}

std::string GpuTraffic::settle() {
  for (cudaStream_t stream : {roads_[0].stream, roads_[1].stream, sums_, copies_})
    EXPECT_CUDA(cudaStreamSynchronize(stream));
  gpu_.runtime.check();
  std::string text = first_wrong_;
  const auto look = [&](ExactSite& site) {
    const uint64_t wrong = site.wrong();
    if (wrong > 0 && text.empty()) text = base::format("{} elements of {}", wrong, site.problem().text());
  };
  for (Road& road : roads_) {
    for (const auto& site : road.known) look(*site);
    for (Graph& graph : road.graphs)
      for (const auto& site : graph.sites) look(*site);
  }
  const uint64_t sums = gpu_.read(wrong_), copies = gpu_.read(wrong_ + 1);
  if (sums + copies > 0 && text.empty())
    text = base::format("{} elements of sums and {} bytes of copies beside the calls", sums, copies);
  gpu_.team.barrier();
  gpu_.runtime.check_quiescent();
  gpu_.runtime.heap().verify();
  gpu_.team.barrier();  // nobody signals again before all have looked
  return text.empty() ? "" : base::format("rank {}: {}", gpu_.rank, text);
}

}  // namespace overlace::test
