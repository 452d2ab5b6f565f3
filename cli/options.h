// Each command adds its options to the parser and says how to run it: cli/<command>/options.cc.
#pragma once

#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
}

namespace overlace::cli {

struct Command {
  CLI::App* parser;
  /// Runs it with what was parsed; returns the exit code. Failures are thrown as overlace::Error.
  std::function<int()> run;
};

/// `program`: what follows "--", where it stands.
Command add_run(CLI::App& app, const std::optional<std::vector<std::string>>& program);
Command add_doctor(CLI::App& app);
Command add_trace(CLI::App& app);
Command add_sim(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_calibrate(CLI::App& app);
Command add_tune(CLI::App& app);
Command add_gnn(CLI::App& app);
Command add_bench(CLI::App& app);
/// Completes all commands that `app` has when it runs.
Command add_completion(CLI::App& app);

/// Options of the program in Python that a command hands over to (cli/python/table.h has the commands).
void add_python_options(CLI::App* app, std::string_view command);
/// What was parsed of them, as words for that program.
std::vector<std::string> python_words(const CLI::App& app);

struct GnnRateWords;
/// Options of `gnn plan` and `sim graph gnn`.
void add_gnn_rates(CLI::App* app, GnnRateWords* words);
/// --field of the commands that pose a problem of any operator; set_fields() reads the words.
void add_fields(CLI::App* parser, std::vector<std::string>* words);
struct PlanOffloadWords;
/// What `overlace plan offload` and `overlace sim graph offload` have in common.
void add_offload_words(CLI::App* parser, PlanOffloadWords* words);

/// What machine_of takes.
inline constexpr const char* kMachineWords = "A shipped machine or FILE.json (default: H200s, by the number of ranks)";

/// CLI11 takes what it can of a number that is too large; this does not.
template <class Number>
std::string number_error(const std::string& text) {
  Number value = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc() && stop == text.data() + text.size()) return {};
  return "it is " + text + ", wanted a whole number" + (std::is_signed_v<Number> ? "" : " that is not negative");
}

}  // namespace overlace::cli
