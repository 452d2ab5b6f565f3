// Text with {} placeholders. fmt stays behind format.cc so that no unit pays for its headers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace overlace::base {

using FormatArg = std::variant<int64_t, uint64_t, double, bool, char, std::string_view>;

/// fmt syntax. A bad format string is a bug: Internal.
std::string format_args(std::string_view text, const FormatArg* args, size_t count);

inline FormatArg format_arg(bool v) { return v; }
inline FormatArg format_arg(char v) { return v; }
template <class T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char>) FormatArg format_arg(T v) {
  if constexpr (std::is_signed_v<T>)
    return static_cast<int64_t>(v);
  else
    return static_cast<uint64_t>(v);
}
template <class T>
requires std::is_floating_point_v<T> FormatArg format_arg(T v) { return static_cast<double>(v); }
inline FormatArg format_arg(std::string_view v) { return v; }
inline FormatArg format_arg(const std::string& v) { return std::string_view(v); }
inline FormatArg format_arg(const char* v) { return std::string_view(v); }

/// format("M is {}, wanted a multiple of {}", m, g)
template <class... Args>
std::string format(std::string_view text, const Args&... args) {
  const FormatArg list[sizeof...(Args) + 1] = {format_arg(args)..., FormatArg{}};
  return format_args(text, list, sizeof...(Args));
}

}  // namespace overlace::base
