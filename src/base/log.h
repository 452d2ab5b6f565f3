// Messages for people: a sink callback, none by default. The library itself never prints.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "src/base/format.h"

namespace overlace::base {

enum class LogLevel { error, warn, info, debug };

/// Called from any thread, one line without newline: "W r2/4 runtime: observation; consequence".
using LogSink = std::function<void(LogLevel, std::string_view)>;
void set_log_sink(LogSink sink, LogLevel level);
/// "r2/4" in every line of this thread.
void set_log_rank(int rank, int size);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view area, std::string_view text);

template <class... Args>
void log(LogLevel level, std::string_view area, std::string_view text, const Args&... args) {
  if (log_enabled(level)) log_line(level, area, format(text, args...));
}
/// Once per distinct text of the process.
void warn_once(std::string_view area, std::string_view text);

}  // namespace overlace::base
