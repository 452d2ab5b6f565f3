#include "cli/doctor/doctor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/doctor/link.h"
#include "cli/doctor/machine.h"
#include "cli/doctor/python.h"
#include "cli/host_rates.h"
#include "cli/run/outputs.h"
#include "overlace/runtime.h"
#include "src/base/env.h"
#include "src/base/version.h"
#include "src/context/machine.h"
#include "src/exec/gemm.h"
#include "src/io/engine.h"
#include "src/runtime/backend.h"
#include "src/runtime/state.h"

namespace overlace::cli {
namespace {

using base::Json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }
Json or_null(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(); }

Json cpu_json() {
  const CpuFacts cpu = cpu_facts();
  return Json::Object{{"model", cpu.model},
                      {"online", cpu.online},
                      {"allowed", cpu.allowed},
                      {"quota", or_null(cpu.quota)},
                      {"usable", cpu.usable()}};
}

Json memory_json() {
  const MemoryFacts memory = memory_facts();
  return Json::Object{{"total_bytes", memory.total_bytes},
                      {"available_bytes", memory.available_bytes},
                      {"limit_bytes", or_null(memory.limit_bytes)},
                      {"shm_free_bytes", memory.shm_free_bytes}};
}

Json gpu_json(int num_usable, const std::string& why) {
  Json devices = Json::array();
  for (const GpuFacts& gpu : gpu_facts())
    devices.push_back(Json::Object{
        {"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}, {"compute_capability", gpu.compute_capability}});
  return Json::Object{
      {"usable", num_usable}, {"why", why}, {"driver", driver_version()}, {"devices", std::move(devices)}};
}

Json libraries_json() {
  Json list = Json::array();
  for (const LibraryFacts& library : library_facts())
    list.push_back(Json::Object{{"name", library.name},
                                {"purpose", library.purpose},
                                {"path", library.path.empty() ? Json() : Json(library.path)},
                                {"version", library.version}});
  return list;
}

/// How files are read, and where it is not io_uring, why not.
Json io_json() {
  const base::Result<io::EngineChoice> choice = io::choose_engine();
  return Json::Object{{"engine", choice.ok() ? Json(choice->name) : Json()},
                      {"why", choice.ok() ? choice->reason : choice.status().message()}};
}

/// What schedules are chosen for, as a team of so many ranks would find it.
Json machine_json(const RuntimeOptions& options, int ranks, bool on_gpus) {
  context::Site site;
  site.is_gpu = on_gpus;
  site.ranks = ranks;
  if (const std::vector<GpuFacts> gpus = gpu_facts(); on_gpus && !gpus.empty()) {
    site.device = gpus.front().name;
    site.compute_capability = capability_of_ranks(gpus, ranks);
  }
  site.emulated_bytes_per_s = options.link.enabled ? options.link.bytes_per_s : 0;
  const base::Result<context::Found> found =
      context::find_machine(site, {.variable = base::env().machine, .folder = context::machines_folder()});
  found.status().or_throw();
  return Json::Object{{"origin", found->origin},
                      {"digest", found->machine.has_costs() ? Json(spec::digest(found->machine)) : Json()},
                      {"date", found->machine.date},
                      {"disk", storage_text(found->machine)},
                      {"host_link", host_link_text(found->machine)}};
}

/// What overlace takes without arguments, here and now.
Json use_json(const RuntimeOptions& options, int num_gpus) {
  const bool on_gpus = options.backend == Backend::cuda_peer || (options.backend == Backend::automatic && num_gpus > 0);
  const auto default_bytes = int64_t{1} << (on_gpus ? 30 : 26);
  const uint32_t ids = options.num_signal_ids > 0
                           ? options.num_signal_ids
                           : runtime::default_signal_ids(on_gpus ? Backend::cuda_peer : Backend::cpu);
  const char* wait = options.wait == WaitPolicy::spin ? "spin" : options.wait == WaitPolicy::futex ? "futex" : "auto";
  return Json::Object{{"backend", on_gpus ? "cuda_peer" : "cpu"},
                      {"ranks", on_gpus ? num_gpus : 2},
                      {"heap_bytes", options.heap_bytes > 0 ? static_cast<int64_t>(options.heap_bytes) : default_bytes},
                      {"signal_ids", static_cast<int64_t>(ids)},
                      {"wait", wait},
                      {"timeout_ms", options.timeout_ms > 0 ? options.timeout_ms : base::env().timeout_s * 1000},
                      {"net_engine", options.net_engine},
                      {"cpu_gemm", exec::cpu_gemm_provider()},
                      {"io", io_json()},
                      {"link", options.link.enabled ? Json(options.link.to_string()) : Json()},
                      {"adversary", options.adversary.enabled},
                      {"machine", machine_json(options, on_gpus ? num_gpus : 2, on_gpus)}};
}

Json environment_json(const base::Env& env) {
  Json list = Json::array();
  for (const base::EnvValue& v : env.values())
    list.push_back(Json::Object{{"name", v.name},
                                {"value", v.value},
                                {"origin", v.is_set ? "environment" : "default"},
                                {"accepted", v.accepted},
                                {"doc", v.doc}});
  return list;
}

Json unknown_json(const base::Env& env) {
  Json list = Json::array();
  for (const auto& [name, nearest] : env.unknown()) list.push_back(Json::Object{{"name", name}, {"nearest", nearest}});
  return list;
}

/// ---- text ----

std::string bytes_text(const Json& bytes) {
  const int64_t n = bytes.as_int();
  if (n >= int64_t{1} << 30) return base::format("{:.1f} GiB", static_cast<double>(n) / (1 << 30));
  if (n >= 1 << 20) return base::format("{:.0f} MiB", static_cast<double>(n) / (1 << 20));
  return base::format("{} B", n);
}

class Page {
 public:
  void title(std::string_view text) { out_ += base::format("{}{}\n", out_.empty() ? "" : "\n", text); }
  void line(std::string_view key, std::string_view value) { out_ += base::format("  {:<18} {}\n", key, value); }
  void text(std::string_view text) { out_ += base::format("  {}\n", text); }
  std::string done() && { return std::move(out_); }

 private:
  std::string out_;
};

void machine_text(const Json& report, Page& page) {
  const Json& cpu = *report.find("cpu");
  page.title("machine");
  page.line("CPU", cpu.find("model")->as_string());
  std::string cores =
      base::format("{} online, {} allowed", cpu.find("online")->as_int(), cpu.find("allowed")->as_int());
  if (!cpu.find("quota")->is_null()) cores += base::format(", quota {:.2f}", cpu.find("quota")->as_double());
  page.line("cores", cores + base::format("; {} used at once", cpu.find("usable")->as_int()));
  const Json& memory = *report.find("memory");
  std::string amount = base::format("{}, {} available", bytes_text(*memory.find("total_bytes")),
                                    bytes_text(*memory.find("available_bytes")));
  if (!memory.find("limit_bytes")->is_null()) amount += ", limit " + bytes_text(*memory.find("limit_bytes"));
  page.line("memory", amount + base::format("; /dev/shm {} free", bytes_text(*memory.find("shm_free_bytes"))));
  const Json& gpu = *report.find("gpu");
  const std::string& driver = gpu.find("driver")->as_string();
  page.line("GPU driver", driver.empty() ? "none" : driver);
  if (gpu.find("usable")->as_int() == 0) page.line("GPUs", "none: " + gpu.find("why")->as_string());
  int64_t index = 0;
  for (const Json& device : gpu.find("devices")->as_array())
    page.line(base::format("GPU {}", index++),
              base::format("{}, {}, {}", device.find("name")->as_string(), bytes_text(*device.find("memory_bytes")),
                           capability_text(static_cast<int>(device.find("compute_capability")->as_int()))));
  page.title("libraries");
  for (const Json& library : report.find("libraries")->as_array()) {
    const Json& path = *library.find("path");
    page.line(library.find("name")->as_string(),
              path.is_null() ? base::format("not found ({})", library.find("purpose")->as_string())
                             : base::format("{} {}", library.find("version")->as_string(), path.as_string()));
  }
}

void python_text(const Json& python, Page& page) {
  const auto version = [&](const char* name) {
    const Json& known = *python.find(name);
    return known.is_null() ? "not there: " + python.find("why")->as_string() : known.as_string();
  };
  page.title("Python");
  page.line("interpreter", python.find("version")->as_string() + " " + python.find("program")->as_string());
  page.line("torch", version("torch"));
  if (python.find("torch")->is_null()) return;
  page.line("overlace", version("overlace"));
  std::string operators;
  for (const Json& name : python.find("operators")->as_array())
    operators += (operators.empty() ? "" : ", ") + name.as_string();
  page.line("its operators", operators.empty() ? "none: " + python.find("why")->as_string() : operators);
}

void use_text(const Json& use, int64_t cores, Page& page) {
  page.title("overlace will use");
  page.line("backend", base::format("{}, {} ranks", use.find("backend")->as_string(), use.find("ranks")->as_int()));
  page.line("heap", base::format("{} per rank, {} signal ids", bytes_text(*use.find("heap_bytes")),
                                 use.find("signal_ids")->as_int()));
  const std::string& wait = use.find("wait")->as_string();
  page.line("wait policy", wait != "auto"
                               ? wait
                               : base::format("auto: spins first while at most {} threads wait, else sleeps at "
                                              "once",
                                              cores));
  page.line("deadline", base::format("{} s", use.find("timeout_ms")->as_int() / 1000));
  page.line("network engine", use.find("net_engine")->as_string());
  page.line("GEMMs on CPUs", use.find("cpu_gemm")->as_string());
  const Json& io = *use.find("io");
  const std::string& why = io.find("why")->as_string();
  const Json& engine = *io.find("engine");
  page.line("disk I/O",
            (engine.is_null() ? std::string("none") : engine.as_string()) + (why.empty() ? "" : ": " + why));
  const Json& machine = *use.find("machine");
  const Json& digest = *machine.find("digest");
  page.line("machine",
            machine.find("origin")->as_string() + (digest.is_null() ? "" : ", digest " + digest.as_string()));
  page.line("its disk", machine.find("disk")->as_string());
  page.line("its host link", machine.find("host_link")->as_string());
  if (!use.find("link")->is_null()) page.line("link", use.find("link")->as_string() + "  [emulated]");
  if (use.find("adversary")->as_bool()) page.line("adversary", "on: puts are late, split and out of order");
}

void link_text(const Json& test, Page& page) {
  const bool is_emulated = test.find("emulated")->as_bool();
  page.title(base::format("link test: {}, {} ranks{}", test.find("backend")->as_string(), test.find("ranks")->as_int(),
                          is_emulated ? "  [emulated]" : ""));
  if (!test.find("error")->is_null()) {
    page.text("FAILED: " + test.find("error")->as_string());
    return;
  }
  if (const Json* latency = test.find("latency_us"); latency != nullptr) {
    page.line("put and signal", base::format("{:.2f} us one way, 8 bytes", latency->as_double()));
    page.line("bandwidth", base::format("{:.2f} GB/s, 1 MiB puts", test.find("bandwidth_gb_s")->as_double()));
  }
  std::string caps;
  for (const auto& [name, value] : test.find("caps")->as_object())
    if (value.as_bool()) caps += (caps.empty() ? "" : ", ") + name;
  page.line("caps", caps.empty() ? "none" : caps);
  int64_t rank = 0;
  for (const Json& row : test.find("reach")->as_array()) {
    std::string cells;
    for (const Json& cell : row.as_array()) cells += base::format("{:<5}", cell.as_string());
    page.line(base::format("reach of rank {}", rank++), cells);
  }
}

void environment_text(const Json& report, Page& page) {
  page.title("environment (* set, others at their default)");
  for (const Json& v : report.find("environment")->as_array()) {
    const std::string& value = v.find("value")->as_string();
    const bool is_set = v.find("origin")->as_string() == "environment";
    page.text(
        base::format("{} {:<28} {}", is_set ? '*' : ' ', v.find("name")->as_string(), value.empty() ? "-" : value));
  }
  for (const Json& v : report.find("unknown")->as_array())
    page.text(base::format("? {:<28} unknown; the nearest known name is {}", v.find("name")->as_string(),
                           v.find("nearest")->as_string()));
}

}  // namespace

Json doctor(const DoctorOptions& options) {
  Json::Array problems;
  Json report = Json::object();
  report.set("ok", true).set("version", base::version()).set("commit", base::commit());
  std::string why;
  const int num_gpus = runtime::cuda_device_count(&why);
  report.set("cpu", cpu_json()).set("memory", memory_json()).set("gpu", gpu_json(num_gpus, why));
  report.set("libraries", libraries_json()).set("python", Json());
  if (!options.python.empty()) {
    base::Result<Json> python = ask_python(options.python, options.python_timeout_ms);
    if (!python.ok()) {
      problems.emplace_back(python.status().message());
    } else {
      if (const std::string& failure = python->find("why")->as_string(); !failure.empty())
        problems.emplace_back(base::format("--python is {}: {}, wanted an interpreter that imports torch and overlace",
                                           options.python, failure));
      report.set("python", std::move(*python));
    }
  }
  report.set("use", Json()).set("environment", Json::array()).set("unknown", Json::array());
  Json tests = Json::array();
  try {
    report.set("environment", environment_json(base::env())).set("unknown", unknown_json(base::env()));
    const RuntimeOptions runtime_options = RuntimeOptions::from_environment();
    report.set("use", use_json(runtime_options, num_gpus));
    if (options.link_test) tests = link_tests(runtime_options, num_gpus, options.timeout_ms);
  } catch (...) {
    problems.emplace_back(base::status_of_current_exception().message());
  }
  for (const Json& test : tests.as_array())
    if (const Json& failure = *test.find("error"); !failure.is_null())
      problems.emplace_back(
          base::format("link test on {}: {}", test.find("backend")->as_string(), failure.as_string()));
  report.set("link_tests", std::move(tests)).set("ok", problems.empty()).set("problems", std::move(problems));
  return with_schema("doctor", std::move(report));
}

std::string doctor_text(const Json& report) {
  Page page;
  const std::string& commit = report.find("commit")->as_string();
  page.title(
      base::format("overlace {}{}", report.find("version")->as_string(), commit.empty() ? "" : " (" + commit + ")"));
  machine_text(report, page);
  if (!report.find("python")->is_null()) python_text(*report.find("python"), page);
  if (!report.find("use")->is_null()) use_text(*report.find("use"), report.find("cpu")->find("usable")->as_int(), page);
  for (const Json& test : report.find("link_tests")->as_array()) link_text(test, page);
  if (!report.find("environment")->as_array().empty()) environment_text(report, page);
  const Json::Array& problems = report.find("problems")->as_array();
  page.title(problems.empty() ? "no problems" : "problems");
  for (const Json& problem : problems) page.text(problem.as_string());
  return std::move(page).done();
}

}  // namespace overlace::cli
