// The command line: finds the command, parses its options and runs it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>

#include "cli/options.h"
#include "cli/run/outputs.h"
#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/log.h"
#include "src/base/status.h"
#include "src/base/version.h"

namespace {

using overlace::Errc;

int fail(Errc code, const std::string& message) {
  std::fprintf(stderr, "overlace: error: %s\n", message.c_str());
  return overlace::exit_code(code);
}

void log_to_stderr() {
  using overlace::base::LogLevel;
  const std::string& wanted = overlace::base::env().log;
  if (wanted == "off") return;
  const LogLevel level = wanted == "debug"   ? LogLevel::debug
                         : wanted == "info"  ? LogLevel::info
                         : wanted == "error" ? LogLevel::error
                                             : LogLevel::warn;
  const auto sink = [](LogLevel, std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  overlace::base::set_log_sink(sink, level);
}

/// What is wrong with `word` as a subcommand of `app`, more than CLI11 says of it; empty: nothing, or it is an option.
std::string subcommand_error(const CLI::App& app, const std::string& what, const std::string& word) {
  if (word.rfind('-', 0) == 0) return {};
  std::string wanted;
  const std::vector<const CLI::App*> known = app.get_subcommands(nullptr);
  for (const CLI::App* one : known) {
    if (one->get_name() == word) return {};
    wanted += (one == known.front() ? "" : one == known.back() ? " or " : ", ") + one->get_name();
  }
  return what + " " + word + ", wanted " + (known.empty() ? "none" : wanted);
}

/// `overlace help WORDS` is `overlace WORDS --help`: makes one of the other, or says what is wrong with a word.
std::string ask_for_help(const CLI::App& app, std::vector<char*>* words) {
  static char option[] = "--help";
  const CLI::App* command = &app;
  for (size_t i = 2; i < words->size(); ++i) {
    const std::string word = (*words)[i];
    if (std::string why = subcommand_error(*command, "unknown subcommand", word); !why.empty()) return why;
    if (word.rfind('-', 0) == 0) return {};  // an option of `help`, if it is one
    command = command->get_subcommand(word);
  }
  words->erase(words->begin() + 1);
  words->push_back(option);
  return {};
}

std::string value_of(const CLI::App& command, const char* option) {
  const CLI::Option* found = command.get_option_no_throw(option);
  return found == nullptr || found->count() == 0 ? std::string() : found->results().back();
}

/// Before a command works for a file that cannot be written: --json of the subcommand that was asked for. What lies
/// within its --out may need a folder that the command makes.
overlace::base::Status check_json(const CLI::App& command) {
  for (const CLI::App* inner : command.get_subcommands()) return check_json(*inner);
  const std::string json = value_of(command, "--json"), out = value_of(command, "--out");
  if (!out.empty() && json.rfind(out + (out.back() == '/' ? "" : "/"), 0) == 0) return {};
  return overlace::cli::check_writable("--json", json);
}

}  // namespace

int main(int argc, char** argv) {
  // NOTE: what follows "--" belongs to the program that `run` starts and is not ours to parse.
  int own = 0;
  while (own < argc && std::strcmp(argv[own], "--") != 0) ++own;
  std::optional<std::vector<std::string>> program;
  if (own < argc) program.emplace(argv + own + 1, argv + argc);
  CLI::App app("overlace: communication hidden behind the computation that depends on it");
  app.set_version_flag("--version", std::string("overlace ") + overlace::base::version());
  app.require_subcommand(1);
  using namespace overlace::cli;
  const Command commands[] = {add_run(app, program), add_doctor(app),  add_trace(app),     add_sim(app),
                              add_plan(app),         add_explain(app), add_tune(app),      add_calibrate(app),
                              add_gnn(app),          add_bench(app),   add_completion(app)};
  std::vector<std::string> asked;
  app.add_subcommand("help", "Help of a command")->add_option("command", asked, "The command, such as sim graph moe");
  std::vector<char*> words(argv, argv + own);
  std::string why;
  if (own > 1) why = subcommand_error(app, "unknown subcommand", argv[1]);
  if (own > 1 && std::strcmp(argv[1], "help") == 0) why = ask_for_help(app, &words);
  if (own > 3 && std::strcmp(argv[1], "sim") == 0 && std::strcmp(argv[2], "graph") == 0)
    why = subcommand_error(*app.get_subcommand("sim")->get_subcommand("graph"), "graph is", argv[3]);
  if (!why.empty()) return fail(Errc::invalid_argument, why);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    return fail(Errc::invalid_argument, e.what());
  }
  try {
    log_to_stderr();
    for (const Command& command : commands)
      if (app.got_subcommand(command.parser)) {
        // NOTE: other ranks of `run` may be on hosts that lack the folder; the one that writes looks for itself.
        if (command.parser->get_name() != "run") check_json(*command.parser).or_throw();
        return command.run();
      }
    return 0;
  } catch (...) {
    const auto status = overlace::base::status_of_current_exception();
    return fail(status.code(), status.message());
  }
}
