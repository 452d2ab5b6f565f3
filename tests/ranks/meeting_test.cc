// Meetings of the control plane: who comes waits for all, who passes by waits for nobody and still answers.
#include <cstring>
#include <span>
#include <vector>

#include "src/runtime/state.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

class Meeting : public testing::TestWithParam<Mode> {};

std::vector<runtime::Attendance> meet(Runtime& runtime, uint64_t group, uint32_t number) {
  runtime::Control& control = *runtime.state().control;
  const uint64_t mine = 1000 * static_cast<uint64_t>(control.rank()) + number;
  auto all = control.meet(control.all_ranks(), group, number, std::as_bytes(std::span(&mine, 1)), 20000, "a test");
  EXPECT_TRUE(all.ok()) << all.status().message();
  return all.ok() ? *all : std::vector<runtime::Attendance>(static_cast<size_t>(control.size()));
}

/// Ranks in `passed` have answered group + number, the others said what they are and the number.
void expect(const std::vector<runtime::Attendance>& all, uint64_t group, uint32_t number, int passed) {
  for (int r = 0; r < static_cast<int>(all.size()); ++r) {
    const runtime::Attendance& one = all[static_cast<size_t>(r)];
    EXPECT_EQ(one.has_come, r != passed) << "rank " << r << ", number " << number;
    if (!one.has_come) {
      EXPECT_EQ(one.answer, group + number);
      continue;
    }
    uint64_t said = 0;
    ASSERT_EQ(one.bytes.size(), sizeof said);
    std::memcpy(&said, one.bytes.data(), sizeof said);
    EXPECT_EQ(said, 1000 * static_cast<uint64_t>(r) + number);
  }
}

TEST_P(Meeting, WhoPassesByAnswersBeforeAndAfterTheOthersCome) {
  run_ranks(3, GetParam(), [](Runtime& runtime) {
    constexpr uint64_t kGroup = 5, kOther = 6;
    const int rank = runtime.world().rank();
    for (uint32_t number = 0; number < 300; ++number) {
      const int passing = static_cast<int>(number % 4);  // 3: nobody
      if (number % 7 == 0) runtime.world().barrier();
      if (rank == passing) {
        runtime.state().control->pass(kGroup, number, kGroup + number);
      } else {
        expect(meet(runtime, kGroup, number), kGroup, number, passing);
      }
    }
    // One is far ahead, as a rank that queues on a GPU may be.
    constexpr uint32_t kAhead = runtime::Control::kKeptAnswers;
    if (rank == 1)
      for (uint32_t number = 0; number < kAhead; ++number)
        runtime.state().control->pass(kOther, number, kOther + number);
    runtime.world().barrier();
    for (const uint32_t number : {0u, 1u, kAhead / 2, kAhead - 1})
      if (rank != 1) expect(meet(runtime, kOther, number), kOther, number, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, Meeting, testing::ValuesIn(all_modes()),
                         [](const auto& of) { return std::string(mode_name(of.param)); });

}  // namespace
}  // namespace overlace::test
