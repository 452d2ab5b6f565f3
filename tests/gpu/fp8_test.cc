// ag_gemm, gemm_rs and gemm_ar of fp8 with scales on real GPUs: exact sums in every family of library GEMMs, repeated,
// captured, ragged, so that scales of chunks lie at any address; products of normal numbers beside fp64. Ranks are
// threads of this process, one GPU each; with one GPU they share it (virtual ranks).
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "overlace/ops/call.h"
#include "src/exec/cuda/cublaslt.h"
#include "src/spec/operators.h"
#include "tests/gpu/support/ops_site.h"

namespace overlace {
namespace {

using spec::Scales;

struct Scaled {
  std::string op;
  int64_t m = 512, n = 256, k = 320;
  Scales scales = Scales::tensor;
  DType out = DType::bf16;
  bool bias = false;
  std::vector<int64_t> row_offsets{};
  DType a = DType::e4m3, b = DType::e4m3;
};

/// Powers of two by row of the whole and by column, alike on all ranks, so that sums over ranks stay exact in bf16.
double of_row(const Scaled& p, int64_t row) {
  return p.scales == Scales::rows ? std::ldexp(1.0, static_cast<int>(row % 5) - 2) : 0.5;
}
double of_column(const Scaled& p, int64_t column) {
  return p.scales == Scales::rows ? std::ldexp(1.0, static_cast<int>(column % 3)) : 4;
}

class ScaledSite {
 public:
  ScaledSite(const Scaled& p, Channel& channel)
      : p_(p), channel_(channel), rank_(channel.team().rank()), def_(*spec::find_operator(p.op)) {
    op_ = {.op = p.op,
           .m = p.m,
           .n = p.n,
           .k = p.k,
           .ranks = channel.team().size(),
           .dtype = p.a,
           .out_dtype = p.out,
           .bias = p.bias,
           .row_offsets = p.row_offsets,
           .scales = p.scales,
           .b_dtype = p.b};
    off_ = spec::row_offsets(op_);
    const bool gathers = spec::gathers(p.op);
    const int64_t begin = off_[static_cast<size_t>(rank_)], mine = off_[static_cast<size_t>(rank_) + 1] - begin;
    first_ = spec::stays_with_owner(p.op) ? begin : 0;
    const int64_t a_rows = gathers ? mine : p.m, a_first = gathers ? begin : 0;
    a_ = std::make_unique<Matrix>(a_rows, p.k, p.a);
    b_ = std::make_unique<Matrix>(p.n, p.k, p.b);
    for (int64_t i = 0; i < a_->size(); ++i) a_->set(i, a_at(rank_, a_first * p.k + i));
    for (int64_t i = 0; i < b_->size(); ++i) b_->set(i, exact_value(2, rank_, i));
    const bool is_rows = p.scales == Scales::rows;
    a_scale_ = std::make_unique<Matrix>(is_rows ? a_rows : 1, 1, DType::fp32);
    b_scale_ = std::make_unique<Matrix>(1, is_rows ? p.n : 1, DType::fp32);
    for (int64_t i = 0; i < a_scale_->size(); ++i) a_scale_->set(i, of_row(p, a_first + i));
    for (int64_t j = 0; j < b_scale_->size(); ++j) b_scale_->set(j, of_column(p, j));
    bias_ = std::make_unique<Matrix>(1, p.n, p.out);
    fill(*bias_, 3, 0);
    out_ = std::make_unique<Matrix>(spec::stays_with_owner(p.op) ? mine : p.m, p.n, p.out);
    for (Matrix* m : {a_.get(), b_.get(), a_scale_.get(), b_scale_.get()}) m->upload();
    channel.team().barrier();
  }

  const spec::OpSpec& op() const { return op_; }
  Matrix& out() { return *out_; }
  void run(const spec::Schedule& schedule) { ops::call(channel_, def_, args(), schedule); }
  ops::CallArgs args() {
    const auto scale = [&](Matrix& m) {
      return p_.scales == Scales::rows ? m.device() : TensorView::contiguous(m.device().data, DType::fp32, {1});
    };
    ops::CallArgs args{.row_offsets = p_.row_offsets};
    args.tensors = {a_->device(), b_->device().transposed(), out_->device(), {}};
    if (p_.bias) args.tensors[3] = TensorView::contiguous(bias_->device().data, p_.out, {p_.n});
    if (spec::gathers(p_.op)) args.tensors.push_back({});
    args.tensors.push_back(scale(*a_scale_));
    args.tensors.push_back(scale(*b_scale_));
    return args;
  }

  /// Empty if every element is exact.
  std::string mismatch() {
    out_->download();
    if (wanted_.empty()) wanted_ = wanted();
    for (int64_t i = 0; i < out_->size(); ++i) {
      const double want = wanted_[static_cast<size_t>(i)];
      if (out_->get(i) != want)
        return base::format("rank {} element ({}, {}): got {}, want {}", rank_, first_ + i / p_.n, i % p_.n,
                            out_->get(i), want);
    }
    return {};
  }

 private:
  /// Each rounded once: of the sum with the bias.
  std::vector<double> wanted() {
    const bool gathers = spec::gathers(p_.op);
    const int begin = gathers ? rank_ : 0, end = gathers ? rank_ + 1 : op_.ranks;
    const int64_t size = out_->size(), rows = p_.n == 0 ? 0 : size / p_.n;
    std::vector<double> out(static_cast<size_t>(size)), a(static_cast<size_t>(rows * p_.k)),
        b(static_cast<size_t>(p_.n * p_.k));
    for (int r = begin; r < end; ++r) {
      for (int64_t i = 0; i < rows * p_.k; ++i) a[static_cast<size_t>(i)] = a_at(r, first_ * p_.k + i);
      for (int64_t i = 0; i < p_.n * p_.k; ++i) b[static_cast<size_t>(i)] = exact_value(2, r, i);
      for (int64_t i = 0; i < size; ++i) {
        const double* line = a.data() + i / p_.n * p_.k;
        out[static_cast<size_t>(i)] =
            std::inner_product(line, line + p_.k, b.data() + i % p_.n * p_.k, out[static_cast<size_t>(i)]);
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      const int64_t row = first_ + i / p_.n, column = i % p_.n;
      double& sum = out[static_cast<size_t>(i)];
      sum = sum * of_row(p_, row) * of_column(p_, column) + (p_.bias ? exact_value(3, 0, column) : 0);
      unsigned char rounded[8] = {};
      base::store_element(rounded, p_.out, 0, sum);
      sum = base::load_element(rounded, p_.out, 0);
    }
    return out;
  }

  /// Rows that are gathered are those of the whole, whoever has them.
  double a_at(int rank, int64_t i) const { return exact_value(1, spec::gathers(p_.op) ? 0 : rank, i); }

  Scaled p_;
  Channel& channel_;
  int rank_;
  const spec::OperatorDef& def_;
  spec::OpSpec op_;
  std::vector<int64_t> off_;
  int64_t first_ = 0;
  std::vector<double> wanted_;
  std::unique_ptr<Matrix> a_, b_, a_scale_, b_scale_, bias_, out_;
};

bool is_for_scales(const spec::FamilyDef& family) {
  using enum spec::ClosedForm;
  return family.purpose == spec::Purpose::plan && family.form != slab_kernel && family.form != tile_kernel &&
         family.form != small_m_kernel && family.form != tracked_kernel && family.form != hosts;
}

class GpuFp8 : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (runtime::cuda_device_count(&why) == 0) GTEST_SKIP() << why;
  }

  /// Every family and degree, three calls each, then quiescence. `least`: how many schedules must run on two ranks and
  /// more.
  void run_all(const Scaled& p, const std::vector<int>& degrees, int least = 5) {
    for (const int n : team_sizes()) {
      if (!p.row_offsets.empty() && static_cast<int>(p.row_offsets.size()) != n + 1) continue;
      const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
        Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
        ScaledSite site(p, channel);
        int ran = 0;
        for (const spec::FamilyDef& family : spec::find_operator(p.op)->families) {
          if (!is_for_scales(family)) continue;
          for (const int degree : degrees) {
            const spec::Schedule schedule = spec::make_schedule(site.op(), family.name, degree);
            if (!ops::supports(channel, site.op(), schedule).ok()) continue;  // `library` without NCCL
            ++ran;
            const std::string where =
                base::format("{} {} {} q {} on {} ranks", p.op, spec::factors_of(site.op()), family.name, degree, n);
            for (int call = 0; call < 3; ++call) {
              site.out().poison();
              site.run(schedule);
              runtime.synchronize();
              require(site.mismatch(), where);
              if (n > device_count()) runtime.world().barrier();
            }
            runtime.world().barrier();
            runtime.check_quiescent();
            runtime.world().barrier();
          }
        }
        if (ran < (n == 1 ? 5 : least)) throw std::runtime_error(base::format("only {} schedules ran", ran));
      });
      EXPECT_EQ(failure, "");
    }
  }
};

TEST_F(GpuFp8, TensorScales) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    run_all({.op = op}, {1, 2, 4});
    run_all({.op = op, .out = DType::fp32}, {2});
  }
}
TEST_F(GpuFp8, RowScales) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) run_all({.op = op, .scales = Scales::rows}, {1, 2, 4});
}
TEST_F(GpuFp8, E5m2BesideE4m3) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"})
    for (const Scales scales : {Scales::tensor, Scales::rows}) {
      run_all({.op = op, .scales = scales, .a = DType::e5m2}, {2});
      run_all({.op = op, .scales = scales, .b = DType::e5m2}, {2});
    }
}
/// cuBLASLt reads scales of rows from 16 bytes on, so that blocks of ragged rows are left to products of all rows.
TEST_F(GpuFp8, RowScalesOfRaggedRowsAreForProductsOfAllRows) {
  run_all({.op = "ag_gemm", .m = 301, .scales = Scales::rows}, {1, 3}, 0);
  run_all({.op = "ag_gemm", .m = 301, .scales = Scales::rows, .row_offsets = {0, 4, 301}}, {1, 2});
  run_all({.op = "gemm_rs", .m = 203, .scales = Scales::rows}, {1, 3}, 0);
  run_all({.op = "gemm_ar", .m = 203, .scales = Scales::rows}, {1, 3}, 0);
  const std::string failure = on_ranks(2, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    ScaledSite site({.op = "ag_gemm", .m = 301, .scales = Scales::rows}, channel);
    const spec::Schedule serial = spec::make_schedule(site.op(), "serial");
    ops::CallArgs args = site.args();
    args.tensors.back().data = static_cast<char*>(args.tensors.back().data) + 4;
    args.tensors.back().sizes[1] -= 1;
    try {
      ops::call(channel, *spec::find_operator("ag_gemm"), args, serial);
      throw std::runtime_error("scales between 16 bytes, one fewer than columns, were read");
    } catch (const Error&) {
    }
    const ops::Support found = ops::supports(channel, site.op(), spec::make_schedule(site.op(), "hetero_unfused_1d"));
    if (found.reason.find("rank 1 begins at row 151 with scales of rows, wanted a multiple of 4") == std::string::npos)
      throw std::runtime_error("said: " + found.reason);
  });
  EXPECT_EQ(failure, "");
}
TEST_F(GpuFp8, Bias) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"})
    for (const Scales scales : {Scales::tensor, Scales::rows}) run_all({.op = op, .scales = scales, .bias = true}, {2});
}
TEST_F(GpuFp8, FewRows) {
  for (const Scales scales : {Scales::tensor, Scales::rows}) {
    const int least = scales == Scales::rows ? 0 : 5;
    run_all({.op = "ag_gemm", .m = 3, .scales = scales}, {1}, least);
    run_all({.op = "gemm_rs", .m = 5, .scales = scales}, {1}, least);
  }
}

TEST_F(GpuFp8, CapturedCallsReplayWithTheSameBits) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"})
    for (const char* family : {"serial", "hetero_fused_1d", "uniform_fused_1d", "uniform_fused_2d"})
      for (const Scales scales : {Scales::tensor, Scales::rows}) {
        const std::string failure = on_ranks(team_sizes().back(), [&](Runtime& runtime, cudaStream_t stream) {
          Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
          ScaledSite site({.op = op, .scales = scales}, channel);
          const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2);
          site.run(schedule);
          settle(runtime);
          require(site.mismatch(), base::format("{} {}", op, family));
          const std::vector<unsigned char> eager = site.out().bytes();
          cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
          site.run(schedule);
          cudaGraph_t graph = nullptr;
          cudaGraphExec_t exec = nullptr;
          cuda_ok(cudaStreamEndCapture(stream, &graph));
          cuda_ok(cudaGraphInstantiate(&exec, graph, 0));
          runtime.world().barrier();
          for (int replay = 0; replay < 20; ++replay) {
            if (replay % 5 == 0) cuda_ok(cudaMemsetAsync(site.out().device().data, 0xff, eager.size(), stream));
            cuda_ok(cudaGraphLaunch(exec, stream));
          }
          settle(runtime);
          site.out().download();
          if (site.out().bytes() != eager)
            throw std::runtime_error(base::format("{} {}: a replay gave other bits", op, family));
          runtime.world().barrier();
          runtime.check_quiescent();
          (void)cudaGraphExecDestroy(exec);
          (void)cudaGraphDestroy(graph);
        });
        EXPECT_EQ(failure, "");
      }
}

TEST_F(GpuFp8, WhatCublasLtCannotMultiplyIsRefusedBeforeAnythingMoves) {
  const std::string failure = on_ranks(1, [](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    ScaledSite site({.op = "ag_gemm", .m = 32, .n = 72, .k = 64}, channel);
    site.out().poison();
    try {
      site.run(spec::make_schedule(site.op(), "serial"));
      throw std::runtime_error("72 columns were multiplied");
    } catch (const Unsupported& error) {
      const std::string_view what = error.what();
      if (what.find("N is 72 with operands of e4m3, wanted a multiple of 16 on GPUs") == std::string_view::npos) throw;
    }
  });
  EXPECT_EQ(failure, "");
}

/// A call that was right before is not begun where an operand lies between the 16 bytes that its tiles load.
TEST_F(GpuFp8, OperandsBetween16BytesAreRefusedInEveryCall) {
  const std::string failure = on_ranks(1, [](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    ScaledSite site({.op = "gemm_rs"}, channel);
    const spec::Schedule schedule = spec::make_schedule(site.op(), "serial");
    site.run(schedule);
    ops::CallArgs args = site.args();
    args.tensors[0].data = static_cast<char*>(args.tensors[0].data) + 8;
    args.tensors[0].sizes[0] -= 1;
    spec::OpSpec op = site.op();
    op.m -= 1;
    args.tensors[2].sizes[0] -= 1;
    try {
      ops::call(channel, *spec::find_operator("gemm_rs"), args, spec::make_schedule(op, "serial"));
      throw std::runtime_error("an operand 8 bytes behind a multiple of 16 was multiplied");
    } catch (const Unsupported& error) {
      if (std::string_view(error.what()).find("a at an address 8 past a multiple of 16") == std::string_view::npos)
        throw;
    }
    site.run(schedule);
    runtime.synchronize();
    require(site.mismatch(), "the call behind a refused one");
  });
  EXPECT_EQ(failure, "");
}

/// Against fp64 of the quantised operands: what two levels of accumulation leave, which bf16 results hide.
TEST_F(GpuFp8, ProductsOfNormalNumbersAreNearFp64) {
  constexpr int64_t kM = 64, kN = 96, kK = 4096;
  auto opened = exec::CublasLt::open(0);
  opened.status().or_throw();
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  Matrix a(kM, kK, DType::e4m3), b(kN, kK, DType::e4m3), c(kM, kN, DType::fp32);
  Matrix a_scale(kM, 1, DType::fp32), b_scale(1, kN, DType::fp32);
  for (Matrix* m : {&a, &b, &a_scale, &b_scale}) {
    for (int64_t i = 0; i < m->size(); ++i) m->set(i, normal(random));
    m->upload();
  }
  for (const Scales scales : {Scales::tensor, Scales::rows}) {
    exec::LtGemm gemm;
    gemm.m = kM, gemm.n = kN, gemm.k = kK, gemm.lda = kK, gemm.ldb = kK, gemm.ldc = kN;
    gemm.in = DType::e4m3, gemm.out = DType::fp32, gemm.scales = scales;
    const exec::LtOperands operands = {.a = a.device().data,
                                       .b = b.device().data,
                                       .c = c.device().data,
                                       .a_scale = a_scale.device().data,
                                       .b_scale = b_scale.device().data};
    const base::Status status = (*opened)->run(gemm, operands, 0, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    cuda_ok(cudaDeviceSynchronize());
    c.download();
    double worst = 0;
    for (int64_t i = 0; i < kM; ++i)
      for (int64_t j = 0; j < kN; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < kK; ++k) sum += a.get(i * kK + k) * b.get(j * kK + k);
        const bool is_rows = scales == Scales::rows;
        const double scale = a_scale.get(is_rows ? i : 0) * b_scale.get(is_rows ? j : 0);
        worst = std::max(worst, std::abs(c.get(i * kN + j) - sum * scale) / (std::abs(scale) * std::sqrt(kK)));
      }
    EXPECT_LT(worst, 2e-2) << "of the sums' standard deviation";
    RecordProperty(scales == Scales::rows ? "rows" : "tensor", std::to_string(worst));
  }
}

}  // namespace
}  // namespace overlace
