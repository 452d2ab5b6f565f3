#include "tests/gpu/support/gpu_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "src/base/format.h"
#include "src/runtime/backend.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

/// Ranks that share a device keep many streams busy at once: with fewer hardware queues one could wait behind another.
const bool kManyQueues = (::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0), true);

/// NCCL reads it when it is loaded. Multicast can take other GPUs of a host that is shared down with it.
const bool kNoMulticast = (::setenv("NCCL_NVLS_ENABLE", "0", 0), true);

struct Count {
  int devices = 0;
  char why[200] = {};
};

const Count& counted() {
  static const Count result = [] {
    Count count;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return count;
    const pid_t child = ::fork();
    if (child == 0) {
      std::string why;
      count.devices = runtime::cuda_device_count(&why);
      std::strncpy(count.why, why.c_str(), sizeof count.why - 1);
      const ssize_t written = ::write(ends[1], &count, sizeof count);
      ::_exit(written == sizeof count ? 0 : 1);
    }
    ::close(ends[1]);
    Count got;
    if (::read(ends[0], &got, sizeof got) == sizeof got) count = got;
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    return count;
  }();
  return result;
}

bool is_echo(const Error& error) {
  return testing::Test::HasFailure() && (error.code() == Errc::aborted || error.code() == Errc::peer_lost);
}

void report(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours != nullptr && is_echo(*ours)) return;
  ADD_FAILURE() << (ours != nullptr ? std::string(errc_name(ours->code())) + ": " : "") << error.what();
}

void run_rank(Bootstrap& bootstrap, const GpuOptions& options, const std::function<void(GpuRank&)>& body) {
  Runtime runtime = Runtime::open(bootstrap, runtime_options(options));
  try {
    GpuRank rank(runtime);
    body(rank);
    if (testing::Test::HasFailure()) {
      runtime.abort(Errc::aborted, "the test failed on this rank");
    } else if (options.checks_end) {
      rank.wait();
      rank.team.barrier();
      runtime.check_quiescent();
      runtime.heap().verify();
    }
  } catch (const std::exception& error) {
    report(error);
    runtime.abort(Errc::aborted, error.what());
  }
  if (options.checks_end) runtime.close();
}

/// Meeting place of forked ranks: memory that they share from before the fork.
struct Board {
  static constexpr int kRanks = 16;
  static constexpr size_t kBytes = 64 * 1024;
  std::atomic<int> arrived{0};
  std::atomic<uint32_t> phase{0};
  size_t sizes[kRanks] = {};
  std::byte data[kRanks][kBytes];

  void meet(int n) {
    const uint32_t now = phase.load();
    if (arrived.fetch_add(1) + 1 == n) {
      arrived.store(0);
      phase.store(now + 1);
      return;
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (phase.load() == now) {
      if (std::chrono::steady_clock::now() > deadline) throw PeerLost(Errc::bootstrap, "a forked rank is missing");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  std::vector<Bytes> allgather(int rank, int n, std::span<const std::byte> mine) {
    if (mine.size() > kBytes) throw InvalidArgument(Errc::invalid_argument, "board: message too long");
    std::memcpy(data[rank], mine.data(), mine.size());
    sizes[rank] = mine.size();
    meet(n);
    std::vector<Bytes> all(static_cast<size_t>(n));
    for (int r = 0; r < n; ++r) all[static_cast<size_t>(r)].assign(data[r], data[r] + sizes[r]);
    meet(n);
    return all;
  }
};

void run_child(Board& board, int job, int rank, int n, const std::vector<std::string>& variables,
               const std::function<void(Bootstrap&)>& body) {
  for (const std::string& variable : variables) {
    const size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  ::setenv("LOCAL_RANK", base::format("{}", rank).c_str(), 1);
  ::setenv("RANK", base::format("{}", rank).c_str(), 1);
  ::setenv("WORLD_SIZE", base::format("{}", n).c_str(), 1);
  auto bootstrap =
      callback_bootstrap(rank, n, base::format("gpu-test-{}-{}", ::getppid(), job),
                         [&board, rank, n](std::span<const std::byte> mine) { return board.allgather(rank, n, mine); });
  const testing::ScopedTrace trace("fork_ranks", rank, base::format("rank {} of {}", rank, n));
  try {
    body(*bootstrap);
  } catch (const std::exception& error) {
    report(error);
  }
}

}  // namespace

int gpu_count() { return counted().devices; }
std::string no_gpu_reason() { return counted().why; }

RuntimeOptions runtime_options(const GpuOptions& options) {
  RuntimeOptions result;
  result.backend = Backend::cuda_peer;
  result.device = options.device;
  result.heap_bytes = options.heap_bytes;
  result.timeout_ms = options.timeout_ms;
  result.num_signal_ids = options.num_signal_ids;
  result.net_engine = options.net_engine;
  return result;
}

GpuOptions default_options() {
  GpuOptions options;
  options.heap_bytes = size_t{1} << 30;
  options.num_signal_ids = runtime::default_signal_ids(Backend::cuda_peer);
  options.net_engine = "auto";
  return options;
}

cudaStream_t GpuRank::make_stream(int device) {
  cudaStream_t made = nullptr;
  EXPECT_CUDA(cudaSetDevice(device));
  EXPECT_CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}

GpuRank::GpuRank(Runtime& opened)
    : runtime(opened),
      team(opened.world()),
      rank(team.rank()),
      size(team.size()),
      stream(make_stream(opened.device())),
      channel(team.channel(StreamRef::cuda(stream))) {
  EXPECT_CUDA(load_kernels());
  team.barrier();
}

GpuRank::~GpuRank() {
  (void)cudaStreamSynchronize(stream);
  try {
    runtime.check();
    team.barrier();  // freeing waits for the whole device: peers that share it must be done
  } catch (const Error&) {
    (void)cudaGetLastError();  // aborted: no kernel waits any more
  }
  for (void* memory : memory_) (void)cudaFree(memory);
  for (void* memory : pinned_) (void)cudaFreeHost(memory);
  (void)cudaStreamDestroy(stream);
}

void GpuRank::wait() {
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  runtime.state().enter();  // findings are for the test
}

// Copies of pageable memory block in the driver: nothing that waits for a peer may be queued in front of them.
void GpuRank::fetch(void* host, const void* from, size_t bytes) {
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
}

void GpuRank::store(void* to, const void* host, size_t bytes) {
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
}

void* GpuRank::allocate(size_t bytes) {
  void* memory = nullptr;
  EXPECT_CUDA(cudaMalloc(&memory, bytes));
  EXPECT_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  memory_.push_back(memory);
  return memory;
}

void* GpuRank::allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  EXPECT_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  std::memset(memory, 0, bytes);
  pinned_.push_back(memory);
  return memory;
}

void run_gpu_bootstraps(int n, const std::function<void(Bootstrap&)>& body) {
  auto bootstraps = thread_bootstraps(n);
  std::vector<std::thread> threads;
  for (auto& one : bootstraps) {
    threads.emplace_back([&body, n, bootstrap = std::move(one)]() mutable {
      const testing::ScopedTrace trace("run_gpu", bootstrap->rank(),
                                       base::format("rank {} of {}, threads", bootstrap->rank(), n));
      try {
        body(*bootstrap);
      } catch (const std::exception& error) {
        report(error);
      }
      bootstrap.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_gpu_threads(int n, const std::function<void(GpuRank&)>& body, const GpuOptions& options) {
  run_gpu_bootstraps(n, [&](Bootstrap& bootstrap) { run_rank(bootstrap, options, body); });
}

Ended fork_ranks(int n, const std::vector<std::string>& variables, const std::function<void(Bootstrap&)>& body,
                 int64_t limit_ms) {
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {std::vector<int>(static_cast<size_t>(n), 1)};
  Board* board = new (memory) Board;
  std::fflush(stdout);
  std::fflush(stderr);
  std::vector<pid_t> children;
  static int jobs = 0;
  const int job = jobs++;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      run_child(*board, job, rank, n, variables, body);
      std::fflush(stdout);
      std::fflush(stderr);
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  Ended ended{std::vector<int>(static_cast<size_t>(n), 0)};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    while (::waitpid(children[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "rank " << rank << " did not end within " << limit_ms << " ms";
        ::kill(children[rank], SIGKILL);
        ::waitpid(children[rank], &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ended.status[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  ::munmap(memory, sizeof(Board));
  return ended;
}

void run_gpu_processes(int n, const std::vector<std::string>& variables, const std::function<void(GpuRank&)>& body,
                       const GpuOptions& options) {
  const Ended ended = fork_ranks(n, variables, [&](Bootstrap& bootstrap) { run_rank(bootstrap, options, body); });
  for (size_t rank = 0; rank < ended.status.size(); ++rank)
    EXPECT_EQ(ended.status[rank], 0) << "exit status of rank " << rank << "; its failures are printed above";
}

}  // namespace overlace::test
