#include "bench/common/arguments.h"

#include <charconv>
#include <cstdio>
#include <ctime>
#include <exception>

#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/format.h"

namespace overlace::bench {
namespace {

template <class Number>
Number number_of(const std::string& option, const std::string& text) {
  Number value{};
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || stop != text.data() + text.size())
    throw_error(Errc::invalid_argument, base::format("{} is \"{}\", wanted a number", option, text));
  return value;
}

template <class Number>
std::function<void(const std::string&)> setter(const std::string& option, Number* to, Number least) {
  return [option, to, least](const std::string& text) {
    const Number value = number_of<Number>(option, text);
    // Written so that NaN is refused too.
    if (!(value >= least))
      throw_error(Errc::invalid_argument, base::format("{} is {}, wanted at least {}", option, value, least));
    *to = value;
  };
}

/// The words, the program by its name alone.
std::string command_line(int argc, char** argv) {
  const std::string program = argv[0];
  std::string words = program.substr(program.find_last_of('/') + 1);
  for (int i = 1; i < argc; ++i) words += " " + std::string(argv[i]);
  return words;
}

}  // namespace

Arguments::Arguments(RunFacts* run) : run_(run) {
  run->id = utc_now();
  add("--git", &run->git);
  add("--run", &run->id);
  add("--out", &run->out);
}

void Arguments::add(const std::string& name, bool* flag) {
  options_[name] = {false, [flag](const std::string&) { *flag = true; }};
}
void Arguments::add(const std::string& name, std::string* text) {
  options_[name] = {true, [text](const std::string& word) { *text = word; }};
}
void Arguments::add(const std::string& name, int* number, int least) {
  options_[name] = {true, setter(name, number, least)};
}
void Arguments::add(const std::string& name, double* number, double least) {
  options_[name] = {true, setter(name, number, least)};
}
void Arguments::add(const std::string& name, uint64_t* number) {
  options_[name] = {true, setter(name, number, uint64_t{0})};
}
void Arguments::add(const std::string& name, std::vector<std::string>* list) {
  options_[name] = {true, [list](const std::string& word) { *list = split(word, ','); }};
}

void Arguments::parse(int argc, char** argv) {
  run_->command = command_line(argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto found = options_.find(name);
    if (found == options_.end()) {
      std::string known;
      for (const auto& [option, how] : options_) known += (known.empty() ? "" : ", ") + option;
      throw_error(Errc::invalid_argument, base::format("{} is not an option, wanted some of {}", name, known));
    }
    const Option& option = found->second;
    if (option.takes_value && i + 1 == argc)
      throw_error(Errc::invalid_argument, base::format("{} is the last word, wanted a value behind it", name));
    option.set(option.takes_value ? argv[++i] : "");
  }
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(at); end != std::string::npos; end = text.find(at, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32] = {};
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int run_program(const char* name, int argc, char** argv, int (*body)(int argc, char** argv)) {
  constexpr int kExitInternal = 70;
  base::set_environment_default("NCCL_NVLS_ENABLE", "0");  // as in the competitors through PyTorch
  try {
    return body(argc, argv);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s: %s: %s\n", name, std::string(errc_name(e.code())).c_str(), e.what());
    return exit_code(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", name, e.what());
    return kExitInternal;
  }
}

}  // namespace overlace::bench
