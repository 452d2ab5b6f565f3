// What single pieces of work take on a machine while nothing else runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "src/spec/machine.h"

namespace overlace::spec {

/// `batch` products of m x k by k x n as one kernel.
struct GemmWork {
  int64_t m = 0, n = 0, k = 0;
  int element_bytes = 2;  // of operands and result
  int64_t batch = 1;
};

struct GemmCost {
  double us = 0;        // the whole
  double waves = 0;     // of tiles, rounded up; 0 if a rate is the limit
  double start_us = 0;  // included in `us`
};

/// The tile that is fastest for the shape, on all SMs but `busy_sms`. Nothing to do: 0. Precondition: the machine has
/// GEMM tiles.
GemmCost gemm_cost(const Machine& machine, const GemmWork& work, int busy_sms = 0);

/// One of several copies of `bytes` that follow each other on a copy lane while all ranks send. 0 bytes: 0.
double copy_us(const Machine& machine, double bytes);

/// A reduction that reads and writes `bytes`, a copy inside the rank. 0 bytes: 0.
double reduce_us(const Machine& machine, double bytes);
double local_copy_us(const Machine& machine, double bytes);

/// A library collective: all_gather | reduce_scatter | all_reduce, as the curves of Machine::Collectives count bytes.
double collective_us(const Machine& machine, std::string_view name, double bytes);

/// How many times as long `slowed` takes beside `by`; 1 if the machine does not say.
double contention(const Machine& machine, Load slowed, Load by);

}  // namespace overlace::spec
