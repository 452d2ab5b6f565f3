// The thin path: two threads, heap, put, signal, wait, barrier.
#include <gtest/gtest.h>

#include <thread>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"

namespace overlace {
namespace {

TEST(Threads, PutSignalWaitBarrier) {
  auto bootstraps = thread_bootstraps(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      RuntimeOptions options;
      options.backend = Backend::cpu;
      options.heap_bytes = 1 << 20;
      options.timeout_ms = 20000;
      Runtime runtime = Runtime::open(*bootstraps[r], options);
      Team& team = runtime.world();
      const SymBuffer buffer = runtime.heap().alloc(1024);
      Channel& channel = team.channel(StreamRef::cpu());
      const SignalIds ids = channel.ids(1, Domain::cpu, "test.arrive");
      team.barrier();
      const int peer = 1 - team.rank();
      std::vector<int32_t> mine(256);
      for (int i = 0; i < 256; ++i) mine[static_cast<size_t>(i)] = team.rank() * 1000 + i;
      put_signal(channel.pod(), peer, buffer.offset, mine.data(), 1024, ids.first);
      ASSERT_EQ(wait_ge(channel.pod(), peer, ids.first, 1), Errc::ok);
      consume(channel.pod(), peer, ids.first, 1);
      const auto* got = static_cast<const int32_t*>(team.local_ptr(buffer));
      for (int i = 0; i < 256; ++i) ASSERT_EQ(got[i], peer * 1000 + i);
      for (int i = 0; i < 1000; ++i) ASSERT_EQ(barrier(channel.pod()), Errc::ok);
      ASSERT_EQ(flush(channel.pod()), Errc::ok);
      runtime.heap().verify();
      runtime.check_quiescent();
      runtime.close();
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace overlace
