// Calls that differ between ranks which know them all: no meeting compares them, yet no rank takes another's data.
#include <memory>
#include <string>
#include <vector>

#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

/// Calls whose operands stay, so that nothing is new when they differ.
class Known {
 public:
  Known(Channel& channel, const std::vector<Case>& cases) {
    for (const Case& c : cases) operands_.push_back(std::make_unique<Operands>(c, channel));
  }
  /// What is wrong, or what was thrown.
  std::string call(size_t which, int64_t seed, Team* meets_before = nullptr) {
    operands_[which]->fill(seed);
    try {
      if (meets_before != nullptr) meets_before->barrier();
      operands_[which]->run();
    } catch (const Error& error) {
      return std::string(errc_name(error.code())) + ": " + error.what();
    }
    return operands_[which]->mismatch();
  }
  size_t size() const { return operands_.size(); }

 private:
  std::vector<std::unique_ptr<Operands>> operands_;
};

Case rows_of(const std::string& op, const std::string& family, int64_t m) {
  return {.op = op, .family = family, .degree = 2, .m = m};
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in: " << text;
}

class UnlikeCalls : public testing::TestWithParam<Mode> {};

TEST_P(UnlikeCalls, AreNamedOnAllRanks) {
  constexpr int kRanks = 3;
  for (const std::vector<Case>& cases :
       {std::vector{rows_of("ag_gemm", "library", 12), rows_of("ag_gemm", "library", 24)},
        std::vector{rows_of("gemm_rs", "library", 24), rows_of("gemm_rs", "library", 12)},
        std::vector{rows_of("gemm_ar", "one_shot", 12), rows_of("gemm_ar", "one_shot", 24)},
        std::vector{rows_of("gemm_rs", "hetero_fused_1d", 12), rows_of("ag_gemm", "hetero_fused_1d", 12)}}) {
    for (int other = 0; other < kRanks; ++other) {
      RankOptions options;
      options.checks_end = false;
      run_ranks(
          kRanks, GetParam(),
          [&](Runtime& runtime) {
            Known known(runtime.world().channel(StreamRef::cpu()), cases);
            for (int64_t seed = 0; seed < 3; ++seed)
              for (size_t i = 0; i < known.size(); ++i) ASSERT_EQ(known.call(i, seed), "");
            const bool is_other = runtime.world().rank() == other;
            // So that nobody is still in the call before; who has not left the barrier is told in it.
            const std::string said = known.call(is_other ? 1 : 0, 4, &runtime.world());
            expect_parts(said, {"ranks of team \"world\" do not make the same calls: rank ", " makes " + cases[0].op,
                                " makes " + cases[1].op});
            EXPECT_THROW(runtime.check(), Error);
            runtime.close();
          },
          options);
    }
  }
}

/// Ranks that run ahead of each other, on channels of several teams, make no difference.
TEST_P(UnlikeCalls, AlikeCallsPassWhereverTheirRanksAre) {
  const std::vector<Case> cases = {rows_of("gemm_rs", "hetero_fused_1d", 12), rows_of("ag_gemm", "library", 24),
                                   rows_of("gemm_rs", "hetero_fused_1d", 24)};
  RankOptions options;
  options.checks_end = false;  // ranks of two teams have made more heap calls than the one of a single team
  run_ranks(
      3, GetParam(),
      [&](Runtime& runtime) {
        const int two[] = {1, 2};
        Team pair = runtime.world().sub(two, {.name = "two"});
        std::vector<std::unique_ptr<Known>> known;
        known.push_back(std::make_unique<Known>(runtime.world().channel(StreamRef::cpu()), cases));
        if (pair.size() != 0) known.push_back(std::make_unique<Known>(pair.channel(StreamRef::cpu()), cases));
        for (int64_t seed = 0; seed < 40; ++seed)
          for (const auto& of_team : known)
            for (size_t i = 0; i < of_team->size(); ++i) ASSERT_EQ(of_team->call(i, seed), "");
        runtime.close();
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Modes, UnlikeCalls, testing::ValuesIn(all_modes()),
                         [](const auto& of) { return std::string(mode_name(of.param)); });

}  // namespace
}  // namespace overlace::test
