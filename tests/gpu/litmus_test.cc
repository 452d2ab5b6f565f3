// Message passing between devices. Each right way must never show stale data; each broken twin must.
#include <atomic>

#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

struct Case {
  Litmus kind;
  const char* name;
  bool is_right;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

const Case kCases[] = {
    {Litmus::stores_signal, "stores_signal", true},
    {Litmus::stores_word, "stores_word", true},
    {Litmus::word_carries_value, "word_carries_value", true},
    {Litmus::bulk_fence_signal, "bulk_fence_signal", true},
    {Litmus::bulk_async_wait, "bulk_async_wait", true},
    {Litmus::broken_signal_first, "broken_signal_first", false},
    {Litmus::broken_word_first, "broken_word_first", false},
    {Litmus::broken_no_credit, "broken_no_credit", false},
};

constexpr int kMostRuns = 10;  // of a broken one, until it shows

class GpuLitmusTest : public testing::TestWithParam<std::tuple<int, Case>> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(1); }
};

TEST_P(GpuLitmusTest, StaleDataAreSeenOnlyWhereTheOrderIsBroken) {
  const auto& [n, one] = GetParam();
  std::atomic<uint64_t> wrong_in_total{0};
  // A missing order shows by chance: in some rounds, and not in every run where ranks share a GPU.
  const int most = one.is_right ? 1 : kMostRuns;
  for (int run = 0; run < most && wrong_in_total == 0; ++run) {
    run_gpu_threads(n, [&, one = one](GpuRank& gpu) {
      LitmusArgs args;
      const SymBuffer data = gpu.runtime.heap().alloc(kLitmusBytes, 256, "data");
      const SymBuffer word = gpu.runtime.heap().alloc(256, 256, "word");
      const SignalIds ids = gpu.channel.ids(2, Domain::device, "litmus");
      args.channel = gpu.pod();
      args.data_offset = data.offset;
      args.word_offset = word.offset;
      args.signal = ids.first;
      args.credit = ids.first + 1;
      args.rounds = one.is_right ? 2000 : 20000;
      args.kind = one.kind;
      args.wrong = gpu.device_array<uint32_t>(1);
      args.code = gpu.device_array<int32_t>(1);
      gpu.team.barrier();
      launch_litmus(gpu.stream, args);
      EXPECT_EQ(gpu.read(args.code), 0);
      wrong_in_total += gpu.read(args.wrong);
      gpu.wait();
      gpu.team.barrier();
      gpu.runtime.heap().free(word);
      gpu.runtime.heap().free(data);
    });
  }
  if (one.is_right) {
    EXPECT_EQ(wrong_in_total.load(), 0u);
  } else {
    EXPECT_GT(wrong_in_total.load(), 0u) << "this test could not find a missing order";
  }
}

std::string case_name(const testing::TestParamInfo<std::tuple<int, Case>>& test) {
  return std::string(std::get<1>(test.param).name) + "_" + std::to_string(std::get<0>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Ranks, GpuLitmusTest, testing::Combine(testing::Values(2, 4), testing::ValuesIn(kCases)),
                         case_name);

}  // namespace
}  // namespace overlace::test
