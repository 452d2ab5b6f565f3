// Command lines of the bench programs: each option is declared once; one main for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace overlace::bench {

/// What the command line says of a run besides its workload; goes into every record.
struct RunFacts {
  std::string id;  // --run, else the time of the begin
  std::string git = "unknown", command;
  std::string out;  // --out: where records are added; empty: nowhere
};

/// Options by name, with --git, --run and --out already among them. A number takes the whole word; a bad one is
/// InvalidArgument with the option and the word.
class Arguments {
 public:
  explicit Arguments(RunFacts* run);
  void add(const std::string& name, bool* flag);
  void add(const std::string& name, std::string* text);
  void add(const std::string& name, int* number, int least);
  void add(const std::string& name, double* number, double least);
  void add(const std::string& name, uint64_t* number);
  void add(const std::string& name, std::vector<std::string>* comma_separated);
  void parse(int argc, char** argv);

 private:
  struct Option {
    bool takes_value;
    std::function<void(const std::string&)> set;
  };
  RunFacts* run_;
  std::map<std::string, Option> options_;
};

std::vector<std::string> split(const std::string& text, char at);

/// "2026-11-21T15:19:18Z"
std::string utc_now();

/// body's result, or the exit status of what it throws, which goes to stderr.
int run_program(const char* name, int argc, char** argv, int (*body)(int argc, char** argv));

}  // namespace overlace::bench
