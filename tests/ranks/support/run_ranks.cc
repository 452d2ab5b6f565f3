#include "tests/ranks/support/run_ranks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "src/base/env.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/launcher.h"
#include "src/runtime/bootstrap/relay.h"
#include "src/runtime/bootstrap/socket.h"
#include "tests/ranks/support/seeds.h"

namespace overlace::test {
namespace {

/// For bodies that run once: another one each time.
uint64_t next_seed() {
  static std::atomic<uint64_t> drawn{0};
  return seeds().first + drawn.fetch_add(1);
}

std::string label(int rank, int n, Mode mode, const RuntimeOptions& options) {
  std::string text = base::format("rank {} of {}, {}", rank, n, mode_name(mode));
  if (options.adversary.enabled) text += base::format(", OVERLACE_ADVERSARY=\"seed={}\"", options.adversary.seed);
  return text;
}

/// A rank whose peers were aborted because another one failed has nothing to add.
bool is_echo(const Error& error) {
  return testing::Test::HasFailure() && (error.code() == Errc::aborted || error.code() == Errc::peer_lost);
}

void check_end(Runtime& runtime) {
  runtime.synchronize();
  runtime.world().barrier();
  runtime.check_quiescent();
  runtime.heap().verify();
}

void run_one(Bootstrap& bootstrap, const RuntimeOptions& runtime_options, const RankOptions& options,
             const std::function<void(Runtime&)>& body) {
  Runtime runtime = Runtime::open(bootstrap, runtime_options);
  try {
    body(runtime);
    if (testing::Test::HasFailure()) {
      runtime.abort(Errc::aborted, "the test failed on this rank");
    } else if (options.checks_end) {
      check_end(runtime);
    }
  } catch (const Error& error) {
    if (!is_echo(error)) ADD_FAILURE() << errc_name(error.code()) << ": " << error.what();
    runtime.abort(Errc::aborted, error.what());
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    runtime.abort(Errc::aborted, error.what());
  }
  try {
    if (options.checks_end) runtime.close();
  } catch (const Error& error) {
    if (!is_echo(error)) ADD_FAILURE() << "close: " << errc_name(error.code()) << ": " << error.what();
  }
}

void run_threads(int n, const std::function<void(Bootstrap&)>& body) {
  auto bootstraps = thread_bootstraps(n);
  std::vector<std::thread> threads;
  for (auto& bootstrap : bootstraps)
    threads.emplace_back([&body, bootstrap = std::move(bootstrap)]() mutable {
      body(*bootstrap);
      bootstrap.reset();  // peers that still wait for this rank learn that it is gone
    });
  for (std::thread& thread : threads) thread.join();
}

/// What the assertions of this process said since `first`.
std::string failures_since(int first) {
  const testing::TestResult& result = *testing::UnitTest::GetInstance()->current_test_info()->result();
  std::string text;
  for (int i = first; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (!part.failed()) continue;
    text += base::format("{}:{}\n{}\n", part.file_name() == nullptr ? "unknown" : part.file_name(), part.line_number(),
                         part.message());
  }
  return text;
}

void drain(int fd, std::string& text) {
  std::array<char, 4096> buffer{};
  ssize_t got = 0;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0) text.append(buffer.data(), static_cast<size_t>(got));
}

void run_processes(int n, const std::function<void(Bootstrap&)>& body) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  runtime::UniqueFd texts(pipe_fds[0]), reports(pipe_fds[1]);
  ::fcntl(texts.get(), F_SETFL, O_NONBLOCK);
  const int first = testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  const auto child = [&](int rank, const std::string& launch_socket) {
    const size_t colon = launch_socket.find(':');
    auto bootstrap =
        runtime::relay_bootstrap(launch_socket.substr(0, colon), launch_socket.substr(colon + 1), rank, n, 20000);
    if (bootstrap.ok())
      body(**bootstrap);
    else
      ADD_FAILURE() << bootstrap.status().message();
    const std::string text = failures_since(first);
    if (text.empty()) return 0;
    return ::write(reports.get(), text.data(), text.size()) > 0 ? 1 : 2;
  };
  std::string text;
  std::fflush(stdout);  // or each child would print it again
  const int status = runtime::launch_forked(n, child, [&] { drain(texts.get(), text); });
  if (status != 0 || !text.empty()) ADD_FAILURE() << "processes ended with status " << status << "\n" << text;
}

}  // namespace

RuntimeOptions runtime_options(Mode mode, const RankOptions& options) {
  RuntimeOptions result;
  result.backend = Backend::cpu;
  result.heap_bytes = options.heap_bytes;
  result.max_heap_bytes = options.max_heap_bytes;
  result.timeout_ms = options.timeout_ms;
  result.num_signal_ids = options.num_signal_ids;
  result.link = options.link;
  result.wait = options.wait;
  result.net_engine = options.net_engine;
  result.adversary = options.adversary;
  if (mode == Mode::threads_adversary && !result.adversary.enabled) {
    result.adversary.enabled = true;
    result.adversary.seed = next_seed();
    if (!base::env().adversary.empty()) result.adversary = AdversaryOptions::parse(base::env().adversary);
  }
  return result;
}

void run_bootstraps(int n, Mode mode, const std::function<void(Bootstrap&)>& body) {
  const auto guarded = [&](Bootstrap& bootstrap) {
    const testing::ScopedTrace trace("run_ranks", bootstrap.rank(),
                                     base::format("rank {} of {}, {}", bootstrap.rank(), n, mode_name(mode)));
    try {
      body(bootstrap);
    } catch (const Error& error) {
      if (!is_echo(error)) ADD_FAILURE() << errc_name(error.code()) << ": " << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  };
  mode == Mode::processes ? run_processes(n, guarded) : run_threads(n, guarded);
}

void run_ranks(int n, Mode mode, const std::function<void(Runtime&)>& body, const RankOptions& options) {
  RuntimeOptions chosen = runtime_options(mode, options);
  const bool is_drawn = mode == Mode::threads_adversary && !options.adversary.enabled && base::env().adversary.empty();
  const int count = is_drawn ? std::clamp(seeds().count, options.min_seeds, options.max_seeds) : 1;
  for (int i = 0; i < count && (i == 0 || !testing::Test::HasFailure()); ++i) {
    if (count > 1) chosen.adversary.seed = seeds().first + static_cast<uint64_t>(i);
    run_bootstraps(n, mode, [&](Bootstrap& bootstrap) {
      const testing::ScopedTrace trace("run_ranks", 0, label(bootstrap.rank(), n, mode, chosen));
      run_one(bootstrap, chosen, options, body);
    });
  }
}

}  // namespace overlace::test
