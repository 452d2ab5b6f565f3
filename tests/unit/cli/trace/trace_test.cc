#include "cli/trace/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "cli/report/timeline.h"
#include "src/base/file.h"
#include "src/exec/arrows.h"
#include "src/exec/run.h"
#include "src/exec/timeline.h"

namespace overlace::cli {
namespace {

base::Trace sample_trace() {
  base::Trace t;
  t.title = "ag_gemm M 512";
  t.emulated = true;
  t.spans = {{0, "cpu 0", "gemm_local", "gemm", 0, 4000, 0, 8000},
             {0, "cpu 0", "wait", "wait", 4000, 6000, 0, 0},
             {0, "cpu 0", "gemm_remote", "gemm", 6000, 10000, 0, 8000},
             {1, "ce 0", "copy[s=0]", "copy", 1000, 6000, 20000, 0}};
  t.arrows = {{"arrived[1]", 1, "ce 0", 6000, 0, "cpu 0", 6000}};
  return t;
}

class TraceCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/overlace_cli_trace_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string path(const std::string& name) const { return folder + "/" + name; }
  std::string folder;
};

TEST_F(TraceCommand, InfoSaysWhatIsInIt) {
  ASSERT_TRUE(base::write_trace(sample_trace(), path("a.pftrace")).ok());
  const base::Result<base::Trace> trace = load_trace(path("a.pftrace"));
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(describe_trace(*trace),
            "ag_gemm M 512  [emulated]\n"
            "2 ranks, 2 lanes, 4 spans, 1 signals, 10.0 us\n"
            "\n"
            "rank   lane               spans       busy busy %          moved       computed\n"
            "0      cpu 0                  3    8.00 us     80              -      2 GFLOP/s\n"
            "1      ce 0                   1    5.00 us     50         4 GB/s              -\n"
            "\n"
            "task                           kind         spans        all    longest\n"
            "copy                           copy             1    5.00 us    5.00 us\n"
            "gemm_local                     gemm             1    4.00 us    4.00 us\n"
            "gemm_remote                    gemm             1    4.00 us    4.00 us\n"
            "wait                           wait             1    2.00 us    2.00 us\n"
            "\n"
            "exposed communication\n"
            "0         2.00 us    20 %\n"
            "1         5.00 us    50 %\n");
}

TEST_F(TraceCommand, TasksOfOthersKeepTheirBrackets) {
  base::Trace trace;
  int64_t ns = 1000;
  for (const char* name : {"gemm[1][2]", "gemm[0][a[3]]", "[pack]", "[pack][1]", "void foo(float [3])", "x]", "[2"}) {
    trace.spans.push_back({0, "cpu 0", name, "gemm", 0, ns, 0, 0});
    ns *= 2;
  }
  std::set<std::string> tasks;
  const base::Json json = trace_json(trace);
  for (const base::Json& task : json.find("tasks")->as_array()) tasks.insert(task.find("task")->as_string());
  EXPECT_EQ(tasks, (std::set<std::string>{"gemm", "[pack]", "void foo(float [3])", "x]", "[2"}));
}

TEST_F(TraceCommand, InfoOfAnEmptyTrace) {
  EXPECT_EQ(describe_trace({}), "(no title)\n0 ranks, 0 lanes, 0 spans, 0 signals, 0.00 us\n");
}

TEST_F(TraceCommand, ConvertsThereAndBack) {
  ASSERT_TRUE(base::write_trace(sample_trace(), path("a.json")).ok());
  ASSERT_TRUE(trace_convert(path("a.json"), path("b.perfetto-trace")).ok());
  ASSERT_TRUE(trace_convert(path("b.perfetto-trace"), path("c.json")).ok());
  EXPECT_EQ(*base::read_file(path("c.json")), *base::read_file(path("a.json")));
  ASSERT_TRUE(trace_convert(path("c.json"), path("c.json")).ok());
  EXPECT_EQ(*base::read_file(path("c.json")), *base::read_file(path("a.json")));
}

TEST_F(TraceCommand, BadFilesAreTypedErrorsAndLeaveNothing) {
  EXPECT_EQ(load_trace(path("none.json")).status().code(), Errc::io);
  ASSERT_TRUE(base::write_file(path("bad.json"), "{\"traceEvents\": [").ok());
  EXPECT_EQ(load_trace(path("bad.json")).status().code(), Errc::corrupt);
  EXPECT_NE(load_trace(path("bad.json")).status().message().find(path("bad.json") + ": line 1"), std::string::npos);
  EXPECT_EQ(trace_convert(path("bad.json"), path("out.json")).code(), Errc::corrupt);
  ASSERT_TRUE(base::write_trace(sample_trace(), path("good.json")).ok());
  EXPECT_EQ(trace_convert(path("good.json"), path("out.txt")).code(), Errc::invalid_argument);
  EXPECT_EQ(trace_convert(path("good.json"), path("no/out.json")).code(), Errc::io);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2);
}

TEST_F(TraceCommand, FewerRanksLeaveNoFileOfMore) {
  base::Trace trace = sample_trace();
  for (int rank = 2; rank < 5; ++rank) trace.spans.push_back({rank, "cpu 0", "late", "gemm", 0, 1000, 0, 8});
  ASSERT_TRUE(write_timeline(trace, path("run.et")).ok());
  ASSERT_TRUE(std::filesystem::exists(path("run.4.et")));
  ASSERT_TRUE(base::write_file(path("run.6.et"), "of somebody else: not one of theirs").ok());
  ASSERT_TRUE(write_timeline(sample_trace(), path("run.et")).ok());
  EXPECT_EQ(load_trace(path("run.et"))->spans.size(), sample_trace().spans.size());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 3);
}

TEST_F(TraceCommand, AFileOfAllRanksIsNotHiddenBehindThoseOfEach) {
  ASSERT_TRUE(base::write_file(path("run.et"), "somebody's").ok());
  EXPECT_EQ(
      write_timeline(sample_trace(), path("run.et")).message(),
      path("run.et") + ": it is there and would be read in place of " + path("run.0.et") + ", wanted another name");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST_F(TraceCommand, OneHighRankWritesNoThousandFiles) {
  base::Trace trace;
  trace.spans = {{3000, "stream 7", "nvjet", "gemm", 0, 1000, 0, 0}};
  EXPECT_EQ(write_timeline(trace, path("run.et")).message(),
            path("run.et") + ": 3000 of 3001 ranks have nothing, wanted at most 256: Chakra has a file per rank");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  trace.spans[0].rank = 3;  // its rank is kept
  ASSERT_TRUE(write_timeline(trace, path("run.et")).ok());
  EXPECT_EQ(load_trace(path("run.et"))->spans.at(0).rank, 3);
}

TEST_F(TraceCommand, ANameThatNoFileCanHaveIsAnError) {
  const std::string name = path(std::string(400, 'a') + ".et");
  EXPECT_EQ(load_trace(name).status().code(), Errc::io);
  EXPECT_EQ(write_timeline(sample_trace(), name).code(), Errc::io);
}

/// One rank's span over two marks.
exec::Recording::MarkedSpan marked(int rank, const char* lane, const char* name, const char* category, size_t begin,
                                   size_t end) {
  base::Span span;
  span.rank = rank;
  span.lane = lane;
  span.name = name;
  span.category = category;
  return {span, begin, end};
}

TEST(TraceInfo, ExposedCommunicationOfWhatGpusRecord) {
  exec::Recording sender, receiver;
  sender.spans = {marked(0, "sm 0", "qkv gemm_own", "gemm", 0, 1),
                  marked(0, "ce 0", "qkv push[s=0,p=1]", "copy", 0, 2)};
  sender.halves = {{exec::sent_half("arrived[0]", 1, 0, "ce 0", 0, 1), 2}};
  receiver.spans = {marked(1, "sm 0", "qkv gemm_own", "gemm", 0, 1),
                    marked(1, "sm 0", "qkv wait arrived[0]", "wait", 1, 2),
                    marked(1, "sm 0", "qkv gemm_remote[s=0]", "gemm", 2, 3)};
  receiver.halves = {{exec::seen_half("arrived[0]", 1, 0, 1, "sm 0", 0), 2}};
  const std::vector<int64_t> sender_ns = {100000, 300000, 400000}, receiver_ns = {100000, 250000, 420000, 600000};
  base::Trace trace = exec::timed(sender, sender_ns);
  trace.merge(exec::timed(receiver, receiver_ns));
  exec::join_arrows(trace);
  ASSERT_EQ(trace.arrows.size(), 1u);
  const Intervals at_sender = exposed_communication(trace, 0), at_receiver = exposed_communication(trace, 1);
  ASSERT_EQ(at_sender.size(), 1u);  // its push outlasts its GEMM
  EXPECT_EQ(at_sender[0].begin, 300000);
  EXPECT_EQ(at_sender[0].end, 400000);
  ASSERT_EQ(at_receiver.size(), 1u);  // the push hides behind its GEMM until it waits
  EXPECT_EQ(at_receiver[0].begin, 250000);
  EXPECT_EQ(at_receiver[0].end, 420000);
  const std::string text = describe_trace(trace);
  EXPECT_NE(text.find("2 ranks, 3 lanes, 5 spans, 1 signals, 500 us"), std::string::npos) << text;
}

}  // namespace
}  // namespace overlace::cli
