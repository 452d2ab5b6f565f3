// Which points calibration takes, on CPU ranks and on GPUs.
#pragma once

#include <vector>

#include "cli/calibrate/fit.h"

namespace overlace::cli {

struct PointOptions {
  bool is_gpu = false;
  int ranks = 2;
  DType dtype = DType::fp32;  // of GEMMs
  bool has_collectives = true;
  int sms = 1;  // of a GPU
  bool has_tma = true;
};

/// Largest argument of any point, in bytes.
size_t argument_bytes(bool is_gpu);
/// Heap that points need beside the arguments: all of them on CPU ranks, those of one group on GPUs.
size_t symmetric_bytes(const PointOptions& options, const spec::Machine& machine);

/// What is timed by itself.
std::vector<Point> basic_points(const PointOptions& options);
/// GEMMs, for several shares of the time each.
std::vector<Point> duty_points(const PointOptions& options);
/// What the thread that queues needs; GPUs only.
std::vector<Point> host_points(const PointOptions& options);
/// What is timed beside something else, as long as `basic`, which has its samples, says.
std::vector<Point> contention_points(const PointOptions& options, const std::vector<Point>& basic);
/// Whole operators, group by group: the candidates of one problem each; GPUs: as many of them as fit into the heap.
std::vector<std::vector<Point>> operator_points(const PointOptions& options, const spec::Machine& machine);

}  // namespace overlace::cli
