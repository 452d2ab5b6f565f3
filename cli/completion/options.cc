// `overlace completion`: scripts for shells, made of the parser itself.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/run/outputs.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

struct Flag {
  std::string name, description;  // "--ranks"
  std::string letter;             // "n" of -n; empty: none
  bool takes_value = false;
};

/// A command and what may stand behind it.
struct Place {
  std::string path;                                           // "", " sim", " sim graph"
  std::vector<std::pair<std::string, std::string>> commands;  // name and description
  std::vector<std::string> choices;                           // of an argument that is one of a few words
  std::vector<Flag> flags;
  std::string values;       // options behind which a value stands: "--ranks -n"
  bool takes_files = true;  // not where a subcommand or a choice must stand
};

/// Choices of an argument whose type is {bash,zsh,fish}.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.size() < 2 || type.front() != '{' || type.back() != '}') return {};
  return CLI::detail::split(type.substr(1, type.size() - 2), ',');
}

void add_option(const CLI::Option& option, Place* place) {
  const bool takes_value = option.get_items_expected_max() > 0;
  if (option.get_positional()) {
    for (std::string& choice : choices_of(option)) place->choices.push_back(std::move(choice));
    place->takes_files = place->takes_files && place->choices.empty();
  }
  if (option.get_lnames().empty() || option.get_group().empty()) return;  // no group: hidden
  place->flags.push_back({"--" + option.get_lnames().front(), option.get_description(),
                          option.get_snames().empty() ? "" : option.get_snames().front(), takes_value});
  if (!takes_value) return;
  for (const std::string& name : option.get_lnames()) place->values += (place->values.empty() ? "--" : " --") + name;
  for (const std::string& name : option.get_snames()) place->values += " -" + name;
}

void add_places(const CLI::App& app, const std::string& path, std::vector<Place>* places) {
  Place place;
  place.path = path;
  place.takes_files = app.get_require_subcommand_min() == 0;
  for (const CLI::Option* option : app.get_options()) add_option(*option, &place);
  const std::vector<const CLI::App*> commands = app.get_subcommands(nullptr);
  for (const CLI::App* one : commands) place.commands.emplace_back(one->get_name(), one->get_description());
  places->push_back(std::move(place));
  for (const CLI::App* one : commands) add_places(*one, path + " " + one->get_name(), places);
}

/// In single quotes, with `quote` for a quote within.
std::string quoted(const std::string& text, std::string_view quote) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string(quote) : std::string(1, c);
  return out + "'";
}

/// All commands as patterns of `case`: ' run'|' sim'|' sim graph'
std::string patterns_of(const std::vector<Place>& places, const char* between) {
  std::string out;
  for (const Place& place : places)
    if (!place.path.empty()) out += (out.empty() ? "" : between) + quoted(place.path, "");
  return out;
}

// NOTE: `help` is followed by the words of a command, so it is passed over. What follows -- is of another program. A
// word behind an option that takes a value is no subcommand; there the shell completes files.
constexpr std::string_view kBash = R"sh(# Completion of overlace in bash: eval "$(overlace completion bash)"
_overlace_at() {
  words='' flags='' values=''
  case "$at" in
@CASES@  esac
}
_overlace() {
  local at='' words flags values is_value='' i=1 word
  [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} == help ]] && i=2
  _overlace_at
  for ((; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    [[ $word == -- ]] && return
    if [[ $word == = ]]; then  # bash makes three words of --json=FILE
      is_value=1
    elif [[ $is_value ]]; then
      is_value=''
    elif [[ " $values " == *" $word "* ]]; then
      is_value=1
    else
      case "$at $word" in
        @PATTERNS@) at+=" $word" && _overlace_at ;;
      esac
    fi
  done
  word=${COMP_WORDS[COMP_CWORD]}
  [[ $is_value || $word == = ]] && return
  [[ $word == -* ]] && words=$flags
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _overlace overlace
)sh";

constexpr std::string_view kZsh = R"sh(#compdef overlace
# Completion of overlace in zsh: overlace completion zsh > _overlace, in a folder of $fpath
_overlace_at() {
  files=1 commands=() flags=() values=()
  case "$at" in
@CASES@  esac
}
_overlace() {
  local at='' i=2 files is_value='' word ret=1
  local -a commands flags values
  (( CURRENT > 2 )) && [[ $words[2] == help ]] && i=3
  _overlace_at
  for (( ; i < CURRENT; ++i )); do
    word=$words[i]
    [[ $word == -- ]] && { _files; return }
    if [[ -n $is_value ]]; then
      is_value=''
    elif (( ${values[(Ie)$word]} )); then
      is_value=1
    else
      case "$at $word" in
        (@PATTERNS@) at+=" $word"; _overlace_at ;;
      esac
    fi
  done
  [[ -n $is_value ]] && { _files; return }
  [[ $words[CURRENT] == --*=* ]] && { compset -P '*='; _files; return }
  [[ $words[CURRENT] == -* ]] && { _describe -o option flags; return }
  (( $#commands )) && _describe command commands && ret=0
  (( files )) && _files && ret=0
  return ret
}
if [[ $funcstack[1] == _overlace ]]; then _overlace "$@"; else compdef _overlace overlace; fi
)sh";

constexpr std::string_view kFish = R"sh(# Completion of overlace in fish: overlace completion fish | source
function __overlace_values
    switch "$argv[1]"
@CASES@    end
end
function __overlace_at
    set -l at ''
    set -l is_value 0
    set -l words (commandline -opc)
    set -e words[1]
    test (count $words) -gt 0; and test $words[1] = help; and set -e words[1]
    for word in $words
        test "$word" = --; and return 1
        if test $is_value = 1
            set is_value 0
            continue
        end
        if contains -- "$word" (__overlace_values "$at")
            set is_value 1
            continue
        end
        switch "$at $word"
            case @PATTERNS@
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
)sh";

std::string replaced(std::string_view text, std::string_view mark, const std::string& by) {
  const size_t at = text.find(mark);
  return std::string(text.substr(0, at)) + by + std::string(text.substr(at + mark.size()));
}

std::string bash_script(const std::vector<Place>& places) {
  std::string cases;
  for (const Place& place : places) {
    std::string words, flags;
    for (const auto& [name, description] : place.commands) words += (words.empty() ? "" : " ") + name;
    for (const std::string& choice : place.choices) words += (words.empty() ? "" : " ") + choice;
    for (const Flag& flag : place.flags) flags += (flags.empty() ? "" : " ") + flag.name;
    cases += base::format("    '{}') words='{}' flags='{}' values='{}' ;;\n", place.path, words, flags, place.values);
  }
  return replaced(replaced(kBash, "@PATTERNS@", patterns_of(places, "|")), "@CASES@", cases);
}

std::string zsh_script(const std::vector<Place>& places) {
  const auto item = [](const std::string& name, const std::string& description) {
    return " " + quoted(name + ":" + description, R"('\'')");
  };
  std::string cases;
  for (const Place& place : places) {
    std::string commands, flags;
    for (const auto& [name, description] : place.commands) commands += item(name, description);
    for (const std::string& choice : place.choices) commands += item(choice, "");
    for (const Flag& flag : place.flags) flags += item(flag.name, flag.description);
    cases += base::format("    ('{}') files={} commands=({}) flags=({}) values=({}) ;;\n", place.path,
                          place.takes_files ? 1 : 0, commands, flags, place.values);
  }
  return replaced(replaced(kZsh, "@PATTERNS@", patterns_of(places, "|")), "@CASES@", cases);
}

std::string fish_script(const std::vector<Place>& places) {
  std::string values;
  for (const Place& place : places)
    if (!place.values.empty())
      values += base::format("        case '{}'\n            string split ' ' -- '{}'\n", place.path, place.values);
  std::string out = replaced(replaced(kFish, "@CASES@", values), "@PATTERNS@", patterns_of(places, " "));
  for (const Place& place : places) {
    const std::string head = base::format("complete -c overlace -n \"__overlace_at '{}'\"", place.path);
    const auto text = [](const std::string& description) { return quoted(description, R"(\')"); };
    if (!place.takes_files) out += head + " -f\n";
    for (const auto& [name, description] : place.commands)
      out += base::format("{} -a {} -d {}\n", head, name, text(description));
    for (const std::string& choice : place.choices) out += base::format("{} -a {}\n", head, choice);
    for (const Flag& flag : place.flags)
      out += base::format("{} -l {}{}{} -d {}\n", head, flag.name.substr(2),
                          flag.letter.empty() ? "" : " -s " + flag.letter, flag.takes_value ? " -r" : "",
                          text(flag.description));
  }
  return out;
}

int run_completion(const CLI::App& app, const std::string& shell) {
  std::vector<Place> places;
  add_places(app, "", &places);
  if (shell != "bash" && shell != "zsh" && shell != "fish")
    base::invalid_argument("completion: shell is {}, wanted bash, zsh or fish", shell).or_throw();
  print(shell == "bash" ? bash_script(places) : shell == "zsh" ? zsh_script(places) : fish_script(places)).or_throw();
  return 0;
}

}  // namespace

Command add_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* completion =
      app.add_subcommand("completion", "Print a script that completes commands and options in a shell");
  completion->add_option("shell", *shell, "bash, zsh or fish")->type_name("{bash,zsh,fish}")->required();
  return {completion, [&app, shell] { return run_completion(app, *shell); }};
}

}  // namespace overlace::cli
