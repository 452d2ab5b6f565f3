// Traces of others: Chakra written and read, Kineto read.
#include <gtest/gtest.h>

#include <set>

#include "src/base/protobuf.h"
#include "src/sim/trace/chakra.h"
#include "src/sim/trace/kineto.h"
#include "src/sim/trace/trace.h"

namespace overlace::sim {
namespace {

using base::Json;
using base::Span;
using base::Trace;
using base::protobuf::append_varint;
using base::protobuf::Message;

Trace two_ranks() {
  Trace trace;
  trace.spans = {{0, "sm 0", "gemm_local", "gemm", 1000, 5500, 0, 2.5e9},
                 {0, "sm 0", "gemm_remote[s=1]", "gemm", 6000, 9001, 0, 3e9},
                 {1, "ce 0", "push[s=0]", "copy", 1000, 4000, 1 << 20, 0},
                 {1, "ce 0", "push[s=1]", "copy", 4000, 8000, 77, 0},
                 {1, "sm 0", "all_reduce", "collective", 8000, 9000, 4096, 0},
                 {0, "sm 0", "all_reduce", "collective", 9001, 9500, 4096, 0}};
  trace.arrows = {{"arrived[1]", 1, "ce 0", 4000, 0, "sm 0", 6000}, {"done", 1, "ce 0", 8000, 1, "sm 0", 8000}};
  return trace;
}

bool same(const Span& a, const Span& b, int64_t shift) {
  return a.rank == b.rank && a.lane == b.lane && a.name == b.name && a.category == b.category &&
         a.begin_ns == b.begin_ns + shift && a.end_ns == b.end_ns + shift && a.bytes == b.bytes &&
         (a.category == "collective" || a.flops == b.flops);
}

TEST(Chakra, WhatIsWrittenIsReadAgain) {
  const Trace trace = two_ranks();
  const std::vector<std::string> files = to_chakra(trace);
  ASSERT_EQ(files.size(), 2U);
  const Trace again = from_chakra(files, "files").value();
  ASSERT_EQ(again.spans.size(), trace.spans.size());
  for (const Span& span : trace.spans)
    EXPECT_TRUE(std::any_of(again.spans.begin(), again.spans.end(), [&](const Span& s) { return same(span, s, 1000); }))
        << span.name;
  // The signal between ranks is an arrow again, named and timed; the one inside a rank a dependence.
  std::set<std::string> arrows;
  for (const base::Arrow& a : again.arrows)
    arrows.insert(base::format("{} {} {} {} {} {} {}", a.name, a.from_rank, a.from_lane, a.from_ns, a.to_rank,
                               a.to_lane, a.to_ns));
  EXPECT_EQ(arrows, (std::set<std::string>{"arrived[1] 1 ce 0 3000 0 sm 0 5000", "push[s=1] 1 ce 0 7000 1 sm 0 7000"}));
  EXPECT_NEAR(diff_traces(trace, again)->median, 0, 1e-12);
  EXPECT_TRUE(to_chakra({}).empty());
}

void append(std::string* file, const Message& message) {
  append_varint(file, message.text().size());
  *file += message.text();
}
/// A trace as another program writes it: no attributes, dependences one by one.
std::string foreign(std::vector<std::vector<uint64_t>> deps, std::vector<uint64_t> us, uint64_t type = 4) {
  std::string file;
  append(&file, Message().bytes(1, "0.0.4"));
  for (size_t i = 0; i < deps.size(); ++i) {
    Message node = Message().bytes(2, base::format("n{}", i)).varint(3, i == 1 ? 7 : type).varint(7, us[i]);
    if (i > 0) node.varint(1, i);  // proto3 leaves out a zero
    for (const uint64_t dep : deps[i]) node.varint(4, dep);
    append(&file, node);
  }
  return file;
}

TEST(Chakra, NodesWithoutTimesAreReplayed) {
  // n1, a collective, needs n0; n2 computes beside it; n3 needs both.
  const Trace trace = from_chakra({foreign({{}, {0}, {}, {1, 2}}, {10, 20, 5, 1})}, "f").value();
  ASSERT_EQ(trace.spans.size(), 4U);
  EXPECT_EQ(trace.spans[1].begin_ns, 10000);
  EXPECT_EQ(trace.spans[1].lane, "comm");
  EXPECT_EQ(trace.spans[1].category, "collective");
  EXPECT_EQ(trace.spans[2].begin_ns, 10000);  // behind n0 on its lane
  EXPECT_EQ(trace.spans[3].begin_ns, 30000);
  EXPECT_EQ(trace.spans[3].end_ns, 31000);
}

/// A node with one attribute; field 7 is an int32, 9 an int64, 11 a uint32, 13 a uint64.
std::string with_attribute(const char* name, uint32_t number, int64_t value) {
  std::string file;
  append(&file, Message().bytes(1, "0.0.4"));
  append(&file, Message().bytes(2, "n").varint(3, 7).varint(7, 5).message(
                    10, Message().bytes(1, name).varint(number, static_cast<uint64_t>(value))));
  return file;
}

TEST(Chakra, NumbersOfOthersHaveSignsAndWidths) {
  for (const char* name : {"comm_tag", "comm_src", "comm_dst", "comm_size"})
    for (const uint32_t number : {7U, 9U}) {
      const auto trace = from_chakra({with_attribute(name, number, -1)}, "f");
      ASSERT_TRUE(trace.ok()) << trace.status().message();
      EXPECT_EQ(trace->spans.at(0).bytes, 0) << name;
    }
  EXPECT_EQ(from_chakra({with_attribute("comm_size", 11, 4096)}, "f")->spans.at(0).bytes, 4096);
  EXPECT_EQ(from_chakra({with_attribute("comm_size", 7, 77)}, "f")->spans.at(0).bytes, 77);
  const auto message = [](const char* name, uint32_t number) {
    return from_chakra({with_attribute(name, number, -1)}, "f").status().message();
  };
  const std::string wanted = ", wanted 0 to 1152921504606846976";
  EXPECT_EQ(message("duration_ns", 9), "f: rank 0: Chakra node 0: duration_ns is -1" + wanted);
  EXPECT_EQ(message("comm_size", 13), "f: rank 0: Chakra node 0: comm_size is 18446744073709551615" + wanted);
}

TEST(Chakra, RefusesWhatIsNone) {
  const auto refused = [](std::string file) {
    const auto trace = from_chakra({std::move(file)}, "f.et");
    EXPECT_EQ(trace.status().code(), Errc::corrupt);
    return trace.status().message();
  };
  EXPECT_EQ(refused(""), "f.et: rank 0: an empty file, wanted a Chakra trace");
  EXPECT_EQ(refused("\x7f"), "f.et: rank 0: Chakra node 0: a length beyond the end");
  EXPECT_EQ(refused(foreign({{0}}, {1})), "f.et: rank 0: 1 of 1 Chakra nodes depend on each other in a circle");
  EXPECT_EQ(refused(foreign({{1}, {0}, {}}, {1, 1, 1})),
            "f.et: rank 0: 2 of 3 Chakra nodes depend on each other in a circle");
  EXPECT_EQ(refused(foreign({{9}}, {1})), "f.et: rank 0: Chakra node 0: depends on node 9, which is not there");
  EXPECT_EQ(refused(foreign({{}}, {1}, 11)), "f.et: rank 0: Chakra node 0: type is 11, wanted 1 to 10");
  EXPECT_EQ(refused(foreign({{}}, {uint64_t{1} << 60})), "f.et: rank 0: Chakra node 0: a time is out of range");
  std::string twice = foreign({{}}, {1});
  append(&twice, Message().bytes(2, "again").varint(3, 4));
  EXPECT_EQ(refused(twice), "f.et: rank 0: Chakra node 1: its id 0 is taken");
  std::string version;
  append(&version, Message().bytes(1, "7"));
  EXPECT_EQ(refused(version), "f.et: rank 0: Chakra version is \"7\", wanted 0.0.x");
  std::string cut = to_chakra(two_ranks())[0];
  for (size_t length = 1; length < cut.size(); ++length) {
    const auto trace = from_chakra({cut.substr(0, length)}, "cut");
    EXPECT_TRUE(trace.ok() || trace.status().code() == Errc::corrupt) << length;
  }
  std::string sum = foreign({{}, {}, {}}, {uint64_t{1} << 49, uint64_t{1} << 49, uint64_t{1} << 49});
  EXPECT_TRUE(from_chakra({sum}, "f").ok());
}

constexpr const char* kKineto = R"json({
  "schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
  "traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 1000.0, "dur": 5.5},
    {"ph": "X", "cat": "kernel", "name": "nvjet_tst_128x256", "pid": 0, "tid": 7, "ts": 1010.5, "dur": 100.25,
     "args": {"stream": 7, "device": 0}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "pid": 0, "tid": 20, "ts": 1020, "dur": 50,
     "args": {"stream": 20, "In msg nelems": 1024, "dtype": "BFloat16"}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP (Device -> Device)", "pid": 0, "tid": 21, "ts": 1015,
     "dur": 12, "args": {"stream": 21, "bytes": 1048576}},
    {"ph": "s", "id": 1, "pid": 9, "tid": 9, "ts": 1000, "cat": "ac2g", "name": "ac2g"}]})json";

TEST(Kineto, KernelsOfOneRank) {
  const Json root = Json::parse(kKineto).value();
  ASSERT_TRUE(is_foreign_chrome(root));
  const Trace trace = parse_kineto(root, "k.json").value();
  ASSERT_EQ(trace.spans.size(), 3U);  // no CPU operator
  EXPECT_EQ(trace.spans[0].rank, 3);
  EXPECT_EQ(trace.spans[0].lane, "stream 7");
  EXPECT_EQ(trace.spans[0].category, "gemm");
  EXPECT_EQ(trace.spans[0].begin_ns, 0);
  EXPECT_EQ(trace.spans[0].end_ns, 100250);
  EXPECT_EQ(trace.spans[1].category, "collective");
  EXPECT_EQ(trace.spans[1].begin_ns, 9500);
  EXPECT_EQ(trace.spans[1].bytes, 2048);
  EXPECT_EQ(trace.spans[2].category, "copy");
  EXPECT_EQ(trace.spans[2].bytes, 1048576);
}

TEST(Kineto, OtherProgramsSlicesAndOurOwn) {
  const Json slices =
      Json::parse(R"([{"ph": "X", "name": "work", "pid": 1, "tid": "main", "ts": 5, "dur": 2}])").value();
  const Trace trace = parse_kineto(slices, "s").value();
  ASSERT_EQ(trace.spans.size(), 1U);
  EXPECT_EQ(trace.spans[0].lane, "1 main");
  EXPECT_FALSE(is_foreign_chrome(Json::parse(base::to_chrome_json(two_ranks())).value()));
  EXPECT_FALSE(is_foreign_chrome(Json::parse(two_ranks().to_json()).value()));
}

TEST(Kineto, RefusesWhatIsNone) {
  const auto refused = [](const char* text) {
    const auto trace = parse_kineto(Json::parse(text).value(), "k");
    EXPECT_EQ(trace.status().code(), Errc::corrupt) << text;
    return trace.status().message();
  };
  EXPECT_EQ(refused("{}"), "k: traceEvents: wanted an array");
  EXPECT_EQ(refused("[]"), "k: no complete event, wanted kernels or slices");
  EXPECT_EQ(refused("[7]"), "k: trace event 0: wanted an object");
  EXPECT_EQ(refused(R"([{"ph": "X", "name": "a", "ts": 1}])"), "k: trace event 0: dur: wanted a number");
  EXPECT_EQ(refused(R"([{"ph": "X", "name": "a", "ts": "1", "dur": 1}])"), "k: trace event 0: ts: wanted a number");
  EXPECT_EQ(refused(R"([{"ph": "X", "name": "a", "ts": 1, "dur": -1}])"), "k: trace event 0: dur: out of range");
  EXPECT_EQ(refused(R"([{"ph": "X", "name": "a", "ts": 1e300, "dur": 1}])"), "k: trace event 0: ts: out of range");
  EXPECT_EQ(refused(R"([{"ph": "X", "ts": 1, "dur": 1}])"), "k: trace event 0: name: wanted a string");
  EXPECT_EQ(refused(R"({"distributedInfo": {"rank": -1}, "traceEvents": []})"),
            "k: distributedInfo: rank is -1, wanted 0 to 65535");
  refused(R"({"distributedInfo": {"rank": "0"}, "traceEvents": []})");
  refused(R"([{"ph": "X", "name": "a", "ts": -9e15, "dur": 1}, {"ph": "X", "name": "b", "ts": 9e15, "dur": 1}])");
}

/// Kernel names are not ids of tasks: the n-th product is the n-th product.
TEST(TraceDiff, ByKind) {
  Trace measured, simulated;
  measured.spans = {{0, "stream 7", "nvjet_a", "gemm", 0, 100, 0, 0},
                    {0, "stream 7", "nvjet_b", "gemm", 100, 300, 0, 0}};
  simulated.spans = {{0, "sm 0", "gemm[s=0]", "gemm", 0, 110, 0, 0}, {0, "sm 0", "gemm[s=1]", "gemm", 110, 290, 0, 0}};
  EXPECT_EQ(diff_traces(measured, simulated).status().code(), Errc::invalid_argument);
  const TraceDiff diff = diff_traces(measured, simulated, Match::kind).value();
  ASSERT_EQ(diff.rows.size(), 2U);
  EXPECT_NEAR(diff.median, 0.1, 1e-9);
  simulated.spans.pop_back();
  EXPECT_EQ(diff_traces(measured, simulated, Match::kind).status().message(),
            "traces: 1 tasks of a kind are on one side only, wanted as many of each kind on a rank: gemm (turn 2) of "
            "rank 0 is in the first trace only");
}

}  // namespace
}  // namespace overlace::sim
