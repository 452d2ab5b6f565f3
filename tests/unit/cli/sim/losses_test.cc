#include "cli/sim/losses.h"

#include <gtest/gtest.h>

#include <string>

#include "overlace/error.h"
#include "overlace/machine.h"
#include "overlace/schedule.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/spec/costs.h"
#include "src/study/losses.h"

namespace overlace::cli {
namespace {

LossWords words_of_shape(const char* op) {
  LossWords words;
  words.op = op;
  words.m = 4096;
  words.n = 2560;
  words.k = 8192;
  return words;
}

base::Json printed_losses(LossWords words) {
  words.json = "-";
  testing::internal::CaptureStdout();
  EXPECT_EQ(sim_characterise(words), 0);
  return base::Json::parse(testing::internal::GetCapturedStdout()).value();
}

double field(const base::Json& row, const char* key) { return row.find(key)->as_double(); }

TEST(SimCharacterise, ProductsInPartsAreTheirClosedForms) {
  const spec::Machine machine = spec::find_machine("h200x4");
  const base::Json data = printed_losses(words_of_shape("ag_gemm"));
  const double launch = machine.latency.launch_us.value;
  const double whole = launch + spec::gemm_cost(machine, {4096, 2560, 8192}).us;
  EXPECT_NEAR(field(data, "product_us"), whole, 1e-9);
  int found = 0;
  for (const base::Json& row : data.find("decomposition")->as_array()) {
    if (row.find("family")->as_string() != "uniform_fused_1d") continue;
    const int64_t q = row.find("degree")->as_int();
    const double parts = static_cast<double>(q) * (launch + spec::gemm_cost(machine, {1024 / q, 2560, 8192, 4}).us);
    EXPECT_EQ(row.find("products")->as_int(), q);
    EXPECT_NEAR(field(row, "product_us"), q == 1 ? whole : parts, 1e-9) << q;
    EXPECT_NEAR(field(row, "product_dil"), field(row, "product_us") / whole - 1, 1e-12);
    EXPECT_EQ(row.find("transfers")->as_int(), 3 * q);
    ++found;
  }
  EXPECT_EQ(found, 5);
}

TEST(SimCharacterise, FinerTransfersTakeLongerAndStoresLessSo) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const base::Json data = printed_losses(words_of_shape(op));
    std::string family;
    double before = 0;
    int64_t transfers = 0;
    int rows = 0;
    for (const base::Json& row : data.find("decomposition")->as_array()) {
      if (row.find("transfers")->as_int() == 0) {  // one kernel: nothing is cut off
        EXPECT_EQ(field(row, "product_dil"), 0) << op;
        EXPECT_EQ(field(row, "store_dil"), 0) << op;
        continue;
      }
      const bool is_next = row.find("family")->as_string() == family;
      family = row.find("family")->as_string();
      const double dil = field(row, "transfer_dil");
      const int64_t more = row.find("transfers")->as_int();
      if (is_next && more == transfers) {  // chunks of whole rows of tiles, which are not cut
        EXPECT_EQ(dil, before) << op << " " << family;
      } else if (is_next) {
        EXPECT_GT(dil, before) << op << " " << family;
        EXPECT_LT(field(row, "store_dil"), dil) << op << " " << family;
        EXPECT_GT(field(row, "store_dil"), 0) << op << " " << family;
      } else {
        EXPECT_NEAR(dil, 0, 1e-9) << op << " " << family;
      }
      before = dil;
      transfers = more;
      ++rows;
    }
    EXPECT_GE(rows, 20) << op;
  }
}

TEST(SimCharacterise, ContentionIsThatOfTheMachineFile) {
  spec::Machine machine = spec::find_machine("h200x4");
  machine.contention.push_back({spec::Load::gemm_tensor, spec::Load::ce_in, {1.1, spec::Source::measured}});
  const study::Mutual ce = study::mutual_slowdown(machine, "ce");
  double product = 1;
  for (const spec::Contention& c : machine.contention) {
    if (c.slowed == spec::Load::gemm_tensor && (c.by == spec::Load::ce_in || c.by == spec::Load::ce_out))
      product *= c.factor.value;
    if (c.slowed == spec::Load::ce_out && c.by == spec::Load::gemm_tensor) {
      EXPECT_EQ(ce.transfer, c.factor.value);
    }
  }
  EXPECT_GT(product, 1);
  EXPECT_DOUBLE_EQ(ce.product, product);
  EXPECT_EQ(ce.source, spec::Source::measured);
  machine.contention = {{spec::Load::gemm_tensor, spec::Load::sm_copy, {1.25, spec::Source::prior}}};
  EXPECT_FALSE(study::mutual_slowdown(machine, "ce").has_product);
  EXPECT_DOUBLE_EQ(study::mutual_slowdown(machine, "sm").product, 1.25);
  EXPECT_EQ(study::mutual_slowdown(machine, "sm").source, spec::Source::prior);
}

TEST(SimCharacterise, PlotsBothLossesInBothDirections) {
  LossWords words = words_of_shape("gemm_rs");
  words.plot = testing::TempDir() + "overlace_losses.svg";
  (void)printed_losses(words);
  const std::string svg = base::read_file(words.plot).value();
  for (const char* part : {"GEMM in parts, one by one", "transfer in parts, one by one", "GEMM beside a transfer",
                           "transfer beside a GEMM", ">copies of columns (2-D)<", ">stores of all SMs<", ">tma_slot<",
                           ">epilogue<", ">1.2<"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  words.plot = testing::TempDir() + "overlace_losses.html";
  (void)printed_losses(words);
  EXPECT_EQ(base::read_file(words.plot).value().rfind("<!doctype html>", 0), 0U);
}

TEST(SimCharacterise, RefusesBadWords) {
  const auto message = [](auto change) -> std::string {
    LossWords words = words_of_shape("ag_gemm");
    change(&words);
    try {
      (void)sim_characterise(words);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([](LossWords* w) { w->plot = "x.png"; }).find("x.png, wanted a name"), std::string::npos);
  EXPECT_NE(message([](LossWords* w) { w->ranks = 1; }).find("at least 2"), std::string::npos);
  EXPECT_NE(message([](LossWords* w) { w->degrees = "1,0"; }).find("--degrees is 1,0"), std::string::npos);
  EXPECT_NE(message([](LossWords* w) { w->degrees = "5000"; }).find("at most 1024"), std::string::npos);
  EXPECT_NE(message([](LossWords* w) { w->m = 0; }).find("--m"), std::string::npos);
}

}  // namespace
}  // namespace overlace::cli
