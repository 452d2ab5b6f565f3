#include "src/base/log.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <set>

namespace overlace::base {
namespace {

struct Sinks {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
  std::set<std::string, std::less<>> warned;
};

/// Never destroyed: threads may log while the process ends.
Sinks& sinks() {
  static Sinks* const instance = new Sinks;
  return *instance;
}

constexpr int kOff = -1;
std::atomic<int> max_level{kOff};
thread_local std::string rank_text;

}  // namespace

void set_log_sink(LogSink sink, LogLevel level) {
  Sinks& all = sinks();
  const std::lock_guard lock(all.mutex);
  max_level.store(sink ? static_cast<int>(level) : kOff, std::memory_order_relaxed);
  all.sink = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  all.warned.clear();
}

void set_log_rank(int rank, int size) { rank_text = format("r{}/{} ", rank, size); }

bool log_enabled(LogLevel level) { return static_cast<int>(level) <= max_level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view area, std::string_view text) {
  if (!log_enabled(level)) return;
  std::shared_ptr<const LogSink> sink;
  {
    Sinks& all = sinks();
    const std::lock_guard lock(all.mutex);
    sink = all.sink;
  }
  if (!sink) return;
  const char letter = "EWID"[static_cast<int>(level)];
  (*sink)(level, format("{} {}{}: {}", letter, rank_text, area, text));
}

void warn_once(std::string_view area, std::string_view text) {
  if (!log_enabled(LogLevel::warn)) return;
  {
    Sinks& all = sinks();
    const std::lock_guard lock(all.mutex);
    if (!all.warned.insert(format("{}: {}", area, text)).second) return;
  }
  log_line(LogLevel::warn, area, text);
}

}  // namespace overlace::base
