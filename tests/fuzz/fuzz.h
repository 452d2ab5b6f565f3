// What the fuzz targets share. A target runs one parser on foreign bytes: it may refuse them with the library's errors
// and nothing else, and what it accepts must survive the uses that follow. libFuzzer and the sanitizers see the rest.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/error.h"

namespace overlace::fuzz {

/// Ends the run as a crash; the fuzzer writes the input to a file.
[[noreturn]] inline void broken(const char* what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
  std::abort();
}

/// Runs what throws at the edge of the library; false where it refused. Internal is a bug of ours and comes through.
template <class Body>
bool accepted(Body body) {
  try {
    body();
    return true;
  } catch (const Internal&) {
    throw;
  } catch (const Error&) {
    return false;
  }
}

inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

/// A file in memory with a path, for readers that open files. The same file for all inputs of a process.
class ScratchFile {
 public:
  ScratchFile();
  void write(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

/// The target: defined once in each *_fuzz.cc.
void run(std::string_view input);

}  // namespace overlace::fuzz

#define FUZZ_REQUIRE(condition) ((condition) ? void(0) : ::overlace::fuzz::broken(#condition, __FILE__, __LINE__))
