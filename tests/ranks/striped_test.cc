// Striped matrices: what plain stores write lies at its owners, sums and rows of all ranks, two matrices in turn, and
// what ranks get wrong.
#include "overlace/ops/striped.h"

#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "overlace/team.h"
#include "src/base/half.h"
#include "src/exec/agree.h"
#include "tests/ranks/support/faults.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using ops::StripedMatrix;
using ops::StripedSpec;

/// Small integers that differ by rank, call and place: sums of a few ranks are exact, in bf16 too.
double element(int rank, int call, int64_t row, int64_t col) {
  return static_cast<double>((static_cast<int64_t>(rank) * 7 + call * 3 + row * 5 + col * 11 + row * col % 13) % 9 - 4);
}

/// A kernel that knows nothing of ranks: it stores each element of a view.
void store_all(const TensorView& out, int rank, int call) {
  const bool is_batch = out.ndim == 3;
  const int64_t rows = is_batch ? out.dim(1) : out.dim(0);
  for (int64_t block = 0; block < (is_batch ? out.dim(0) : 1); ++block)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < out.dim(out.ndim - 1); ++col) {
        const int64_t place = (is_batch ? block * out.stride(0) : 0) + row * out.stride(out.ndim - 2) + col;
        base::store_element(out.data, out.dtype, place, element(rank, call, block * rows + row, col));
      }
}

/// The rows that a rank owns, by their numbers in the whole.
std::vector<int64_t> rows_of(const StripedSpec& spec, int rank) {
  std::vector<int64_t> rows;
  for (int64_t b = 0; b < spec.blocks; ++b)
    if (spec.owners[static_cast<size_t>(b)] == rank)
      for (int64_t i = 0; i < spec.used[static_cast<size_t>(b)]; ++i) rows.push_back(b * spec.rows + i);
  return rows;
}

struct Result {
  std::vector<char> memory;
  TensorView view;
  Result(int64_t rows, int64_t cols, DType dtype)
      : memory(static_cast<size_t>(rows * cols) * dtype_bytes(dtype) + 16),
        view(TensorView::contiguous(memory.data(), dtype, {rows, cols})) {}
  double at(int64_t row, int64_t col) const {
    return base::load_element(view.data, view.dtype, row * view.stride(0) + col);
  }
};

void check_sum(const StripedMatrix& matrix, const Result& got, int ranks, int rank, int call) {
  const std::vector<int64_t> rows = rows_of(matrix.spec(), rank);
  ASSERT_EQ(static_cast<int64_t>(rows.size()), matrix.owned_rows());
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t col = 0; col < matrix.spec().cols; ++col) {
      double want = 0;
      for (int source = 0; source < ranks; ++source) want += element(source, call, rows[i], col);
      ASSERT_EQ(got.at(static_cast<int64_t>(i), col), want) << "row " << rows[i] << " column " << col;
    }
}

void check_rows(const StripedMatrix& matrix, const Result& got, int ranks, int rank, int call) {
  const std::vector<int64_t> rows = rows_of(matrix.spec(), rank);
  const auto owned = static_cast<int64_t>(rows.size());
  for (int source = 0; source < ranks; ++source)
    for (int64_t i = 0; i < owned; ++i)
      for (int64_t col = 0; col < matrix.spec().cols; ++col)
        ASSERT_EQ(got.at(source * owned + i, col), element(source, call, rows[static_cast<size_t>(i)], col))
            << "of rank " << source << " row " << i << " column " << col;
}

/// Calls of both kinds, each exact.
void exchange(Runtime& runtime, const StripedSpec& spec, int calls, DType result) {
  Team& team = runtime.world();
  const int me = team.rank(), ranks = team.size();
  StripedMatrix matrix = StripedMatrix::open(team.channel(StreamRef::cpu()), spec, "c");
  const int64_t owned = matrix.owned_rows();
  Result sum(owned, spec.cols, result), rows(owned * ranks, spec.cols, spec.dtype);
  for (int call = 0; call < calls; ++call) {
    ASSERT_EQ(matrix.turn(), call % 2);
    ASSERT_EQ(matrix.out().data, matrix.range(call % 2).data());
    store_all(matrix.out(), me, call);
    if (call % 3 == 2) {
      matrix.all_to_all(rows.view);
      check_rows(matrix, rows, ranks, me, call);
    } else {
      matrix.reduce_scatter(sum.view);
      check_sum(matrix, sum, ranks, me, call);
    }
  }
  matrix.close();
  matrix.close();  // nothing more
}

class StripedTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(StripedTest, MatricesOfEqualShards) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [](Runtime& runtime) {
    exchange(runtime, {.rows = 4, .cols = 256, .dtype = DType::fp32}, 7, DType::fp32);
    // A row of 250 elements of bf16 lies in one of 256: 8 rows are a page.
    exchange(runtime, {.rows = 8, .cols = 250, .dtype = DType::bf16}, 4, DType::bf16);
    exchange(runtime, {.rows = 8, .cols = 256, .dtype = DType::fp16}, 4, DType::fp32);
    exchange(runtime, {.rows = 2, .cols = 256, .dtype = DType::fp64}, 4, DType::fp64);
  });
}

TEST_P(StripedTest, BatchesWithRaggedAndEmptyShards) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    StripedSpec spec{.blocks = n, .rows = 5, .cols = 300, .dtype = DType::bf16, .is_batched = true};
    for (int b = 0; b < n; ++b) spec.used.push_back(b % 3 == 1 ? 0 : 5 - b % 4);
    exchange(runtime, spec, 6, DType::fp32);
    spec.blocks = 3 * n;  // three for each rank
    spec.used.clear();
    exchange(runtime, spec, 3, DType::bf16);
  });
}

TEST_P(StripedTest, OwnersAreFree) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    StripedSpec spec{.rows = 4, .cols = 256, .dtype = DType::fp32};
    for (int b = 0; b < 2 * n; ++b) spec.owners.push_back(b % n);  // dealt in turn
    exchange(runtime, spec, 4, DType::fp32);
    for (int& owner : spec.owners) owner = n - 1;  // the others own nothing
    exchange(runtime, spec, 4, DType::fp32);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, StripedTest,
                         testing::Combine(testing::Values(1, 2, 3, 9), testing::ValuesIn(all_modes())), mode_test_name);

/// The bits of each call are those of the first one with its operands, however the ranks drift apart.
TEST(Striped, AThousandCallsAreEqual) {
  run_ranks(3, Mode::threads, [](Runtime& runtime) {
    Team& team = runtime.world();
    const StripedSpec spec{.rows = 8, .cols = 256, .dtype = DType::bf16};
    StripedMatrix matrix = StripedMatrix::open(team.channel(StreamRef::cpu()), spec, "c");
    std::vector<Result> first;
    Result sum(matrix.owned_rows(), 256, DType::bf16);
    for (int call = 0; call < 1000; ++call) {
      const TensorView out = matrix.out();
      for (int64_t i = 0; i < out.dim(0) * 256; ++i)  // fractions: the order of the sum shows
        base::store_element(out.data, out.dtype, i,
                            1.0 / static_cast<double>(3 + (i * 7 + call % 5 + team.rank()) % 97));
      if ((call * 7 + team.rank() * 3) % 11 == 0) std::this_thread::yield();
      matrix.reduce_scatter(sum.view);
      if (call < 5) first.push_back(sum), first.back().view.data = first.back().memory.data();
      ASSERT_EQ(std::memcmp(sum.memory.data(), first[static_cast<size_t>(call % 5)].memory.data(), sum.memory.size()),
                0)
          << "call " << call;
    }
  });
}

template <class Exception, class Function>
std::string refused(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

/// What a rank that would have made the call is told.
const std::string kRefused = "rank 1 refused the call, so that no rank of team \"world\" makes it: ";

class StripedErrorTest : public testing::TestWithParam<Mode> {};

TEST_P(StripedErrorTest, WhatOneRankGetsWrongAllAreTold) {
  run_ranks(2, GetParam(), [](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& channel = team.channel(StreamRef::cpu());
    const bool is_first = team.rank() == 0;
    const StripedSpec good{.rows = 4, .cols = 256, .dtype = DType::fp32};
    StripedSpec bad = good;
    bad.owners = {0, 2};
    const std::string of_one = "striped.open \"c\": owners[1] is 2, wanted 0 to 1";
    EXPECT_EQ(refused<InvalidArgument>([&] { (void)StripedMatrix::open(channel, is_first ? good : bad, "c"); }),
              (is_first ? kRefused : "") + of_one);
    bad = good;
    bad.cols = 512;
    EXPECT_EQ(
        refused<PlanMismatch>([&] { (void)StripedMatrix::open(channel, is_first ? good : bad, "c"); }),
        "striped.open \"c\" differs between ranks of team \"world\": rank 0 has fp32 matrix of 2 blocks of 4 rows "
        "of 256, owners 0 1, used rows 4 4, rank 1 has fp32 matrix of 2 blocks of 4 rows of 512, owners 0 1, used "
        "rows 4 4");
    bad = {.rows = 129, .cols = 100, .dtype = DType::fp32};
    EXPECT_EQ(
        refused<Unsupported>([&] { (void)StripedMatrix::open(channel, bad, "c"); }),
        "striped.open \"c\": blocks of 129 rows of fp32 end at edges of pages of 4096 bytes where rows are a multiple "
        "of 1024 elements apart: 1024 for 100 columns, 528384 bytes for 51600; wanted at most twice as many, or a "
        "batch, whose blocks have pages of their own");
    const std::vector<int> all = {0, 1};
    const Team sub = team.sub(all);
    Channel& other = Team(sub).channel(StreamRef::cpu());
    EXPECT_EQ(refused<InvalidArgument>([&] { (void)StripedMatrix::open(other, good, "c"); }),
              "striped.open \"c\": the channel is one of team \"team\" of 2 ranks, wanted one of the world of 2");
    exchange(runtime, good, 2, DType::fp32);  // and all is well afterwards
  });
}

TEST_P(StripedErrorTest, WrongResultsAndInputsAreNamed) {
  run_ranks(2, GetParam(), [](Runtime& runtime) {
    Team& team = runtime.world();
    const bool is_first = team.rank() == 0;
    StripedMatrix matrix =
        StripedMatrix::open(team.channel(StreamRef::cpu()), {.rows = 4, .cols = 256, .dtype = DType::fp32}, "c");
    Result good(4, 256, DType::fp32), half(4, 256, DType::bf16), large(5, 256, DType::fp32);
    const auto all_refused = [&](const TensorView& bad) {
      std::string what = refused<InvalidArgument>([&] { matrix.reduce_scatter(is_first ? good.view : bad); });
      if (is_first && what.rfind(kRefused, 0) == 0) what = what.substr(kRefused.size());
      return what;
    };
    store_all(matrix.out(), team.rank(), 0);
    EXPECT_EQ(all_refused(half.view), "striped.reduce_scatter \"c\": out is bf16, wanted fp32");
    EXPECT_EQ(all_refused(large.view),
              "striped.reduce_scatter \"c\": out must be (4, 256) (rows of this rank's blocks), "
              "got (5, 256); rank 1");
    TensorView inside = good.view;
    inside.data = matrix.range(1).data();
    EXPECT_NE(all_refused(inside).find("in the striped memory at 0x"), std::string::npos) << all_refused(inside);
    inside.data = matrix.range(0).owned()[team.rank() == 0 ? 1 : 0].data;  // what another rank stores
    const std::string what = refused<InvalidArgument>([&] { matrix.check_input("a", inside); });
    EXPECT_EQ(what.rfind("striped.check_input \"c\": a lies at 0x", 0), 0U) << what;
    EXPECT_NO_THROW(matrix.check_input("a", good.view));
    EXPECT_EQ(refused<InvalidArgument>([&] { (void)matrix.range(2); }),
              "striped.range \"c\": turn is 2, wanted 0 or 1");
    EXPECT_EQ(matrix.turn(), 0) << "refused calls take no turn";
    matrix.reduce_scatter(good.view);
    check_sum(matrix, good, 2, team.rank(), 0);

    StripedMatrix words =
        StripedMatrix::open(team.channel(StreamRef::cpu()), {.rows = 4, .cols = 256, .dtype = DType::i32}, "w");
    Result integers(4, 256, DType::i32), everything(8, 256, DType::i32);
    EXPECT_EQ(
        refused<InvalidArgument>([&] { words.reduce_scatter(integers.view); }),
        "striped.reduce_scatter \"w\": the matrix is i32, which cannot be added, wanted bf16, fp16, fp32 or fp64");
    words.all_to_all(everything.view);  // what only moves may be anything
    words.close();
    EXPECT_EQ(refused<InvalidArgument>([&] { (void)words.out(); }),
              "striped.out: the matrix was closed before this call");
  });
}

TEST_P(StripedErrorTest, ARankThatNeverComesEndsAtTheDeadline) {
  RankOptions options;
  options.timeout_ms = 1000;
  options.checks_end = false;
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        Team& team = runtime.world();
        StripedMatrix matrix =
            StripedMatrix::open(team.channel(StreamRef::cpu()), {.rows = 4, .cols = 256, .dtype = DType::fp32}, "c");
        Result sum(4, 256, DType::fp32);
        matrix.reduce_scatter(sum.view);
        if (team.rank() == 0) {
          const std::string what = refused<Timeout>([&] { matrix.reduce_scatter(sum.view); });
          EXPECT_NE(what.find("rank 0 waited for rank 1"), std::string::npos) << what;
          return;
        }
        std::string what = "nothing was thrown";
        for (int i = 0; i < 2000 && what == "nothing was thrown"; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          what = refused<Error>([&] { runtime.check(); });
        }
        EXPECT_NE(what.find("rank 0"), std::string::npos) << what;
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Modes, StripedErrorTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return mode_name(test.param); });

#if !defined(__SANITIZE_THREAD__)
class StripedFaultTest : public testing::TestWithParam<Fault> {};

/// A rank ends while its peers store into its pages: nothing faults, and each of them says who is gone.
TEST_P(StripedFaultTest, TheOthersAreTold) {
  RankOptions options;
  if (GetParam() == Fault::stop) options.timeout_ms = short_deadline_ms();
  constexpr int kRanks = 3, kCulprit = 1;
  const auto body = [&](std::unique_ptr<Bootstrap> bootstrap, const std::function<void()>& happen) {
    Runtime runtime = Runtime::open(*bootstrap, runtime_options(Mode::processes, options));
    Team& team = runtime.world();
    StripedMatrix matrix =
        StripedMatrix::open(team.channel(StreamRef::cpu()), {.rows = 512, .cols = 256, .dtype = DType::fp32}, "c");
    Result sum(matrix.owned_rows(), 256, DType::fp32);
    for (int call = 0; call < 1000; ++call) {
      store_all(matrix.out(), team.rank(), call);
      if (team.rank() == kCulprit && call == 3) happen();
      matrix.reduce_scatter(sum.view);
    }
  };
  const std::vector<Survivor> survivors = run_with_fault(kRanks, kCulprit, GetParam(), body);
  const std::vector<Errc> codes =
      GetParam() == Fault::stop ? std::vector{Errc::timeout, Errc::aborted} : std::vector{Errc::peer_lost};
  expect_told(survivors, kCulprit, allowed_seconds(GetParam(), options.timeout_ms), codes, fault_name(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Faults, StripedFaultTest, testing::Values(Fault::kill, Fault::exit, Fault::stop),
                         [](const auto& test) { return fault_name(test.param); });
#endif

}  // namespace
}  // namespace overlace::test
