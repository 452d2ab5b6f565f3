// What kernels find in arguments is told once, by whoever asks first, and never in place of a call that peers wait for.
#include <memory>
#include <string>
#include <utility>

#include "overlace/net_engine.h"
#include "src/runtime/state.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

/// A kernel's part: what it found has come to the host.
class Found final : public runtime::Findings {
 public:
  base::Status take() override { return std::exchange(next, {}); }
  base::Status next;
};

std::string said_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Findings, AreToldOnceAndTheCallThatTellsThemIsMade) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    auto made = std::make_unique<Found>();
    Found& found = *made;
    runtime.state().findings.emplace(channel.pod().channel_id, std::move(made));
    const bool is_bad = runtime.world().rank() == 1;
    const std::string words = is_bad ? "index is 9" : "";
    const auto find = [&] {
      if (is_bad) found.next = base::invalid_argument("index is 9");
    };
    EXPECT_EQ(said_by([&] { runtime.check(); }), "");
    find();
    EXPECT_EQ(said_by([&] { runtime.check(); }), words);
    EXPECT_EQ(said_by([&] { runtime.check(); }), "");
    find();
    EXPECT_EQ(said_by([&] { runtime.synchronize(); }), words);
    Operands operands({.op = "gemm_rs", .family = "serial", .degree = 1, .m = 12}, channel);
    for (int64_t seed = 0; seed < 3; ++seed) {
      operands.fill(seed);
      find();
      EXPECT_EQ(said_by([&] { operands.run(); }), words);
      EXPECT_EQ(operands.mismatch(), "") << "the call was made, here and at the peer";
    }
    EXPECT_EQ(said_by([&] { runtime.check(); }), "");
  });
}

}  // namespace
}  // namespace overlace::test
