#include "cli/doctor/doctor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "cli/doctor/machine.h"
#include "overlace/machine.h"
#include "src/base/env.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/io/engine.h"

namespace overlace::cli {
namespace {

using base::Json;

TEST(DoctorMachine, ReadsControlGroupQuotas) {
  EXPECT_EQ(parse_cpu_max("150000 100000\n"), 1.5);
  EXPECT_EQ(parse_cpu_max("200000 100000"), 2.0);
  for (const char* text : {"", "max 100000\n", "max", "0 100000", "100 0", "-5 100", "x y"})
    EXPECT_FALSE(parse_cpu_max(text).has_value()) << text;
}

TEST(DoctorMachine, ReadsMemoryLines) {
  const char* text = "MemTotalX:  1 kB\nMemTotal:       24576 kB\nMemAvailable: 17 kB";
  EXPECT_EQ(parse_meminfo(text, "MemTotal"), 24576 * 1024);
  EXPECT_EQ(parse_meminfo(text, "MemAvailable"), 17 * 1024);
  EXPECT_EQ(parse_meminfo(text, "Mem"), -1);
  EXPECT_EQ(parse_meminfo("MemTotal: lots", "MemTotal"), -1);
  EXPECT_EQ(parse_meminfo("", "MemTotal"), -1);
}

TEST(DoctorMachine, UsableCoresAreTheTighterLimit) {
  CpuFacts facts{.model = "", .online = 64, .allowed = 8, .quota = std::nullopt};
  EXPECT_EQ(facts.usable(), 8);
  facts.quota = 2.5;
  EXPECT_EQ(facts.usable(), 3);
  facts.quota = 0.1;
  EXPECT_EQ(facts.usable(), 1);
  facts.quota = 100;
  EXPECT_EQ(facts.usable(), 8);
  facts.allowed = 0;
  EXPECT_EQ(facts.usable(), 64);
}

TEST(DoctorMachine, FindsThisMachine) {
  const CpuFacts cpu = cpu_facts();
  EXPECT_GE(cpu.online, 1);
  EXPECT_GE(cpu.allowed, 1);
  EXPECT_LE(cpu.usable(), cpu.online);
  EXPECT_FALSE(cpu.model.empty());
  const MemoryFacts memory = memory_facts();
  EXPECT_GT(memory.total_bytes, 0);
  EXPECT_GE(memory.total_bytes, memory.available_bytes);
  for (const LibraryFacts& library : library_facts()) EXPECT_FALSE(library.purpose.empty()) << library.name;
}

TEST(Doctor, ReportsEverySectionAndTheLink) {
  const Json report = doctor();
  EXPECT_EQ(report.find("schema")->as_string(), "overlace.doctor/1");
  for (const Json& problem : report.find("problems")->as_array()) ADD_FAILURE() << problem.as_string();
  EXPECT_TRUE(report.find("ok")->as_bool());
  EXPECT_EQ(report.find("environment")->as_array().size(), base::env().values().size());
  const Json& test = report.find("link_tests")->as_array().at(0);
  EXPECT_EQ(test.find("backend")->as_string(), "cpu");
  EXPECT_EQ(test.find("ranks")->as_int(), 2);
  EXPECT_GT(test.find("latency_us")->as_double(), 0);
  EXPECT_GT(test.find("bandwidth_gb_s")->as_double(), 0);
  EXPECT_TRUE(test.find("caps")->find("load_store")->as_bool());
  EXPECT_EQ(test.find("reach")->dump(), R"([["self","lsa"],["lsa","self"]])");
  EXPECT_EQ(*Json::parse(report.dump(2)), report);
  const Json& io = *report.find("use")->find("io");
  const auto choice = io::choose_engine();
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(io.find("engine")->as_string(), choice->name);
  EXPECT_EQ(io.find("why")->as_string(), choice->reason);

  const std::string text = doctor_text(report);
  for (const char* part : {"machine\n", "libraries\n", "overlace will use\n", "wait policy", "disk I/O",
                           "link test: cpu, 2 ranks\n", "has no figures of the disk", "has no figures of the host link",
                           "put and signal", "reach of rank 1", "OVERLACE_TIMEOUT_S", "no problems\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_TRUE(text.ends_with("\n"));
}

TEST(Doctor, CanLeaveTheLinkTestOut) {
  const Json report = doctor({.link_test = false});
  EXPECT_TRUE(report.find("link_tests")->as_array().empty());
  EXPECT_EQ(doctor_text(report).find("link test"), std::string::npos);
}

TEST(Doctor, TextShowsProblemsUnknownNamesAndEmulation) {
  Json report = doctor({.link_test = false});
  report.set("unknown", Json::Array{Json::Object{{"name", "OVERLACE_TIMEOUT"}, {"nearest", "OVERLACE_TIMEOUT_S"}}});
  report.set("problems", Json::Array{"link test on cpu: timeout"});
  report.set("link_tests",
             Json::Array{Json::Object{
                 {"backend", "cpu"}, {"ranks", 2}, {"emulated", true}, {"error", "timeout after 20.0 s"}}});
  const std::string text = doctor_text(report);
  EXPECT_NE(text.find("OVERLACE_TIMEOUT             unknown; the nearest known name is OVERLACE_TIMEOUT_S"),
            std::string::npos);
  EXPECT_NE(text.find("link test: cpu, 2 ranks  [emulated]\n  FAILED: timeout after 20.0 s\n"), std::string::npos);
  EXPECT_NE(text.find("problems\n  link test on cpu: timeout\n"), std::string::npos);
}

TEST(Doctor, JudgesByTheGpusThatRanksUse) {
  const auto gpu = [](int capability) { return GpuFacts{"GPU", 1 << 30, capability}; };
  const std::vector<GpuFacts> gpus = {gpu(90), gpu(90), gpu(80)};
  EXPECT_EQ(capability_of_ranks(gpus, 2), 90) << "the third has no rank";
  EXPECT_EQ(capability_of_ranks(gpus, 3), 80);
  EXPECT_EQ(capability_of_ranks(gpus, 8), 80);
}

TEST(Doctor, TextSaysWhichCapabilityIsNotKnown) {
  Json report = doctor({.link_test = false});
  Json gpu = *report.find("gpu");
  Json devices = Json::array();
  for (const int capability : {80, 0})
    devices.push_back(
        Json::Object{{"name", "GPU"}, {"memory_bytes", int64_t{1} << 30}, {"compute_capability", capability}});
  report.set("gpu", gpu.set("devices", std::move(devices)));
  const std::string text = doctor_text(report);
  EXPECT_NE(text.find("GPU, 1.0 GiB, compute capability 8.0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("GPU, 1.0 GiB, compute capability not known\n"), std::string::npos) << text;
}

/// A program that stands for an interpreter, in a folder that goes with the object.
class Interpreter {
 public:
  explicit Interpreter(const std::string& script) {
    char name[] = "/tmp/overlace_doctor_XXXXXX";
    folder_ = ::mkdtemp(name);
    EXPECT_TRUE(base::write_file(path(), "#!/bin/sh\n" + script).ok());
    EXPECT_EQ(::chmod(path().c_str(), 0700), 0);
  }
  ~Interpreter() { std::filesystem::remove_all(folder_); }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  std::string path() const { return folder_ + "/python"; }

 private:
  std::string folder_;
};

TEST(DoctorPython, SaysWhatAnInterpreterHas) {
  const Interpreter python(
      "echo noise of an import\n"
      "echo '{\"program\": \"/p\", \"version\": \"3.11\", \"torch\": \"2.11.0\", \"overlace\": \"0.1.0\", "
      "\"operators\": [\"ag_gemm\", \"gemm_rs\"], \"why\": \"\"}'\n");
  const Json report = doctor({.link_test = false, .python = python.path()});
  EXPECT_TRUE(report.find("ok")->as_bool());
  EXPECT_EQ(report.find("python")->find("torch")->as_string(), "2.11.0");
  const std::string text = doctor_text(report);
  for (const char* part : {"Python\n", "3.11 /p\n", "2.11.0\n", "ag_gemm, gemm_rs\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_TRUE(doctor({.link_test = false}).find("python")->is_null());
}

TEST(DoctorPython, SaysWhyTorchIsMissing) {
  const Interpreter python(
      "echo '{\"program\": \"/p\", \"version\": \"3.11\", \"torch\": null, \"overlace\": null, \"operators\": [], "
      "\"why\": \"ModuleNotFoundError: no torch\"}'\n");
  const Json report = doctor({.link_test = false, .python = python.path()});
  EXPECT_FALSE(report.find("ok")->as_bool());
  EXPECT_EQ(report.find("problems")->as_array().at(0).as_string(),
            "--python is " + python.path() +
                ": ModuleNotFoundError: no torch, wanted an interpreter that imports torch and overlace");
  EXPECT_EQ(report.find("python")->find("version")->as_string(), "3.11");
  EXPECT_NE(doctor_text(report).find("not there: ModuleNotFoundError: no torch\n"), std::string::npos);
}

TEST(DoctorPython, WhatIsNoInterpreterIsAProblemInTime) {
  const auto problem = [](const std::string& program, int64_t timeout_ms) {
    const auto begin = std::chrono::steady_clock::now();
    const Json report = doctor({.link_test = false, .python = program, .python_timeout_ms = timeout_ms});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    EXPECT_FALSE(report.find("ok")->as_bool());
    EXPECT_TRUE(report.find("python")->is_null());
    return report.find("problems")->as_array().at(0).as_string();
  };
  EXPECT_EQ(problem("/nowhere/python", 20000),
            "--python is /nowhere/python: No such file or directory, wanted an interpreter that starts");
  for (const std::string said : {"", "hello", "{}", "{\"operators\": 3}"}) {
    const Interpreter other("echo '" + said + "'\n");
    EXPECT_EQ(problem(other.path(), 20000),
              "--python is " + other.path() + ": it says \"" + said + "\", wanted a Python interpreter");
  }
  const Interpreter hangs("exec sleep 1000\n");
  EXPECT_EQ(problem(hangs.path(), 200), "--python is " + hangs.path() + ": no answer, wanted one within 0.2 s");
  const Interpreter endless("exec yes\n");
  EXPECT_EQ(problem(endless.path(), 200), "--python is " + endless.path() + ": no answer, wanted one within 0.2 s");
}

/// Processes that it leaves behind, itself after its answer, and much that it says before.
TEST(DoctorPython, AnAnswerCountsWhateverElseHoldsStdout) {
  const std::string answer =
      "echo '{\"program\": \"/p\", \"version\": \"3.11\", \"torch\": \"2.11.0\", \"overlace\": \"0.1.0\", "
      "\"operators\": [], \"why\": \"\"}'\n";
  const Interpreter wrapper("sleep 30 & echo $! > \"$0.pid\"\n" + answer);
  const auto begin = std::chrono::steady_clock::now();
  const Json report = doctor({.link_test = false, .python = wrapper.path()});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_TRUE(report.find("ok")->as_bool()) << report.dump(2);
  const base::Result<std::string> pid = base::read_file(wrapper.path() + ".pid");
  ASSERT_TRUE(pid.ok());
  bool is_left = true;  // until init has reaped it, /proc says that it is a zombie
  for (int i = 0; i < 100 && is_left; ++i) {
    const base::Result<std::string> status = base::read_file("/proc/" + std::to_string(std::stoi(*pid)) + "/stat");
    is_left = status.ok() && status->find(") Z ") == std::string::npos;
    if (is_left) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(is_left);

  const Interpreter holds(answer + "exec sleep 1000\n");
  EXPECT_TRUE(doctor({.link_test = false, .python = holds.path(), .python_timeout_ms = 2000}).find("ok")->as_bool());
  const Interpreter noisy("yes | head -c 3000000\n" + answer);
  EXPECT_TRUE(doctor({.link_test = false, .python = noisy.path()}).find("ok")->as_bool());
}

TEST(Doctor, TextNamesTheMachineAndWhereItIsFrom) {
  Json report = doctor({.link_test = false});
  Json use = *report.find("use");
  const auto text_of = [&](const char* origin, const Json& digest) {
    use.set("machine",
            Json::Object{{"origin", origin}, {"digest", digest}, {"date", ""}, {"disk", "D"}, {"host_link", "L"}});
    report.set("use", use);
    return doctor_text(report);
  };
  EXPECT_NE(
      text_of("no machine file for CPU ranks", Json()).find("  machine            no machine file for CPU ranks\n"),
      std::string::npos);
  EXPECT_NE(text_of("x", Json()).find("  its disk           D\n  its host link      L\n"), std::string::npos);
  EXPECT_NE(
      text_of("h200x2, OVERLACE_MACHINE", "0123").find("  machine            h200x2, OVERLACE_MACHINE, digest 0123\n"),
      std::string::npos);
}

/// In a process of its own: the environment is read once.
TEST(DoctorDeathTest, NamesTheMachineOfAFile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const spec::Machine machine = spec::find_machine("cpu2");
  const std::string path = ::testing::TempDir() + "doctor_machine.json";
  ASSERT_TRUE(base::write_file(path, spec::to_json(machine)).ok());
  ::setenv("OVERLACE_MACHINE", path.c_str(), 1);
  const std::string wanted =
      base::format("  machine            {}, OVERLACE_MACHINE, digest {}\n", path, spec::digest(machine));
  EXPECT_EXIT(
      {
        const std::string text = doctor_text(doctor({.link_test = false}));
        std::fputs(text.c_str(), stderr);
        std::_Exit(text.find(wanted) != std::string::npos ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  ::unsetenv("OVERLACE_MACHINE");
  ::unlink(path.c_str());
}

/// In a process of its own: the environment is read once.
TEST(DoctorDeathTest, ABadVariableIsAProblemNotACrash) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ::setenv("OVERLACE_TIMEOUT_S", "0", 1);
  EXPECT_EXIT(
      {
        const Json report = doctor();
        const bool good = !report.find("ok")->as_bool() &&
                          report.find("problems")->as_array().at(0).as_string() ==
                              "OVERLACE_TIMEOUT_S is \"0\", wanted integer, 1 to 86400" &&
                          doctor_text(report).find("problems\n  OVERLACE_TIMEOUT_S is") != std::string::npos;
        std::_Exit(good ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  ::unsetenv("OVERLACE_TIMEOUT_S");
}

}  // namespace
}  // namespace overlace::cli
