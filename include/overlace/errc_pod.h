// Error codes shared by host code, device code and the C API.
#pragma once

#include <cstdint>

namespace overlace {

/// The kind of an error. docs/reference/errors.md has the exception class, the Python class and the exit status of each
/// value.
enum class Errc : int32_t {
  ok = 0,
  invalid_argument,
  layout_mismatch,
  closed,
  forked,
  capture,
  bad_schedule,
  plan_mismatch,
  not_supported,
  co_residency,
  version_mismatch,
  timeout,
  peer_lost,
  aborted,
  bootstrap,
  desync,
  io,
  corrupt,
  stale,
  cuda,
  engine,
  heap_exhausted,
  out_of_memory,
  non_finite,
  internal,
};

}  // namespace overlace
