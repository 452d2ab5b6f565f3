// Spelling of the schedule's enumerations, in JSON and in messages, and of families where a user names one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "overlace/schedule.h"

namespace overlace::spec {

inline constexpr std::array<std::string_view, 3> kSpaceNames = {"argument", "local", "symmetric"};
inline constexpr std::array<std::string_view, 5> kEngineNames = {"sm", "ce", "nic", "io", "cpu"};
inline constexpr std::array<std::string_view, 8> kKindNames = {"gemm",       "tiles",   "copy", "reduce",
                                                               "collective", "barrier", "host", "pool"};
/// Categories of spans in traces.
inline constexpr std::array<std::string_view, 8> kCategoryNames = {"gemm",       "gemm",  "copy",  "reduce",
                                                                   "collective", "other", "other", "other"};
inline constexpr std::array<std::string_view, 2> kCombineNames = {"none", "add"};
inline constexpr std::array<std::string_view, 2> kWaitByNames = {"queue", "kernel"};
inline constexpr std::array<std::string_view, 2> kScopeNames = {"device", "system"};
inline constexpr std::array<std::string_view, 2> kActivationNames = {"none", "swiglu"};
inline constexpr std::array<std::string_view, 3> kScalesNames = {"none", "tensor", "rows"};
inline constexpr std::array<std::string_view, 2> kExchangeNames = {"rows", "cols"};

inline std::string_view name_of(Space v) { return kSpaceNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Engine v) { return kEngineNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Kind v) { return kKindNames[static_cast<size_t>(v)]; }
inline std::string_view category_of(Kind v) { return kCategoryNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Combine v) { return kCombineNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(WaitBy v) { return kWaitByNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Scope v) { return kScopeNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Activation v) { return kActivationNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Scales v) { return kScalesNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Exchange v) { return kExchangeNames[static_cast<size_t>(v)]; }

/// "8192", "0.5", "true", "bf16".
std::string text_of(const Param& value);

/// How a user names a family: `--schedule` of the command line, `plan` of C and Python.
inline constexpr std::string_view kFamilyGrammar = "auto, FAMILY, FAMILY:DEGREE with a degree >= 1";
inline constexpr std::string_view kAuto = "auto";
struct NamedFamily {
  std::string family;
  int degree = 1;
};
/// "FAMILY" or "FAMILY:DEGREE"; nothing for what is neither. Whether an operator has the family says make_schedule.
std::optional<NamedFamily> parse_family(std::string_view text);

}  // namespace overlace::spec
