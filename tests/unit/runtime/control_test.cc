// What ranks say to each other at open while one of them says what cannot be. Both ranks are threads.
#include "src/runtime/control.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "src/runtime/backend/cpu/mapping.h"
#include "src/runtime/bootstrap/fd_exchange.h"
#include "src/runtime/hello.h"

namespace overlace::runtime {
namespace {

constexpr int64_t kTimeoutMs = 20000;
const std::vector<int> kBoth = {0, 1};

/// Runs a body for each of two ranks; `are_processes`: they talk like two processes of one host.
void run_two(bool are_processes, const std::function<void(Control&)>& rank_0,
             const std::function<void(Control&)>& rank_1) {
  auto all = thread_bootstraps(2);
  const auto run = [&](int rank) {
    Bootstrap& inner = *all[static_cast<size_t>(rank)];
    const auto outer = callback_bootstrap(
        rank, 2, "two", [&](std::span<const std::byte> mine) { return inner.allgather(mine, kTimeoutMs); });
    base::Result<std::unique_ptr<Control>> control = Control::open(are_processes ? *outer : inner, kTimeoutMs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    (rank == 0 ? rank_0 : rank_1)(**control);
    (void)(*control)->exchange(kBoth, {}, kTimeoutMs, "the end");
    (*control)->leave(true);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

Bytes hello_bytes(const Hello& hello, size_t count) {
  Bytes bytes(count);
  std::memcpy(bytes.data(), &hello, std::min(count, sizeof hello));
  return bytes;
}

TEST(Hello, OfARankThatCannotBeIsRefused) {
  const auto refusal = [](const Bytes& said) {
    base::Status status;
    run_two(
        false,
        [&](Control& control) {
          RuntimeOptions options;
          options.timeout_ms = kTimeoutMs;
          status = exchange_hello(control, options, 1).status();
        },
        [&](Control& control) { (void)control.exchange(kBoth, said, kTimeoutMs, "open, hello"); });
    return base::format("{}: {}", errc_name(status.code()), status.message());
  };
  Hello hello;
  hello.rank = 1;
  const std::string size = std::to_string(sizeof hello);
  EXPECT_EQ(refusal(hello_bytes(hello, 3)),
            "version_mismatch: rank 1 sent a hello of 3 bytes, wanted at least " + size);
  EXPECT_EQ(refusal(hello_bytes(hello, sizeof hello)).find("layout_mismatch: ranks 0 and 1 disagree: rank 0 has "), 0u)
      << "it names no options";
  hello.rank = 0;
  EXPECT_EQ(refusal(hello_bytes(hello, sizeof hello + 1)), "layout_mismatch: rank 1 says that it is rank 0");
}

TEST(Control, RefusesMoreThanAMessageCarries) {
  run_two(
      false,
      [](Control& control) {
        const Bytes much(Control::kMaxBytes + 1);
        const base::Result<std::vector<Bytes>> all = control.exchange(kBoth, much, kTimeoutMs, "much");
        EXPECT_EQ(all.status().code(), Errc::invalid_argument);
        EXPECT_EQ(all.status().message(), "exchange: 65537 bytes, wanted at most 65536 a rank");
      },
      [](Control&) {});
}

TEST(Control, RefusesAnAllGatherOfAnotherSize) {
  const auto bootstrap = callback_bootstrap(0, 2, "short", [](std::span<const std::byte> mine) {
    return std::vector<Bytes>{Bytes(mine.begin(), mine.end()), Bytes(3)};
  });
  const base::Result<std::unique_ptr<Control>> control = Control::open(*bootstrap, kTimeoutMs);
  ASSERT_FALSE(control.ok());
  EXPECT_EQ(control.status().code(), Errc::bootstrap);
  EXPECT_EQ(control.status().message().find("the bootstrap's all-gather gave 3 bytes of rank 1, wanted "), 0u)
      << control.status().message();
  RuntimeOptions options;
  options.timeout_ms = kTimeoutMs;
  EXPECT_THROW((void)Runtime::open(*bootstrap, options), PeerLost);
}

TEST(ExchangeFds, RefusesWhatIsNoDescriptor) {
  base::Status status;
  const auto exchange = [&](Control& control) {
    const UniqueFd own(::memfd_create("own", MFD_CLOEXEC));
    status = exchange_fds(control, kBoth, own.get(), kTimeoutMs).status();
  };
  run_two(true, exchange, [](Control& control) {
    const int32_t rank = 1;
    EXPECT_TRUE(control.send(0, {0, 2, 0}, std::as_bytes(std::span(&rank, 1))).ok());
  });
  EXPECT_EQ(status.code(), Errc::bootstrap);
  EXPECT_EQ(status.message(), "descriptor exchange: rank 1 sent none");
  run_two(true, exchange, [](Control& control) { control.spread({Errc::io, "it broke"}); });
  EXPECT_EQ(status.code(), Errc::aborted) << status.message();
  EXPECT_NE(status.message().find("it broke"), std::string::npos) << status.message();
  run_two(
      true, [&](Control& control) { status = exchange_fds(control, kBoth, -1, kTimeoutMs).status(); }, [](Control&) {});
  EXPECT_EQ(status.code(), Errc::io) << status.message();
}

TEST(Heaps, OfARankThatPassesTooLittleAreNotMapped) {
  constexpr uint64_t kBytes = uint64_t{2} << 20;
  base::Status status;
  run_two(
      true,
      [&](Control& control) {
        Heaps heaps;
        heaps.mapping = Mapping::reserve(2, kBytes).value();
        heaps.own = UniqueFd(::memfd_create("whole", MFD_CLOEXEC));
        heaps.near = kBoth;
        status = grow_heaps(control, kTimeoutMs, kBytes, &heaps);
        EXPECT_EQ(heaps.bytes, 0u);
      },
      [&](Control& control) {
        const UniqueFd little(::memfd_create("little", MFD_CLOEXEC));
        ASSERT_EQ(::ftruncate(little.get(), kBytes - 1), 0);
        EXPECT_TRUE(agree_on_status(control, {}, kTimeoutMs, "memory of the heap").ok());
        const base::Result<std::vector<int>> fds = exchange_fds(control, kBoth, little.get(), kTimeoutMs);
        ASSERT_TRUE(fds.ok()) << fds.status().message();
        for (const int fd : *fds) UniqueFd{fd};
        EXPECT_FALSE(agree_on_status(control, {}, kTimeoutMs, "mappings of the heap").ok());
      });
  EXPECT_EQ(status.code(), Errc::layout_mismatch);
  EXPECT_EQ(status.message(), "symmetric heap: rank 1 passed memory of 2097151 bytes, wanted 2097152");
}

}  // namespace
}  // namespace overlace::runtime
