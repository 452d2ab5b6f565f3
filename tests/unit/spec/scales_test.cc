// Schedules with scales: every family of library GEMMs passes all checks, which find scales that are missing, come late
// or stand beside other rows; the others are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "overlace/error.h"
#include "src/spec/check.h"
#include "src/spec/operators.h"
#include "tests/unit/spec/support/findings.h"

namespace overlace::spec {
namespace {

constexpr std::string_view kScaled[] = {"ag_gemm", "gemm_rs", "gemm_ar"};

OpSpec scaled(std::string_view op, int ranks, Scales scales, bool bias = false) {
  return {.op = std::string(op),
          .m = 37,
          .n = 48,
          .k = 64,
          .ranks = ranks,
          .dtype = DType::e4m3,
          .out_dtype = DType::bf16,
          .bias = bias,
          .row_offsets = {},
          .scales = scales};
}

bool is_one_kernel(const FamilyDef& family) {
  using enum ClosedForm;
  return family.form == slab_kernel || family.form == tile_kernel || family.form == small_m_kernel ||
         family.form == tracked_kernel;
}

/// The first error of this check; empty if there is none.
std::string finding(const Schedule& schedule, std::string_view code, bool covers = true) {
  CheckOptions options;
  options.coverage = covers;
  const CheckReport report = check(schedule, Machine{}, options);
  for (const Finding& one : report.findings)
    if (one.is_error && (code.empty() || one.code == code)) return one.code + " " + one.task + ": " + one.text;
  return "";
}

TEST(Scales, EveryFamilyOfLibraryGemmsPassesTheChecks) {
  int made = 0;
  for (const std::string_view op : kScaled)
    for (const FamilyDef& family : find_operator(op)->families)
      for (const int ranks : {1, 2, 3, 4, 8})
        for (const int degree : {1, 2, 4})
          for (const Scales scales : {Scales::tensor, Scales::rows})
            for (const Params& options : {Params{}, Params{{"ce_queues", int64_t{2}}, {"credits", false}}}) {
              const bool is_far = family.form == ClosedForm::hosts && scales == Scales::rows && gathers(op);
              if (is_one_kernel(family) || (is_far && ranks > 1)) continue;
              const Schedule schedule =
                  make_schedule(scaled(op, ranks, scales, degree == 2), family.name, degree, options);
              EXPECT_EQ(finding(schedule, "", family.purpose == Purpose::plan), "")
                  << op << " " << family.name << " q " << degree << " on " << ranks;
              EXPECT_EQ(Schedule::from_json(schedule.to_json()), schedule);
              ++made;
            }
  EXPECT_GT(made, 1000);
}

TEST(Scales, OneKernelFamiliesAreRefusedWithBothSides) {
  for (const std::string_view op : kScaled)
    for (const FamilyDef& family : find_operator(op)->families) {
      if (!is_one_kernel(family)) continue;
      try {
        (void)make_schedule(scaled(op, 2, Scales::tensor), family.name, 4);
        ADD_FAILURE() << op << " " << family.name;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::not_supported);
        const std::string what = error.what();
        EXPECT_NE(what.find("family " + std::string(family.name) + " is one kernel, which multiplies no e4m3; wanted"),
                  std::string::npos)
            << what;
      }
    }
}

std::string scales_refusal(const OpSpec& op, const std::string& family = "serial", const Params& options = {}) {
  try {
    (void)make_schedule(op, family, 1, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Scales, ProblemsAreRefused) {
  OpSpec op = scaled("ag_gemm", 2, Scales::none);
  EXPECT_NE(scales_refusal(op).find("scales are none, wanted tensor or rows with operands of e4m3"), std::string::npos);
  op = scaled("ag_gemm", 2, Scales::rows), op.dtype = DType::bf16;
  EXPECT_NE(scales_refusal(op).find("scales are rows, wanted none with operands of bf16"), std::string::npos);
  op = scaled("gemm_rs", 2, Scales::rows), op.k = 40;
  EXPECT_NE(scales_refusal(op).find("K is 40, wanted a multiple of 16 with operands of e4m3"), std::string::npos);
  op = scaled("gemm_ar", 2, Scales::tensor), op.b_layout = BLayout::kn;
  EXPECT_NE(scales_refusal(op).find("b_layout is kn, wanted nk with operands of e4m3"), std::string::npos);
  op = scaled("ag_wgrad", 2, Scales::tensor);
  EXPECT_NE(scales_refusal(op).find("ag_wgrad takes no scales"), std::string::npos);
  const Params two_hosts = {{"hosts", int64_t{2}}};
  EXPECT_NE(scales_refusal(scaled("ag_gemm", 4, Scales::rows), "serial", two_hosts)
                .find("with hosts 2, wanted a flat family"),
            std::string::npos);
  EXPECT_EQ(scales_refusal(scaled("ag_gemm", 4, Scales::tensor), "serial", two_hosts), "");
}

TEST(Scales, BothTypesOfFp8AreMultipliedAndE5m2ByE4m3Alone) {
  const auto type_of = [](const Schedule& schedule, std::string_view buffer) {
    for (const Buffer& one : schedule.buffers)
      if (one.name == buffer) return one.dtype;
    ADD_FAILURE() << buffer;
    return DType::u8;
  };
  for (const auto& [a, b] : {std::pair{DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}})
    for (const std::string_view op : kScaled) {
      OpSpec problem = scaled(op, 2, Scales::rows);
      const std::string key = key_of(problem);
      problem.dtype = a, problem.b_dtype = b;
      const Schedule schedule = make_schedule(problem, "uniform_fused_1d", 2);
      EXPECT_EQ(finding(schedule, ""), "") << op;
      EXPECT_EQ(Schedule::from_json(schedule.to_json()), schedule);
      EXPECT_EQ(type_of(schedule, "A"), a);
      EXPECT_EQ(type_of(schedule, "B"), b);
      EXPECT_EQ(gathers(op) ? type_of(schedule, "X") : a, a);
      EXPECT_NE(key_of(problem), key);
      const std::string both = std::string(dtype_name(a)) + " x " + dtype_name(b) + " -> bf16";
      EXPECT_NE(problem.to_string().find(both), std::string::npos) << problem.to_string();
    }
  OpSpec same = scaled("ag_gemm", 2, Scales::rows);
  same.b_dtype = same.dtype;
  EXPECT_EQ(key_of(same), key_of(scaled("ag_gemm", 2, Scales::rows)));
  EXPECT_EQ(make_schedule(same, "library"), make_schedule(scaled("ag_gemm", 2, Scales::rows), "library"));

  constexpr std::string_view kWanted = ", wanted e4m3 x e4m3, e4m3 x e5m2 or e5m2 x e4m3";
  for (const auto& [a, b] : {std::pair{DType::e5m2, DType::e5m2}, {DType::e4m3, DType::bf16}}) {
    OpSpec bad = scaled("gemm_rs", 2, Scales::tensor);
    bad.dtype = a, bad.b_dtype = b;
    const std::string what = scales_refusal(bad);
    EXPECT_NE(what.find(std::string("operands are ") + dtype_name(a) + " x " + dtype_name(b) + std::string(kWanted)),
              std::string::npos)
        << what;
  }
  OpSpec wide = scaled("gemm_rs", 2, Scales::none);
  wide.dtype = DType::bf16, wide.b_dtype = DType::fp32;
  EXPECT_NE(scales_refusal(wide).find("operands are bf16 x fp32, wanted two of one type"), std::string::npos);
}

TEST(Scales, ChecksFindWhatIsWrongWithThem) {
  const Schedule right = make_schedule(scaled("ag_gemm", 3, Scales::rows), "hetero_unfused_1d", 2);
  Schedule schedule = right;
  std::erase_if(schedule.tasks, [](const Task& t) { return t.id == "push_scales"; });
  EXPECT_NE(finding(schedule, ""), "") << "scales that nobody sends";

  schedule = right;
  test::task(schedule, "push_scales").order = "q*G+p";
  EXPECT_NE(finding(schedule, ""), "") << "behind the rows, whose signals do not tell of them";

  schedule = right;  // other rows' scales
  test::task(schedule, "gemm_remote").reads[2].dims[0].begin = "off[(r+p)%G]";
  EXPECT_NE(finding(schedule, "S9").find("scales row"), std::string::npos) << finding(schedule, "");

  schedule = right;
  test::task(schedule, "gemm_own").reads[2].dims[0].count = 1;
  EXPECT_NE(finding(schedule, "S2").find("are not the scales of the"), std::string::npos) << finding(schedule, "");

  schedule = right;
  test::task(schedule, "gemm_own").reads[3].dims[1].count = 5;
  EXPECT_NE(finding(schedule, "S2").find("the scales of b are not the 48"), std::string::npos) << finding(schedule, "");

  schedule = make_schedule(scaled("gemm_rs", 2, Scales::rows), "uniform_fused_2d", 3);
  test::task(schedule, "gemm").reads[3].dims[1].begin = 0;
  EXPECT_NE(finding(schedule, "S9").find("scales columns by those of others"), std::string::npos)
      << finding(schedule, "");
}

TEST(Scales, SlabsOfBytesBeginAtMultiplesOf16) {
  for (const std::string_view op : {"ag_gemm", "gemm_rs"}) {
    OpSpec problem = scaled(op, 2, Scales::tensor);
    problem.n = problem.k = 16 * 7;
    const Schedule schedule = make_schedule(problem, "uniform_fused_2d", 4);
    for (const int64_t begin : schedule.tables.at("slab")) EXPECT_EQ(begin % 16, 0) << op;
  }
}

TEST(Scales, OfRowsTravelWithThemAndOfTensorsNotAtAll) {
  const auto has = [](const Schedule& schedule, std::string_view buffer) {
    return std::any_of(schedule.buffers.begin(), schedule.buffers.end(),
                       [&](const Buffer& one) { return one.name == buffer; });
  };
  const Schedule rows = make_schedule(scaled("ag_gemm", 2, Scales::rows), "library");
  EXPECT_TRUE(has(rows, "A_scale") && has(rows, "B_scale") && has(rows, "X_scale"));
  const Schedule tensor = make_schedule(scaled("ag_gemm", 2, Scales::tensor), "library");
  EXPECT_TRUE(has(tensor, "A_scale") && has(tensor, "B_scale") && !has(tensor, "X_scale"));
  EXPECT_NE(key_of(scaled("ag_gemm", 2, Scales::rows)), key_of(scaled("ag_gemm", 2, Scales::tensor)));
}

}  // namespace
}  // namespace overlace::spec
