// What cutting a GEMM or a transfer into parts costs, and what GEMMs and transfers cost each other.
#pragma once

#include <cstdint>
#include <string_view>

#include "overlace/machine.h"
#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/spec/costs.h"

namespace overlace::study {

/// A rank's GEMMs, and its transfers to peers, each alone, one behind the other in one lane.
struct PartTimes {
  int64_t products = 0, transfers = 0;  // kernels, copies
  double product_us = 0, transfer_us = 0;
};

/// Times of the rank whose parts take longest. Parts of a fused kernel are one GEMM, and no transfer: its stores are
/// not cut off from it. Collectives are transfers. Errors: those of expanding, and of work_of().
base::Result<PartTimes> part_times(const spec::Schedule& schedule, const spec::Machine& machine);

/// `bytes` to each of `peers` in `parts` parts by a kernel of stores on `ctas` CTAs; 0: the machine has no curve.
double store_transfer_us(const spec::Machine& machine, double bytes, int peers, int64_t parts, int ctas);

/// How many times as long a GEMM takes while a transfer runs beside it throughout, and a transfer while a GEMM
/// does. `transport`: "ce" (copies out and in), "sm" (stores of CTAs that do nothing else), "epilogue" (stores of the
/// GEMM's own tiles). Source: prior where one of its factors is; a factor that the file lacks is 1 and not there.
struct Mutual {
  double product = 1, transfer = 1;
  bool has_product = false, has_transfer = false;
  spec::Source source = spec::Source::measured;
};
Mutual mutual_slowdown(const spec::Machine& machine, std::string_view transport);

}  // namespace overlace::study
