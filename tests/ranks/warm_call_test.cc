// Calls like one before: they allocate next to nothing and give their own result.
#include <cstdlib>
#include <new>

#include "src/exec/gemm.h"
#include "tests/ranks/ops_cases.h"

namespace {

thread_local int64_t num_allocations = 0;  // of this thread

void* counted(size_t bytes) {
  ++num_allocations;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes); memory != nullptr) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return counted(bytes); }
void* operator new[](size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace overlace::test {
namespace {

constexpr auto kOperators = std::to_array<std::string_view>({"ag_gemm", "gemm_rs", "gemm_ar"});

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }

/// Products by the provider whose allocations are known, while this lives.
struct ReferenceProducts {
  ReferenceProducts() { set("reference"); }
  ~ReferenceProducts() { set("auto"); }
  static void set(std::string_view name) { EXPECT_TRUE(exec::set_cpu_gemm_provider(name).ok()) << name; }
};

/// The most that a call allocates behind two of each kind, each with other memory and other values. All kinds take
/// turns.
int64_t most_allocations(const std::vector<Case>& kinds, Channel& channel) {
  int64_t most = 0;
  for (int64_t round = 0; round < 6; ++round) {
    for (const Case& c : kinds) {
      Operands operands(c, channel);
      operands.fill(round);
      const int64_t before = num_allocations;
      operands.run();
      if (round >= 2) most = std::max(most, num_allocations - before);
      EXPECT_EQ(operands.mismatch(), "") << c.text() << ", round " << round;
    }
  }
  return most;
}

/// Four are of the product itself, one of the list of operands, one of the products of the task.
TEST(WarmCall, OfOneRankAllocatesSixTimes) {
  const ReferenceProducts reference;
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    for (const std::string_view op : kOperators) {
      const Case c{.op = std::string(op), .family = "serial"};
      EXPECT_LE(most_allocations({c}, channel), 6) << op;
    }
  });
}

TEST(WarmCall, OfSeveralShapesInTurnAllocatesNoMore) {
  const ReferenceProducts reference;
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    std::vector<Case> kinds;
    for (const std::string_view op : kOperators)
      for (const int64_t k : {6, 7, 9}) kinds.push_back({.op = std::string(op), .family = "serial", .k = k});
    EXPECT_LE(most_allocations(kinds, channel_of(runtime)), 6);
  });
}

/// Besides: puts, and views for reductions.
TEST(WarmCall, OfTwoRanksAllocatesLittle) {
  const ReferenceProducts reference;
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    for (const std::string_view op : kOperators) {
      const Case c{.op = std::string(op), .family = "hetero_fused_1d"};
      EXPECT_LE(most_allocations({c}, channel), 20) << op;
    }
  });
}

}  // namespace
}  // namespace overlace::test
