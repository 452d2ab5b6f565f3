// A rank by itself: found through a callback, moved about.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <utility>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

RuntimeOptions small() {
  RuntimeOptions options;
  options.backend = Backend::cpu;
  options.heap_bytes = size_t{1} << 20;
  options.timeout_ms = 20000;
  return options;
}

TEST(CallbackBootstrap, GivesWhatTheCallbackGathers) {
  const auto bootstrap = callback_bootstrap(1, 2, "a job", [](std::span<const std::byte> mine) {
    return std::vector<Bytes>{Bytes(3, std::byte{7}), Bytes(mine.begin(), mine.end())};
  });
  EXPECT_EQ(bootstrap->rank(), 1);
  EXPECT_EQ(bootstrap->size(), 2);
  EXPECT_EQ(bootstrap->token(), "a job");
  EXPECT_FALSE(bootstrap->in_process());
  const std::byte mine{42};
  const std::vector<Bytes> all = bootstrap->allgather(std::span(&mine, 1), 1000);
  EXPECT_EQ(all, (std::vector<Bytes>{Bytes(3, std::byte{7}), Bytes{mine}}));
}

TEST(CallbackBootstrap, RefusesEntriesThatAreNotOneForEachRank) {
  const auto bootstrap = callback_bootstrap(0, 3, "t", [](auto) { return std::vector<Bytes>(2); });
  try {
    bootstrap->barrier(1000);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.code(), Errc::bootstrap);
    EXPECT_STREQ(error.what(), "bootstrap: the callback gave 2 entries, wanted one for each of 3 ranks");
  }
}

TEST(OpenRuntime, MovesWithItsMemory) {
  auto bootstraps = thread_bootstraps(1);
  Runtime first = Runtime::open(*bootstraps[0], small());
  const SymBuffer buffer = first.heap().alloc(64, 64, "kept");
  std::memset(first.world().peer_ptr(buffer, 0), 5, 64);
  Runtime second = std::move(first);
  EXPECT_EQ(static_cast<char*>(second.world().peer_ptr(buffer, 0))[63], 5);
  second.heap().free(buffer);
  second.close();
}

TEST(OpenRuntime, ReplacesAnotherThatIsLeftThen) {
  auto bootstraps = thread_bootstraps(1), others = thread_bootstraps(1);
  Runtime runtime = Runtime::open(*bootstraps[0], small());
  RuntimeOptions larger = small();
  larger.heap_bytes *= 2;
  Runtime other = Runtime::open(*others[0], larger);
  runtime = std::move(other);
  EXPECT_EQ(runtime.options().heap_bytes, larger.heap_bytes);
  const SymBuffer buffer = runtime.heap().alloc(larger.heap_bytes - 4096, 64, "most");
  std::memset(runtime.world().peer_ptr(buffer, 0), 1, larger.heap_bytes - 4096);
  runtime.check_quiescent();
  Runtime& same = runtime;
  runtime = std::move(same);  // to itself: nothing
  runtime.world().barrier();
  runtime.heap().free(buffer);
  runtime.close();
}

TEST(OpenRuntime, TakesNothingBackUntilItIsClosed) {
  auto bootstraps = thread_bootstraps(1);
  Runtime runtime = Runtime::open(*bootstraps[0], small());
  Channel& channel = runtime.world().channel(StreamRef::cpu());
  EXPECT_NO_THROW(runtime.heap().free(SymBuffer{}));
  EXPECT_NO_THROW(channel.release(SignalIds{}));
  runtime.close();
  const auto code_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return Errc::ok;
  };
  EXPECT_EQ(code_of([&] { runtime.heap().free(SymBuffer{}); }), Errc::closed);
  EXPECT_EQ(code_of([&] { channel.release(SignalIds{}); }), Errc::closed);
}

TEST(OpenRuntime, RefusesSignalsBehindTheLast) {
  auto bootstraps = thread_bootstraps(1);
  Runtime runtime = Runtime::open(*bootstraps[0], small());
  const ChannelPod& pod = runtime.world().channel(StreamRef::cpu()).pod();
  const uint32_t last = pod.team.num_ids - 1;
  EXPECT_EQ(ticket(pod, 0, last), 0u);
  EXPECT_THROW((void)ticket(pod, 0, last + 1), InvalidArgument);
  EXPECT_THROW((void)ticket(pod, 1, last), InvalidArgument);
  EXPECT_THROW((void)ticket(pod, -1, last), InvalidArgument);
  runtime.close();
}

TEST(OpenRuntime, GrowsItsHeapToTheMostAndNoFurther) {
  auto bootstraps = thread_bootstraps(1);
  RuntimeOptions options = small();
  options.max_heap_bytes = options.heap_bytes * 3;
  Runtime runtime = Runtime::open(*bootstraps[0], options);
  RuntimeState& state = *runtime.world().state().runtime;
  EXPECT_TRUE(state.grow_heap(options.heap_bytes).value());
  EXPECT_TRUE(state.grow_heap(options.max_heap_bytes).value());
  EXPECT_GE(state.blocks.capacity(), options.max_heap_bytes);
  const uint64_t most = state.blocks.capacity();
  EXPECT_FALSE(state.grow_heap(1).value());
  EXPECT_EQ(state.blocks.capacity(), most);
  EXPECT_EQ(state.stats.heap_growths, 2u);
  runtime.close();
}

TEST(OpenRuntime, RefusesAPeerThatIsNotThere) {
  auto bootstraps = thread_bootstraps(1);
  Runtime runtime = Runtime::open(*bootstraps[0], small());
  EXPECT_THROW((void)runtime.caps(1), InvalidArgument);
  EXPECT_THROW((void)runtime.caps(-1), InvalidArgument);
  EXPECT_TRUE(runtime.caps(0).load_store);
  runtime.close();
  EXPECT_THROW(runtime.check(), InvalidArgument);
}

}  // namespace
}  // namespace overlace
