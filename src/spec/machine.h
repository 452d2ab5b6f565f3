// What a schedule is checked against and planned for; and the spelling of its enumerations.
#pragma once

#include <array>
#include <string_view>

#include "overlace/machine.h"

namespace overlace::spec {

inline constexpr std::array<std::string_view, 2> kSourceNames = {"prior", "measured"};
inline constexpr std::array<std::string_view, kNumLoads> kLoadNames = {"gemm_tensor", "gemm_mem", "gemv",  "gather",
                                                                       "reduce",      "ce_out",   "ce_in", "sm_copy",
                                                                       "epi_store",   "epi_red",  "spin"};

inline std::string_view name_of(Source v) { return kSourceNames[static_cast<size_t>(v)]; }
inline std::string_view name_of(Load v) { return kLoadNames[static_cast<size_t>(v)]; }

/// A machine that comes with the library: name and JSON. Generated from machine/*.json.
struct ShippedMachine {
  std::string_view name, json;
};
extern const ShippedMachine* const kShippedMachines;
extern const int kNumShippedMachines;

}  // namespace overlace::spec
