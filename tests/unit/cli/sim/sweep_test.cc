#include "cli/sim/sweep.h"

#include <gtest/gtest.h>

#include <string>

#include "cli/sim/check.h"
#include "cli/sim/plot.h"
#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/study/validate/properties.h"

namespace overlace::cli {
namespace {

SweepWords small_sweep() {
  SweepWords words;
  words.m = "1024,4096";
  words.n = "1536";
  words.k = "1024";
  words.families = "library,hetero_unfused_1d";
  words.degrees = "1,4";
  return words;
}

base::Json rows_of(SweepWords words) {
  words.json = "-";
  testing::internal::CaptureStdout();
  EXPECT_EQ(sim_sweep(words), 0);
  return *base::Json::parse(testing::internal::GetCapturedStdout()).value().find("rows");
}

TEST(SimSweep, RowsAreTheFastestDegreesOfEachPoint) {
  SweepWords words = small_sweep();
  words.ranks = "2,4";
  const base::Json rows = rows_of(words);
  ASSERT_EQ(rows.as_array().size(), 2U * 2 * 2);
  for (const base::Json& row : rows.as_array()) {
    const spec::Machine machine = spec::find_machine(row.find("ranks")->as_int() == 2 ? "h200x2" : "h200x4");
    EXPECT_EQ(row.find("machine")->as_string(), machine.name);
    spec::OpSpec op;
    op.op = "ag_gemm";
    op.m = row.find("m")->as_int();
    op.n = 1536;
    op.k = 1024;
    op.ranks = static_cast<int>(row.find("ranks")->as_int());
    const std::string family = row.find("family")->as_string();
    double best = 1e300;
    for (const int degree : {1, 4})
      best = std::min(best, sim::simulate(spec::make_schedule(op, family, degree), machine).us());
    EXPECT_EQ(row.find("us")->as_double(), best) << family;
    EXPECT_EQ(row.find("gain")->as_double() == 1, family == "library");
  }
}

TEST(SimSweep, AFamilyWithoutDegreesHasDegreeOne) {
  SweepWords words = small_sweep();
  words.m = "4096";
  words.degrees = "4,8";
  const base::Json rows = rows_of(words);
  ASSERT_EQ(rows.as_array().size(), 2U);
  EXPECT_EQ(rows.as_array()[0].find("family")->as_string(), "library");
  EXPECT_EQ(rows.as_array()[0].find("degree")->as_int(), 1);
  EXPECT_GE(rows.as_array()[1].find("degree")->as_int(), 4);
}

TEST(SimSweep, PlotHasALineForEachFamilyAndOneBound) {
  SweepWords words = small_sweep();
  words.plot = testing::TempDir() + "overlace_sweep.svg";
  (void)rows_of(words);
  const std::string svg = base::read_file(words.plot).value();
  const auto count = [&](const std::string& part) {
    int n = 0;
    for (size_t at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<polyline"), 3);
  EXPECT_EQ(count("<circle"), 3 * 2);
  EXPECT_EQ(count("h200x4, n 1536, k 1024, ranks 4"), 1);
  words.plot = testing::TempDir() + "overlace_sweep.html";
  (void)rows_of(words);
  const std::string page = base::read_file(words.plot).value();
  EXPECT_EQ(page.rfind("<!doctype html>", 0), 0U);
  EXPECT_NE(page.find("vs library"), std::string::npos);
}

TEST(SimSweep, RefusesBadLists) {
  const auto message = [](auto change) -> std::string {
    SweepWords words = small_sweep();
    change(&words);
    try {
      sim_sweep(words);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  using W = SweepWords;
  const std::string wanted = ", wanted whole numbers of at least 1 between commas";
  EXPECT_EQ(message([](W* w) { w->m = "1024,"; }), "--m is 1024," + wanted);
  EXPECT_EQ(message([](W* w) { w->n = "0"; }), "--n is 0" + wanted);
  EXPECT_EQ(message([](W* w) { w->degrees = "1;2"; }), "--degrees is 1;2" + wanted);
  EXPECT_EQ(message([](W* w) { w->degrees = "4,5000"; }), "--degrees has 5000, wanted at most 1024");
  EXPECT_EQ(message([](W* w) { w->op = "gemm"; }),
            "operator is gemm, wanted ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_ar_norm, gemm_a2a, a2a_gemm or "
            "embedding_a2a");
  EXPECT_EQ(message([](W* w) { w->families = "library,x"; }).rfind("--families has x, wanted all or of library", 0),
            0U);
  EXPECT_EQ(message([](W* w) { w->plot = "x.png"; }), "--plot is x.png, wanted a name that ends in .svg or .html");
  EXPECT_EQ(message([](W* w) { w->ranks = "70000"; }), "--ranks has 70000, wanted at most 65536");
  EXPECT_EQ(message([](W* w) { w->calls = 0; }), "sim: --calls is 0, wanted 1 to 10000");
  std::string many = "1";
  for (int i = 2; i < 300; ++i) many += "," + std::to_string(i);
  EXPECT_EQ(message([&](W* w) { w->m = w->n = many; }).rfind("sim sweep: ", 0), 0U);
}

TEST(SimPlot, EscapesAndSaysWhereNothingIs) {
  const std::string svg = plot_svg("a < b & c", "x", "us", {{"empty", {}}, {"one", {{"line", {4}, {2}}}}});
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_NE(svg.find("no point"), std::string::npos);
  // A control character makes an SVG file that no reader takes.
  const std::string odd = plot_svg("a \x01\"b\"", "x", "us", {{"one", {{"line", {4}, {2}}}}});
  EXPECT_EQ(odd.find('\x01'), std::string::npos);
  EXPECT_NE(odd.find("&quot;b&quot;"), std::string::npos);
  const std::string page = plot_html("t", svg, "row 1\nrow 2\n");
  EXPECT_NE(page.find("row 1\\nrow 2\\n"), std::string::npos);
  EXPECT_NE(page.find("\\u003csvg xmlns="), std::string::npos) << "the picture is data of the page, not its markup";
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(SimCheck, EveryPropertyHoldsOnEveryShippedMachine) {
  for (const std::string& name : spec::shipped_machines()) {
    const auto properties = study::check_properties(spec::find_machine(name)).value();
    EXPECT_EQ(properties.size(), 20U);
    for (const study::Property& p : properties) {
      EXPECT_GT(p.cases, 0) << p.name;
      EXPECT_EQ(p.failures, 0) << p.name << ": " << p.first_failure;
    }
  }
  EXPECT_EQ(study::check_properties({}).status().code(), Errc::not_supported);
}

TEST(SimCheck, ExitCodeAndData) {
  CheckWords words;
  words.json = "-";
  testing::internal::CaptureStdout();
  EXPECT_EQ(sim_check(words), 0);
  const base::Json json = base::Json::parse(testing::internal::GetCapturedStdout()).value();
  EXPECT_EQ(json.find("properties")->as_array().size(), 20U);
  words.machine = "nowhere";
  EXPECT_THROW(sim_check(words), InvalidArgument);
}

}  // namespace
}  // namespace overlace::cli
