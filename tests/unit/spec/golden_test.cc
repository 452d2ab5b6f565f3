// Schedules and refusals as they were when they were recorded, of every family of every operator. A change of a family
// changes its line; what the test then writes into the folder that it names is the new file of tests/golden/spec.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "overlace/schedule.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/spec/digest.h"
#include "tests/unit/spec/operators.h"

namespace overlace::spec {
namespace {

void expect_golden(const std::string& name, const std::string& got) {
  const std::string path = std::string(OVERLACE_SOURCE_DIR) + "/tests/golden/spec/" + name;
  const base::Result<std::string> want = base::read_file(path);
  if (want.ok() && want.value() == got) return;
  const std::string beside = testing::TempDir() + "golden_" + name;
  ASSERT_TRUE(base::write_file(beside, got).ok());
  ADD_FAILURE() << path << " differs from what is made now, " << beside;
}

/// The JSON, or why there is none.
std::string golden_text(const OpSpec& op, const std::string& family, int degree, const Params& options) {
  try {
    return make_schedule(op, family, degree, options).to_json();
  } catch (const Error& error) {
    return error.what();
  }
}

/// Problems and options that reach each branch of a family: plain, ragged with other types, an activation, hosts.
std::string texts_of(const std::string& name, const std::string& family, int ranks) {
  OpSpec plain{.op = name, .m = 1536, .n = 1024, .k = 768, .ranks = ranks, .row_offsets = {}};
  std::string all;
  for (const int degree : {1, 2, 4}) all += golden_text(plain, family, degree, {}) + "\n";
  all +=
      golden_text(plain, family, 4, {{"own_degree", int64_t{2}}, {"ce_queues", int64_t{2}}, {"credits", false}}) + "\n";
  for (const int64_t hosts : {2, 4}) all += golden_text(plain, family, 2, {{"hosts", hosts}}) + "\n";

  OpSpec ragged = plain;
  ragged.m = 37;
  ragged.n = 200;
  ragged.k = 130;
  ragged.dtype = DType::fp16;
  ragged.out_dtype = DType::fp32;
  ragged.b_layout = BLayout::kn;
  ragged.bias = name != "ag_wgrad";
  ragged.row_offsets.assign(static_cast<size_t>(ranks) + 1, 37);
  ragged.row_offsets[0] = 0;
  if (ranks > 1) ragged.row_offsets[1] = 11;
  all += golden_text(ragged, family, 3, {{"align", int64_t{2}}, {"align_n", int64_t{16}}}) + "\n";

  OpSpec activated = plain;
  activated.activation = Activation::swiglu;
  return all + golden_text(activated, family, 2, {}) + "\n";
}

TEST(GoldenSchedules, AreTheSameToTheByte) {
  std::string got = "operator,family,1 rank,2 ranks,3 ranks,4 ranks,8 ranks\n";
  for (const std::string& name : test::all_operators())
    for (const std::string& family : families(name)) {
      got += name + "," + family;
      for (const int ranks : {1, 2, 3, 4, 8}) got += "," + hash128(texts_of(name, family, ranks)).substr(0, 16);
      got += "\n";
    }
  expect_golden("schedules.csv", got);
}

/// Calls that make_schedule refuses, of each operator.
std::vector<std::function<std::string(OpSpec)>> refused() {
  const auto with = [](void (*change)(OpSpec&)) {
    return [change](OpSpec op) {
      change(op);
      return golden_text(op, "serial", 2, {});
    };
  };
  const auto option = [](const char* family, int degree, const Params& options) {
    return [=](const OpSpec& op) { return golden_text(op, family, degree, options); };
  };
  return {with([](OpSpec& op) { op.m = -1; }),
          with([](OpSpec& op) { op.ranks = 0; }),
          with([](OpSpec& op) { op.bias = true; }),
          with([](OpSpec& op) { op.activation = Activation::swiglu; }),
          with([](OpSpec& op) { op.activation = Activation::swiglu, op.n = 7; }),
          with([](OpSpec& op) {
            op.row_offsets = {0, 8};
          }),
          with([](OpSpec& op) {
            op.row_offsets = {0, 9, 3, 8, 8};
          }),
          option("fastest", 1, {}),
          option("serial_rs", 1, {}),
          option("", 1, {}),
          option("library", 0, {}),
          with([](OpSpec& op) {
            op.splits = {8, 0, 0};
          }),
          with([](OpSpec& op) { op.splits = std::vector<int64_t>(16, 1); }),
          with([](OpSpec& op) {
            op.splits.assign(16, 0);
            op.splits[3] = -1;
          }),
          with([](OpSpec& op) { op.splits.assign(16, int64_t{1} << 61); }),
          with([](OpSpec& op) {
            op.splits.assign(16, 0);
            op.splits[0] = 8;
            op.row_offsets = {0, 8, 8, 8, 8};
          }),
          option("library", 1, {{"own_degree", int64_t{3}}}),
          option("hetero_unfused_1d", 4, {{"own_degree", int64_t{3}}}),
          option("hetero_unfused_1d", 2000, {}),
          option("serial", 1, {{"hosts", int64_t{2}}}),
          option("serial", 1, {{"hosts", int64_t{3}}}),
          option("serial", 1, {{"chunks", int64_t{3}}}),
          option("serial", 1, {{"credits", int64_t{3}}}),
          option("serial", 1, {{"align", int64_t{0}}})};
}

TEST(GoldenRefusals, SayTheSame) {
  std::string got;
  for (const std::string name : {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm", "gemm", ""})
    for (const auto& one : refused()) {
      const std::string text = one({.op = name, .m = 8, .n = 8, .k = 8, .ranks = 4, .row_offsets = {}});
      got += name + ": " + (text.front() == '{' ? "made" : text) + "\n";
    }
  expect_golden("refusals.txt", got);
}

}  // namespace
}  // namespace overlace::spec
