#include "cli/report/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cli/report/page.h"
#include "cli/report/timeline.h"

namespace overlace::cli {
namespace {

using base::Span;
using base::Trace;

size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

/// The JSON value in the page's block of data.
base::Json data_of(std::string_view page) {
  static constexpr std::string_view kBegin = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(kBegin), end = page.find("</script>", begin);
  return base::Json::parse(page.substr(begin + kBegin.size(), end - begin - kBegin.size()), "the page").value();
}

/// Blocks and sections that have this title, with those in columns.
std::vector<base::Json> sections_of(const base::Json& data, std::string_view title) {
  std::vector<base::Json> found, all;
  for (const base::Json& block : data.find("blocks")->as_array()) {
    all.push_back(block);
    if (const base::Json* sections = block.find("sections"))
      all.insert(all.end(), sections->as_array().begin(), sections->as_array().end());
  }
  for (const base::Json& one : all)
    if (one.find("title") != nullptr && *one.find("title") == base::Json(title)) found.push_back(one);
  return found;
}

/// The run of the timelines with this title, or null.
base::Json run_of(const base::Json& data, std::string_view title) {
  const base::Json when = sections_of(data, "What happened when").at(0);
  const base::Json* runs = when.find("parts")->as_array().at(0).find("runs");
  if (runs == nullptr) return {};
  for (const base::Json& run : runs->as_array())
    if (run.find("title")->as_string() == title) return run;
  return {};
}

Trace serial_trace() {
  Trace t;
  t.spans = {{0, "cpu 0", "all_gather", "collective", 1000, 3000, 64, 0},
             {0, "cpu 0", "gemm_all", "gemm", 3000, 9000, 0, 1e6},
             {1, "cpu 0", "all_gather", "collective", 1000, 3000, 64, 0},
             {1, "cpu 0", "gemm_all", "gemm", 3000, 9000, 0, 1e6}};
  return t;
}

Trace overlapped_trace() {
  Trace t;
  t.spans = {
      {0, "cpu 0", "gemm_local", "gemm", 500, 3500, 0, 5e5},   {0, "ce 0", "copy[s=1]", "copy", 500, 2500, 64, 0},
      {0, "cpu 0", "gemm_remote", "gemm", 3500, 6500, 0, 5e5}, {1, "cpu 0", "gemm_local", "gemm", 500, 2000, 0, 5e5},
      {1, "cpu 0", "wait", "wait", 2000, 2500, 0, 0},          {1, "cpu 0", "gemm_remote", "gemm", 2500, 6500, 0, 5e5}};
  t.arrows = {{"arrived[0]", 0, "ce 0", 2500, 1, "cpu 0", 2500}};
  return t;
}

Report sample() {
  Report r;
  r.model = "tiny";
  r.ranks = 2;
  r.backend = "cpu";
  r.dtype = "fp32";
  r.sites = {{"qkv", "ag_gemm", 512, 96, 64, 8, 6, 5.5, 0.8, "hetero_unfused_1d q=2", "chunks arrive meanwhile"},
             {"down", "gemm_rs", 512, 64, 128, 4, 5, 3, -0.25, "library", "too small"}};
  r.total = {12, 11, 8.5, 0.3};
  r.ok = true;
  r.error = 1.25e-6;
  r.baseline_error = 1.5e-6;
  r.serial = serial_trace();
  r.overlapped = overlapped_trace();
  r.run = {{"layers", "2"}};
  r.machine = {{"cores", "2"}};
  r.notes = {"medians of 15"};
  return r;
}

TEST(Exposed, IsCommunicationWithoutComputation) {
  EXPECT_EQ(total_ns(exposed_communication(serial_trace(), 0)), 2000);
  EXPECT_EQ(total_ns(exposed_communication(overlapped_trace(), 0)), 0);
  // Rank 1 has no copy of its own: what rank 0 moved to it counts from the end of its local GEMM on.
  const Intervals exposed = exposed_communication(overlapped_trace(), 1);
  ASSERT_EQ(exposed.size(), 1u);
  EXPECT_EQ(exposed[0].begin, 2000);
  EXPECT_EQ(exposed[0].end, 2500);
  EXPECT_EQ(total_ns(exposed_communication(overlapped_trace(), 7)), 0);
}

TEST(Exposed, JoinsLanesAndSplitsAroundComputation) {
  Trace t;
  t.spans = {{0, "ce 0", "a", "copy", 0, 60, 1, 0},   {0, "ce 1", "b", "copy", 40, 100, 1, 0},
             {0, "sm 0", "x", "gemm", 10, 20, 0, 0},  {0, "sm 0", "y", "reduce", 30, 50, 0, 0},
             {0, "sm 1", "z", "other", 45, 70, 0, 0}, {0, "sm 0", "w", "wait", 70, 100, 0, 0},
             {0, "ce 0", "c", "copy", 200, 200, 1, 0}};
  const Intervals exposed = exposed_communication(t, 0);
  ASSERT_EQ(exposed.size(), 3u);
  EXPECT_EQ(exposed[0].begin, 0);
  EXPECT_EQ(exposed[0].end, 10);
  EXPECT_EQ(exposed[1].begin, 20);
  EXPECT_EQ(exposed[1].end, 30);
  EXPECT_EQ(exposed[2].begin, 70);
  EXPECT_EQ(exposed[2].end, 100);
}

TEST(Exposed, CountsBusyLinksAtBothEndsAndWaits) {
  Trace t;
  t.spans = {{0, "link 0->1", "transfer", "copy", 0, 100, 1, 0},
             {0, "sm 0", "x", "gemm", 0, 80, 0, 0},
             {1, "sm 0", "y", "gemm", 0, 30, 0, 0},
             {11, "sm 0", "z", "gemm", 0, 30, 0, 0},
             {11, "sm 0", "w", "wait", 30, 45, 0, 0}};
  EXPECT_EQ(total_ns(exposed_communication(t, 0)), 20);
  EXPECT_EQ(total_ns(exposed_communication(t, 1)), 70);
  EXPECT_EQ(total_ns(exposed_communication(t, 11)), 15);
}

TEST(Duration, HasThreeDigitsAndItsUnit) {
  EXPECT_EQ(duration_text(0), "0.00 us");
  EXPECT_EQ(duration_text(3.14159), "3.14 us");
  EXPECT_EQ(duration_text(872.7), "873 us");
  EXPECT_EQ(duration_text(999.6), "1.00 ms");
  EXPECT_EQ(duration_text(12345), "12.3 ms");
  EXPECT_EQ(duration_text(6.5e6), "6.50 s");
  EXPECT_EQ(duration_text(-1500), "-1.50 ms");
  EXPECT_EQ(duration_text(std::nan("")), "n/a");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "n/a");
}

TEST(Report, IsOnePageWithoutForeignResources) {
  const std::string page = html_report(sample());
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_EQ(count(page, "@DATA@"), 0u);
  EXPECT_EQ(count(page, "<script"), 2u);  // data, and the template's own
  for (const char* part : {"http", "src=", "href=", "@import", "url(data", "innerHTML", "eval("})
    EXPECT_EQ(count(page, part), 0u) << part;
  EXPECT_EQ(count(page, "url("), count(page, "url(#"));
  for (char c : page) ASSERT_TRUE(static_cast<unsigned char>(c) < 0x80);
}

TEST(Report, ShowsSitesTotalsErrorsAndMachine) {
  const std::string page = html_report(sample());
  for (const char* part :
       {"\"qkv\"", "\" ag_gemm\"", "512 x 96 x 64", "80 %", "-25 %", "hetero_unfused_1d q=2", "chunks arrive meanwhile",
        "[\"overlapped run\",\"1.25e-06\"]", "1.5e-06", "\"verified\"", "medians of 15", "[\"cores\",\"2\"]", "1.09x"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  const base::Json sites = sections_of(data_of(page), "Sites").at(0), table = sites.find("parts")->as_array().at(0);
  const auto texts = [](const base::Json& row) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < 4; ++i) cells.push_back(row.find("cells")->as_array().at(i).as_string());
    return cells;
  };
  using Texts = std::vector<std::string>;
  ASSERT_EQ(table.find("rows")->as_array().size(), 2u);
  const base::Json& qkv = table.find("rows")->as_array()[0];
  EXPECT_EQ(texts(qkv), (Texts{"8.00 us", "6.00 us", "5.50 us", "80 %"}));
  EXPECT_EQ(texts(*table.find("foot")), (Texts{"12.0 us", "11.0 us", "8.50 us", "30 %"}));
  // Bars on the scale of the longest run, 8 us.
  const base::Json& picture = qkv.find("cells")->as_array()[4];
  EXPECT_DOUBLE_EQ(picture.find("bars")->as_array().at(0).find("at")->as_double(), 100);
  EXPECT_DOUBLE_EQ(picture.find("bars")->as_array().at(1).find("at")->as_double(), 75);
  EXPECT_DOUBLE_EQ(picture.find("marks")->as_array().at(0).find("at")->as_double(), 68.75);
}

TEST(Report, ShowsTheRunThatIsNearestToTheMedian) {
  const auto lasting = [](int64_t us) {
    base::Trace t;
    t.spans = {{0, "cpu 0", "gemm", "gemm", 5000, 5000 + us * 1000, 0, 0}};
    return t;
  };
  const std::vector<base::Trace> traces = {lasting(90), lasting(52), lasting(47), lasting(130)};
  EXPECT_EQ(most_typical(traces, 50), 1u);
  EXPECT_EQ(most_typical(traces, 49), 2u);
  EXPECT_EQ(most_typical(traces, 1000), 3u);
  EXPECT_EQ(most_typical({lasting(1)}, 1000), 0u);
}

TEST(Report, TellsTheLimitOfAllLayersFromThoseOfSites) {
  const std::string page = html_report(sample());
  EXPECT_NE(page.find("limit of all layers: 1.41x"), std::string::npos) << "12 us serial, 8.5 us";
  EXPECT_NE(page.find("All layers"), std::string::npos);
  EXPECT_NE(page.find("which is not the sum of the sites"), std::string::npos);
  EXPECT_EQ(page.find("attainable"), std::string::npos);
  Report unmeasured = sample();
  unmeasured.total.limit_us = 0;
  EXPECT_EQ(html_report(unmeasured).find("limit of all layers"), std::string::npos);
}

TEST(Report, NoCardContradictsAnother) {
  Report report = sample();
  report.total = {12, 8, 8.5, 0.9};  // noise: faster than its limit
  const std::string page = html_report(report);
  EXPECT_NE(page.find("\"1.50x\""), std::string::npos);
  EXPECT_NE(page.find("at the limit of all layers, whose own run measured 1.41x"), std::string::npos);
  EXPECT_EQ(page.find("limit of all layers: "), std::string::npos);
  // Each says of what it is.
  EXPECT_NE(page.find("\"all layers: computation, then communication\""), std::string::npos);
  EXPECT_NE(page.find("\"all layers: 4.00 us saved\""), std::string::npos);
  EXPECT_NE(page.find("\"of the communication of sites timed one by one\""), std::string::npos);
}

TEST(Report, SaysEmulatedOnlyAndEverywhereWhenItIs) {
  Report report = sample();
  EXPECT_EQ(count(html_report(report), "\"kind\":\"emulated\""), 0u);
  report.emulated = true;
  report.emulation = "link 2 GB/s, 20 us";
  EXPECT_EQ(count(html_report(report), "emulated link 2 GB/s, 20 us"), 3u);  // title, timelines, sites
}

TEST(Report, ShowsAFailedCheck) {
  Report report = sample();
  report.ok = false;
  const std::string page = html_report(report);
  EXPECT_NE(page.find("a check failed"), std::string::npos);
  EXPECT_EQ(page.find("\"verified\""), std::string::npos);
}

TEST(Report, MarksTheSavedTimeOnOneScale) {
  const base::Json data = report_data(sample());
  const base::Json timelines = sections_of(data, "What happened when").at(0).find("parts")->as_array().at(0);
  EXPECT_DOUBLE_EQ(timelines.find("length")->as_double(), 8080);
  // 8 us serial, 6 us overlapped: a quarter, between 6 and 8 us.
  EXPECT_TRUE(run_of(data, "Serial").find("difference")->is_null());
  const base::Json saved = *run_of(data, "Overlapped").find("difference");
  EXPECT_EQ(saved.find("text")->as_string(), "2.00 us saved (25 %)");
  EXPECT_EQ(saved.find("kind")->as_string(), "saved");
  EXPECT_EQ(saved.find("begin")->as_int(), 6000);
  EXPECT_EQ(saved.find("end")->as_int(), 8000);
  Report slower = sample();
  std::swap(slower.serial, slower.overlapped);
  slower.total.overlapped_us = 20;
  const base::Json lost = report_data(slower);
  EXPECT_TRUE(run_of(lost, "Overlapped").find("difference")->is_null());
  EXPECT_EQ(run_of(lost, "Serial").find("difference")->find("text")->as_string(), "2.00 us lost (33 %)");
  EXPECT_EQ(run_of(lost, "Serial").find("difference")->find("kind")->as_string(), "lost");
  EXPECT_EQ(lost.dump().find(" saved ("), std::string::npos);
  EXPECT_NE(lost.dump().find("\"all layers: 8.00 us lost\""), std::string::npos);
}

TEST(Report, TimelinesHaveSpansExposedPartsAndArrowsFromTheBegin) {
  const base::Json run = run_of(report_data(sample()), "Overlapped");
  EXPECT_EQ(run.find("total")->as_string(), "6.00 us");
  EXPECT_EQ(run.find("exposed")->as_string(), "0.50 us");
  ASSERT_EQ(run.find("ranks")->as_array().size(), 2u);
  const base::Json& first = run.find("ranks")->as_array()[0];
  EXPECT_EQ(first.find("exposed")->as_string(), "0");
  // The lane that computes comes first, though "ce 0" is before "cpu 0".
  const base::Json& lane = first.find("lanes")->as_array().at(0);
  EXPECT_EQ(lane.find("name")->as_string(), "cpu 0");
  const base::Json& span = lane.find("spans")->as_array().at(1);
  EXPECT_EQ(span.find("begin")->as_int(), 3000);
  EXPECT_EQ(span.find("end")->as_int(), 6000);
  EXPECT_EQ(span.find("kind")->as_string(), "gemm");
  EXPECT_EQ(span.find("title")->as_string(), "gemm_remote (gemm), rank 0, cpu 0: 3.00 us from 3.00 us, 167 GFLOP/s");
  const base::Json& exposed = run.find("ranks")->as_array()[1].find("exposed_spans")->as_array().at(0);
  EXPECT_EQ(exposed.find("begin")->as_int(), 1500);
  EXPECT_EQ(exposed.find("end")->as_int(), 2000);
  const base::Json& arrow = run.find("arrows")->as_array().at(0);
  EXPECT_EQ(arrow.find("from")->as_string(), "0 ce 0");
  EXPECT_EQ(arrow.find("to")->as_string(), "1 cpu 0");
  EXPECT_EQ(arrow.find("begin")->as_int(), 2000);
}

TEST(Report, NothingGivenCanEndTheDataOrBecomeMarkup) {
  Report report = sample();
  const std::string evil = "</script><script>alert('x')</script><!--&\"\\";
  report.model = report.backend = report.dtype = evil;
  report.sites[0].name = report.sites[0].why = report.sites[0].schedule = evil;
  report.machine = {{evil, evil}};
  report.notes = {evil};
  report.overlapped.spans[0].name = report.overlapped.spans[0].lane = evil;
  report.overlapped.arrows[0].name = evil;
  const std::string page = html_report(report);
  EXPECT_EQ(count(page, "<script"), count(html_report(sample()), "<script"));
  EXPECT_EQ(count(page, "</script"), count(html_report(sample()), "</script"));
  EXPECT_EQ(count(page, "alert('x')<"), 0u);
  EXPECT_EQ(data_of(page), report_data(report)) << "what was escaped reads back";
  EXPECT_EQ(data_of(page).find("heading")->as_string(), evil);
}

TEST(Report, IsWholeWithoutTimelinesSitesOrNumbers) {
  const std::string empty = html_report(Report{});
  EXPECT_NE(empty.find("No timeline was recorded."), std::string::npos);
  EXPECT_TRUE(sections_of(data_of(empty), "Sites").empty());
  Report report = sample();
  report.sites[0].hidden = std::nan("");
  report.sites[0].serial_us = 0;
  report.total.hidden = std::nan("");
  report.serial = {};
  const base::Json data = report_data(report);
  EXPECT_EQ(count(data.dump(), "nan"), 0u);
  EXPECT_TRUE(run_of(data, "Serial").is_null());
  EXPECT_FALSE(run_of(data, "Overlapped").is_null());
}

TEST(Report, LongRunsStaySmall) {
  Report report = sample();
  report.overlapped = {};
  for (int i = 0; i < 100000; ++i) {
    report.overlapped.spans.push_back({i % 4, "cpu 0", "gemm", "gemm", i * 100, i * 100 + 300, 0, 1});
    report.overlapped.arrows.push_back({"a", i % 4, "cpu 0", i * 100, (i + 1) % 4, "cpu 0", i * 100});
  }
  const std::string page = html_report(report);
  EXPECT_LT(page.size(), 2u << 20);
  EXPECT_NE(page.find("100000 signals are too many to draw"), std::string::npos);
  EXPECT_NE(page.find(" more (gemm), rank 0"), std::string::npos);
}

}  // namespace
}  // namespace overlace::cli
