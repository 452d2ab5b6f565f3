// Spelling of the schedule's enumerations, in JSON and in messages.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "overlace/schedule.h"

namespace overlace::spec {

inline constexpr std::array<std::string_view, 3> kSpaceNames = {"argument", "local", "symmetric"};
inline constexpr std::array<std::string_view, 5> kEngineNames = {"sm", "ce", "nic", "io", "cpu"};
inline constexpr std::array<std::string_view, 7> kKindNames = {"gemm",       "tiles",   "copy", "reduce",
                                                               "collective", "barrier", "host"};
/// Categories of spans in traces.
inline constexpr std::array<std::string_view, 7> kCategoryNames = {"gemm",       "gemm",  "copy", "reduce",
                                                                   "collective", "other", "other"};
inline constexpr std::array<std::string_view, 2> kCombineNames = {"none", "add"};
inline constexpr std::array<std::string_view, 2> kWaitByNames = {"queue", "kernel"};
inline constexpr std::array<std::string_view, 2> kScopeNames = {"device", "system"};
inline constexpr std::array<std::string_view, 2> kActivationNames = {"none", "swiglu"};

inline std::string_view name_of(Space v) { return kSpaceNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Engine v) { return kEngineNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Kind v) { return kKindNames[static_cast<size_t>(v)]; }
inline std::string_view category_of(Kind v) { return kCategoryNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Combine v) { return kCombineNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(WaitBy v) { return kWaitByNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Scope v) { return kScopeNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Activation v) { return kActivationNames[static_cast<size_t>(v)]; }

/// "8192", "0.5", "true", "bf16".
std::string text_of(const Param& value);

}  // namespace overlace::spec
