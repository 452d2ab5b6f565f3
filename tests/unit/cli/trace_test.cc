#include "cli/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "src/base/file.h"

namespace overlace::cli {
namespace {

base::Trace sample() {
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
  ASSERT_TRUE(base::write_trace(sample(), path("a.pftrace")).ok());
  const base::Result<std::string> info = trace_info(path("a.pftrace"));
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(*info, path("a.pftrace") +
                       "\n"
                       "ag_gemm M 512  [emulated]\n"
                       "2 ranks, 2 lanes, 4 spans, 1 signals, 10.0 us\n"
                       "\n"
                       "rank   lane               spans       busy busy %          moved       computed\n"
                       "0      cpu 0                  3    8.00 us     80              -      2 GFLOP/s\n"
                       "1      ce 0                   1    5.00 us     50         4 GB/s              -\n"
                       "\n"
                       "exposed communication\n"
                       "0         2.00 us    20 %\n"
                       "1         5.00 us    50 %\n");
}

TEST_F(TraceCommand, InfoOfAnEmptyTrace) {
  EXPECT_EQ(describe_trace({}), "(no title)\n0 ranks, 0 lanes, 0 spans, 0 signals, 0.00 us\n");
}

TEST_F(TraceCommand, ConvertsThereAndBack) {
  ASSERT_TRUE(base::write_trace(sample(), path("a.json")).ok());
  ASSERT_TRUE(trace_convert(path("a.json"), path("b.perfetto-trace")).ok());
  ASSERT_TRUE(trace_convert(path("b.perfetto-trace"), path("c.json")).ok());
  EXPECT_EQ(*base::read_file(path("c.json")), *base::read_file(path("a.json")));
  ASSERT_TRUE(trace_convert(path("c.json"), path("c.json")).ok());
  EXPECT_EQ(*base::read_file(path("c.json")), *base::read_file(path("a.json")));
}

TEST_F(TraceCommand, BadFilesAreTypedErrorsAndLeaveNothing) {
  EXPECT_EQ(trace_info(path("none.json")).status().code(), Errc::io);
  ASSERT_TRUE(base::write_file(path("bad.json"), "{\"traceEvents\": [").ok());
  EXPECT_EQ(trace_info(path("bad.json")).status().code(), Errc::corrupt);
  EXPECT_NE(trace_info(path("bad.json")).status().message().find(path("bad.json") + ": line 1"), std::string::npos);
  EXPECT_EQ(trace_convert(path("bad.json"), path("out.json")).code(), Errc::corrupt);
  ASSERT_TRUE(base::write_trace(sample(), path("good.json")).ok());
  EXPECT_EQ(trace_convert(path("good.json"), path("out.txt")).code(), Errc::invalid_argument);
  EXPECT_EQ(trace_convert(path("good.json"), path("no/out.json")).code(), Errc::io);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2);
}

}  // namespace
}  // namespace overlace::cli
