// ag_gemm, gemm_rs and gemm_ar of fp8 with scales, on CPU ranks: beside fp64 of the quantised operands, in every family
// of library GEMMs; NaN, infinity, zero and large scales; what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "overlace/error.h"
#include "overlace/ops/call.h"
#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/half.h"
#include "src/ops/common/reference.h"
#include "src/spec/operators.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

using spec::Scales;

struct Problem {
  std::string op, family = "library";
  int degree = 1;
  int64_t m = 37, n = 48, k = 64;
  Scales scales = Scales::tensor;
  DType out = DType::bf16;
  bool has_bias = false;
  std::vector<int64_t> offsets{};
  spec::Params options{};
  DType a = DType::e4m3, b = DType::e4m3;

  bool gathers() const { return spec::gathers(op); }
  std::string text() const {
    return op + " " + family + " q " + std::to_string(degree) + " M " + std::to_string(m) + " N " + std::to_string(n) +
           " K " + std::to_string(k) + " " + dtype_name(a) + " x " + dtype_name(b) + " -> " + dtype_name(out) +
           (scales == Scales::rows ? " rows" : " tensor") + (has_bias ? " bias" : "") +
           (offsets.empty() ? "" : " ragged");
  }
};

/// In (-1, 1), by all that a number depends on.
double drawn(uint64_t what, int64_t rank, int64_t i, int64_t j, int64_t seed) {
  return static_cast<double>(hash_of(what, rank, i, j, seed) >> 11) * 0x1p-52 - 1;
}

/// The operands of one rank: of ag_gemm rows of the whole, of the others products of its own. Every rank can make those
/// of each.
struct Operands8 {
  Operands8(const Problem& p, int rank, int ranks, int64_t seed) : rows(p.m) {
    const std::vector<int64_t> off = spec::row_offsets(spec_of(p, ranks));
    if (p.gathers()) first = off[static_cast<size_t>(rank)], rows = off[static_cast<size_t>(rank) + 1] - first;
    const int64_t owner = p.gathers() ? 0 : rank;  // of the rows
    a = Matrix(rows, p.k, p.a, 0);
    b = Matrix(p.n, p.k, p.b, 0);
    a.fill([&](int64_t i, int64_t j) { return 8 * drawn(1, owner, first + i, j, seed); });
    b.fill([&](int64_t i, int64_t j) { return drawn(2, rank, i, j, seed); });
    const bool is_rows = p.scales == Scales::rows;
    const int64_t all = p.gathers() ? 0 : rank;  // a scale of a tensor is the same on all ranks of ag_gemm
    a_scale = Matrix(is_rows ? rows : 1, 1, DType::fp32, 0);
    b_scale = Matrix(1, is_rows ? p.n : 1, DType::fp32, 0);
    a_scale.fill(
        [&](int64_t i, int64_t) { return 1.5 + drawn(3, is_rows ? owner : all, is_rows ? first + i : 0, 0, seed); });
    b_scale.fill([&](int64_t, int64_t j) { return 0.75 + 0.5 * drawn(4, rank, j, 0, seed); });
    bias = Matrix(1, p.n, p.out, 0);
    bias.fill([&](int64_t, int64_t j) { return 4 * drawn(5, p.gathers() ? rank : 0, 0, j, seed); });
    if (is_rows) return;
    for (Matrix* scale : {&a_scale, &b_scale}) scale->view = TensorView::contiguous(scale->view.data, DType::fp32, {1});
  }

  static spec::OpSpec spec_of(const Problem& p, int ranks) {
    return {.op = p.op,
            .m = p.m,
            .n = p.n,
            .k = p.k,
            .ranks = ranks,
            .dtype = p.a,
            .out_dtype = p.out,
            .bias = p.has_bias,
            .row_offsets = p.offsets,
            .scales = p.scales,
            .b_dtype = p.b};
  }
  double scale(const Matrix& of, int64_t i) const {
    return base::load_element(of.view.data, DType::fp32, of.view.ndim == 1 ? 0 : i);
  }

  int64_t first = 0, rows;
  Matrix a, b, a_scale, b_scale, bias;
};

ops::CallArgs args_of(const Problem& p, const Operands8& x, const TensorView& out) {
  const TensorView bias = p.has_bias ? TensorView::contiguous(x.bias.view.data, p.out, {p.n}) : TensorView{};
  ops::CallArgs args{.row_offsets = p.offsets};
  args.tensors = {x.a.view, x.b.view.transposed(), out, bias};
  if (p.gathers()) args.tensors.push_back({});
  args.tensors.push_back(x.a_scale.view);
  args.tensors.push_back(x.b_scale.view);
  return args;
}

/// Rows of the whole that the result of `rank` has.
std::pair<int64_t, int64_t> rows_of(const Problem& p, int rank, int ranks) {
  if (!spec::stays_with_owner(p.op)) return {0, p.m};
  const std::vector<int64_t> off = spec::row_offsets(Operands8::spec_of(p, ranks));
  return {off[static_cast<size_t>(rank)], off[static_cast<size_t>(rank) + 1]};
}

/// In fp64, row by row of this rank's result; and how far a right result may be from it.
struct Wanted {
  std::vector<double> values, allowed;
};
Wanted wanted(const Problem& p, int rank, int ranks, int64_t seed) {
  const auto [first, end] = rows_of(p, rank, ranks);
  const double ulp = p.out == DType::bf16 ? 0x1p-8 : p.out == DType::fp16 ? 0x1p-11 : 0x1p-24;
  Wanted out{std::vector<double>(static_cast<size_t>((end - first) * p.n)), {}};
  out.allowed.resize(out.values.size());
  const Operands8 mine(p, rank, ranks, seed);
  for (int source = 0; source < ranks; ++source) {
    const Operands8 x(p, source, ranks, seed);
    const Operands8& weights = p.gathers() ? mine : x;
    for (int64_t i = 0; i < x.rows; ++i) {
      const int64_t row = (p.gathers() ? x.first + i : i) - first;
      if (row < 0 || row >= end - first) continue;
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0, terms = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          const double term = x.a.get(i, k) * weights.b.get(j, k);
          sum += term, terms += std::abs(term);
        }
        const double scale = x.scale(x.a_scale, i) * weights.scale(weights.b_scale, j);
        const auto at = static_cast<size_t>(row * p.n + j);
        out.values[at] += scale * sum;
        // Each addition of an fp32 sum rounds, and so does the partial sum that travels.
        out.allowed[at] += std::abs(scale) * terms * static_cast<double>(p.k) * 0x1p-24 + ulp * std::abs(scale * sum);
      }
    }
  }
  for (size_t at = 0; at < out.values.size(); ++at) {
    if (p.has_bias) out.values[at] += mine.bias.get(0, static_cast<int64_t>(at) % p.n);
    out.allowed[at] += 2 * ulp * std::abs(out.values[at]) + 1e-6;
  }
  return out;
}

void expect_right(const Problem& p, const Matrix& out, int rank, int ranks, int64_t seed) {
  const Wanted want = wanted(p, rank, ranks, seed);
  for (int64_t i = 0; i < out.view.dim(0); ++i)
    for (int64_t j = 0; j < p.n; ++j) {
      const auto at = static_cast<size_t>(i * p.n + j);
      ASSERT_LE(std::abs(out.get(i, j) - want.values[at]), want.allowed[at])
          << p.text() << ": rank " << rank << " out[" << i << "][" << j << "] is " << out.get(i, j) << ", wanted "
          << want.values[at];
    }
}

bool is_one_kernel(const spec::FamilyDef& family) {
  using enum spec::ClosedForm;
  return family.form == slab_kernel || family.form == tile_kernel || family.form == small_m_kernel ||
         family.form == tracked_kernel;
}

constexpr std::pair<DType, DType> kFactors[] = {
    {DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}};

std::vector<Problem> problems(int ranks) {
  std::vector<Problem> out;
  int turn = 0;
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"})
    for (const spec::FamilyDef& family : spec::find_operator(op)->families)
      for (const Scales scales : {Scales::tensor, Scales::rows}) {
        if (family.purpose != spec::Purpose::plan || is_one_kernel(family)) continue;
        const bool is_far = family.form == spec::ClosedForm::hosts && scales == Scales::rows && spec::gathers(op);
        if (is_far && ranks > 1) continue;
        Problem p{.op = op, .family = std::string(family.name), .scales = scales};
        p.degree = 1 + ++turn % 3;
        std::tie(p.a, p.b) = kFactors[turn / 2 % 3];
        p.out = turn % 4 == 0 ? DType::fp32 : turn % 7 == 0 ? DType::fp16 : DType::bf16;
        p.has_bias = turn % 2 == 0;
        if (p.op != "gemm_ar" && turn % 3 == 0) {  // the first rank has no rows but one, or none
          p.offsets.assign(static_cast<size_t>(ranks) + 1, p.m);
          p.offsets[0] = 0;
          if (ranks > 1) p.offsets[1] = turn % 2;
        }
        if (turn % 5 == 0) p.options = {{"ce_queues", int64_t{2}}};
        out.push_back(p);
      }
  return out;
}

class Fp8Ranks : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(Fp8Ranks, EveryFamilyIsNearFp64OfTheQuantisedOperandsInRepeatedCalls) {
  const auto [ranks, mode] = GetParam();
  if (mode == Mode::processes && !kHasProcesses) GTEST_SKIP() << "ranks are threads under ThreadSanitizer";
  run_ranks(ranks, mode, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const int rank = runtime.world().rank(), size = runtime.world().size();
    for (const Problem& p : problems(size)) {
      const spec::OperatorDef& def = *spec::find_operator(p.op);
      const spec::Schedule schedule = spec::make_schedule(Operands8::spec_of(p, size), p.family, p.degree, p.options);
      for (int64_t seed = 1; seed <= 3; ++seed) {  // scales differ from call to call, as rows do
        const Operands8 x(p, rank, size, seed);
        const auto [first, end] = rows_of(p, rank, size);
        Matrix out(end - first, p.n, p.out, 0);
        out.fill([](int64_t, int64_t) { return NAN; });
        ops::call(channel, def, args_of(p, x, out.view), schedule);
        expect_right(p, out, rank, size, seed);
        if (::testing::Test::HasFatalFailure()) return;
      }
      runtime.synchronize();
      channel.team().barrier();
      runtime.check_quiescent();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, Fp8Ranks,
                         ::testing::Combine(::testing::Range(1, 5),
                                            ::testing::Values(Mode::threads, Mode::threads_adversary, Mode::processes)),
                         mode_test_name);

/// One call of one rank in each family; `change` spoils the operands before it.
template <class Change, class Look>
void call_alone(Scales scales, DType out_dtype, const Change& change, const Look& look, DType a = DType::e4m3) {
  run_ranks(1, Mode::threads, [&](Runtime& runtime) {
    Problem p{.op = "ag_gemm", .m = 5, .n = 6, .k = 32, .scales = scales, .out = out_dtype, .a = a};
    Operands8 x(p, 0, 1, 7);
    change(x);
    Matrix out(p.m, p.n, p.out, 0);
    const spec::OperatorDef& def = *spec::find_operator(p.op);
    const spec::Schedule schedule = spec::make_schedule(Operands8::spec_of(p, 1), "library");
    ops::call(runtime.world().channel(StreamRef::cpu()), def, args_of(p, x, out.view), schedule);
    look(out);
  });
}

TEST(Fp8, NanStaysInItsRow) {
  constexpr std::pair<DType, uint8_t> kNans[] = {
      {DType::e4m3, 0x7F}, {DType::e4m3, 0xFF}, {DType::e5m2, 0x7D}, {DType::e5m2, 0xFE}, {DType::e5m2, 0x7F}};
  for (const auto& [dtype, bits] : kNans) {
    call_alone(
        Scales::rows, DType::bf16,
        [bits = bits](Operands8& x) { static_cast<uint8_t*>(x.a.view.data)[2 * 32 + 9] = bits; },
        [](const Matrix& out) {
          for (int64_t i = 0; i < 5; ++i)
            for (int64_t j = 0; j < 6; ++j) EXPECT_EQ(std::isnan(out.get(i, j)), i == 2) << i << " " << j;
        },
        dtype);
  }
}

TEST(Fp8, InfinitiesOfE5m2AreThoseOfIeee) {
  static constexpr double kInf = std::numeric_limits<double>::infinity();
  call_alone(
      Scales::rows, DType::bf16,
      [](Operands8& x) {
        x.a.set(1, 9, kInf);
        x.a.set(2, 9, -kInf);
        x.a.set(3, 9, kInf), x.a.set(3, 8, -kInf);
        x.a.set(4, 9, 60000), x.a.set(4, 8, 70000);  // the former is rounded to the largest finite number
        x.a_scale.set(2, 0, 0);
        for (int64_t j = 0; j < 6; ++j) x.b.set(j, 8, 1), x.b.set(j, 9, j < 3 ? 2 : -2);
        x.b.set(4, 9, 0);
      },
      [](const Matrix& out) {
        for (int64_t j = 0; j < 6; ++j) {
          EXPECT_TRUE(std::isfinite(out.get(0, j))) << j;
          if (j == 4) {
            EXPECT_TRUE(std::isnan(out.get(1, j))) << "infinity times zero";
          } else {
            EXPECT_EQ(out.get(1, j), j < 3 ? kInf : -kInf) << j;
          }
          EXPECT_TRUE(std::isnan(out.get(2, j))) << "a scale of zero times infinity, column " << j;
          if (j < 3 || j == 4) {
            EXPECT_TRUE(std::isnan(out.get(3, j))) << "infinity minus infinity, or times zero, column " << j;
          } else {
            EXPECT_EQ(out.get(3, j), -kInf) << j;
          }
          EXPECT_EQ(out.get(4, j), kInf) << "70000 is infinite in e5m2, column " << j;
        }
      },
      DType::e5m2);
}

TEST(Fp8, LeastOperandsAreExact) {
  call_alone(
      Scales::tensor, DType::fp32,
      [](Operands8& x) {
        x.a.fill([](int64_t i, int64_t) { return static_cast<double>(i) * 0x1p-16; });  // subnormal up to 3
        x.b.fill([](int64_t j, int64_t) { return static_cast<double>(j + 1) * 0x1p-9; });
        x.a_scale.set(0, 0, 0x1p+25), x.b_scale.set(0, 0, 1);
      },
      [](const Matrix& out) {
        for (int64_t i = 0; i < 5; ++i)
          for (int64_t j = 0; j < 6; ++j) EXPECT_EQ(out.get(i, j), static_cast<double>(32 * i * (j + 1)));
      },
      DType::e5m2);
}

TEST(Fp8, ZeroScalesGiveZerosAndOnesOfInfinityInfinities) {
  const float inf = std::numeric_limits<float>::infinity();
  call_alone(
      Scales::rows, DType::bf16,
      [&](Operands8& x) {
        x.a_scale.set(1, 0, 0.0);
        x.a_scale.set(3, 0, static_cast<double>(inf));
        x.b_scale.set(0, 4, 0.0);
      },
      [](const Matrix& out) {
        for (int64_t i = 0; i < 5; ++i)
          for (int64_t j = 0; j < 6; ++j) {
            const double got = out.get(i, j);
            if (i == 3) {
              EXPECT_EQ(std::isnan(got), j == 4) << "infinity times zero, column " << j;
              EXPECT_EQ(std::isinf(got), j != 4);
            } else {
              EXPECT_EQ(got == 0, i == 1 || j == 4) << i << " " << j;
            }
          }
      });
}

TEST(Fp8, ResultsBeyondTheOutputAreInfiniteAndTheLargestOperandsExact) {
  const auto largest = [](Operands8& x) {
    x.a.fill([](int64_t, int64_t) { return 448; });
    x.b.fill([](int64_t j, int64_t) { return j % 2 == 0 ? 448 : -448; });
    x.a_scale.set(0, 0, 1), x.b_scale.set(0, 0, 1);
  };
  call_alone(Scales::tensor, DType::fp32, largest, [](const Matrix& out) {
    EXPECT_EQ(out.get(0, 0), 32.0 * 448 * 448);
    EXPECT_EQ(out.get(4, 1), -32.0 * 448 * 448);
  });
  const auto largest_e5m2 = [&](Operands8& x) {
    largest(x);
    x.a.fill([](int64_t, int64_t) { return 57344; });
  };
  const auto look = [](const Matrix& out) { EXPECT_EQ(out.get(4, 1), -32.0 * 57344 * 448); };
  call_alone(Scales::tensor, DType::fp32, largest_e5m2, look, DType::e5m2);
  call_alone(Scales::tensor, DType::fp16, largest, [](const Matrix& out) {
    EXPECT_EQ(out.get(0, 0), std::numeric_limits<double>::infinity());
    EXPECT_EQ(out.get(0, 1), -std::numeric_limits<double>::infinity());
  });
}

/// The text of what a call of two ranks is refused with.
template <class Change>
std::string refusal(Problem p, const Change& change) {
  std::string text;
  run_ranks(1, Mode::threads, [&](Runtime& runtime) {
    Operands8 x(p, 0, 1, 3);
    Matrix out(p.m, p.n, p.out, 0);
    out.fill([](int64_t, int64_t) { return 5; });
    ops::CallArgs args = args_of(p, x, out.view);
    const spec::Schedule schedule = spec::make_schedule(Operands8::spec_of(p, 1), "library");
    change(args);
    try {
      ops::call(runtime.world().channel(StreamRef::cpu()), *spec::find_operator(p.op), args, schedule);
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_EQ(out.get(0, 0), 5) << "written to, though refused";
  });
  return text;
}

TEST(Fp8, BadArgumentsAreRefusedWithBothValues) {
  const Problem tensor{.op = "gemm_rs", .m = 8, .n = 6, .k = 32, .out = DType::fp32};
  Problem rows = tensor, e5m2 = tensor;
  rows.scales = Scales::rows, e5m2.a = DType::e5m2;
  Matrix other(8, 40, DType::fp32, 0), bytes(6, 40, DType::e4m3, 0);
  const auto vector = [&](int64_t n) { return TensorView::contiguous(other.view.data, DType::fp32, {n}); };
  const auto matrix = [&](int64_t m, int64_t n) {
    return TensorView::contiguous(other.view.data, DType::fp32, {m, n});
  };
  constexpr size_t kB = 1, kOut = 2, kBias = 3, kScaleA = 4, kScaleB = 5;
  struct Row {
    const Problem& p;
    size_t which;
    TensorView view;
    std::string_view text;
  };
  TensorView as_bf16 = vector(1), kn = bytes.view, wide = bytes.view, double_out = other.view, half_bias = vector(6);
  as_bf16.dtype = DType::bf16, double_out.dtype = DType::fp64, half_bias.dtype = DType::bf16;
  kn.sizes = {32, 6}, kn.strides = {6, 1}, wide.sizes = {40, 6}, wide.strides = {1, 40};
  double_out.sizes = {8, 6};
  TensorView of_e5m2 = wide, of_two = wide;
  of_e5m2.sizes = of_two.sizes = {32, 6};
  of_e5m2.dtype = DType::e5m2, of_two.dtype = DType::bf16;
  const Row table[] = {
      {tensor, kScaleA, {}, "a_scale is not given, wanted one: a is e4m3"},
      {tensor, kScaleB, {}, "b_scale is not given, wanted one: a is e4m3"},
      {tensor, kScaleA, as_bf16, "a_scale must be fp32, got bf16"},
      {tensor, kScaleA, vector(2), "a_scale must be (1) as a_scale and b_scale are alike, got (2)"},
      {tensor, kScaleB, matrix(1, 6), "b_scale must be (1) as a_scale and b_scale are alike, got (1, 6)"},
      {rows, kScaleA, matrix(7, 1), "a_scale must be (8, 1) as a's rows, got (7, 1)"},
      {rows, kScaleB, matrix(6, 1), "b_scale must be (1, 6) as b's columns, got (6, 1)"},
      {rows, kScaleB, vector(1), "b_scale must have 2 dimensions, got 1 (1)"},
      {tensor, kB, kn, "b (32, 6) of e4m3 must be contiguous in K (strides 1, >= 32), got strides (6, 1)"},
      {tensor, kB, wide, "b must have K = 32 rows as a (8, 32) has columns, got (40, 6)"},
      {tensor, kB, of_two, "b must be e4m3 or e5m2, as a is e4m3, got bf16"},
      {e5m2, kB, of_e5m2, "b must be e4m3, as a is e5m2, got e5m2"},
      {tensor, kB, of_e5m2, "was made for b of e4m3, the call has e5m2"},
      {tensor, kOut, double_out, "out must be bf16, fp16 or fp32, as a is e4m3, got fp64"},
      {tensor, kBias, half_bias, "bias must have the dtype of out (fp32), got bf16"}};
  for (const Row& row : table) {
    const std::string got = refusal(row.p, [&](ops::CallArgs& args) { args.tensors[row.which] = row.view; });
    EXPECT_NE(got.find(row.text), std::string::npos) << got << "\nwanted " << row.text;
    EXPECT_NE(got.find("rank 0"), std::string::npos) << got;
  }
  const std::string k =
      refusal(tensor, [&](ops::CallArgs& args) { args.tensors[0].sizes[1] = args.tensors[kB].sizes[0] = 24; });
  EXPECT_NE(k.find("a (8, 24) of e4m3 has K = 24, wanted a multiple of 16"), std::string::npos) << k;
  const std::string scales = refusal(
      tensor, [&](ops::CallArgs& args) { args.tensors[kScaleA] = matrix(8, 1), args.tensors[kScaleB] = matrix(1, 6); });
  EXPECT_NE(scales.find("was made for scales tensor, the call has rows"), std::string::npos) << scales;
  const std::string none = refusal(tensor, [&](ops::CallArgs& args) {
    for (const size_t i : {size_t{0}, kB}) args.tensors[i].dtype = DType::i8;
  });
  EXPECT_NE(none.find("a must be fp32, bf16, fp16, e4m3, e5m2 or fp64, got i8"), std::string::npos) << none;
}

TEST(Fp8, TooFewTensorsAreRefused) {
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    Matrix a(4, 16, DType::fp32, 0), out(4, 4, DType::fp32, 0);
    ops::CallArgs args;
    args.tensors = {a.view, a.view.transposed(), out.view};
    const spec::OperatorDef& def = *spec::find_operator("gemm_ar");
    const spec::OpSpec op = ops::op_spec(channel, def, args);
    EXPECT_TRUE(op.m == 4 && op.n == 4 && op.k == 16 && !op.bias && op.scales == Scales::none);
    try {
      ops::call(channel, def, args, spec::make_schedule(op, "library"));
      ADD_FAILURE() << "three tensors of six were taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("got 3 tensors, wanted 6"), std::string::npos) << error.what();
    }
  });
}

TEST(Fp8, OtherOperandsTakeNoScales) {
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Matrix a(4, 16, DType::fp32, 0), b(6, 16, DType::fp32, 0), out(4, 6, DType::fp32, 0), one(1, 1, DType::fp32, 0);
    const TensorView scale = TensorView::contiguous(one.view.data, DType::fp32, {1});
    ops::CallArgs args;
    args.tensors = {a.view, b.view.transposed(), out.view, {}, scale, scale};
    const spec::Schedule schedule = spec::make_schedule(
        {.op = "gemm_ar", .m = 4, .n = 6, .k = 16, .dtype = DType::fp32, .out_dtype = DType::fp32, .row_offsets = {}},
        "library");
    try {
      ops::call(runtime.world().channel(StreamRef::cpu()), *spec::find_operator("gemm_ar"), args, schedule);
      ADD_FAILURE() << "scales of fp32 operands were taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("a_scale is (1), wanted none: a is fp32"), std::string::npos)
          << error.what();
    }
  });
}

/// The same product in bf16 of operands that both types hold, which no scale changes.
TEST(Fp8, SmallIntegersWithScalesOfOneAreThoseOfBf16) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const int rank = runtime.world().rank();
    Problem p{
        .op = "gemm_rs", .family = "hetero_fused_1d", .degree = 2, .m = 24, .scales = Scales::rows, .out = DType::fp32};
    Operands8 x(p, rank, 2, 1);
    Matrix a(p.m, p.k, DType::bf16, 0), b(p.n, p.k, DType::bf16, 0), one(12, p.n, p.out, 0), other(12, p.n, p.out, 0);
    for (Matrix* m : {&x.a, &a})
      m->fill([&](int64_t i, int64_t j) { return static_cast<double>(hashed(1, rank, i, j, 1, DType::fp32)); });
    for (Matrix* m : {&x.b, &b})
      m->fill([&](int64_t i, int64_t j) { return static_cast<double>(hashed(2, rank, i, j, 1, DType::fp32)); });
    for (Matrix* m : {&x.a_scale, &x.b_scale}) m->fill([](int64_t, int64_t) { return 1; });
    spec::OpSpec op = Operands8::spec_of(p, 2);
    const spec::OperatorDef& def = *spec::find_operator(p.op);
    ops::call(channel, def, args_of(p, x, one.view), spec::make_schedule(op, p.family, p.degree));
    op.dtype = DType::bf16, op.scales = Scales::none, op.b_dtype.reset();
    ops::CallArgs args;
    args.tensors = {a.view, b.view.transposed(), other.view, {}, {}, {}};
    ops::call(channel, def, args, spec::make_schedule(op, p.family, p.degree));
    EXPECT_EQ(one.bytes(), other.bytes());
  });
}

}  // namespace
}  // namespace overlace::test
