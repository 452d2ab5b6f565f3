#include "cli/report/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

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

/// Empty if every tag is closed in order, else what is wrong. Text may hold no bare angle bracket.
std::string unbalanced(std::string_view html) {
  static const std::set<std::string, std::less<>> kVoid = {"meta", "br", "!doctype"};
  std::vector<std::string> open;
  const size_t style = html.find("<style>"), style_end = html.find("</style>");
  for (size_t i = 0; i < html.size(); ++i) {
    if (i == style + 7) i = style_end;  // CSS has child selectors
    if (html[i] == '>') return "stray > at ..." + std::string(html.substr(i > 40 ? i - 40 : 0, 60));
    if (html[i] != '<') continue;
    bool is_quoted = false;
    size_t end = i + 1;
    for (; end < html.size() && (is_quoted || html[end] != '>'); ++end) {
      if (html[end] == '"') is_quoted = !is_quoted;
      if (html[end] == '<') return "< in a tag at " + std::string(html.substr(i, 60));
    }
    const std::string_view tag = html.substr(i + 1, end - i - 1);
    const std::string name(tag.substr(0, tag.find_first_of(" /", tag.starts_with('/') ? 1 : 0)));
    i = end;
    if (kVoid.contains(name) || tag.ends_with('/')) continue;
    if (!name.starts_with('/')) {
      open.push_back(name);
    } else if (open.empty() || "/" + open.back() != name) {
      return name + " closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
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

TEST(Report, IsBalancedHtmlWithoutForeignResources) {
  const std::string page = html_report(sample());
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  for (const char* part : {"http", "<script", "src=", "href=", "@import", "url(data"})
    EXPECT_EQ(count(page, part), 0u) << part;
  EXPECT_EQ(count(page, "url("), count(page, "url(#"));
  for (char c : page) ASSERT_TRUE(static_cast<unsigned char>(c) < 0x80);
}

TEST(Report, ShowsSitesTotalsErrorsAndMachine) {
  const std::string page = html_report(sample());
  for (const char* part : {"<b>qkv</b> ag_gemm", "512 x 96 x 64", "8.00 us", "6.00 us", "5.50 us", "80 %", "-25 %",
                           "hetero_unfused_1d q=2", "chunks arrive meanwhile", "12.0 us", "11.0 us", "1.25e-06",
                           "1.5e-06", "verified", "medians of 15", "<dt>cores</dt><dd>2</dd>", "1.09x"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
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
  EXPECT_NE(page.find("<b>All layers</b>"), std::string::npos);
  EXPECT_NE(page.find("which is not the sum of the sites"), std::string::npos);
  EXPECT_EQ(page.find("attainable"), std::string::npos);
  Report unmeasured = sample();
  unmeasured.total.limit_us = 0;
  EXPECT_EQ(html_report(unmeasured).find("limit of all layers"), std::string::npos);
}

TEST(Report, SaysEmulatedOnlyAndEverywhereWhenItIs) {
  Report report = sample();
  EXPECT_EQ(count(html_report(report), "class=\"badge emulated\""), 0u);
  report.emulated = true;
  report.emulation = "link 2 GB/s, 20 us";
  EXPECT_EQ(count(html_report(report), "emulated link 2 GB/s, 20 us"), 3u);  // title, timelines, sites
}

TEST(Report, ShowsAFailedCheck) {
  Report report = sample();
  report.ok = false;
  const std::string page = html_report(report);
  EXPECT_NE(page.find("a check failed"), std::string::npos);
  EXPECT_EQ(page.find("verified"), std::string::npos);
}

TEST(Report, MarksTheSavedTimeOnOneScale) {
  const std::string page = html_report(sample());
  // 8 us serial, 6 us overlapped: a quarter, between 6 and 8 us of an axis of 8.08 us.
  EXPECT_NE(page.find("2.00 us saved (25 %)"), std::string::npos);
  EXPECT_NE(page.find("<g class=\"saved\"><rect class=\"area\" x=\"74.257%\""), std::string::npos);
  Report slower = sample();
  std::swap(slower.serial, slower.overlapped);
  slower.total.overlapped_us = 20;
  const std::string lost = html_report(slower);
  EXPECT_NE(lost.find("<g class=\"lost\">"), std::string::npos);
  EXPECT_NE(lost.find("2.00 us lost (33 %)"), std::string::npos);
  EXPECT_EQ(lost.find(" saved ("), std::string::npos);
  EXPECT_NE(lost.find("8.00 us lost</div>"), std::string::npos);
}

TEST(Report, EscapesWhatItIsGiven) {
  Report report = sample();
  const std::string evil = "<script>alert('x')</script>&\"";
  report.model = report.backend = report.dtype = evil;
  report.sites[0].name = report.sites[0].why = report.sites[0].schedule = evil;
  report.machine = {{evil, evil}};
  report.notes = {evil};
  report.overlapped.spans[0].name = report.overlapped.spans[0].lane = evil;
  report.overlapped.arrows[0].name = evil;
  const std::string page = html_report(report);
  EXPECT_EQ(count(page, "<script"), 0u);
  EXPECT_EQ(unbalanced(page), "");
}

TEST(Report, IsWholeWithoutTimelinesSitesOrNumbers) {
  const std::string empty = html_report(Report{});
  EXPECT_EQ(unbalanced(empty), "");
  EXPECT_NE(empty.find("No timeline was recorded."), std::string::npos);
  Report report = sample();
  report.sites[0].hidden = std::nan("");
  report.sites[0].serial_us = 0;
  report.total.hidden = std::nan("");
  report.serial = {};
  const std::string page = html_report(report);
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_EQ(count(page, "nan"), 0u);
  EXPECT_EQ(count(page, "aria-label=\"Serial timeline"), 0u);
  EXPECT_EQ(count(page, "aria-label=\"Overlapped timeline"), 1u);
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
