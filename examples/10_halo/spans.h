// When a rank computed and when borders of others were under way, as a file for a trace viewer (ui.perfetto.dev).
#pragma once

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "overlace/runtime.h"

class Spans {
 public:
  explicit Spans(int rank) : rank_(rank) {}
  /// Microseconds, the same clock on all ranks of a machine.
  static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  /// What is added from now on belongs to this pass.
  void begin(const std::string& pass) { pass_ = pass; }

  void add(const char* lane, const char* name, double begin_us, double end_us) {
    if (!pass_.empty()) events_ += event("X", lane, pass_ + ": " + name, begin_us, end_us - begin_us);
  }
  void end() { pass_.clear(); }

  /// Rank 0 writes the spans of all ranks. False where it could not.
  bool write(overlace::Bootstrap& bootstrap, const std::string& path) const {
    const std::string mine = std::to_string(bootstrap.rank()) + "\n" + events_;
    std::string all;
    for (const overlace::Bytes& theirs : bootstrap.allgather(std::as_bytes(std::span(mine)), 10'000)) {
      const std::string text(reinterpret_cast<const char*>(theirs.data()), theirs.size());
      const size_t line = text.find('\n');
      all += R"({"ph": "M", "name": "process_name", "pid": )" + text.substr(0, line) + R"(, "args": {"name": "rank )" +
             text.substr(0, line) + "\"}},\n" + text.substr(line + 1);
    }
    if (bootstrap.rank() != 0) return true;
    if (!all.empty()) all.resize(all.size() - 2);  // the last comma
    std::ofstream file(path);
    file << "{\"traceEvents\": [\n" << all << "\n]}\n";
    if (file.flush()) std::printf("wrote %s\n", path.c_str());
    return static_cast<bool>(file);
  }

 private:
  std::string event(const char* phase, const char* lane, const std::string& name, double at_us,
                    double length_us) const {
    char text[256];
    std::snprintf(text, sizeof text,
                  R"({"ph": "%s", "pid": %d, "tid": "%s", "name": "%s", "ts": %.3f, "dur": %.3f},)"
                  "\n",
                  phase, rank_, lane, name.c_str(), at_us, length_us);
    return text;
  }

  const int rank_;
  std::string pass_, events_;
};
