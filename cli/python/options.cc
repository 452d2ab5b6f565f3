// Commands that are programs in Python: their options here are those of their own parsers.
#include "cli/options.h"

#include <CLI/CLI.hpp>

#include "cli/python/table.h"

namespace overlace::cli {
namespace {

/// Cuts the first line off.
std::string_view next_line(std::string_view* text) {
  const size_t end = std::min(text->find('\n'), text->size());
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return line;
}

/// Cuts the first word off, and the blank behind it.
std::string next_word(std::string_view* line) {
  const size_t end = std::min(line->find(' '), line->size());
  const std::string word(line->substr(0, end));
  line->remove_prefix(std::min(end + 1, line->size()));
  return word;
}

void add_one(CLI::App* app, std::string_view line, const std::string& more) {
  const std::string names = next_word(&line), type = next_word(&line), description = std::string(line) + more;
  if (type == "flag") {
    app->add_flag(names, description);
  } else if (type == "TEXT...") {
    app->add_option_function<std::vector<std::string>>(
        names, [](const auto&) {}, description);
  } else {
    CLI::Option* option = app->add_option_function<std::string>(
        names, [](const auto&) {}, description);
    option->type_name(type)->required(option->get_positional());
  }
}

}  // namespace

void add_python_options(CLI::App* app, std::string_view command) {
  std::string_view text = kPythonOptions.substr(kPythonOptions.find("\n" + std::string(command) + ":\n") + 1);
  next_line(&text);
  while (text.starts_with("  ")) {
    std::string_view line = next_line(&text).substr(2);
    std::string more;
    while (text.starts_with("    ")) more += " " + std::string(next_line(&text).substr(4));
    add_one(app, line, more);
  }
}

std::vector<std::string> python_words(const CLI::App& app) {
  std::vector<std::string> words, arguments;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option == app.get_help_ptr()) continue;
    for (const std::string& value : option->results()) {
      if (option->get_positional())
        arguments.push_back(value);
      else if (option->get_items_expected_max() == 0)
        words.push_back("--" + option->get_lnames().front());
      else
        words.push_back("--" + option->get_lnames().front() + "=" + value);
    }
  }
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

}  // namespace overlace::cli
