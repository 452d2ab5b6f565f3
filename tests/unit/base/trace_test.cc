#include "src/base/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <tuple>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/trace_formats.h"

namespace overlace::base {
namespace {

auto key(const Span& s) { return std::tie(s.rank, s.lane, s.name, s.category, s.begin_ns, s.end_ns, s.bytes, s.flops); }
auto key(const Arrow& a) {
  return std::tie(a.name, a.from_rank, a.from_lane, a.from_ns, a.to_rank, a.to_lane, a.to_ns);
}

template <class T>
void sort_rows(std::vector<T>& rows) {
  std::sort(rows.begin(), rows.end(), [](const T& a, const T& b) { return key(a) < key(b); });
}

/// Equal but for the order of spans and arrows.
void expect_same(Trace got, Trace want) {
  EXPECT_EQ(got.title, want.title);
  EXPECT_EQ(got.emulated, want.emulated);
  ASSERT_EQ(got.spans.size(), want.spans.size());
  ASSERT_EQ(got.arrows.size(), want.arrows.size());
  sort_rows(got.spans), sort_rows(want.spans), sort_rows(got.arrows), sort_rows(want.arrows);
  for (size_t i = 0; i < got.spans.size(); ++i)
    EXPECT_EQ(key(got.spans[i]), key(want.spans[i])) << "span " << i << " " << want.spans[i].name;
  for (size_t i = 0; i < got.arrows.size(); ++i)
    EXPECT_EQ(key(got.arrows[i]), key(want.arrows[i])) << "arrow " << i << " " << want.arrows[i].name;
}

/// Two ranks, two lanes each; spans that touch, overlap and are empty; arrows at borders, inside and outside of spans.
Trace sample() {
  Trace t;
  t.title = "ag_gemm \"M 8192\"\n\xC3\xA9";
  t.emulated = true;
  t.spans = {{0, "sm 0", "gemm_local", "gemm", 0, 1500, 0, 2.5e9},
             {0, "sm 0", "gemm_remote[s=1]", "gemm", 1500, 4001, 0, 1e-3},
             {0, "ce 0", "copy[s=1]", "copy", 10, 1400, 1 << 20, 0},
             {1, "sm 0", "gemm_local", "gemm", 3, 1600, 0, 2.5e9},
             {1, "ce 0", "copy[s=0]", "copy", 5, 1450, int64_t{1} << 40, 0},
             {1, "ce 0", "copy[s=0] again", "copy", 700, 2000, 7, 0},
             {1, "ce 0", "marker", "other", 1450, 1450, 0, 0}};
  t.arrows = {{"arrived[1]", 0, "ce 0", 1400, 1, "sm 0", 1600},
              {"arrived[0]", 1, "ce 0", 1450, 0, "sm 0", 1500},
              {"odd", 0, "sm 0", 20, 1, "host", 30},
              {"same time", 1, "ce 0", 2000, 0, "ce 0", 2000},
              {"second", 1, "ce 0", 1450, 0, "sm 0", 1500}};
  return t;
}

Trace shifted(Trace t, int64_t by) {
  for (Span& s : t.spans) s.begin_ns += by, s.end_ns += by;
  for (Arrow& a : t.arrows) a.from_ns += by, a.to_ns += by;
  return t;
}

using Writer = std::function<std::string(const Trace&)>;
const std::pair<const char*, Writer> kWriters[] = {
    {"rows", [](const Trace& t) { return t.to_json(); }}, {"chrome", to_chrome_json}, {"perfetto", to_perfetto}};

TEST(Trace, EachFormatRoundTrips) {
  for (const auto& [name, write] : kWriters) {
    SCOPED_TRACE(name);
    for (const Trace& want : {sample(), Trace{}, Trace{"only a title", false, {}, {}}}) {
      const Result<Trace> got = parse_trace(write(want), "t");
      ASSERT_TRUE(got.ok()) << got.status().message();
      expect_same(*got, want);
    }
  }
}

TEST(Trace, ForeignFormatsStartAtZeroAndRowsKeepTheClock) {
  const Trace late = shifted(sample(), 987654321012345678);
  expect_same(*parse_trace(late.to_json(), "t"), late);
  expect_same(*parse_trace(to_chrome_json(late), "t"), sample());
  expect_same(*parse_trace(to_perfetto(late), "t"), sample());
}

TEST(Trace, RandomTracesRoundTrip) {
  std::mt19937 random(11);
  for (int round = 0; round < 30; ++round) {
    Trace t;
    t.spans.push_back({0, "sm 0", "first", "gemm", 0, 1, 0, 0});
    for (int i = 0; i < 60; ++i) {
      const auto begin = static_cast<int64_t>(random() % 2000);
      t.spans.push_back({static_cast<int>(random() % 3), "lane " + std::to_string(random() % 3),
                         "span " + std::to_string(i), i % 2 == 0 ? "gemm" : "copy", begin,
                         begin + static_cast<int64_t>(random() % 300), static_cast<int64_t>(random()),
                         static_cast<double>(random()) / 7});
    }
    for (int i = 0; i < 40; ++i) {
      const Span& from = t.spans[random() % t.spans.size()];
      const Span& to = t.spans[random() % t.spans.size()];
      t.arrows.push_back({"signal " + std::to_string(i), from.rank, from.lane, from.end_ns, to.rank, to.lane,
                          i % 3 == 0 ? to.end_ns : to.begin_ns});
    }
    for (const auto& [name, write] : kWriters) {
      SCOPED_TRACE(name);
      const Result<Trace> got = parse_trace(write(t), "t");
      ASSERT_TRUE(got.ok()) << got.status().message();
      expect_same(*got, t);
      if (HasFailure()) return;
    }
  }
}

TEST(Trace, ChromeSlicesOfAThreadAreDisjoint) {
  const Result<Json> root = Json::parse(to_chrome_json(sample()));
  ASSERT_TRUE(root.ok());
  std::map<int64_t, std::vector<std::pair<double, double>>> slices;
  for (const Json& event : root->find("traceEvents")->as_array())
    if (event.find("ph")->as_string() == "X")
      slices[event.find("tid")->as_int()].emplace_back(event.find("ts")->as_double(),
                                                       event.find("ts")->as_double() + event.find("dur")->as_double());
  const auto names_process = [](const Json& event) { return event.find("name")->as_string() == "process_name"; };
  const Json::Array& events = root->find("traceEvents")->as_array();
  EXPECT_EQ(std::count_if(events.begin(), events.end(), names_process), 2) << "once for each rank";
  EXPECT_EQ(slices.size(), 5u);  // rank 1's overlapping copies take a row of their own
  for (auto& [tid, list] : slices) {
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) EXPECT_LE(list[i - 1].second, list[i].first) << tid;
  }
}

TEST(Trace, AnArrowIsTiedToASpanOfItsOwnLane) {
  Trace t;
  t.spans = {{0, "ce 0", "early", "copy", 0, 5, 0, 0},
             {0, "sm 0", "same time", "gemm", 3, 10, 0, 0},
             {1, "ce 0", "target", "copy", 20, 30, 0, 0}};
  t.arrows = {{"arrived", 0, "ce 0", 10, 1, "ce 0", 20}};
  const std::vector<trace_formats::Row> rows = trace_formats::rows_of(t);
  ASSERT_EQ(rows.size(), 3u);
  const trace_formats::Anchors anchors(rows);
  EXPECT_EQ(anchors.source(t.arrows[0]).row, 0u);
  EXPECT_EQ(anchors.source(t.arrows[0]).span, nullptr);
  EXPECT_EQ(anchors.target(t.arrows[0]).row, 2u);
  EXPECT_EQ(anchors.target(t.arrows[0]).span, &t.spans[2]);
}

TEST(Trace, EmulatedIsShownInEveryProcessName) {
  for (const char* bytes : {"rank 0 (emulated)", "rank 1 (emulated)"}) {
    EXPECT_NE(to_chrome_json(sample()).find(bytes), std::string::npos);
    EXPECT_NE(to_perfetto(sample()).find(bytes), std::string::npos);
  }
}

TEST(Trace, MergeKeepsAllAndTheLabel) {
  Trace a = sample();
  a.emulated = false;
  Trace b = sample();
  b.title = "other";
  const size_t spans = a.spans.size(), arrows = a.arrows.size();
  a.merge(b);
  EXPECT_EQ(a.spans.size(), 2 * spans);
  EXPECT_EQ(a.arrows.size(), 2 * arrows);
  EXPECT_TRUE(a.emulated);
  EXPECT_EQ(a.title, sample().title);
  Trace empty;
  empty.merge(b);
  expect_same(empty, b);
}

std::string parse_refusal(std::string_view bytes) {
  const Result<Trace> result = parse_trace(bytes, "t.json");
  if (result.ok()) return "parsed";
  EXPECT_EQ(result.status().code(), Errc::corrupt);
  EXPECT_TRUE(result.status().message().starts_with("t.json: ")) << result.status().message();
  return result.status().message();
}

TEST(Trace, EveryPrefixIsCorrupt) {
  for (const auto& [name, write] : kWriters) {
    const std::string whole = write(sample());
    for (size_t n = 0; n < whole.size(); ++n)
      ASSERT_NE(parse_refusal(std::string_view(whole).substr(0, n)), "parsed")
          << name << " " << n << " of " << whole.size();
  }
}

TEST(Trace, FlippedBytesNeverCrash) {
  std::mt19937 random(5);
  for (const auto& [name, write] : kWriters) {
    const std::string whole = write(sample());
    for (int i = 0; i < 5000; ++i) {
      std::string broken = whole;
      for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
        broken[random() % broken.size()] = static_cast<char>(random());
      const Result<Trace> result = parse_trace(broken, "t");
      ASSERT_EQ(result.status().code(), result.ok() ? Errc::ok : Errc::corrupt);
    }
  }
}

TEST(Trace, RandomBytesNeverCrash) {
  std::mt19937 random(6);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = "\n";
    for (size_t n = random() % 60; n > 0; --n) bytes += static_cast<char>(random());
    const Result<Trace> result = parse_trace(bytes, "t");
    ASSERT_EQ(result.status().code(), result.ok() ? Errc::ok : Errc::corrupt);
  }
}

TEST(Trace, RefusesLyingRows) {
  const auto with_span = [](const std::string& span) {
    return R"({"schema":"overlace.trace/1","title":"","emulated":false,"spans":[)" + span + R"(],"arrows":[]})";
  };
  EXPECT_EQ(parse_refusal(with_span(R"([0,"sm 0","a","gemm",0,1,0,0])")), "parsed");
  EXPECT_EQ(parse_refusal(with_span(R"([-1,"sm 0","a","gemm",0,1,0,0])")),
            "t.json: span: rank is -1, wanted 0 to 65535");
  EXPECT_EQ(parse_refusal(with_span(R"([0,"sm 0","a","gemm",5,1,0,0])")), "t.json: span \"a\" goes from 5 to 1 ns");
  EXPECT_EQ(parse_refusal(with_span(R"([0,"sm 0","a","gemm",-4611686018427387904,4611686018427387904,0,0])")),
            "parsed");
  EXPECT_EQ(parse_refusal(with_span(R"([0,"sm 0","a","gemm",-4611686018427387905,0,0,0])")),
            "t.json: span \"a\" goes from -4611686018427387905 to 0 ns");
  EXPECT_EQ(parse_refusal(with_span(R"([0,"sm 0","a","gemm",0,4611686018427387905,0,0])")),
            "t.json: span \"a\" goes from 0 to 4611686018427387905 ns");
  EXPECT_EQ(parse_refusal(with_span(R"([0,"sm 0","a",3,0,1,0,0])")),
            "t.json: span 0: value 3 is an integer, wanted a string");
  EXPECT_EQ(parse_refusal(with_span(R"([0,"sm 0"])")), "t.json: span 0: wanted an array of 8 values");
  EXPECT_EQ(parse_refusal(with_span("{}")), "t.json: span 0: wanted an array of 8 values");
  EXPECT_NE(parse_refusal(with_span(R"([0,"l","a","c",-9223372036854775808,9223372036854775807,0,0])")), "parsed");
  EXPECT_NE(parse_refusal(R"({"schema":"overlace.trace/1"})"), "parsed");
  EXPECT_NE(parse_refusal(R"({"schema":"overlace.trace/1","title":1,"emulated":false,"spans":[],"arrows":[]})"),
            "parsed");
}

TEST(Trace, RefusesLyingChromeEvents) {
  const std::string names = R"({"ph":"M","name":"process_name","pid":1,"tid":1,"args":{"name":"rank 0"}},)"
                            R"({"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"sm 0"}})";
  const auto with = [&](const std::string& events) { return "{\"traceEvents\":[" + names + "," + events + "]}"; };
  EXPECT_EQ(parse_refusal(with(R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2})")), "parsed");
  EXPECT_EQ(parse_refusal(with(R"({"ph":"X","name":"a","pid":2,"tid":1,"ts":1,"dur":2})")),
            "t.json: trace event 2: pid 2 has no name before it");
  EXPECT_EQ(parse_refusal(with(R"({"ph":"B","name":"a","pid":1,"tid":1,"ts":1})")),
            "t.json: trace event 2: phase \"B\", wanted M, X, s or f");
  EXPECT_EQ(parse_refusal(with(R"({"ph":"f","id":3,"name":"a","pid":1,"tid":1,"ts":1})")),
            "t.json: trace event 2: flow 3 ends before its start");
  EXPECT_EQ(parse_refusal(with(R"({"ph":"s","id":3,"name":"a","pid":1,"tid":1,"ts":1})")), "t.json: flow 3 never ends");
  const auto flow = [&](const std::string& at_ns) {
    const std::string rest = R"(","id":3,"name":"a","pid":1,"tid":1,"ts":1,"args":{"at_ns":)" + at_ns + "}}";
    return with(R"({"ph":"s)" + rest + R"(,{"ph":"f)" + rest);
  };
  for (const char* limit : {"4611686018427387904", "-4611686018427387904"})
    EXPECT_EQ(parse_refusal(flow(limit)), "parsed");
  for (const char* beyond : {"4611686018427387905", "-4611686018427387905"})
    EXPECT_EQ(parse_refusal(flow(beyond)), "t.json: trace event 2: at_ns: out of range");
  for (const char* event :
       {"7", R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1e300,"dur":2})",
        R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":-2})", R"({"ph":"X","name":4,"pid":1,"tid":1,"ts":1})",
        R"({"ph":"M","name":"process_name","pid":-9223372036854775808,"args":{"name":"x"}})",
        R"({"ph":"M","name":"process_name","pid":3,"args":[]})", R"({"ph":"M"})"})
    EXPECT_NE(parse_refusal(with(event)), "parsed") << event;
  EXPECT_NE(parse_refusal(R"({"traceEvents":{}})"), "parsed");
  EXPECT_NE(parse_refusal("[" + std::string(200, '[')), "parsed");
}

TEST(Trace, RefusesLyingPackets) {
  EXPECT_EQ(parse_refusal("not a trace"), "t.json: neither a Perfetto nor a Chrome JSON trace");
  EXPECT_EQ(parse_refusal(""), "t.json: neither a Perfetto nor a Chrome JSON trace");
  EXPECT_EQ(parse_refusal("\n\x7F"), "t.json: Perfetto packet 0: length goes beyond the end");
  EXPECT_EQ(parse_refusal(std::string("\n\x00", 2)), "t.json: Perfetto packet 1: no header of overlace");
  EXPECT_EQ(parse_refusal("\n\x02\x58\x80"), "t.json: Perfetto packet 1: bad varint");
  EXPECT_EQ(parse_refusal("\n\x01\x5B"), "t.json: Perfetto packet 1: unknown wire type");
  EXPECT_NE(parse_refusal(std::string("\n\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11)), "parsed");
  // An event on a track that nobody described: packet { track_event { type: 1 track_uuid: 9 } }.
  EXPECT_EQ(parse_refusal("\n\x06\x5A\x04\x48\x01\x58\x09"), "t.json: Perfetto packet 1: track 9 was not described");
}

/// The end of a flow is made that of another one, so that each has one of the two.
TEST(Trace, RefusesAFlowThatLacksAnEnd) {
  std::string packets = to_perfetto(sample());
  const size_t at = packets.find("\x81\x03");  // field 48, a fixed64
  ASSERT_NE(at, std::string::npos);
  packets[at + 2] = static_cast<char>(packets[at + 2] ^ 0x40);
  EXPECT_NE(parse_refusal(packets).find("lacks an end"), std::string::npos) << parse_refusal(packets);
}

TEST(Trace, RefusesPacketsOfAnotherSchema) {
  std::string packets = to_perfetto(sample());
  const size_t at = packets.find("overlace.trace/1");
  ASSERT_NE(at, std::string::npos);
  packets[at + 15] = '2';
  EXPECT_NE(parse_refusal(packets).find("schema is \"overlace.trace/2\", wanted \"overlace.trace/1\""),
            std::string::npos)
      << parse_refusal(packets);
}

TEST(Trace, JsonMayStartWithANewLine) { expect_same(*parse_trace("\n " + sample().to_json(), "t"), sample()); }

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/overlace_trace_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string folder;
};

TEST_F(TraceFile, EndingChoosesTheFormat) {
  for (const char* name : {"a.json", "b.pftrace", "c.perfetto-trace"}) {
    const std::string path = folder + "/" + name;
    ASSERT_TRUE(write_trace(sample(), path).ok()) << name;
    const std::string bytes = read_file(path).value();
    EXPECT_EQ(bytes.front(), name[0] == 'a' ? '{' : '\n');
    expect_same(*parse_trace(bytes, path), sample());
  }
}

TEST_F(TraceFile, RefusesOtherEndingsAndMissingFolders) {
  const Status ending = write_trace(sample(), folder + "/trace.txt");
  EXPECT_EQ(ending.code(), Errc::invalid_argument);
  EXPECT_NE(ending.message().find("wanted a name that ends in .json, .pftrace"), std::string::npos);
  EXPECT_EQ(write_trace(sample(), folder + "/none/a.json").code(), Errc::io);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace overlace::base
