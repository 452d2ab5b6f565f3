// What a disk does: rates by request size and depth, past the page cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::io {

struct MeasureOptions {
  int64_t file_bytes = int64_t{1} << 30;  // of the file that is written and read; a multiple of 1 MiB
  double seconds = 1;                     // of each point at least, the first write pass excepted
  std::string engine = {};                // as EngineOptions::engine
  std::function<void(std::string_view what, double share)> progress = {};
};

struct StoragePoint {
  int64_t request_bytes = 0;
  int depth = 0;
  bool is_random = false;
  int64_t requests = 0;
  double seconds = 0;
  double GBps() const { return static_cast<double>(request_bytes) * static_cast<double>(requests) / seconds / 1e9; }
  double kIOPS() const { return static_cast<double>(requests) / seconds / 1e3; }
};

struct StorageFigures {
  std::string engine;      // that did it
  bool is_direct = false;  // else the page cache answered and the rates are not the disk's
  StoragePoint write;      // 1 MiB, in order, until all lies on the disk
  std::vector<StoragePoint> in_order, at_random;
  double start_us = 0;  // median of a page alone
};

/// Writes a file without a name into `directory`, reads it in many ways, and lets it vanish. io with the cause where
/// the directory or its disk refuses; invalid_argument for sizes that do not fit.
base::Result<StorageFigures> measure_storage(const std::string& directory, const MeasureOptions& options = {});

}  // namespace overlace::io
