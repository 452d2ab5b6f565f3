#include "cli/run/schedules.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace overlace::cli {
namespace {

/// A schedule file that goes with the object.
class File {
 public:
  explicit File(const std::string& text) : path_("/tmp/overlace_schedules_" + std::to_string(::getpid()) + ".json") {
    std::ofstream(path_) << text;
  }
  ~File() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

RunPlan small_plan() {
  RunOptions options;
  options.tokens = 64;
  return make_plan(options, base::Env::parse({}).value(), {}).value();
}

const spec::OpSpec& problem_at(const RunPlan& plan, const std::string& name) {
  for (const model::Site& site : plan.sites)
    if (site.name == name) return site.op;
  throw std::runtime_error("no site " + name);
}

TEST(ScheduleNames, ThatAreNoneSayWhatIsWanted) {
  const auto request = request_schedules("serial:0", small_plan());
  EXPECT_EQ(request.status().code(), Errc::invalid_argument);
  EXPECT_EQ(request.status().message(),
            "--schedule is serial:0, wanted auto, FAMILY, FAMILY:DEGREE with a degree >= 1, SITE=FAMILY,... or a file "
            "ending in .json");
}

TEST(ScheduleNames, OfSitesAndOperatorsLeaveTheOthersToThePlanner) {
  const RunPlan plan = small_plan();
  const auto request = request_schedules("gemm_rs=tracked:2,qkv=serial,gate_up=auto", plan);
  ASSERT_TRUE(request.ok()) << request.status().message();
  std::vector<std::string> names;
  for (const auto& [site, schedule] : request->by_site) names.push_back(site + " " + schedule.family);
  EXPECT_EQ(names, (std::vector<std::string>{"down tracked_rs", "o_proj tracked_rs", "qkv serial"}));
  EXPECT_EQ(request->by_site.at("down"), spec::make_schedule(problem_at(plan, "down"), "tracked", 2));
  EXPECT_EQ(request->reason, "asked for: --schedule gemm_rs=tracked:2,qkv=serial,gate_up=auto");
}

TEST(ScheduleNames, OfNoSiteOrTwiceAreRefused) {
  const std::string sites = "qkv, o_proj, gate_up, down";
  for (const auto& [text, says] : std::map<std::string, std::string>{
           {"up=serial", "--schedule up=serial: there is no site or operator up, wanted some of " + sites},
           {"=serial", "--schedule =serial: there is no site or operator before =, wanted some of " + sites},
           {"qkv=serial,serial",
            "--schedule qkv=serial,serial: serial is at no site, wanted SITE=FAMILY or OPERATOR=FAMILY"},
           {"qkv=serial,", "--schedule qkv=serial,: nothing is at no site, wanted SITE=FAMILY or OPERATOR=FAMILY"},
           {"ag_gemm=serial,qkv=serial", "--schedule ag_gemm=serial,qkv=serial: qkv is named twice, wanted once"},
           {"qkv=compute", "--schedule is qkv=compute, which measures a part and gives no result"},
       }) {
    const base::Status status = request_schedules(text, small_plan()).status();
    EXPECT_EQ(status.code(), Errc::invalid_argument) << text;
    EXPECT_EQ(status.message(), says);
  }
  const base::Status unknown = request_schedules("qkv=tracked:2", small_plan()).status();
  EXPECT_NE(unknown.message().find("tracked"), std::string::npos) << unknown.message();
}

TEST(ScheduleFile, OfOneServesTheSiteWithItsProblem) {
  const RunPlan plan = small_plan();
  const spec::Schedule schedule = spec::make_schedule(problem_at(plan, "down"), "hetero_fused_1d", 2);
  const File file(schedule.to_json());
  const auto request = request_schedules(file.path(), plan);
  ASSERT_TRUE(request.ok()) << request.status().message();
  ASSERT_EQ(request->by_site.size(), 1u);
  EXPECT_EQ(request->by_site.at("down"), schedule);
  EXPECT_EQ(request->reason, "asked for: --schedule " + file.path());
}

TEST(ScheduleFile, NamesSites) {
  const RunPlan plan = small_plan();
  const spec::Schedule qkv = spec::make_schedule(problem_at(plan, "qkv"), "uniform_fused_1d", 4);
  const spec::Schedule o_proj = spec::make_schedule(problem_at(plan, "o_proj"), "serial");
  const File file("{\"qkv\": " + qkv.to_json() + ", \"o_proj\": " + o_proj.to_json() + "}");
  const auto request = request_schedules(file.path(), plan);
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->by_site.size(), 2u);
  EXPECT_EQ(request->by_site.at("qkv"), qkv);
  EXPECT_EQ(request->by_site.at("o_proj"), o_proj);
}

TEST(ScheduleFile, OfAnotherProblemIsRefusedWithBoth) {
  const RunPlan plan = small_plan();
  spec::OpSpec other = problem_at(plan, "qkv");
  other.m = 128;
  const spec::Schedule schedule = spec::make_schedule(other, "serial");
  const File single(schedule.to_json());
  const auto status = request_schedules(single.path(), plan).status();
  EXPECT_EQ(status.code(), Errc::bad_schedule);
  EXPECT_NE(status.message().find("M 128"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("M 64"), std::string::npos) << status.message();
  const File named("{\"qkv\": " + schedule.to_json() + "}");
  EXPECT_EQ(request_schedules(named.path(), plan).status().code(), Errc::bad_schedule);
}

TEST(ScheduleFile, PassesTheStaticChecks) {
  const RunPlan plan = small_plan();
  spec::Schedule schedule = spec::make_schedule(problem_at(plan, "qkv"), "hetero_fused_1d", 2);
  bool removed = false;
  for (spec::Task& task : schedule.tasks) {
    removed = removed || !task.waits.empty();
    task.waits.clear();
  }
  ASSERT_TRUE(removed);
  const File file(schedule.to_json());
  const auto status = request_schedules(file.path(), plan).status();
  EXPECT_EQ(status.code(), Errc::bad_schedule);
  EXPECT_NE(status.message().find(": S"), std::string::npos) << status.message();
}

TEST(ScheduleFile, HoldsSomething) {
  const RunPlan plan = small_plan();
  const File file("{}");
  EXPECT_EQ(request_schedules(file.path(), plan).status().code(), Errc::bad_schedule);
}

}  // namespace
}  // namespace overlace::cli
