#include "src/plan/cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>

#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/log.h"
#include "src/spec/cost_model.h"
#include "tests/unit/plan/problem.h"

namespace overlace::plan {
namespace {

using spec::Machine;

/// A folder that goes with the object.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "overlace_plans.XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

size_t lines_in(const std::string& path) {
  const std::string text = base::read_file(path).value();
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// A simulator that knows one family and counts who asks.
struct Counting : spec::CostModel {
  mutable int asked = 0;
  base::Result<spec::Estimate> estimate(const spec::Schedule& schedule, const spec::OpSpec&,
                                        const Machine&) const override {
    ++asked;
    const double us = schedule.family.starts_with("serial") ? 50 : 100 + static_cast<double>(asked);
    return spec::Estimate{us, us - 1, us + 1, {}};
  }
};

/// Times by family; everything else takes 100 us.
struct Told : spec::Prober {
  std::map<std::string, double> us;
  base::Status failure;
  bool first = true;
  std::string line;  // what the first rank found
  int asked = 0;
  bool is_first() const override { return first; }
  base::Result<std::string> from_first(const std::string& mine) override { return first ? line = mine : line; }
  base::Result<std::vector<spec::Estimate>> measure(const std::vector<spec::Schedule>& schedules,
                                                    const spec::OpSpec&) override {
    ++asked;
    if (!failure.ok()) return failure;
    std::vector<spec::Estimate> out;
    for (const spec::Schedule& s : schedules) {
      const auto found = us.find(s.family);
      const double t = found == us.end() ? 100 : found->second;
      out.push_back({t, t - 2, t + 3, {}});
    }
    return out;
  }
};

const PlanOptions kSimulated = {.limit = Tier::simulation}, kProbed = {.limit = Tier::probe};

TEST(PlanCache, TheNextProcessTakesWhatWasSimulated) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  const auto first = Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
  const int asked = model.asked;
  EXPECT_GT(asked, 0);
  EXPECT_EQ(lines_in(path), 1u);
  const auto second = Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
  EXPECT_EQ(model.asked, asked) << "nothing was simulated again";
  EXPECT_EQ(second->reason, first->reason);
  EXPECT_EQ(second->tier, first->tier);
  EXPECT_EQ(second->schedule.to_json(), first->schedule.to_json());
  EXPECT_EQ(second->estimate.us, first->estimate.us);
  ASSERT_EQ(second->others.size(), first->others.size());
  for (size_t i = 0; i < first->others.size(); ++i) {
    EXPECT_EQ(second->others[i].candidate, first->others[i].candidate);
    EXPECT_EQ(second->others[i].hi_us, first->others[i].hi_us);
  }
  // A shape of the same bucket is decided already, and gets a schedule of its own.
  const auto near =
      Planner(h200(), {.simulation = &model, .cache = path}).plan(op_of("gemm_rs", 8191, 8192, 2048), kSimulated);
  EXPECT_EQ(model.asked, asked);
  EXPECT_EQ(std::get<int64_t>(near->schedule.params.at("M")), 8191);
}

/// A simulator for which one family is the slowest.
struct Against : spec::CostModel {
  explicit Against(std::string slow) : family(std::move(slow)) {}
  const std::string family;
  base::Result<spec::Estimate> estimate(const spec::Schedule& schedule, const spec::OpSpec&,
                                        const Machine&) const override {
    const double us = schedule.family.starts_with(family) ? 1000 : 100;
    return spec::Estimate{us, us, us, {}};
  }
};

/// Else a plan by measurements could be slower than the one without.
TEST(PlanProbe, MeasuresWhatIsTakenWithoutItToo) {
  for (const spec::OpSpec& op : {op_of("gemm_rs", 8192, 8192, 2048), op_of("ag_gemm", 8192, 8192, 2048),
                                 op_of("gemm_rs", 64, 8192, 2048), op_of("gemm_ar", 4096, 8192, 2048)}) {
    const Candidate usual = Planner(h200()).plan(op)->candidate;
    const Against model(usual.family);
    Told ranks;
    const auto probed = Planner(h200(), {.simulation = &model, .prober = &ranks}).plan(op, kProbed);
    ASSERT_EQ(probed->tier, Tier::probe);
    for (const Candidate& wanted : {usual, Candidate{"library", 1}}) {
      const auto count = std::count_if(probed->others.begin(), probed->others.end(),
                                       [&](const Alternative& one) { return one.candidate == wanted; });
      EXPECT_EQ(count, 1) << op.to_string() << ": " << to_string(wanted);
    }
  }
}

TEST(PlanCache, KeptIsWhatTheFileHasAndDecidesNothing) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  EXPECT_EQ(Planner(h200(), {.simulation = &model, .cache = path}).kept(op), nullptr);
  EXPECT_EQ(model.asked, 0);
  EXPECT_FALSE(std::filesystem::exists(path));
  const auto planned = Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
  const auto kept = Planner(h200(), {.cache = path}).kept(op);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->schedule.to_json(), planned->schedule.to_json());
  EXPECT_EQ(kept->reason, planned->reason);
  EXPECT_EQ(kept->key, planned->key);
  EXPECT_EQ(kept->estimate.us, planned->estimate.us);
  // Another of the bucket has a schedule of its own; another shape or machine has none.
  EXPECT_EQ(std::get<int64_t>(
                Planner(h200(), {.cache = path}).kept(op_of("gemm_rs", 8191, 8192, 2048))->schedule.params.at("M")),
            8191);
  EXPECT_EQ(Planner(h200(), {.cache = path}).kept(op_of("gemm_rs", 8192, 8192, 4096)), nullptr);
  EXPECT_EQ(Planner(h200()).kept(op), nullptr);
}

TEST(PlanCache, CheapTiersAndNoPathKeepNothing) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("ag_gemm", 8192, 2560, 8192);
  Planner planner(h200(), {.simulation = &model, .cache = path});
  (void)planner.plan(op);
  (void)planner.plan(op, {.limit = Tier::rule});
  (void)planner.plan(op, {.limit = Tier::simulation, .paper_rule = true});
  EXPECT_FALSE(std::filesystem::exists(path));
  (void)Planner(h200(), {.simulation = &model}).plan(op, kSimulated);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PlanCache, NewNumbersOfAMachineMakeItsPlansAnew) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  (void)Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
  Machine other = h200();
  other.name = "another";
  (void)Planner(other, {.simulation = &model, .cache = path}).plan(op, kSimulated);
  EXPECT_EQ(lines_in(path), 2u);
  Machine again = h200();
  again.copy.peer_GBps.value += 1;
  const int asked = model.asked;
  (void)Planner(again, {.simulation = &model, .cache = path}).plan(op, kSimulated);
  EXPECT_GT(model.asked, asked);
  EXPECT_EQ(lines_in(path), 2u) << "the line of the same name with other numbers went";
  const std::string text = base::read_file(path).value();
  EXPECT_EQ(text.find(spec::digest(h200())), std::string::npos);
  EXPECT_NE(text.find(spec::digest(other)), std::string::npos);
}

TEST(PlanCache, DamagedLinesArePassedOverWithAWordAndGo) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  (void)Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
  const std::string good = base::read_file(path).value();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string out = good;
    const size_t at = out.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? out : out.replace(at, from.size(), to);
  };
  const std::string broken[] = {good.substr(0, good.size() / 2) + "\n",
                                "not JSON\n" + good.substr(0, 30) + "\n",
                                "[1,2]\n" + good.substr(0, 40),
                                std::string("\0\xff\n", 3) + good.substr(0, 50),
                                with(base::format("\"overlace_plan\":{}", kPlanVersion), "\"overlace_plan\":99"),
                                with("\"family\":\"serial\"", "\"family\":\"nobody\""),
                                with("\"tier\":\"simulation\"", "\"tier\":\"wishful\""),
                                with("\"degree\":1", "\"degree\":-1"),
                                with("[\"serial\",1,", "[\"serial\",1,null,"),
                                with("\"others\":[", "\"others\":[7,")};
  std::vector<std::string> said;
  base::set_log_sink([&](base::LogLevel, std::string_view line) { said.emplace_back(line); }, base::LogLevel::warn);
  for (const std::string& text : broken) {
    base::write_file(path, text).or_throw();
    const int asked = model.asked;
    const auto plan = Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
    EXPECT_GT(model.asked, asked) << text;
    EXPECT_EQ(plan->candidate.family, "serial");
    EXPECT_EQ(lines_in(path), 1u) << "rewritten: " << text;
    EXPECT_EQ(base::read_file(path).value().find("nobody"), std::string::npos);
  }
  base::set_log_sink(nullptr, base::LogLevel::warn);
  ASSERT_FALSE(said.empty());
  EXPECT_NE(said.front().find("damaged"), std::string::npos) << said.front();
}

TEST(PlanCache, OnlyCandidatesAreServed) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  const auto honest = Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
  const std::string good = base::read_file(path).value();
  const std::pair<std::string, std::string> changes[] = {
      {"\"family\":\"serial\"", "\"family\":\"compute\""},
      {"\"family\":\"serial\"", "\"family\":\"comm\""},
      {"\"family\":\"serial\"", "\"family\":\"hierarchical\""},
      {"\"family\":\"serial\",\"degree\":1", "\"family\":\"hetero_unfused_1d\",\"degree\":1048576"},
      {"\"family\":\"serial\",\"degree\":1", "\"family\":\"serial\",\"degree\":2"},
      {"[\"serial\",1,", "[\"limit\",1,"},
  };
  for (const auto& [from, to] : changes) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    base::write_file(path, text.replace(at, from.size(), to)).or_throw();
    const int asked = model.asked;
    const auto plan = Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kSimulated);
    EXPECT_GT(model.asked, asked) << to;
    EXPECT_EQ(plan->candidate, honest->candidate) << to;
    EXPECT_EQ(base::read_file(path).value().find(to), std::string::npos) << to;
  }
}

TEST(PlanCache, WhatALowerTierFoundIsNeitherKeptNorServed) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  // Nobody here to probe: a process that can must do so.
  const auto simulated = Planner(h200(), {.simulation = &model, .cache = path}).plan(op, kProbed);
  EXPECT_EQ(simulated->tier, Tier::simulation);
  EXPECT_FALSE(std::filesystem::exists(path));
  Told prober;
  (void)Planner(h200(), {.simulation = &model, .prober = &prober, .cache = path}).plan(op, kProbed);
  EXPECT_EQ(prober.asked, 1);
  std::string text = base::read_file(path).value();
  const std::string probe = "\"tier\":\"probe\"";
  const size_t at = text.find(probe);
  ASSERT_NE(at, std::string::npos) << text;
  base::write_file(path, text.replace(at, probe.size(), "\"tier\":\"simulation\"")).or_throw();
  const auto again = Planner(h200(), {.simulation = &model, .prober = &prober, .cache = path}).plan(op, kProbed);
  EXPECT_EQ(prober.asked, 2);
  EXPECT_EQ(again->tier, Tier::probe);
}

/// What planning with a cache of that path says; the plan is made all the same.
std::vector<std::string> warnings_with(const std::string& path) {
  std::vector<std::string> said;
  base::set_log_sink([&](base::LogLevel, std::string_view line) { said.emplace_back(line); }, base::LogLevel::warn);
  const Counting model;
  const auto plan =
      Planner(h200(), {.simulation = &model, .cache = path}).plan(op_of("gemm_rs", 8192, 8192, 2048), kSimulated);
  base::set_log_sink(nullptr, base::LogLevel::warn);
  EXPECT_EQ(plan->candidate.family, "serial") << path;
  return said;
}

/// A change of the planner's version or of a machine's figures makes these lines dead. Winners were measured: where all
/// that they name are candidates still, the new version and digest are written into them, else they are measured anew.
TEST(PlanCache, EveryLineThatComesWithTheLibraryCounts) {
  ASSERT_GT(kNumShippedPlans, 0);
  for (const std::string& name : spec::shipped_machines()) {
    const Machine machine = spec::find_machine(name);
    Machine other = machine;
    other.gemm.sustained_TFLOPs.value *= 1.01;
    const Cache shipped = Cache::shipped(machine), of_other = Cache::shipped(other);
    for (int i = 0; i < kNumShippedPlans; ++i) {
      if (kShippedPlans[i].machine != name) continue;
      const std::string line(kShippedPlans[i].line);
      const std::string key = base::Json::parse(line, "line").value().find("key")->as_string();
      EXPECT_EQ(shipped.find(key), line) << name;
      EXPECT_EQ(of_other.find(key), "") << "lines of other figures";
      const auto decision = decision_of(line, key, machine);
      ASSERT_TRUE(decision.has_value()) << line;
      EXPECT_EQ(decision->tier, Tier::probe) << line;
    }
  }
}

TEST(PlanCache, AFileOfOthersIsLeftAlone) {
  const Folder folder;
  const std::string path = folder / "notes.txt";
  for (const std::string& text : {std::string("milk\nbread\n"), std::string("{\"a\": 1}\n"), std::string("\0\n", 2)}) {
    base::write_file(path, text).or_throw();
    (void)warnings_with(path);
    EXPECT_EQ(base::read_file(path).value(), text);
    EXPECT_FALSE(std::filesystem::exists(path + ".lock"));
  }
  const std::string other = folder / "more.txt";
  base::write_file(other, "eggs\n").or_throw();
  const auto said = warnings_with(other);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said.front().find("more.txt holds something else; plans are not kept"), std::string::npos) << said.front();
  // An empty one is as good as none.
  base::write_file(path, "").or_throw();
  EXPECT_TRUE(warnings_with(path).empty());
  EXPECT_EQ(lines_in(path), 1u);
}

TEST(PlanCache, PipesDevicesAndFoldersAreNoCache) {
  const Folder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero"), folder / "."}) {
    const auto said = warnings_with(path);
    ASSERT_EQ(said.size(), 1u) << path;
    EXPECT_NE(said.front().find(path + " is no regular file; plans are not kept"), std::string::npos) << said.front();
    EXPECT_FALSE(std::filesystem::exists(path + ".lock")) << path;
  }
}

TEST(PlanCache, WhereNothingCanBeWrittenPlansAreMadeAllTheSame) {
  const Folder folder;
  const Counting model;
  const std::string path = folder / "no/such/folder/plans.jsonl";
  const auto plan =
      Planner(h200(), {.simulation = &model, .cache = path}).plan(op_of("gemm_rs", 8192, 8192, 2048), kSimulated);
  EXPECT_EQ(plan->candidate.family, "serial");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PlanCache, SeveralWritersLoseNothing) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  constexpr int kWriters = 4, kEach = 8;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      const Cache cache(path, h200());
      for (int i = 0; i < kEach; ++i)
        cache.put("key " + std::to_string(w * kEach + i), {{"library", 1}, Tier::probe, "writer", {}});
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(lines_in(path), static_cast<size_t>(kWriters * kEach));
  const Cache cache(path, h200());
  for (int i = 0; i < kWriters * kEach; ++i) {
    const std::string key = "key " + std::to_string(i);
    EXPECT_TRUE(decision_of(cache.find(key), key, h200()).has_value()) << key;
  }
  EXPECT_EQ(cache.find("key 99"), "");
}

TEST(Probe, TheFastestThatWasMeasuredWins) {
  const Counting model;
  Told prober;
  prober.us = {{"library_rs", 100}, {"serial_rs", 90}};
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  Planner planner(h200(), {.simulation = &model, .prober = &prober});
  const auto plan = planner.plan(op, kProbed);
  EXPECT_EQ(plan->tier, Tier::probe);
  EXPECT_EQ(plan->candidate.family, "serial");
  EXPECT_EQ(plan->others.size(), 4u) << "three and the library";
  EXPECT_EQ(plan->estimate.us, 90);
  EXPECT_EQ(plan->estimate.lo_us, 88);
  EXPECT_EQ(plan->estimate.hi_us, 93);
  EXPECT_NE(plan->reason.find("probe: serial 90.0 us, 10.0 % less than library"), std::string::npos) << plan->reason;
  EXPECT_EQ(planner.plan(op, kProbed), plan);
  EXPECT_EQ(prober.asked, 1);
  // Less than 2 % is noise.
  Told close;
  close.us = {{"serial_rs", 98.5}};
  EXPECT_EQ(Planner(h200(), {.simulation = &model, .prober = &close}).plan(op, kProbed)->candidate.family, "library");
  // Other tiers ask nobody.
  Told idle;
  EXPECT_EQ(Planner(h200(), {.simulation = &model, .prober = &idle}).plan(op, kSimulated)->tier, Tier::simulation);
  EXPECT_EQ(idle.asked, 0);
}

/// Measured at M 1024 and 2048, where the recurrence was wrong: by as much it is corrected between the two.
TEST(Probe, BetweenTwoMeasuredBucketsTheRecurrenceIsCorrected) {
  const Counting model;
  Planner planner(h200(), {.simulation = &model});
  const auto op = [](int64_t m) { return op_of("gemm_rs", m, 8192, 2048); };
  for (const int64_t m : {1024, 2048}) {
    Told prober;
    prober.us = {{"library_rs", 400}, {"serial_rs", 60}};
    EXPECT_EQ(planner.kept(op(m)), nullptr) << "nothing is measured yet";
    planner.keep(*Planner(h200(), {.simulation = &model, .prober = &prober}).plan(op(m), kProbed), "here");
  }
  const auto plan = planner.kept(op(1500));
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->candidate.family, "serial");
  EXPECT_NE(plan->reason.find("by what was measured at M 1024 and 2048"), std::string::npos) << plan->reason;
  EXPECT_EQ(std::get<int64_t>(plan->schedule.params.at("M")), 1500);
  EXPECT_NEAR(plan->estimate.us, 60, 15);
  EXPECT_EQ(planner.kept(op(1500)), plan);
  for (const int64_t m : {500, 2100, 8192}) EXPECT_EQ(planner.kept(op(m)), nullptr) << m << ": not between two";
  EXPECT_EQ(planner.kept(op_of("gemm_rs", 1500, 8192, 2056)), nullptr) << "another K";
}

TEST(Probe, AFailureLeavesThePlanOfTheTierBeforeAndIsNotKept) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  Told prober;
  prober.failure = base::Status(Errc::timeout, "rank 1 did not come");
  const auto plan = Planner(h200(), {.simulation = &model, .prober = &prober, .cache = path}).plan(op, kProbed);
  EXPECT_EQ(plan->tier, Tier::simulation);
  EXPECT_EQ(plan->candidate.family, "serial");
  EXPECT_NE(plan->reason.find("not measured: rank 1 did not come"), std::string::npos) << plan->reason;
  EXPECT_FALSE(std::filesystem::exists(path));
  Told senseless;
  senseless.us = {{"serial_rs", std::numeric_limits<double>::quiet_NaN()}};
  const auto other = Planner(h200(), {.simulation = &model, .prober = &senseless, .cache = path}).plan(op, kProbed);
  EXPECT_NE(other->reason.find("a time is missing"), std::string::npos) << other->reason;
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Probe, AllRanksTakeWhatTheFirstOneFinds) {
  const Folder folder;
  const std::string path = folder / "plans.jsonl";
  const Counting model;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048);
  Told first;
  first.us = {{"serial_rs", 80}};
  const auto measured = Planner(h200(), {.simulation = &model, .prober = &first, .cache = path}).plan(op, kProbed);
  EXPECT_EQ(lines_in(path), 1u);
  Told again;
  again.us = {{"serial_rs", 200}};  // would choose otherwise
  const auto kept = Planner(h200(), {.simulation = &model, .prober = &again, .cache = path}).plan(op, kProbed);
  EXPECT_EQ(again.asked, 0);
  EXPECT_EQ(kept->reason, measured->reason);
  // Another rank, which sees no file.
  Told second;
  second.first = false;
  second.line = again.line;
  const auto theirs = Planner(h200(), {.simulation = &model, .prober = &second}).plan(op, kProbed);
  EXPECT_EQ(second.asked, 0);
  EXPECT_EQ(theirs->schedule.to_json(), measured->schedule.to_json());
}

}  // namespace
}  // namespace overlace::plan
