// Ranks of one machine that claim to be on several hosts: what passes between them goes over NCCL, and every schedule
// gives the bits that it gives on one host. Ranks are processes; this one stays without a CUDA context.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "overlace/net_engine.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/common.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "src/base/half.h"
#include "src/exec/run.h"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/bootstrap/emulated.h"
#include "src/runtime/hash.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/unit/ops/shapes.h"

namespace overlace::test {
namespace {

constexpr int64_t kLimitMs = 280000;

struct Hosts {
  int ranks, hosts;
  int of(int rank) const { return rank / (ranks / hosts); }
};
void PrintTo(const Hosts& one, std::ostream* out) { *out << one.ranks << " ranks on " << one.hosts << " hosts"; }

GpuOptions net_options() {
  GpuOptions options;
  options.net_engine = "nccl";
  options.heap_bytes = size_t{128} << 20;
  options.num_signal_ids = 4096;
  return options;
}

/// One process a rank, in groups that stand for hosts.
Ended fork_hosts(const Hosts& where, const std::function<void(Bootstrap&)>& body) {
  const auto as_host = [&](Bootstrap& bootstrap) {
    if (where.hosts > 1) {
      runtime::keep_nccl_to_sockets();
      for (const auto& [name, value] : runtime::emulated_host(where.of(bootstrap.rank())))
        ::setenv(name.c_str(), value.c_str(), 1);
    }
    body(bootstrap);
  };
  return fork_ranks(where.ranks, {}, as_host, kLimitMs);
}

void run_on(const Hosts& where, const std::function<void(GpuRank&)>& body) {
  const Ended ended = fork_hosts(where, [&](Bootstrap& bootstrap) {
    Runtime runtime = Runtime::open(bootstrap, runtime_options(net_options()));
    {
      GpuRank gpu(runtime);
      body(gpu);
      if (testing::Test::HasFailure()) {
        runtime.abort(Errc::aborted, "the test failed on this rank");
        return;
      }
      runtime.synchronize();
      gpu.team.barrier();
      runtime.check_quiescent();
      runtime.heap().verify();
    }
    runtime.close();
  });
  for (size_t rank = 0; rank < ended.status.size(); ++rank)
    EXPECT_EQ(ended.status[rank], 0) << "exit status of rank " << rank << "; its failures are printed above";
}

struct Problem {
  std::string op;
  int64_t m, n, k;
  bool bias = false;
  bool has_gaps = false;  // rows of a are further apart than they are long
};

/// Integers in [-1, 1], exact in any order; or normal values, whose sums depend on the order.
enum class Data { exact, normal };

class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, int64_t gap = 0)
      : rows_(rows), cols_(cols), pitch_(cols + gap), host_(static_cast<size_t>(rows * (cols + gap)) * 2) {}
  void fill(Data data, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < rows_ * pitch_; ++i) {
      const double value = data == Data::exact ? static_cast<double>(random() % 3) - 1 : normal(random);
      base::store_element(host_.data(), DType::bf16, i, value);
    }
  }
  double get(int64_t i, int64_t j) const { return base::load_element(host_.data(), DType::bf16, i * pitch_ + j); }
  void upload(GpuRank& gpu) {
    device_ = gpu.device_array<char>(std::max<size_t>(host_.size(), 16));
    gpu.store(device_, host_.data(), host_.size());
  }
  void poison() {
    EXPECT_CUDA(cudaMemset(device_, 0xff, std::max<size_t>(host_.size(), 16)));
    EXPECT_CUDA(cudaStreamSynchronize(cudaStreamLegacy));  // operators run on streams that do not wait for this one
  }
  void download(GpuRank& gpu) { gpu.fetch(host_.data(), device_, host_.size()); }
  uint64_t hash() const { return runtime::hash_text({reinterpret_cast<const char*>(host_.data()), host_.size()}); }
  TensorView view() const {
    TensorView out = TensorView::contiguous(device_, DType::bf16, {rows_, pitch_});
    out.sizes[1] = cols_;
    return out;
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  int64_t rows_, cols_, pitch_;
  std::vector<unsigned char> host_;
  char* device_ = nullptr;
};

/// One rank's operands, and what must come out where data are exact.
class Site {
 public:
  Site(const Problem& problem, Data data, GpuRank& gpu) : p_(problem), data_(data), gpu_(gpu) {
    op_.op = p_.op;
    op_.m = p_.m;
    op_.n = p_.n;
    op_.k = p_.k;
    op_.ranks = gpu.size;
    op_.dtype = op_.out_dtype = DType::bf16;
    op_.b_layout = spec::BLayout::kn;
    op_.bias = p_.bias;
    off_ = spec::row_offsets(op_);
    a_ = make_a(gpu.rank);
    b_ = make_b(gpu.rank);
    bias_ = std::make_unique<Matrix>(1, p_.n);
    bias_->fill(data, 77);
    out_ = std::make_unique<Matrix>(p_.op == "gemm_rs" ? rows_of(gpu.rank) : p_.m, p_.n);
    for (Matrix* m : {a_.get(), b_.get(), bias_.get(), out_.get()}) m->upload(gpu);
  }
  const spec::OpSpec& op() const { return op_; }

  void run(const spec::Schedule& schedule) {
    TensorView bias;
    if (p_.bias) bias = TensorView::contiguous(bias_->view().data, DType::bf16, {p_.n});
    if (p_.op == "ag_gemm") {
      ops::run(gpu_.channel,
               ops::AgGemmArgs{
                   .a_shard = a_->view(), .b = b_->view(), .c = out_->view(), .bias = bias, .a = {}, .row_offsets = {}},
               schedule);
    } else if (p_.op == "gemm_rs") {
      ops::run(gpu_.channel,
               ops::GemmRsArgs{.a = a_->view(), .b = b_->view(), .out = out_->view(), .bias = bias, .row_offsets = {}},
               schedule);
    } else {
      ops::run(gpu_.channel, ops::GemmArArgs{.a = a_->view(), .b = b_->view(), .out = out_->view(), .bias = bias},
               schedule);
    }
  }
  void poison() { out_->poison(); }
  uint64_t hash() {
    gpu_.wait();
    out_->download(gpu_);
    return out_->hash();
  }
  /// Empty if every element is exact.
  std::string mismatch() {
    if (want_.empty()) want_ = reference();
    const int64_t first = p_.op == "gemm_rs" ? off_[static_cast<size_t>(gpu_.rank)] : 0;
    for (int64_t i = 0; i < out_->rows(); ++i)
      for (int64_t j = 0; j < p_.n; ++j)
        if (const double want = want_[static_cast<size_t>((first + i) * p_.n + j)]; out_->get(i, j) != want)
          return base::format("element ({}, {}): got {}, want {}", i, j, out_->get(i, j), want);
    return "";
  }

 private:
  int64_t rows_of(int rank) const { return off_[static_cast<size_t>(rank) + 1] - off_[static_cast<size_t>(rank)]; }
  std::unique_ptr<Matrix> make_a(int rank) const {
    auto a = std::make_unique<Matrix>(p_.op == "ag_gemm" ? rows_of(rank) : p_.m, p_.k, p_.has_gaps ? 8 : 0);
    a->fill(data_, 1 + static_cast<uint64_t>(rank));
    return a;
  }
  std::unique_ptr<Matrix> make_b(int rank) const {
    auto b = std::make_unique<Matrix>(p_.k, p_.n);
    b->fill(data_, 101 + static_cast<uint64_t>(rank));
    return b;
  }
  std::vector<double> reference() const {
    std::vector<double> out(static_cast<size_t>(p_.m * p_.n));
    for (int rank = 0; rank < op_.ranks; ++rank) {
      const auto a = make_a(rank), b = make_b(p_.op == "ag_gemm" ? gpu_.rank : rank);
      const int64_t first = p_.op == "ag_gemm" ? off_[static_cast<size_t>(rank)] : 0;
      for (int64_t i = 0; i < a->rows(); ++i)
        for (int64_t k = 0; k < p_.k; ++k)
          for (int64_t j = 0; j < p_.n; ++j)
            out[static_cast<size_t>((first + i) * p_.n + j)] += a->get(i, k) * b->get(k, j);
    }
    for (size_t i = 0; p_.bias && i < out.size(); ++i) out[i] += bias_->get(0, static_cast<int64_t>(i) % p_.n);
    return out;
  }

  const Problem p_;
  const Data data_;
  GpuRank& gpu_;
  spec::OpSpec op_;
  std::vector<int64_t> off_;
  std::unique_ptr<Matrix> a_, b_, bias_, out_;
  std::vector<double> want_;
};

/// Whether it is one kernel, which stores to its peers and so cannot cross to another host.
bool is_one_kernel(const std::string& op, const std::string& family) {
  spec::OpSpec problem;
  problem.op = op;
  problem.m = problem.n = problem.k = 64;
  problem.ranks = 2;
  return ops::fused::needs_instance(spec::make_schedule(problem, family));
}

/// All that give a result and cross hosts, `hierarchical` and the `serial` that crosses once for `hosts` hosts.
struct Way {
  std::string family;
  int degree, hosts;
  std::string name() const { return base::format("{} q {} hosts {}", family, degree, hosts); }
};
std::vector<Way> ways_of(const std::string& op, int hosts) {
  std::vector<Way> out;
  for (const std::string& family : families_with_a_result(op)) {
    if (is_one_kernel(op, family)) continue;
    for (const int degree : {1, 2, 4}) {
      if (degree > 1 && (family == "library" || family == "serial" || family == "shard_p2p")) continue;
      if (family != "hierarchical") out.push_back({family, degree, 1});
      if (family == "hierarchical" || family == "serial") out.push_back({family, degree, hosts});
    }
  }
  return out;
}

using Bits = std::map<std::string, std::string>;  // by problem, way, rank

/// Three calls of every way on ranks that claim to be on `claimed` hosts; schedules know of `hosts`.
void collect_bits(const std::vector<Problem>& problems, const Hosts& where, int hosts, const std::string& directory) {
  run_on(where, [&](GpuRank& gpu) {
    std::ofstream lines(base::format("{}/{}.{}", directory, where.hosts, gpu.rank));
    for (const Problem& problem : problems) {
      for (const Data data : {Data::exact, Data::normal}) {
        Site site(problem, data, gpu);
        for (const Way& way : ways_of(problem.op, hosts)) {
          const spec::Params options = {{"hosts", int64_t{way.hosts}}};
          const bool has_hosts = way.family == "hierarchical" || way.family == "serial";
          const spec::Schedule schedule =
              spec::make_schedule(site.op(), way.family, way.degree, has_hosts ? options : spec::Params{});
          const std::string name = base::format("{} M {} {} {}", problem.op, problem.m,
                                                data == Data::exact ? "exact" : "normal", way.name());
          ASSERT_TRUE(ops::supports(gpu.channel, site.op(), schedule).ok())
              << name << ": " << ops::supports(gpu.channel, site.op(), schedule).reason;
          uint64_t first = 0;
          for (int call = 0; call < 3; ++call) {
            site.poison();
            site.run(schedule);
            const uint64_t hash = site.hash();
            if (call == 0) first = hash;
            ASSERT_EQ(hash, first) << name << ", call " << call;
            if (data == Data::exact) {
              ASSERT_EQ(site.mismatch(), "") << name << ", call " << call;
            }
          }
          // NCCL chooses the order of its sums itself.
          const bool is_ours = way.family != "library" || problem.op == "ag_gemm";
          if (is_ours) lines << name << " rank " << gpu.rank << '\t' << base::format("{:016x}", first) << '\n';
        }
      }
    }
  });
}

Bits read_bits(const Hosts& where, const std::string& directory) {
  Bits out;
  for (int rank = 0; rank < where.ranks; ++rank) {
    std::ifstream lines(base::format("{}/{}.{}", directory, where.hosts, rank));
    for (std::string line; std::getline(lines, line);)
      out[line.substr(0, line.find('\t'))] = line.substr(line.find('\t') + 1);
  }
  return out;
}

class GpuNetTest : public testing::TestWithParam<std::tuple<Hosts, const char*>> {};

TEST_P(GpuNetTest, EveryScheduleHasTheBitsOfOneHost) {
  const auto [where, op] = GetParam();
  OVERLACE_NEED_GPUS(where.ranks);
  std::string directory =
      (std::filesystem::temp_directory_path() / "overlace_net_XXXXXX").string();  // mkdtemp's letters
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::vector<Problem> problems = {{op, 256, 128, 96}, {op, 203, 64, 72, true, true}, {op, 3, 64, 64}};
  const Hosts one{where.ranks, 1};
  collect_bits(problems, one, where.hosts, directory);
  if (!HasFailure()) collect_bits(problems, where, where.hosts, directory);
  const Bits want = read_bits(one, directory), got = read_bits(where, directory);
  std::filesystem::remove_all(directory);
  ASSERT_FALSE(HasFailure());
  ASSERT_GT(want.size(), 40u);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, hash] : want) EXPECT_EQ(got.at(name), hash) << name;
}

INSTANTIATE_TEST_SUITE_P(Hosts, GpuNetTest,
                         testing::Combine(testing::Values(Hosts{2, 2}, Hosts{4, 2}, Hosts{4, 4}),
                                          testing::Values("ag_gemm", "gemm_rs", "gemm_ar")),
                         [](const auto& test) {
                           const Hosts& where = std::get<0>(test.param);
                           return base::format("{}x{}_{}", where.hosts, where.ranks / where.hosts,
                                               std::get<1>(test.param));
                         });

Hosts two_hosts() { return gpu_count() >= 4 ? Hosts{4, 2} : Hosts{2, 2}; }

spec::Schedule schedule_of(const Site& site, const char* family) { return spec::make_schedule(site.op(), family, 2); }

std::string text_of(const std::function<void()>& call, Errc* code) {
  try {
    call();
  } catch (const Error& error) {
    *code = error.code();
    return error.what();
  }
  *code = Errc::ok;
  return "";
}

TEST(GpuNetRefusalTest, OtherHostsAreNotMappedAndSayWhatCannotCross) {
  OVERLACE_NEED_GPUS(2);
  const Hosts where = two_hosts();
  run_on(where, [&](GpuRank& gpu) {
    const SymBuffer buffer = gpu.runtime.heap().alloc(256);
    EXPECT_TRUE(gpu.runtime.is_emulated());
    for (int peer = 0; peer < gpu.size; ++peer) {
      const bool is_far = where.of(peer) != where.of(gpu.rank);
      EXPECT_EQ(gpu.team.reach(peer) == Reach::net, is_far) << peer;
      EXPECT_EQ(gpu.team.peer_ptr(buffer, peer) == nullptr, is_far) << peer;
      EXPECT_EQ(gpu.runtime.caps(peer).load_store, !is_far) << peer;
    }
    Errc code = Errc::ok;
    const base::Status barrier = runtime::cuda_peer::launch_barrier(gpu.stream, gpu.team.pod(), 0);
    EXPECT_EQ(barrier.code(), Errc::not_supported) << barrier.message();
    const std::vector<StripePart> parts = {{0, size_t{2} << 20}};
    const std::string stripe = text_of([&] { (void)gpu.runtime.heap().stripe(parts, "s"); }, &code);
    EXPECT_EQ(code, Errc::not_supported) << stripe;
    Site site({"gemm_rs", 2048, 1024, 512}, Data::exact, gpu);
    spec::OpSpec op = site.op();
    op.b_layout = spec::BLayout::nk;
    const auto support = ops::supports(gpu.channel, op, spec::make_schedule(op, "tma_slot", 4));
    EXPECT_NE(support.reason.find("on another host"), std::string::npos) << support.reason;
  });
}

/// 64 MiB to another host by the engine take at least ten times as long as to a peer of this one: no memory is shared.
TEST(GpuNetRateTest, NcclTakesTheSlowWayBetweenHosts) {
  OVERLACE_NEED_GPUS(4);
  const Hosts where{4, 2};
  run_on(where, [&](GpuRank& gpu) {
    constexpr size_t kBytes = size_t{64} << 20;
    const SymBuffer inbox = gpu.runtime.heap().alloc(kBytes);
    auto* from = gpu.device_array<char>(kBytes);
    const int near = gpu.rank ^ 1, far = (gpu.rank + 2) % 4;
    const auto seconds_of = [&](const std::function<void()>& work) {
      std::vector<double> all;
      for (int i = 0; i < 5; ++i) {
        gpu.team.barrier();
        const auto begin = std::chrono::steady_clock::now();
        work();
        gpu.wait();
        all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
      return *std::min_element(all.begin(), all.end());
    };
    const double inside = seconds_of([&] {
      EXPECT_CUDA(cudaMemcpyAsync(gpu.team.peer_ptr(inbox, near), from, kBytes, cudaMemcpyDeviceToDevice, gpu.stream));
    });
    const double across = seconds_of([&] {
      NetEngine& net = *gpu.team.net();
      net.group_begin("test");
      net.send(from, kBytes, far, StreamRef::cuda(gpu.stream));
      net.recv(gpu.team.local_ptr(inbox), kBytes, far, StreamRef::cuda(gpu.stream));
      net.group_end();
    });
    EXPECT_GT(across, 10 * inside);
    if (gpu.rank == 0)
      std::printf("64 MiB: %.1f GB/s inside a host, %.2f GB/s across (emulated)\n", kBytes / inside * 1e-9,
                  kBytes / across * 1e-9);
  });
}

TEST(GpuNetRefusalTest, ACapturedCallIsRefusedAndTheNextOneRuns) {
  OVERLACE_NEED_GPUS(2);
  run_on(two_hosts(), [](GpuRank& gpu) {
    Site site({"ag_gemm", 128, 64, 64}, Data::exact, gpu);
    const spec::Schedule schedule = schedule_of(site, "hetero_fused_1d");
    site.run(schedule);
    (void)site.hash();
    EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
    Errc code = Errc::ok;
    const std::string text = text_of([&] { site.run(schedule); }, &code);
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(gpu.stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    EXPECT_EQ(code, Errc::capture) << text;
    site.poison();
    gpu.team.barrier();
    site.run(schedule);
    (void)site.hash();
    EXPECT_EQ(site.mismatch(), "");
  });
}

TEST(GpuNetTraceTest, MessagesHaveALaneOfTheirOwn) {
  OVERLACE_NEED_GPUS(2);
  run_on(two_hosts(), [](GpuRank& gpu) {
    Site site({"ag_gemm", 256, 64, 64}, Data::exact, gpu);
    const spec::Schedule schedule = schedule_of(site, "hetero_fused_1d");
    site.run(schedule);
    (void)site.hash();
    base::Trace trace;
    exec::set_trace(gpu.channel, &trace);
    site.run(schedule);
    base::Trace recorded = exec::collect_trace(gpu.channel).value();
    exec::set_trace(gpu.channel, nullptr);
    int messages = 0;
    for (const base::Span& span : recorded.spans) {
      EXPECT_GE(span.end_ns, span.begin_ns) << span.name;
      messages += span.lane == "net" ? 1 : 0;
    }
    EXPECT_EQ(messages, 2 * gpu.size / 2) << "two chunks to each rank of the other host";
  });
}

/// The others make a call that `victim` does not make: it `ends` instead.
void expect_told(const Hosts& where, const std::function<void()>& end, int64_t timeout_ms, int victim_status,
                 const std::function<void(Errc, const std::string&)>& look) {
  const int victim = where.ranks - 1;
  const Ended ended = fork_hosts(where, [&](Bootstrap& bootstrap) {
    GpuOptions options = net_options();
    options.timeout_ms = timeout_ms;
    Runtime runtime = Runtime::open(bootstrap, runtime_options(options));
    GpuRank gpu(runtime);
    Site site({"gemm_rs", 256, 128, 96}, Data::exact, gpu);
    const spec::Schedule schedule = schedule_of(site, "hetero_unfused_1d");
    for (int call = 0; call < 3; ++call) site.run(schedule);
    (void)site.hash();
    gpu.team.barrier();
    if (gpu.rank == victim) {
      end();
      return;
    }
    Errc code = Errc::ok;
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = text_of(
        [&] {
          for (;;) {
            site.run(schedule);
            runtime.synchronize();
          }
        },
        &code);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(timeout_ms + 2000)) << text;
    look(code, text);
  });
  for (int rank = 0; rank < where.ranks; ++rank)
    EXPECT_EQ(ended.status[static_cast<size_t>(rank)], rank == victim ? victim_status : 0) << "rank " << rank;
}

TEST(GpuNetFaultTest, AKilledRankIsNamed) {
  OVERLACE_NEED_GPUS(2);
  const Hosts where = two_hosts();
  const std::string victim = base::format("rank {}", where.ranks - 1);
  expect_told(
      where, [] { ::kill(::getpid(), SIGKILL); }, 20000, -SIGKILL,
      [&](Errc code, const std::string& text) {
        EXPECT_TRUE(code == Errc::peer_lost || code == Errc::aborted) << text;
        EXPECT_NE(text.find(victim), std::string::npos) << text;
      });
}

/// Two ranks: with more, one may wait for a rank that itself waits for the culprit.
TEST(GpuNetFaultTest, ARankThatDoesNotCallIsATimeoutWithRankAndSignal) {
  OVERLACE_NEED_GPUS(2);
  const auto end = [] {
    std::this_thread::sleep_for(std::chrono::seconds(16));
    ::_exit(0);
  };
  expect_told({2, 2}, end, 12000, 0, [](Errc code, const std::string& text) {
    EXPECT_EQ(code, Errc::timeout) << text;
    EXPECT_NE(text.find("rank 0 waited"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    const bool names_signal = text.find("signal") != std::string::npos || text.find("arrived") != std::string::npos;
    EXPECT_TRUE(names_signal) << text;
  });
}

}  // namespace
}  // namespace overlace::test
